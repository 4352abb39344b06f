"""Cells of a notebook by their numbers; the kernel runs each as a file with a meaningless name."""

from __future__ import annotations

import re
import sys

_FILE_OF_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\w+\.py$|^<ipython-input-(?P<number>\d+)-")


def find_cell(file: str) -> str | None:
    """The cell of a file, when it last ran: `In[44]`; None for any other file, and if unknown."""
    found = _FILE_OF_CELL.search(file)
    if found is None:
        return None
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    known = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = known.get(file, found["number"]) if isinstance(known, dict) else found["number"]
    return None if number is None else f"In[{number}]"


def format_place(place: str) -> str:
    """A place in a cell, `In[44]:3`, instead of its file and line; any other place is unchanged."""
    file, colon, line = place.rpartition(":")
    cell = find_cell(file)
    return place if cell is None else f"{cell}{colon}{line}"
