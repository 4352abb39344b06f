"""Reports: what commands found, as text, as JSON and for CI. A new format is one file and one line in `formats.py`."""
