"""Predicted times of one step, and of one program on several slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rich.text import Text

from hloscope.base.documents import SCHEMA, Schema, make_document
from hloscope.base.errors import HloscopeError, say
from hloscope.base.results import Brief, Shown, shorten_to_line
from hloscope.base.units import format_bytes, format_share, format_time, format_time_range, pluralize
from hloscope.model import Analysis, Collective, Memory, SliceFact, StepTime
from hloscope.model.trial import is_tie
from hloscope.model.vocabulary import Bound
from hloscope.report.layout import INDENT, Column, column, fold, fold_all, fold_message, hang, render_table, section
from hloscope.report.words import make_cost_option, make_legend, render_notes, shorten_note

if TYPE_CHECKING:
    from hloscope.plain_types import PriceDict


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Unpriced(Brief):
    """A slice that the program could not be compiled for.

    Attributes:
        target: The program.
        slice_name: Name of the slice.
        error: Why it could not be compiled.
    """

    target: str
    slice_name: str
    error: HloscopeError


Priced = Sequence[Analysis | Unpriced]


class Prices(tuple[Analysis | Unpriced, ...], Shown):
    """The prices of a program on several slices: for each an analysis, or why it could not be compiled."""

    _subject = "prices"

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            shorten_to_line(f"<Prices of {self[0].target} on {pluralize(len(self), 'slice')}>")
            if self
            else "<no prices>"
        )

    if TYPE_CHECKING:

        def to_dict(self) -> PriceDict:
            """The result as plain data."""


_Time = TypeVar("_Time")
_Show = Callable[[_Time], Text | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSlice:
    """The price of the program on one slice.

    Attributes:
        slice: The slice.
        time: Breakdown of the predicted step time; None if not priced.
        memory: Memory use in bytes, per device, and whether the program fits.
        collectives: Sorted by wire bytes per step, largest first; those with unknown bytes precede all others.
        notes: Choices made on the user's behalf and compiler diagnostics, one sentence each.
    """

    slice: SliceFact | None
    time: StepTime | None
    memory: Memory
    collectives: tuple[Collective, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpricedSlice:
    """A slice that the program could not be compiled for.

    Attributes:
        slice: Name of the slice.
        error: Why it could not be compiled.
    """

    slice: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceDocument:
    """The prices of one program on several slices, as a document.

    Attributes:
        schema: Schema version of the document.
        target: The program.
        prices: One price per slice, in the requested order.
        unpriced: Slices that it could not be compiled for.
    """

    schema: Schema = SCHEMA
    target: str
    prices: tuple[PricedSlice, ...]
    unpriced: tuple[UnpricedSlice, ...]


def make_price_document(priced: Priced) -> PriceDocument:
    """The analyses as one document."""
    refused = [found for found in priced if isinstance(found, Unpriced)]
    return PriceDocument(
        target=priced[0].target,
        prices=tuple(make_document(PricedSlice, found) for found in _list_analyses(priced)),
        unpriced=tuple(UnpricedSlice(slice=found.slice_name, error=str(found.error)) for found in refused),
    )


def render_prices(priced: Priced, width: int) -> Iterator[Text]:
    """A row for each slice, then errors and notes."""
    inner = width - INDENT
    yield from fold(Text(priced[0].target, style="bold"), width)
    table = render_table(make_price_columns(priced), inner)
    yield from section("Predicted time of one step on one device", table, inner)
    marks = Text("█ computing · ▓ computing with overlapped communication · ░ exposed communication", style="dim")
    yield from (Text(" " * INDENT) + line for line in fold_all((marks, make_legend(table)), inner))
    errors = [line for found in priced if isinstance(found, Unpriced) for line in _render_error(found, inner)]
    if errors:
        yield from section("Slices that the program could not be compiled for", errors, inner)
    notes = dict.fromkeys(note for found in _list_analyses(priced) for note in (*found.notes, *list_notes(found)))
    yield from render_notes(notes, inner)


def _list_analyses(priced: Priced) -> list[Analysis]:
    return [found for found in priced if isinstance(found, Analysis)]


def format_slice(found: Analysis | Unpriced, otherwise: str = "no slice") -> str:
    """`v5e:2x4`."""
    if isinstance(found, Unpriced):
        return found.slice_name
    return otherwise if found.slice is None else found.slice.name


def _render_error(found: Unpriced, width: int) -> Iterator[Text]:
    yield from hang(Text(found.slice_name), width)
    for line in str(found.error).splitlines():
        yield from (Text("  ") + part for part in fold_message(line, width - 2))


def make_price_columns(priced: Priced) -> list[Column]:
    """The table of slices with their prices."""
    times = [found.time if isinstance(found, Analysis) else None for found in priced]
    first = next((time for time in times if time is not None and time.step_us > 0), None)
    chips = {id(found.time): found.slice and found.slice.chip for found in _list_analyses(priced)}

    def step(time: StepTime) -> str:
        shown = time.bound.marked(format_time(time.step_us))
        if first is None or len(priced) == 1 or time.step_us <= 0:
            return shown
        tie = time is not first and is_tie(time, first, same_generation=chips[id(time)] == chips[id(first)])
        bound = time.bound + -first.bound if time is not first else Bound.EXACT
        ratio = bound.marked(f"×{time.step_us / first.step_us:.2f}")
        return f"{shown} {ratio}{' (a tie)' if tie else ''}"

    of_time = partial(column, times)
    return [
        column(priced, "slice", partial(format_slice, otherwise="")),
        of_time("step", _show_known(step), right=True),
        of_time("range", _show_known(_format_range), right=True, given_up=5),
        of_time("split", _show_known(draw_time_bar, otherwise=""), given_up=1),
        of_time("compute", _show_known(lambda time: format_part(time, time.compute_us)), right=True),
        of_time("exposed", _show_known(lambda time: format_part(time, time.exposed_us)), right=True),
        of_time("hidden", _show_known(lambda time: format_part(time, time.hidden_us)), right=True),
        of_time("of peak", _show_known(_format_peak_share), right=True, given_up=3),
        column(priced, "chip time", _format_chip_time, right=True, given_up=2, below="{} of chip time"),
        of_time("error factor", _show_known(_format_accuracy), given_up=4, below="error factor {}"),
    ]


def _show_known(show: _Show[StepTime], otherwise: str = "unknown") -> _Show[StepTime | None]:
    """A column's text for a time, with a replacement if there is none."""
    return lambda time: otherwise if time is None else show(time)


