"""Markdown for a pull request's comment or a job's summary: headline, table, details folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate, takewhile

from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.judge.changes import Judgement
from hloscope.judge.checks import Checked
from hloscope.judge.figures import MEMORY, SENT, STEP, find_figure
from hloscope.model.vocabulary import Bound
from hloscope.report.checks import CheckReport, asides, details, is_other, judgement_words
from hloscope.report.escaping import code, fenced, plain_line, without_commands
from hloscope.report.renderer import Canvas, Lazy, Renderer

_MOST_CHARACTERS = 65_000
"""Source: GitHub refuses comments of more than 65,536 characters."""

_MOST_OF_ONE = 20_000
"""Characters of the details of one target, so that a few of many words leave room for others."""

_MOST_ROWS = 20
"""Targets of which all are listed, whether they are as expected or not."""

_COLUMNS = ("target", "result", "slice", "step", "sent per step", "HBM")


class Markdown(Renderer):
    """Markdown, whose strings pass `code`, `fenced` or `prose` of `escaping`."""

    ending = ".md"
    names_options = True

    def render_check(self, found: CheckReport, canvas: Canvas) -> str:
        """The comment on a check."""
        return _render_check(found)

    render_comparison = Lazy("hloscope.report.comparing:render_markdown")
    render_difference = Lazy("hloscope.report.diffs:render_markdown")
    render_explanation = render_overview = Lazy("hloscope.report.explanation:render_markdown")
    render_suggestions = Lazy("hloscope.report.suggestions:render_markdown")


def _render_check(report: CheckReport) -> str:
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
    parts = [part for part in (list(_details(checked, report)) for checked in shown) if part]
    kept = _that_fit(parts, room - _length(lines))
    lines += [line for part in parts[:kept] for line in part]
    left_out += _left_out("details", len(parts) - kept)
    folded = _folded(f"{pluralize(len(usual), 'target')} as expected", [*head, *(_row(_cells(one)) for one in usual)])
    if usual and _length(folded) < room - _length(lines):
        lines += folded
    else:
        left_out += _left_out("rows", len(usual), " as expected")
    if left_out:
        lines += ["", f"A comment has no more room, so {' and '.join(left_out)} are left out: see the log."]
    return without_commands("\n".join(lines)) + "\n"


def _is_notable(checked: Checked) -> bool:
    """True if a reviewer has something to look at: an unexpected, changed or unknown result."""
    return not checked.passed or bool(checked.unknown) or is_other(checked.judged)


def _length(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _left_out(what: str, count: int, of_which: str = "") -> list[str]:
    return [f"the {what} of {pluralize(count, 'target')}{of_which}"] if count else []


def _that_fit(parts: Iterable[Sequence[str]], room: int) -> int:
    """The number of parts, from the first, that fit."""
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
        _then_and_now(checked, STEP, _step_words(checked), format_time),
        _then_and_now(checked, SENT, found.totals.bound.marked(format_bytes(found.totals.wire_bytes)), format_bytes),
        _then_and_now(checked, f"{MEMORY}peak", _peak_words(found.memory.peak_bytes), _peak_words),
    )


def _step_words(checked: Checked) -> str:
    time = None if checked.analysis is None else checked.analysis.time
    return "" if time is None else time.bound.marked(format_time(time.step_us))


def _peak_words(count: float | None) -> str:
    return "" if count is None else format_bytes(count)


def _then_and_now(checked: Checked, name: str, now: str, words: Callable[[float | None], str]) -> str:
    """`2.1 ms → **2.6 ms**` where a figure is not what the baseline has, as that has it: a step is rounded there."""
    figure = None if checked.judged is None else find_figure(checked.judged.figures, name)
    if figure is None or figure.before is None:
        return now
    if figure.after is None:
        return f"{figure.before_bound.marked(words(figure.before))} → **unknown**"
    was = figure.before_bound.marked(words(figure.before))
    is_now = figure.after_bound.marked(words(figure.after))
    if was == is_now:
        return now
    return f"{was} → {is_now if figure.change_bound is Bound.UNKNOWN else f'**{is_now}**'}"


def _bad(checked: Checked) -> str:
    return f"❌ {judgement_words(checked.judged)} before" if is_other(checked.judged) else "❌ failed"


def _good(checked: Checked) -> str:
    better = is_other(checked.judged) and checked.judged.judgement is Judgement.BETTER
    words = (f", {plain_line(aside)}" for aside in asides(checked))
    return f"✅ {'better than before' if better else 'as expected'}{''.join(words)}"


def _details(checked: Checked, report: CheckReport) -> Iterator[str]:
    """The unexpected or changed facts of a target, folded, and cut if they are too long for a comment."""
    if checked.passed and not is_other(checked.judged):
        return
    lines = [line.plain for line in details(checked, report)]
    kept = _that_fit(([line] for line in lines), _MOST_OF_ONE)
    cut = [] if kept == len(lines) else ["", f"… {pluralize(len(lines) - kept, 'more line')} in the log"]
    summary = escape(plain_line(f"{checked.name}: {_first(checked)}"))
    yield from _folded(f"<code>{summary}</code>", fenced("\n".join([*lines[:kept], *cut]), "text"))


def _first(checked: Checked) -> str:
    """The most important unexpected fact: an error, else the first breach or the worst finding."""
    if checked.error is not None:
        return checked.error.removeprefix("error: ").splitlines()[0]
    if checked.breaches:
        return checked.breaches[0].message
    return max(checked.findings, key=lambda finding: finding.severity.rank).message
