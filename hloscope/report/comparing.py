"""The comparison of a profile with the prediction, as text, JSON or Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Any

from rich.text import Text

from hloscope.base.environment import format_place
from hloscope.base.errors import Command, say
from hloscope.base.units import format_bytes, format_share, format_time, pluralize
from hloscope.measurement.model import (
    CompareDocument,
    MeasuredAxis,
    MeasuredOperation,
    MeasuredProgram,
    MeasuredRule,
    MeasuredTransfer,
    StepPart,
)
from hloscope.model.vocabulary import Bound
from hloscope.report.escaping import escape_commands, escape_prose, render_code
from hloscope.report.layout import INDENT, column, fold, fold_all, render_table, section
from hloscope.report.words import ELSEWHERE, make_legend, render_notes

_MOST_LISTED = 10
_LEAST_US = 0.005
_LEAST_SHARE = 1e-5
"""The least difference that gets a line, in microseconds and as a share of the step."""
_BELOW = ""
"""The header of a column that has no room of its own."""

NOT_PREDICTED = "not predicted"
NOTHING_MEASURED = "This profile is hloscope's own prediction: nothing in it was measured."
_WITH_WAITS = (
    "exposed times of transfers are those of one execution, with its operation's wait for earlier transfers, which ",
    Command("analyze"),
    " counts as theirs",
)

_Row = tuple[str, ...]
_Table = tuple[str, tuple[str, ...], list[_Row]]
"""A title, the headers, and the cells."""


def render_comparison(found: CompareDocument, width: int) -> Iterator[Text]:
    """The step of each program, then the largest disagreements of measurement and prediction."""
    inner = width - INDENT
    if found.is_prediction:
        yield from fold(Text(NOTHING_MEASURED, style="bold yellow"), width)
    yield from fold(Text(format_headline(found), style="bold"), width)
    for program in found.programs:
        yield from _render_program(found, program, width)
    if found.calibration:
        yield from section("Chip figures from the profile", _render_table(_make_calibration(found), inner), inner)
    if found.uncompared:
        others = (Text(words) for words in _list_others(found))
        yield from section("Programs that were not compared", fold_all(others, inner), inner)
    yield from render_notes(dict.fromkeys(found.notes), inner)


def _render_program(found: CompareDocument, program: MeasuredProgram, width: int) -> Iterator[Text]:
    inner = width - INDENT
    runs, devices = pluralize(program.runs, "run"), pluralize(program.devices, "device")
    title = f"{program.program}: {runs} on {devices}, {describe_pricing(found, program)}"
    yield Text()
    matched = Text(_describe_matched(program), style="dim")
    yield from fold_all((Text(title, style="bold"), Text(_describe_step(program)), matched), width)
    for table in _make_tables(program):
        drawn = _render_table(table, inner)
        known = make_legend(drawn)
        yield from section(table[0], (*drawn, *([] if known is None else [known])), inner)
    yield from render_notes(list_notes(program), inner)


def render_markdown(found: CompareDocument) -> str:
    """The comparison as Markdown."""
    parts = [f"> **{escape_prose(NOTHING_MEASURED)}**", ""] if found.is_prediction else []
    parts += [say("### ", Command("compare"), f": {escape_prose(format_headline(found))}")]
    for program in found.programs:
        sentences = map(escape_prose, (_describe_step(program), _describe_matched(program)))
        parts += ["", "\n\n".join((f"#### {render_code(program.program)}", *sentences))]
        for table in _make_tables(program):
            parts += ["", *_render_markdown_table(table)]
        parts += [f"\n> {escape_prose(note)}" for note in list_notes(program)]
    if found.calibration:
        parts += ["", *_render_markdown_table(_make_calibration(found))]
    parts += [
        "",
        *(f"* {escape_prose(words)}" for words in _list_others(found)),
        *(f"\n> {escape_prose(note)}" for note in found.notes),
    ]
    return escape_commands("\n".join(parts).rstrip()) + "\n"


def _render_markdown_table(table: _Table) -> Iterator[str]:
    title, headers, rows = table
    yield f"**{title}**"
    yield ""
    yield f"| {' | '.join(headers)} |"
    yield f"|{' --- |' * len(headers)}"
    yield from (f"| {' | '.join(map(escape_prose, row))} |" for row in rows)


def _render_table(table: _Table, width: int) -> list[Text]:
    """A table; the cells of a last column without a header are printed below their rows."""
    _, headers, rows = table
    shown = headers[:-1] if headers[-1] == _BELOW else headers
    words = {0, len(headers) - 1}
    columns = [column(rows, head, itemgetter(n), right=n not in words) for n, head in enumerate(shown)]
    under = [Text(row[-1], style="dim") for row in rows] if headers[-1] == _BELOW else ()
    return render_table(columns, width, under)


# ---- sentences


def format_headline(found: CompareDocument) -> str:
    """The two sides of the comparison, and the devices of the profile."""
    of = "the profile's own programs" if found.target is None else found.target
    where = found.device_kind or "unknown devices"
    return f"{found.profile} compared with {of}: {pluralize(found.devices, 'device')}, {where}"


def describe_pricing(found: CompareDocument, program: MeasuredProgram) -> str:
    """The slice for which a program is priced, or the reason why it is not."""
    if program.slice is None:
        return f"not priced: {'only TPUs have predicted times' if found.chip is None else 'its step has no time'}"
    return f"priced on {program.slice}{' (from the profile)' if program.slice_chosen_by == 'profile' else ''}"


def list_notes(program: MeasuredProgram) -> Sequence[str]:
    """The notes on a program, and on its exposed times if they include waits."""
    waits = any((row.predicted_exposed_us or 0) > (row.predicted_us or inf) + _LEAST_US for row in program.transfers)
    return list(dict.fromkeys((*([say(*_WITH_WAITS)] if waits else []), *program.notes)))


def _describe_step(program: MeasuredProgram) -> str:
    step = program.step
    measured = f"step {format_time(step.median_us)} measured"
    if program.runs > 1:
        measured += f" ({format_time(step.least_us)} to {format_time(step.most_us)})"
    if step.predicted_us is None:
        return f"{measured}, {NOT_PREDICTED}"
    factor = _format_factor(step.median_us, step.predicted_us)
    return f"{measured}, {format_time(step.predicted_us)} predicted, {factor}"


def _describe_matched(program: MeasuredProgram) -> str:
    share = "" if program.matched_share is None else f", {format_share(program.matched_share)} of their time"
    return f"{program.matched_operations} of {pluralize(program.measured_operations, 'operation')} matched{share}"


def _list_others(found: CompareDocument) -> Iterator[str]:
    for program in found.uncompared[:_MOST_LISTED]:
        yield (
            f"{program.program}: {pluralize(program.runs, 'run')}, {format_time(program.measured_us)} on a device; "
            f"{program.why}"
        )
    if len(found.uncompared) > _MOST_LISTED:
        yield say(f"{pluralize(len(found.uncompared) - _MOST_LISTED, 'more program')} ", ELSEWHERE)


def _format_factor(measured_us: float | None, predicted_us: float | None) -> str:
    """Predicted over measured: `×0.87`."""
    return f"×{predicted_us / measured_us:.2f}" if measured_us and predicted_us else ""


_TIMES = ("measured", "predicted", "error factor")


def _format_times(measured_us: float, predicted_us: float | None) -> _Row:
    return format_time(measured_us), _format_predicted(predicted_us), _format_factor(measured_us, predicted_us)


def _format_predicted(time_us: float | None) -> str:
    return NOT_PREDICTED if time_us is None else format_time(time_us)


def _format_rate(bytes_per_s: float | None, bound: Bound = Bound.EXACT, *, unknown: str = "unknown") -> str:
    return unknown if bytes_per_s is None else bound.marked(f"{format_bytes(bytes_per_s)}/s")


def _format_rule(rule: str | None, calibrated: bool) -> str:
    return NOT_PREDICTED if rule is None else rule if calibrated else f"{rule}, uncalibrated"


# ---- tables


def _make_tables(program: MeasuredProgram) -> Iterator[_Table]:
    yield _make_parts(program.parts)
    if program.axes:
        yield _make_axes(program.axes)
    if program.transfers:
        yield _make_transfers(program.transfers, is_predicted=program.step.predicted_us is not None)
    least_us = max(_LEAST_US, _LEAST_SHARE * program.step.median_us)
    off = [found for found in program.operations if abs(_measure_error(found)) >= least_us]
    if off:
        yield _make_operations(off)
    if program.rules:
        yield _make_rules(program.rules)


def _measure_error(operation: MeasuredOperation) -> float:
    return operation.measured_us if operation.difference_us is None else operation.difference_us


def _make_parts(parts: Sequence[StepPart]) -> _Table:
    rows: list[_Row] = [(part.part, *_format_times(part.measured_us, part.predicted_us)) for part in parts]
    return "Where the step's time goes", ("part", *_TIMES), rows


def _make_axes(axes: Sequence[MeasuredAxis]) -> _Table:
    rows: list[_Row] = [
        (
            axis.axes,
            str(axis.collectives),
            format_bytes(axis.wire_bytes),
            format_time(axis.measured_exposed_us),
            _format_predicted(axis.predicted_exposed_us),
            _format_rate(axis.measured_bytes_per_s, axis.measured_bound),
            _format_rate(axis.predicted_bytes_per_s, unknown=NOT_PREDICTED),
        )
        for axis in axes
    ]
    headers = ("axes", "collectives", "bytes", "exposed", "predicted", "achieved", "predicted rate")
    return "Collectives by mesh axis, per step", headers, rows


def _make_transfers(transfers: Sequence[MeasuredTransfer], *, is_predicted: bool) -> _Table:
    def pair(measured: str, predicted_us: float | None) -> str:
        return f"{measured} / {_format_predicted(predicted_us)}".replace("under ", "<") if is_predicted else measured

    longest = sorted(transfers, key=lambda row: row.measured_exposed_us * row.executions, reverse=True)[:_MOST_LISTED]
    rows: list[_Row] = [
        (
            row.name,
            f"{row.executions:g}",
            pair(row.measured_bound.marked(format_time(row.measured_us)), row.predicted_us),
            pair(format_time(row.measured_exposed_us), row.predicted_exposed_us),
            pair(_format_hidden(row), row.predicted_hidden_us),
            _format_rate(row.measured_bytes_per_s, -row.measured_bound),
            _format_about(row),
        )
        for row in longest
    ]
    shown = "measured / predicted" if is_predicted else "measured"
    words = f"Transfers, each execution, {shown}, most exposed first"
    title = _format_title(words, len(longest), len(transfers))
    return title, ("name", "times", "each", "exposed, with waits", "hidden", "achieved", _BELOW), rows


def _format_hidden(row: MeasuredTransfer) -> str:
    bound = row.measured_bound if row.measured_hidden_us else Bound.EXACT  # at most nothing is nothing
    return bound.marked(format_time(row.measured_hidden_us))


def _format_about(row: MeasuredTransfer) -> str:
    over = f" over {','.join(row.axes)}" if row.axes else ""
    place = row.source and format_place(row.source)
    return " · ".join(filter(None, (f"{row.kind}{over}", _format_rule(row.rule, row.calibrated), place)))


def _make_operations(operations: Sequence[MeasuredOperation]) -> _Table:
    rows: list[_Row] = [
        (
            found.name,
            f"{found.executions:g}",
            *_format_times(found.measured_us, found.predicted_us),
            _format_rule(found.rule, found.calibrated),
        )
        for found in operations[:_MOST_LISTED]
    ]
    is_predicted = any(found.predicted_us is not None for found in operations)
    words = "Largest disagreements" if is_predicted else "Longest operations"
    title = _format_title(f"{words}, per step", len(rows), len(operations))
    return title, ("operation", "times", *_TIMES, "rule"), rows


def _format_title(title: str, shown: int, of: int) -> str:
    return title if shown == of else say(f"{title}: {shown} of {of} ", ELSEWHERE)


def _make_rules(rules: Sequence[MeasuredRule]) -> _Table:
    rows = [(one.rule, str(one.operations), *_format_times(one.measured_us, one.predicted_us)) for one in rules]
    return "By cost rule, per step", ("rule", "operations", *_TIMES), rows


def _make_calibration(found: CompareDocument) -> _Table:
    def number(value: Any) -> str:
        return "" if value is None else f"{value:.4g}"

    rows: list[_Row] = [
        (figure.name, number(figure.value), number(figure.before), str(figure.rests_on), figure.why or "")
        for figure in found.calibration
    ]
    return "Chip figures from the profile", ("figure", "value", "current", "measurements", _BELOW), rows
