"""Reports: what commands found, in one renderer class per format; `formats.FORMATS` lists them."""
