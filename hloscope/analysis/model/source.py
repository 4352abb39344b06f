"""Places in the user's code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFrame:
    """One frame of the user's Python stack: where an operation was written."""

    file: str
    line: int
    function: str | None = None
    column: int | None = None
