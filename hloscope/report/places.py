"""Places in the user's code, as reports show them."""

from __future__ import annotations

import os


def nearby(place: str) -> str:
    """`models/moe.py:31` from the current folder where the file lies in it, as terminals and editors can open it."""
    here = os.getcwd() + os.sep
    return place.removeprefix(here)
