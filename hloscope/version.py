"""The version, readable from every package."""

__version__ = "0.2.0"
