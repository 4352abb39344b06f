"""The use cases, as Python functions and as what the command line calls. Joins the stages and owns no logic."""
