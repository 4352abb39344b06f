"""Places in the user's code, as reports show them."""

from hloscope.analysis.places import short_source, users_frame

__all__ = ["short_source", "users_frame"]