def format_part(time: StepTime, part_us: float) -> str:
    """The time of a part of a step, with its bound."""
    return time.bound.of_part.marked(format_time(part_us))


def _format_range(time: StepTime) -> str:
    """The range of a step; empty if it has none."""
    return format_time_range(time.least_us, time.most_us) if time.has_range else ""


def describe_unknown_accuracy(time: StepTime) -> str | None:
    """The reason why a step has no range; None if it has one."""
    kernels = time.unpriced_kernels
    if kernels:
        several = "s" if len(kernels) > 1 else ""
        return f"of unknown accuracy: the cost of the kernel{several} {' and '.join(kernels)} is unknown"
    return _INACCURATE.get(time.bound)


def _format_peak_share(time: StepTime) -> str:
    return "" if time.peak_flops_share is None else time.bound.of_part.marked(format_share(time.peak_flops_share))


def _format_chip_time(found: Analysis | Unpriced) -> str:
    """The time of one step summed over all chips."""
    if isinstance(found, Unpriced) or found.time is None or found.slice is None:
        return "unknown"
    return found.time.bound.marked(format_time(found.time.step_us * found.slice.chips))


def _format_accuracy(time: StepTime) -> str:
    """The worst error factor of predictions for the generation, compared with measurements."""
    if time.unpriced_kernels or time.bound in _INACCURATE:
        return "unknown"
    return "not measured" if time.spread is None else f"×{time.spread.worst:.2f}"


def list_notes(found: Analysis) -> Iterator[str]:
    """Sentences on the basis of a price."""
    if found.time is None or found.slice is None:
        return
    if found.time.basis == "roofline":
        yield f"{found.slice.name}: a roofline of FLOPs and bytes, which no program reaches"
    for name in found.time.unpriced_kernels:
        yield say(f"{found.slice.name}: the cost of the kernel {name} is unknown: give ", make_cost_option(name))
    for note in found.time.notes:
        yield f"{found.slice.name}: {note}"


_BAR_COLUMNS = 16
_MOST_UNKNOWN = 3
_MARKS = (("█", "green"), ("▓", "cyan"), ("░", "red"))
"""Computing alone, computing with overlapped communication, exposed communication."""

_LOWER_BOUND = "a lower bound"
_INACCURATE = {
    Bound.UNKNOWN: "of unknown accuracy: how often parts of the step run is unknown",
    Bound.AT_LEAST: "of unknown accuracy: a part of the step could not be counted",
}
_BASES = {
    "cycles": "from the compiler's cycle estimates",
    "estimates": "estimated without machine code",
    "roofline": f"a roofline of FLOPs and bytes, {_LOWER_BOUND}",
    "memory": "from the bytes moved",
    "none": "nothing is computed",
}


def render_time(time: StepTime, width: int, below: Text | None = None, *, brief: bool = False) -> list[Text]:
    """The lines of the report about a step's time, at most `width` columns wide.

    Args:
        time: The step's time.
        width: Columns.
        below: A line below the step and its split.
        brief: Whether minor details are left out.
    """
    return fold_all(_render_split(time, width, below, brief=brief), width)


