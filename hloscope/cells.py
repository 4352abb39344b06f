"""Cells of a notebook, as the notebook numbers them; the kernel runs each as a file with a name that says nothing."""

from __future__ import annotations

import re
import sys

_FILE_OF_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\w+\.py$|^<ipython-input-(?P<number>\d+)-")


def cell_of(file: str) -> str | None:
    """`In[44]`: the cell that a file stands for, when it ran last; None for any other file, and where nobody knows."""
    found = _FILE_OF_CELL.search(file)
    if found is None:
        return None
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    known = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = known.get(file, found["number"]) if isinstance(known, dict) else found["number"]
    return None if number is None else f"In[{number}]"


def shown_place(place: str) -> str:
    """`In[44]:3` in place of a file and a line in a cell; any other place as it is."""
    file, colon, line = place.rpartition(":")
    cell = cell_of(file)
    return place if cell is None else f"{cell}{colon}{line}"
