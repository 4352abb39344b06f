"""Findings as compilers print them: severity and rule, the place, and what, why, cost and fix on lines of their own."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from rich.text import Text

from hloscope.findings import Finding, Severity
from hloscope.report.layout import hanging
from hloscope.report.words import one_line
from hloscope.units import plural

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def finding_lines(findings: Iterable[Finding], width: int, known: Container[str] = ()) -> Iterator[Text]:
    """Each finding with its place; of those that the user accepted, one line with the reason.

    What reads the same at several places, as in the layers of an unrolled loop, is printed once, with their number.

    Args:
        findings: In the order in which they are shown.
        width: Columns.
        known: Reasons that the report has given already.
    """
    for finding, places in _alike(findings, known).items():
        if finding.allowed is not None:
            words = f"allowed[{finding.rule}]: {one_line(finding.message)} ({one_line(finding.allowed)})"
            yield from hanging(Text(words, style="dim"), width)
            continue
        label = f"{finding.severity}[{finding.rule}]"
        yield from hanging(Text.assemble((label, _STYLE[finding.severity]), f": {one_line(finding.message)}"), width)
        yield from _details(finding, places, width)


def _alike(findings: Iterable[Finding], known: Container[str]) -> dict[Finding, list[Finding]]:
    """The findings by what is printed of them besides the instruction, in the order of the first of each."""
    places: dict[Finding, list[Finding]] = {}
    for finding in findings:
        read = replace(
            finding, computation=None, instruction=None, line=None, why=None if finding.why in known else finding.why
        )
        places.setdefault(read, []).append(finding)
    return places


def _details(finding: Finding, places: list[Finding], width: int) -> Iterator[Text]:
    place = ", ".join(_places(places[0]))
    if place and len(places) > 1:
        place += f", and {plural(len(places) - 1, 'more such place')}"
    if place:
        yield from hanging(Text.assemble(("  --> ", "blue"), place), width, indent=6)
    for label, words in finding.details:
        text = Text.assemble(("   = ", "blue"), (f"{label}: ", "bold"), one_line(words))
        yield from hanging(text, width, indent=7 + len(label))


def _places(finding: Finding) -> Iterator[str]:
    if finding.source is not None:
        yield _nearby(finding.source)
    if finding.instruction is not None:
        inside = f" in %{finding.computation}" if finding.computation else ""
        yield f"%{finding.instruction}{inside}"
    if finding.line is not None:
        yield f"HLO line {finding.line}"


def _nearby(place: str) -> str:
    """`models/moe.py:31` from the current folder where the file lies in it, as terminals and editors can open it."""
    here = os.getcwd() + os.sep
    return place.removeprefix(here)
