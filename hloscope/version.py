"""The version, readable from every package."""

__version__ = "0.1.0"
