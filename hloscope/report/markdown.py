"""Markdown for a pull request's comment or a job's summary: headline, table, details folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape

from hloscope.contracts.checked import Checked
from hloscope.contracts.figures import MEMORY, SENT, STEP, named
from hloscope.contracts.judged import Judgement
from hloscope.findings import one_for_each_cause
from hloscope.report.checks import CheckReport, changed_figures, is_other, judgement_words, unknown_words
from hloscope.report.escaping import code, fenced, plain_line, without_commands
from hloscope.units import format_bytes, format_capacity, format_time, plural

_MOST_CHARACTERS = 65_000
"""Source: GitHub refuses comments of more than 65,536 characters."""

_COLUMNS = ("target", "result", "slice", "step", "sent per step", "HBM")


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
    result = "⚠️ could not run" if checked.error is not None else _good(checked) if checked.passed else _bad(checked)
    found = checked.analysis
    if found is None:
        return (code(checked.name), result, "", "", "", "")
    return (
        code(checked.name),
        result,
        "" if found.slice is None else found.slice.name,
        _then_and_now(checked, STEP, "" if found.time is None else format_time(found.time.step_us), format_time),
        _then_and_now(checked, SENT, found.totals.bound.marked(format_bytes(found.totals.wire_bytes)), format_bytes),
        _then_and_now(checked, f"{MEMORY}peak", _capacity(found.memory.peak_bytes), _capacity),
    )


def _capacity(count: float | None) -> str:
    return "" if count is None else format_capacity(int(count))


def _then_and_now(checked: Checked, name: str, now: str, words: Callable[[float | None], str]) -> str:
    """`2.1 ms → **2.6 ms**` where a figure is not what the baseline has."""
    figure = None if checked.judged is None else named(checked.judged.figures, name)
    if figure is None or figure.before is None or words(figure.before) == now:
        return now
    return f"{words(figure.before)} → **{now}**"


def _bad(checked: Checked) -> str:
    return f"❌ {judgement_words(checked.judged)} before" if is_other(checked.judged) else "❌ failed"


def _good(checked: Checked) -> str:
    better = is_other(checked.judged) and checked.judged.judgement is Judgement.BETTER
    unknown = f", {plain_line(unknown_words(checked))}" if checked.unknown else ""
    return f"✅ {'better than before' if better else 'as expected'}{unknown}"


def _details(checked: Checked, report: CheckReport) -> Iterator[str]:
    body = checked.error if checked.error is not None else "" if checked.passed else _body(checked, report)
    if body:
        name = escape(plain_line(checked.name))
        yield from ("", f"<details><summary><code>{name}</code></summary>", "", *fenced(body, "text"))
        yield from ("", "</details>")


def _body(checked: Checked, report: CheckReport) -> str:
    messages = [str(breach) for breach in checked.breaches]
    if is_other(checked.judged):
        messages.append("\n".join(f"{name}: {was} -> {now}" for name, was, now in changed_figures(checked.judged)))
    for finding in one_for_each_cause(checked.beside_the_contract):
        place = "" if finding.source is None else f"\n  --> {report.relative(finding.source)}"
        fix = "" if finding.fix is None else f"\n   = fix: {finding.fix}"
        messages.append(f"{finding.severity}[{finding.rule}]: {finding.message}{place}{fix}")
    return "\n\n".join(messages)
