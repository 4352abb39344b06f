"""Findings as compilers print them: severity and rule, the place, and what, why, cost and fix on lines of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from hloscope.base.environment import format_place
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.model import Collective, Collectives
from hloscope.model.finding import Finding, Severity, by_cause
from hloscope.report.collectives import Group, find_module, group_collectives
from hloscope.report.layout import hang
from hloscope.report.words import join_lines

_PARTS_SHOWN = 2
_LINES_SHOWN = 3
_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def render_findings(
    findings: Iterable[Finding],
    width: int,
    collectives: Sequence[Collective] = (),
    *,
    gave_reasons: bool = False,
    each: bool = False,
) -> Iterator[Text]:
    """Each finding with its place; of those that the user accepted, one line with the reason.

    Findings with the same cause, as in the layers of an unrolled loop, are printed as one with several places.

    Args:
        findings: In the order in which they are shown.
        width: Columns.
        collectives: The program's collectives, which give the total cost of several places.
        gave_reasons: Whether the report has given the reasons of the collectives already.
        each: Whether each finding is printed separately.
    """
    known = {collective.why for collective in collectives} if gave_reasons else ()
    found = tuple(replace(finding, why=None if finding.why in known else finding.why) for finding in findings)
    at = {(collective.computation, collective.name): collective for collective in collectives}
    for places in ((finding,) for finding in found) if each else by_cause(found):
        finding = places[0]
        if finding.allowed is not None:
            words = f"allowed[{finding.rule}]: {join_lines(finding.message)} ({join_lines(finding.allowed)})"
            more = f", and {pluralize(len(places) - 1, 'more place')} like it" if len(places) > 1 else ""
            yield from hang(Text(words + more, style="dim"), width)
            continue
        label = f"{finding.severity}[{finding.rule}]"
        yield from hang(Text.assemble((label, _STYLE[finding.severity]), f": {join_lines(finding.message)}"), width)
        about = (at.get((place.computation or "", place.instruction or "")) for place in places)
        yield from _render_details(places, [collective for collective in about if collective is not None], width)


def _render_details(places: Sequence[Finding], about: Sequence[Collective], width: int) -> Iterator[Text]:
    """The first place and the number of others, their parts of the model, and the details."""
    finding, many = places[0], len(places) > 1
    place = ", ".join(_list_places(finding, with_line=not many or not about))
    if place and many:
        place += f", and {pluralize(len(places) - 1, 'more place')} like it"
    if place:
        yield from hang(Text.assemble(("  --> ", "blue"), place), width, indent=6)
    together = _sum_cost(about) if many and len(about) == len(places) else None
    details = [(label, together if label == "cost" and together else words) for label, words in finding.details]
    parts = _format_parts(about) if many else ""
    told = [("in", parts), ("also at", _format_other_lines(places))]
    for label, words in [(label, words) for label, words in told if words] + details:
        # lines of code stay as they are
        first, *code = words.split("\n") if words.startswith("write ") else [join_lines(words)]
        yield from hang(
            Text.assemble(("   = ", "blue"), (f"{label}: ", "bold"), join_lines(first)), width, indent=7 + len(label)
        )
        yield from (Text(" " * 5 + line) for line in code)


def _format_other_lines(places: Sequence[Finding]) -> str:
    """`moe.py:15, moe.py:31`: the lines that are not the first one's."""
    sources = dict.fromkeys(place.source for place in places)
    lines = [source for source in sources if source is not None and source != places[0].source]
    more = f" and {pluralize(len(lines) - _LINES_SHOWN, 'more line')}" if len(lines) > _LINES_SHOWN else ""
    return ", ".join(map(_shorten_place, lines[:_LINES_SHOWN])) + more


def _format_parts(about: Sequence[Collective]) -> str:
    """`layers[0-35].mlp.gate, head`: the parts of the model, the most expensive first; empty if unknown."""
    named = [collective for collective in about if collective.part is not None and collective.part.module is not None]
    groups = group_collectives(named, find_module)
    more = f" and {pluralize(len(groups) - _PARTS_SHOWN, 'more part')}" if len(groups) > _PARTS_SHOWN else ""
    return ", ".join(group.name for group in groups[:_PARTS_SHOWN]) + more


def _sum_cost(about: Sequence[Collective]) -> str | None:
    """`13.6 GB sent per device per step, 68.1 ms exposed, in total over 142 places`; None if unknown."""
    every = Group(members=Collectives(about))
    if every.wire_bytes is None:
        return None
    waits = "" if every.exposed_us is None else f", {format_time(every.exposed_us)} exposed"
    return f"{format_bytes(every.wire_bytes)} sent per device per step{waits}, in total over {len(about):,} places"


def _list_places(finding: Finding, *, with_line: bool) -> Iterator[str]:
    if finding.source is not None:
        yield _shorten_place(finding.source)
    if finding.instruction is not None:
        inside = f" in %{finding.computation}" if finding.computation and with_line else ""
        yield f"%{finding.instruction}{inside}"
    if finding.line is not None and with_line:
        yield f"HLO line {finding.line}"


def _shorten_place(place: str) -> str:
    """`models/moe.py:31`, relative to the current folder if the file is in it, so that terminals can open it."""
    here = os.getcwd() + os.sep
    return format_place(place).removeprefix(here)