def draw_time_bar(time: StepTime, columns: int = _BAR_COLUMNS) -> Text:
    """The split of a step: computing `█`, computing with overlapped communication `▓`, exposed `░`."""
    hidden = min(time.hidden_us, time.compute_us)
    bar = Text()
    cells = _share_cells((time.compute_us - hidden, hidden, time.exposed_us), columns)
    for (mark, style), count in zip(_MARKS, cells, strict=True):
        bar.append(mark * count, style=style)
    return bar


def _share_cells(parts: Sequence[float], columns: int) -> list[int]:
    """Cells for each part, in proportion; a part greater than 0 has at least one."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    cells = [max(int(columns * part / total), 1 if part > 0 else 0) for part in parts]
    largest = max(range(len(parts)), key=lambda index: parts[index])
    cells[largest] += columns - sum(cells)
    return cells


def _render_split(time: StepTime, width: int, below: Text | None, *, brief: bool) -> Iterator[Text]:
    yield format_time_line(time, width)
    yield from () if below is None else (below,)
    yield Text(" · ".join(_list_remarks(time)), style="dim")
    yield Text(_describe_trust(time, brief=brief), style="dim")
    if time.unknown_operations and (time.rests_on_unknown or not brief):
        style = "yellow" if time.rests_on_unknown else "dim"
        yield Text(f"priced but not understood: {_list_unknown(time)}", style=style)
    for note in time.notes:
        yield Text(shorten_note(note), style="dim")


def format_time_line(time: StepTime, width: int) -> Text:
    """The step's time, its bar, and the split in figures, without the bar if the width is small."""
    share = f" ({100 * time.exposed_us / time.step_us:.0f}%)" if time.step_us > 0 and time.exposed_us > 0 else ""
    exposed, hidden = format_part(time, time.exposed_us), format_part(time, time.hidden_us)
    communication = f"communication {exposed} exposed{share}, {hidden} hidden"
    line = Text.assemble((time.bound.marked(format_time(time.step_us)), "bold"))
    line.append(f" ({_format_range(time)})  " if _format_range(time) else "  ")
    if width >= 3 * _BAR_COLUMNS:
        line.append_text(draw_time_bar(time)).append("  ")
    return line.append(f"compute {format_part(time, time.compute_us)} · {communication}")


def _list_remarks(time: StepTime) -> Iterator[str]:
    if time.peak_flops_share is not None:
        yield f"{_format_peak_share(time)} of peak FLOP/s"
    yield f"memory-bound {format_part(time, time.hbm_us)}"
    if time.first_step_us > 1.01 * time.step_us:
        yield f"first step {time.bound.marked(format_time(time.first_step_us))}"


def _describe_trust(time: StepTime, *, brief: bool = False) -> str:
    basis, inaccurate = _BASES.get(time.basis, time.basis), describe_unknown_accuracy(time)
    if inaccurate is not None:
        least = "" if _LOWER_BOUND in basis or time.bound is not Bound.AT_LEAST else f"{_LOWER_BOUND} "
        kernel = next(iter(time.unpriced_kernels), None)
        fix = () if kernel is None else ("; give ", make_cost_option(kernel), ", or a cost_estimate in its pallas_call")
        return say(f"{basis}; {least}{inaccurate}", *fix)
    if time.spread is None:
        return f"{basis}; no measurements of this generation to compare with"
    spread = time.spread
    known = (
        f"{basis}; error factor on {pluralize(spread.rows, 'published timing')} of this generation: "
        f"{spread.median:.2f} (median) to {spread.worst:.2f} (worst)"
    )
    once = [use.rule for use in time.rules if use.measured_once]
    if brief:
        counts = {"not covered by them": len(time.uncalibrated), "set by a single measurement": len(once)}
        return "; ".join([known, *(f"{pluralize(count, 'rule')} {words}" for words, count in counts.items() if count)])
    names = {
        "no timing covers the rules for": ", ".join(time.uncalibrated),
        "a single measurement set those for": ", ".join(once),
    }
    return "; ".join([known, *(f"{words} {rules}" for words, rules in names.items() if rules)])


def _list_unknown(time: StepTime) -> str:
    shown = [
        f"{part.what} ({pluralize(part.count, 'time')}, {format_bytes(part.bytes)}, {format_time(part.time_us)})"
        for part in time.unknown_operations[:_MOST_UNKNOWN]
    ]
    more = len(time.unknown_operations) - len(shown)
    return ", ".join(shown) + (f" and {pluralize(more, 'more kind')}" if more > 0 else "")
