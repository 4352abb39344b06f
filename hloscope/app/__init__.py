"""The public functions and the functions behind the commands. Connects the stages and has no logic of its own."""
