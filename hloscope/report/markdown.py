"""Markdown for a pull request's comment or a job's summary: headline, table, details folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate, takewhile

from hloscope.contracts.checked import Checked
from hloscope.contracts.figures import MEMORY, SENT, STEP, named
from hloscope.contracts.judged import Judgement
from hloscope.findings import one_for_each_cause
from hloscope.report.checks import CheckReport, asides, changed_figures, is_other, judgement_words
from hloscope.report.escaping import code, fenced, plain_line, without_commands
from hloscope.units import format_bytes, format_capacity, format_time, plural

_MOST_CHARACTERS = 65_000
"""Source: GitHub refuses comments of more than 65,536 characters."""

_MOST_ROWS = 20
"""Targets of which all are listed, whether they are as expected or not."""

_COLUMNS = ("target", "result", "slice", "step", "sent per step", "HBM")


def render(report: CheckReport) -> str:
    """The comment: what is to be looked at first, as much as there is room for, and what there was no room for."""
    good = not report.failed and not report.not_run
    many = len(report.checks) > _MOST_ROWS
    shown = [checked for checked in report.checks if not many or _is_notable(checked)]
    usual = [checked for checked in report.checks if many and not _is_notable(checked)]
    lines = [f"### hloscope: {'✅' if good else '❌'} {report.headline}"]
    room = _MOST_CHARACTERS
    left_out: list[str] = []
    head = [_row(_COLUMNS), _row(("---",) * len(_COLUMNS))]
    rows = [_row(_cells(checked)) for checked in shown]
    kept = _that_fit(([row] for row in rows), room - _length([*lines, *head]))
    lines += ["", *head, *rows[:kept]] if shown else []
    left_out += _left_out("rows", len(rows) - kept)
    details = [part for part in (list(_details(checked, report)) for checked in shown) if part]
    kept = _that_fit(details, room - _length(lines))
    lines += [line for part in details[:kept] for line in part]
    left_out += _left_out("details", len(details) - kept)
    folded = _folded(f"{plural(len(usual), 'target')} as expected", [*head, *(_row(_cells(one)) for one in usual)])
    if usual and _length(folded) < room - _length(lines):
        lines += folded
    else:
        left_out += _left_out("rows", len(usual), " as expected")
    if left_out:
        lines += ["", f"A comment has room for no more, so {' and '.join(left_out)} are left out: see the log."]
    return without_commands("\n".join(lines)) + "\n"


def _is_notable(checked: Checked) -> bool:
    """Whether a reviewer has something to look at: what is not as expected, not as before, or not known."""
    return not checked.passed or bool(checked.unknown) or is_other(checked.judged)


def _length(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _left_out(what: str, count: int, of_which: str = "") -> list[str]:
    return [f"the {what} of {plural(count, 'target')}{of_which}"] if count else []


def _that_fit(parts: Iterable[Sequence[str]], room: int) -> int:
    """How many of the parts, from the first, there is room for."""
    lengths = accumulate(map(_length, parts))
    return sum(1 for _ in takewhile(lambda length: length <= room, lengths))


def _folded(summary: str, inside: Iterable[str]) -> list[str]:
    return ["", f"<details><summary>{summary}</summary>", "", *inside, "", "</details>"]


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
    words = (f", {plain_line(aside)}" for aside in asides(checked))
    return f"✅ {'better than before' if better else 'as expected'}{''.join(words)}"


def _details(checked: Checked, report: CheckReport) -> Iterator[str]:
    body = checked.error if checked.error is not None else "" if checked.passed else _body(checked, report)
    if body:
        yield from _folded(f"<code>{escape(plain_line(checked.name))}</code>", fenced(body, "text"))


def _body(checked: Checked, report: CheckReport) -> str:
    messages = [str(breach) for breach in checked.breaches]
    if is_other(checked.judged):
        messages.append("\n".join(f"{name}: {was} -> {now}" for name, was, now in changed_figures(checked.judged)))
    for finding in one_for_each_cause(checked.beside_the_contract):
        place = "" if finding.source is None else f"\n  --> {report.relative(finding.source)}"
        fix = "" if finding.fix is None else f"\n   = fix: {finding.fix}"
        messages.append(f"{finding.severity}[{finding.rule}]: {finding.message}{place}{fix}")
    return "\n\n".join(messages)
