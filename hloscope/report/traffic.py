"""How much moves: bytes by mesh axis and by link."""

from __future__ import annotations

from rich.text import Text

from hloscope.analysis.model import Analysis, Total
from hloscope.analysis.totals import UNKNOWN_AXES, axes_key
from hloscope.analysis.vocabulary import Link
from hloscope.report.folding import Breaks, fold
from hloscope.report.grid import Column, table_lines
from hloscope.report.words import GUESSED, LINKS, leaves_ici, marked, part_of_axis
from hloscope.units import format_bytes, format_count, plural


def axis_lines(analysis: Analysis, width: int) -> list[Text]:
    """Wire bytes per step by mesh axis, the busiest first; by link too where not all of it is ICI."""
    parts = sorted(analysis.totals.by_axis.items(), key=lambda item: -item[1].wire_bytes)
    totals = [total for _, total in parts]
    names = [_axis_words(axis, analysis) for axis, _ in parts]
    columns = (
        Column(header="axis", cells=[Text(name, style="bold cyan") for name in names], breaks=Breaks.AFTER_PUNCTUATION),
        Column(header="wire bytes", cells=[Text(_wire_bytes(total)) for total in totals], right=True),
        Column(header="share", cells=[Text(_share(total, analysis)) for total in totals], right=True, given_up=3),
        Column(
            header="collectives",
            cells=[Text(format_count(total.collectives)) for total in totals],
            right=True,
            given_up=1,
            below=[plural(total.collectives, "collective") for total in totals],
        ),
        Column(
            header="transfers",
            cells=[Text(marked(format_count(total.executions), total.bound)) for total in totals],
            right=True,
            given_up=2,
            below=[marked(plural(total.executions, "transfer"), total.bound) for total in totals],
        ),
    )
    lines = table_lines(columns, width)
    for remark in (_by_link(analysis), part_of_axis(names)):
        lines.extend(fold(remark, width) if remark is not None else ())
    return lines


def _axis_words(axis: str, analysis: Analysis) -> str:
    if axis != UNKNOWN_AXES:
        guessed = any(one.axes_guessed and axes_key(one) == axis for one in analysis.collectives)
        return (axis or "none") + (GUESSED if guessed else "")
    grouped = analysis.mesh is not None and any(one.axes is None and one.groups for one in analysis.collectives)
    return "not an axis" if grouped else "unknown"


def _wire_bytes(total: Total) -> str:
    return marked(format_bytes(total.wire_bytes), total.bound)


def _share(total: Total, analysis: Analysis) -> str:
    whole = analysis.totals.wire_bytes
    if not whole:
        return ""
    percent = 100 * total.wire_bytes / whole
    return "<1%" if 0 < percent < 0.5 else f"{percent:.0f}%"


def _by_link(analysis: Analysis) -> Text | None:
    parts = analysis.totals.by_link
    if not leaves_ici(analysis.collectives) or not parts:
        return None
    words = []
    for link, total in parts.items():
        share = _share(total, analysis)
        amount = f" {_wire_bytes(total)}{f' ({share})' if share else ''}"
        words.append(Text.assemble((LINKS[Link(link)], "cyan"), amount))
    return Text("by link: ") + Text(", ").join(words)
