"""A program against its reference: the numbers (run in a child process), the structure, the communication.

The room is not named after the command because `hloscope.verify` is the public function.
"""
