"""Reports: an analysis as text or JSON. A new format is one file and one line in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hloscope.analysis.model import Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """What a report is drawn on.

    Attributes:
        width: Columns.
        colour: Whether ANSI colours are understood.
    """

    width: int = 100
    colour: bool = False


def _text(analysis: Analysis, canvas: Canvas) -> str:
    from hloscope.report import text

    return text.render(analysis, canvas.width, canvas.colour)


def _json(analysis: Analysis, canvas: Canvas) -> str:
    from hloscope.report import json

    return json.render(analysis)


FORMATS: dict[str, Callable[[Analysis, Canvas], str]] = {
    "text": _text,
    "json": _json,
}
