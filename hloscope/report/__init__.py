"""Reports: an analysis as text or JSON, its findings for CI. A new format is one file and one line in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hloscope.analysis.model import Analysis
from hloscope.units import plural


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


def _github(analysis: Analysis, canvas: Canvas) -> str:
    from hloscope.report import checks, github

    lines = github.commands(checks.report_of(analysis, Path.cwd()))
    return "\n".join([*lines, f"hloscope analyze: {plural(len(lines), 'finding')}"]) + "\n"


def _sarif(analysis: Analysis, canvas: Canvas) -> str:
    from hloscope.report import checks, sarif

    return sarif.render(checks.report_of(analysis, Path.cwd()))


FORMATS: dict[str, Callable[[Analysis, Canvas], str]] = {
    "text": _text,
    "json": _json,
    "github": _github,
    "sarif": _sarif,
}
