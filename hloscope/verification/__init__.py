"""Verification of a program against its reference: numbers (run in a child process), structure and communication.

The package is not named after the command because `hloscope.verify` is the public function.
"""
