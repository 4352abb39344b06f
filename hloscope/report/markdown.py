"""Markdown for a pull request's comment or a job's summary: headline, table, details folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate, takewhile

from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.judge.changes import Judgement
from hloscope.judge.checks import Checked
from hloscope.judge.figures import MEMORY, SENT, STEP, find_figure
from hloscope.model.vocabulary import Bound, CompileStage
from hloscope.report.checks import CheckReport, format_judgement, is_other, list_asides, render_details
from hloscope.report.escaping import escape_commands, escape_line, fence_code, render_code
from hloscope.report.renderer import Lazy, Renderer

_MOST_CHARACTERS = 65_000
"""Source: GitHub refuses comments of more than 65,536 characters."""

_MOST_OF_ONE = 20_000
"""Characters of the details of one target, so that a few of many words leave room for others."""

_MOST_ROWS = 20
"""The largest number of targets that are all listed."""

_COLUMNS = ("target", "result", "slice", "step", "sent per step", "HBM")


class Markdown(Renderer):
    """Markdown, whose strings pass `render_code`, `fence_code` or `escape_prose` of `escaping`."""

    ending = ".md"
    names_options = True

    render_check = Lazy("hloscope.report.markdown:render_comment")
    render_comparison = Lazy("hloscope.report.comparing:render_markdown")
    render_difference = Lazy("hloscope.report.diffs:render_markdown")
    render_explanation = render_overview = Lazy("hloscope.report.explanation:render_markdown")
    render_suggestions = Lazy("hloscope.report.suggestions:render_markdown")


def render_comment(report: CheckReport) -> str:
    """The comment: the most important facts first, as many as fit, and a sentence on those left out."""
    good = not report.failed and not report.not_run
    many = len(report.checks) > _MOST_ROWS
    shown = [checked for checked in report.checks if not many or _is_notable(checked)]
    usual = [checked for checked in report.checks if many and not _is_notable(checked)]
    lines = [f"### hloscope: {'✅' if good else '❌'} {report.headline}"]
    room = _MOST_CHARACTERS
    left_out: list[str] = []
    head = [_join_row(_COLUMNS), _join_row(("---",) * len(_COLUMNS))]
    rows = [_join_row(_make_cells(checked)) for checked in shown]
    kept = _count_fitting(([row] for row in rows), room - _measure([*lines, *head]))
    lines += ["", *head, *rows[:kept]] if shown else []
    left_out += _describe_left_out("rows", len(rows) - kept)
    parts = [part for part in (list(_render_details(checked, report)) for checked in shown) if part]
    kept = _count_fitting(parts, room - _measure(lines))
    lines += [line for part in parts[:kept] for line in part]
    left_out += _describe_left_out("details", len(parts) - kept)
    usual_rows = (_join_row(_make_cells(one)) for one in usual)
    folded = _fold_details(f"{pluralize(len(usual), 'target')} as expected", [*head, *usual_rows])
    if usual and _measure(folded) < room - _measure(lines):
        lines += folded
    else:
        left_out += _describe_left_out("rows", len(usual), " as expected")
    if left_out:
        lines += ["", f"A comment has no more room, so {' and '.join(left_out)} are left out: see the log."]
    return escape_commands("\n".join(lines)) + "\n"


def _is_notable(checked: Checked) -> bool:
    """True if a reviewer has something to look at: an unexpected, changed or unknown result."""
    return not checked.passed or bool(checked.unknown) or is_other(checked.judged)


def _measure(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _describe_left_out(what: str, count: int, of_which: str = "") -> list[str]:
    return [f"the {what} of {pluralize(count, 'target')}{of_which}"] if count else []


def _count_fitting(parts: Iterable[Sequence[str]], room: int) -> int:
    """The number of parts, from the first, that fit."""
    lengths = accumulate(map(_measure, parts))
    return sum(1 for _ in takewhile(lambda length: length <= room, lengths))


def _fold_details(summary: str, inside: Iterable[str]) -> list[str]:
    return ["", f"<details><summary>{summary}</summary>", "", *inside, "", "</details>"]


def _join_row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _make_cells(checked: Checked) -> tuple[str, ...]:
    found, result = checked.analysis, _format_result(checked)
    if found is None:
        return (render_code(checked.name), result, "", "", "", "")
    time = None if found.stage is CompileStage.SCHEDULED else found.time
    step = "" if time is None else time.bound.marked(format_time(time.step_us))
    return (
        render_code(checked.name),
        result,
        "" if found.slice is None else found.slice.name,
        _compare_figure(checked, STEP, step, format_time),
        _compare_figure(checked, SENT, found.totals.bound.marked(format_bytes(found.totals.wire_bytes)), format_bytes),
        _compare_figure(checked, f"{MEMORY}peak", _format_peak(found.memory.peak_bytes), _format_peak),
    )


def _format_peak(count: float | None) -> str:
    return "" if count is None else format_bytes(count)


def _compare_figure(checked: Checked, name: str, now: str, words: Callable[[float | None], str]) -> str:
    """`2.1 ms → **2.6 ms**` if a figure differs from the baseline, in which a step is rounded."""
    figure = None if checked.judged is None else find_figure(checked.judged.figures, name)
    if figure is None or figure.before is None:
        return now
    if figure.after is None:
        return f"{figure.before_bound.marked(words(figure.before))} → **unknown**"
    was = figure.before_bound.marked(words(figure.before))
    is_now = figure.after_bound.marked(words(figure.after))
    if was == is_now:
        return now or was
    return f"{was} → {is_now if figure.change_bound is Bound.UNKNOWN else f'**{is_now}**'}"


def _format_result(checked: Checked) -> str:
    if checked.error is not None:
        return "⚠️ could not run"
    if not checked.passed:
        return f"❌ {format_judgement(checked.judged)} before" if is_other(checked.judged) else "❌ failed"
    better = is_other(checked.judged) and checked.judged.judgement is Judgement.BETTER
    words = (f", {escape_line(aside)}" for aside in list_asides(checked))
    return f"✅ {'better than before' if better else 'as expected'}{''.join(words)}"


def _render_details(checked: Checked, report: CheckReport) -> Iterator[str]:
    """The unexpected or changed facts of a target, folded, and cut if they are too long for a comment."""
    if checked.passed and not is_other(checked.judged):
        return
    lines = [line.plain for line in render_details(checked, report)]
    kept = _count_fitting(([line] for line in lines), _MOST_OF_ONE)
    cut = [] if kept == len(lines) else ["", f"… {pluralize(len(lines) - kept, 'more line')} in the log"]
    summary = escape(escape_line(f"{checked.name}: {_find_first(checked)}"))
    yield from _fold_details(f"<code>{summary}</code>", fence_code("\n".join([*lines[:kept], *cut]), "text"))


def _find_first(checked: Checked) -> str:
    """The most important unexpected fact: an error, else the first breach or the worst finding."""
    if checked.error is not None:
        return checked.error.removeprefix("error: ").splitlines()[0]
    if checked.breaches:
        return checked.breaches[0].message
    return max(checked.findings, key=lambda finding: finding.severity.rank).message
