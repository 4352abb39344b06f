"""A verification for a terminal: the verdict, the numbers, the communication side by side, the findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import isfinite

from rich.text import Text

from hloscope.base.errors import Option, say
from hloscope.base.units import format_bytes, format_capacity, format_digits, format_time, pluralize
from hloscope.model import Total
from hloscope.model.vocabulary import Bound
from hloscope.report.finding_lines import render_findings
from hloscope.report.layout import INDENT, Breaks, Column, column, fold, fold_all, render_table, section
from hloscope.report.words import make_legend, render_notes, render_versions
from hloscope.verification.model import (
    NumericsStatus,
    OutputComparison,
    ToleranceSource,
    TrafficRow,
    Verification,
    make_traffic_rows,
)

_SAME = 0.005
_STYLES = {True: "bold red", False: "green"}
_MANY_TIMES = 10
_SOURCES: dict[ToleranceSource, str] = {
    "rounding": "Allowed is relative to the typical magnitude of the elements. The reference was run again with every "
    "stored value and every partial sum perturbed by its rounding error. At least 1.5 times the resulting change is "
    "allowed.",
    "types": "Allowed is relative to the typical magnitude of the elements, from types and lengths of sums alone.",
    "user": say("Allowed is set by ", Option("rtol"), " and ", Option("atol"), "."),
}


def render_verification(found: Verification, width: int) -> Iterator[Text]:
    """The verdict first, then numbers, communication and memory, then findings."""
    inner = width - INDENT
    place = f" on {found.target.slice.name}" if found.target.slice is not None else ""
    reference = Text(f"compared with {found.reference.target}{place}")
    yield from fold_all((Text(found.target.target, style="bold"), reference, describe_verdict(found)), width)
    yield from section("Numerics", _render_numbers(found, inner), inner)
    rows = make_traffic_rows(found.communication, found.target, found.reference)
    yield from section("Bytes one device sends per step", _render_communication(found, rows, inner), inner)
    yield from section("Memory of one device", _render_memory(found, inner), inner)
    if found.findings:
        yield from section("Findings", render_findings(found.findings, inner), inner)
    yield from render_notes(dict.fromkeys((*found.numerics.notes, *found.target.notes)), inner)
    yield from render_versions(found.target.versions, width)


def describe_verdict(found: Verification) -> Text:
    """The verdict, with its exceptions."""
    if not found.passed:
        errors = sum(finding.severity == "error" for finding in found.findings)
        return Text(f"failed: {pluralize(errors, 'error')}", style="bold red")
    if not found.exceptions:
        return Text("passed", style="bold green")
    return Text(f"passed, except: {'; '.join(found.exceptions)}", style="bold yellow")


def _render_numbers(found: Verification, width: int) -> Iterator[Text]:
    numerics = found.numerics
    if numerics.status is not NumericsStatus.RAN:
        yield from fold(Text(f"not compared: {numerics.status}", style="bold red"), width)
        return
    sizes = " ".join(f"{letter}={size}" for letter, size in numerics.dims.items())
    scaled = f" at {sizes}" if sizes else ""
    yield from fold(Text(f"both were run on {numerics.ran_on}{scaled}, seed {numerics.seed}"), width)
    if numerics.inputs:
        yield from fold(Text(" · ".join(numerics.inputs), style="dim"), width)
    yield from render_table(make_number_columns(numerics.comparisons), width)
    for source in dict.fromkeys(output.tolerance.source for output in numerics.comparisons):
        yield from fold(Text(_SOURCES[source], style="dim"), width)


def make_number_columns(comparisons: Sequence[OutputComparison]) -> tuple[Column, ...]:
    """The table of compared outputs."""
    of_output = partial(column, comparisons)
    return (
        of_output("output", _format_name, style="bold", breaks=Breaks.BETWEEN_WORDS),
        of_output("compared with", lambda output: output.against, breaks=Breaks.BETWEEN_WORDS),
        of_output("elements", lambda output: f"{output.elements:,}", right=True, given_up=1),
        of_output("wrong", lambda each: Text(f"{each.wrong:,}", style=_STYLES[each.wrong > 0]), right=True),
        of_output("allowed", _format_allowed, right=True, given_up=2),
        of_output("largest error", _format_error, breaks=Breaks.BETWEEN_WORDS),
    )


def _format_name(output: OutputComparison) -> str:
    return output.name if output.subject == "target" else f"{output.name} of the {output.subject}"


def _format_allowed(output: OutputComparison) -> str:
    size = max(output.tolerance.relative, 0.0 if output.tolerance.source == "rounding" else output.tolerance.absolute)
    return format_digits(size) if size else "0"


def _format_error(output: OutputComparison) -> str:
    if not output.largest_error:
        return "none"
    if not isfinite(output.largest_error):
        return "beyond any tolerance"
    if output.largest_error >= _MANY_TIMES:
        return f"{format_digits(output.largest_error)} times the allowed error"
    return f"{format_digits(100 * output.largest_error, 3)}% of the allowed error"


def _render_communication(found: Verification, rows: Sequence[TrafficRow], width: int) -> Iterator[Text]:
    if not rows:
        yield from fold(Text("Neither program moves data between devices.", style="green"), width)
        return
    table = render_table(make_traffic_columns(rows), width)
    yield from table
    yield from fold_all((compare_traffic(found), make_legend(table)), width)


def make_traffic_columns(rows: Sequence[TrafficRow]) -> tuple[Column, ...]:
    """The table of the traffic of both programs."""
    of_row = partial(column, rows)
    return (
        of_row("collective", lambda row: row.kind, style="bold"),
        of_row("axes", lambda row: row.axes.replace(",", ", "), breaks=Breaks.BETWEEN_WORDS),
        of_row("this program", lambda row: _format_total(row.target), right=True),
        of_row("times", lambda row: _format_times_run(row.target), right=True, given_up=1),
        of_row("time", lambda row: _format_total_time(row.target_us, row.target), right=True, given_up=2),
        of_row("reference", lambda row: _format_total(row.reference), right=True),
        of_row("times", lambda row: _format_times_run(row.reference), right=True, given_up=1),
        of_row("time", lambda row: _format_total_time(row.reference_us, row.reference), right=True, given_up=2),
    )


def _format_total(total: Total) -> str:
    return total.bound.marked(format_bytes(total.wire_bytes)) if total.collectives else "-"


def _format_times_run(total: Total) -> str:
    return total.bound.marked(f"{total.executions:,}") if total.collectives else ""


def _format_total_time(microseconds: float | None, total: Total) -> str:
    if microseconds is None or not total.collectives:
        return ""
    return total.bound.marked(format_time(microseconds))


def compare_traffic(found: Verification) -> Text:
    """A sentence that compares the traffic of both programs."""
    comparison, steps = found.communication, _compare_steps(found)
    new, old = comparison.new_total, comparison.old_total
    here, there = (total.bound.marked(format_bytes(total.wire_bytes)) for total in (new, old))
    compared = f", compared with {there} in the reference{_format_ratio(found.bytes_ratio, new.bound + -old.bound)}"
    if comparison.same:
        if not comparison.changes:
            return Text(f"Both move the same bytes{steps}.", style="green")
        # The same data in spellings that the compiler may exchange, which can differ in bytes.
        amounts = "" if here == there else f": {here}{compared}"
        return Text(f"Both move the same data, some of it with different collectives{amounts}{steps}.", style="green")
    return Text(f"In total {here}{compared}{steps}.")


def _compare_steps(found: Verification) -> str:
    """`; a step takes 312 us, compared with 253 us in the reference (1.23 times as much)`; empty if one is unpriced."""
    new, old = found.target.time, found.reference.time
    if new is None or old is None:
        return ""
    shown = [time.bound.marked(format_time(time.step_us)) for time in (new, old)]
    times = _format_ratio(found.time_ratio, new.bound + -old.bound)
    return f"; a step takes {shown[0]}, compared with {shown[1]} in the reference{times}"


def _format_ratio(ratio: float | None, bound: Bound) -> str:
    """` (1.23 times as much)`; empty if both are nearly equal."""
    return "" if ratio is None or abs(ratio - 1) < _SAME else f" ({bound.marked(f'{ratio:.3g}')} times as much)"


def _render_memory(found: Verification, width: int) -> Iterator[Text]:
    for name, analysis in (("this program", found.target), ("reference", found.reference)):
        hbm = analysis.memory.hbm_bytes
        of = f" of {format_capacity(hbm)} HBM" if hbm else ""
        yield from fold(Text.assemble((f"{name}: ", "dim"), f"{format_bytes(analysis.memory.peak_bytes)}{of}"), width)
