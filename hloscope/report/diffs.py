"""Two programs side by side, as text, JSON or Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.text import Text

from hloscope.analysis.model import Collective, Total
from hloscope.analysis.places import users_line
from hloscope.compare import Change, Comparison
from hloscope.compare.model import change_line
from hloscope.report.escaping import code, dumped, fenced, plain_line, prose, without_commands
from hloscope.report.formats import Canvas
from hloscope.report.layout import Column, drawn, table_lines
from hloscope.report.words import GUESSED, marked
from hloscope.units import format_bytes, format_time, plural

SCHEMA_VERSION = 1
"""Changes when a field is renamed, removed or given another meaning; not when one is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """What is shown of a difference.

    Attributes:
        old_name: The program before.
        new_name: The program after.
        comparison: What both move, matched.
        peak_bytes: The peak memory before and after; None where it is not known.
        step_us: The predicted time of a step before and after; None where it is not known.
        not_understood: The names of those programs in which something was not understood.
        unlike: In what the two are not of one kind: their slices, their meshes.
    """

    old_name: str
    new_name: str
    comparison: Comparison
    peak_bytes: tuple[int | None, int | None]
    step_us: tuple[float | None, float | None]
    not_understood: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """`3 changes` or `the same communication`, with what is not known."""
        changes = len(self.comparison.changes)
        words = plural(changes, "change") if changes else "the same communication"
        if self.comparison.unsure or self.not_understood:
            words += ", as far as it is known"
        return words


def _rows(report: DiffReport) -> Iterator[tuple[str, str, str]]:
    """What is measured, before and after."""
    comparison = report.comparison
    yield "sent per step", _bytes(comparison.old_total), _bytes(comparison.new_total)
    for tally in comparison.tallies:
        guessed = GUESSED if tally.axes_guessed else ""
        yield f"{tally.kind} {tally.axes or 'none'}{guessed}", _bytes(tally.old), _bytes(tally.new)
    if any(count is not None for count in report.peak_bytes):
        before, after = map(format_bytes, report.peak_bytes)
        yield "peak memory", before, after
    if any(time is not None for time in report.step_us):
        before, after = map(format_time, report.step_us)
        yield "predicted step", before, after


def _bytes(total: Total) -> str:
    return marked(format_bytes(total.wire_bytes), total.bound)


def _doubts(report: DiffReport) -> Iterator[str]:
    yield from report.unlike
    for name in report.not_understood:
        yield f"not everything in {name} was understood: hloscope analyze tells what"
    unsure = len(report.comparison.unsure)
    if unsure:
        yield f"bytes or executions of {plural(unsure, 'collective')} are not known exactly"


def render(report: DiffReport, canvas: Canvas) -> str:
    """The changes, a line each, and what is measured of both."""
    lines = [f"{report.old_name} -> {report.new_name}: {report.headline}"]
    lines += [change_line(change) for change in report.comparison.changes]
    rows = list(_rows(report))
    columns = (
        Column(header="per device", cells=[Text(row[0]) for row in rows]),
        Column(header="before", cells=[Text(row[1]) for row in rows], right=True),
        Column(header="after", cells=[Text(row[2]) for row in rows], right=True),
    )
    lines += ["", *(line.plain.rstrip() for line in table_lines(columns, canvas.width))]
    notes = (f"note: {doubt}" for doubt in _doubts(report))
    return drawn(map(Text, (*lines, *notes)), canvas.width, colour=False)


def render_markdown(report: DiffReport, _: Canvas) -> str:
    """A comment for a pull request."""
    lines = [f"### hloscope diff: {report.headline}", "", f"{code(report.old_name)} → {code(report.new_name)}", ""]
    lines += ["| per device | before | after |", "| --- | ---: | ---: |"]
    lines += [f"| {' | '.join(map(prose, row))} |" for row in _rows(report)]
    if report.comparison.changes:
        changes = (_diff_line(plain_line(change_line(change))) for change in report.comparison.changes)
        block = fenced("\n".join(changes), "diff")
        lines += ["", "<details><summary>changes</summary>", "", *block, "", "</details>"]
    return without_commands("\n".join([*lines, *(f"\n> {prose(doubt)}" for doubt in _doubts(report))])) + "\n"


def _diff_line(line: str) -> str:
    """The line as ```diff colours it: what is neither + nor - begins with !."""
    return f"!{line.removeprefix('~')}" if line.startswith("~") else line


def render_json(report: DiffReport, _: Canvas) -> str:
    """The difference as one document."""
    comparison = report.comparison
    document = {
        "schema": SCHEMA_VERSION,
        "old": report.old_name,
        "new": report.new_name,
        "same": comparison.same and not report.not_understood,
        "changes": [_change(change) for change in comparison.changes],
        "unsure": len(comparison.unsure),
        "not_understood": list(report.not_understood),
        "unlike": list(report.unlike),
        "totals": {"old": asdict(comparison.old_total), "new": asdict(comparison.new_total)},
        "tallies": [asdict(tally) for tally in comparison.tallies],
        "peak_bytes": list(report.peak_bytes),
        "step_us": list(report.step_us),
    }
    return dumped(document) + "\n"


def _change(change: Change) -> dict[str, object]:
    return {
        "kind": change.kind,
        "increase": change.is_increase,
        "wire_bytes_per_step": change.wire_bytes_per_step,
        "text": change_line(change),
        "old": [_collective(one) for one in change.old],
        "new": [_collective(one) for one in change.new],
    }


def _collective(one: Collective) -> dict[str, object]:
    return {
        "kind": one.kind,
        "axes": None if one.axes is None else list(one.axes),
        "payload_bytes": one.payload_bytes,
        "wire_bytes": one.wire_bytes,
        "executions": one.executions,
        "executions_bound": one.executions_bound,
        "source": users_line(one.source),
    }
