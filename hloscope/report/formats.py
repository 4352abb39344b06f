"""The one registry of formats: for each thing that can be reported, the names of its formats and who writes them.

A format is a function of the thing and a `Canvas`, named as `module:function` in this room, and is loaded when it is
asked for. One line in `_OF_FINDINGS` is a new format for `hloscope analyze` and `hloscope check` alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """What a report is drawn on.

    Attributes:
        width: Columns.
        colour: Whether ANSI colours are understood.
    """

    width: int = 100
    colour: bool = False


_OF_FINDINGS = {
    "github": "github:render",
    "sarif": "sarif:render",
}
"""Formats of findings, whether of one program or of a check; each is given a `CheckReport`, without accepted findings.

`checks.once_each` has them with their targets; strings of compiled text go through a door of `escaping` of the format's
own, and places through `CheckReport.in_repository`.
"""

FORMATS: Mapping[str, Mapping[str, str]] = {
    "analysis": {"text": "analysis:render", "json": "analysis:render_json", **_OF_FINDINGS},
    "check": {
        "text": "checks:render",
        "json": "checks:render_json",
        **_OF_FINDINGS,
        "markdown": "markdown:render",
        "junit": "junit:render",
    },
    "checkups": {"text": "checkups:render", "json": "checkups:render_json"},
    "difference": {"text": "diffs:render", "json": "diffs:render_json", "markdown": "diffs:render_markdown"},
    "explanation": {
        "text": "explanation:render",
        "json": "explanation:render_json",
        "markdown": "explanation:render_markdown",
    },
    "overview": {
        "text": "explanation:render_overview",
        "json": "explanation:render_json",
        "markdown": "explanation:render_markdown",
    },
    "prices": {"text": "price:render", "json": "price:render_json"},
    "shardings": {"text": "shardings:render", "json": "shardings:render_json"},
    "verification": {"text": "verification:render", "json": "verification:render_json"},
}


def render(subject: str, format_name: str, found: object, canvas: Canvas) -> str:
    """What was found, in one of the formats of its subject.

    Args:
        subject: A key of `FORMATS`.
        format_name: The name of one of its formats.
        found: The thing itself, such as an `Analysis`.
        canvas: What it is drawn on.
    """
    if subject == "analysis" and format_name in _OF_FINDINGS:
        found = _function("checks:report_of")(found)
    text: str = _function(FORMATS[subject][format_name])(found, canvas)
    return text


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    named: Callable[..., Any] = getattr(import_module(f"hloscope.report.{module}"), function)
    return named
