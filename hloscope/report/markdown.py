"""Markdown for a pull request's comment or a job's summary: headline, table, details folded."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from hloscope.contracts.checked import Checked
from hloscope.findings import one_for_each_cause
from hloscope.report.checks import CheckReport, unknown_words
from hloscope.report.escaping import code, fenced, plain_line, without_commands
from hloscope.units import format_bytes, format_capacity, format_time, plural

_MOST_CHARACTERS = 65_000
"""Source: GitHub refuses comments of more than 65,536 characters."""

_COLUMNS = ("target", "result", "slice", "sent per step", "step", "HBM")


def render(report: CheckReport) -> str:
    """The comment."""
    good = not report.failed and not report.not_run
    lines = [f"### hloscope: {'✅' if good else '❌'} {report.headline}", ""]
    lines += [_row(_COLUMNS), _row(("---",) * len(_COLUMNS)), *(_row(_cells(checked)) for checked in report.checks)]
    found = [list(_details(checked, report)) for checked in report.checks]
    details = [part for part in found if part]
    room = _MOST_CHARACTERS - sum(len(line) + 1 for line in lines)
    for number, part in enumerate(details):
        room -= sum(len(line) + 1 for line in part)
        if room < 0:
            left_out = plural(len(details) - number, "target")
            lines += ["", f"The details of {left_out} are left out, since a comment has room for no more: see the log."]
            break
        lines += part
    return without_commands("\n".join(lines)) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cells(checked: Checked) -> tuple[str, ...]:
    result = "⚠️ could not run" if checked.error is not None else _good(checked) if checked.passed else "❌ failed"
    found = checked.analysis
    if found is None:
        return (code(checked.name), result, "", "", "", "")
    return (
        code(checked.name),
        result,
        "" if found.slice is None else found.slice.name,
        found.totals.bound.marked(format_bytes(found.totals.wire_bytes)),
        "" if found.time is None else format_time(found.time.step_us),
        "" if found.memory.peak_bytes is None else format_capacity(found.memory.peak_bytes),
    )


def _good(checked: Checked) -> str:
    return "✅ as expected" + (f", {plain_line(unknown_words(checked))}" if checked.unknown else "")


def _details(checked: Checked, report: CheckReport) -> Iterator[str]:
    body = checked.error if checked.error is not None else "" if checked.passed else _body(checked, report)
    if body:
        name = escape(plain_line(checked.name))
        yield from ("", f"<details><summary><code>{name}</code></summary>", "", *fenced(body, "text"))
        yield from ("", "</details>")


def _body(checked: Checked, report: CheckReport) -> str:
    messages = [str(breach) for breach in checked.breaches]
    for finding in one_for_each_cause(checked.beside_the_contract):
        place = "" if finding.source is None else f"\n  --> {report.relative(finding.source)}"
        fix = "" if finding.fix is None else f"\n   = fix: {finding.fix}"
        messages.append(f"{finding.severity}[{finding.rule}]: {finding.message}{place}{fix}")
    return "\n\n".join(messages)
