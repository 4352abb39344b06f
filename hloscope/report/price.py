"""One program on several slices, side by side, for a terminal or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from hloscope.analysis.model import Analysis, StepTime
from hloscope.analysis.model.analysis import to_document
from hloscope.errors import HloscopeError
from hloscope.report import Canvas
from hloscope.report.drawing import INDENT, LEAST_WIDTH, drawn, section
from hloscope.report.escaping import dumped
from hloscope.report.folding import fold, hanging, message_line
from hloscope.report.grid import Column, table_lines
from hloscope.report.time import time_bar
from hloscope.report.words import legend, marked, short_note
from hloscope.units import format_share, format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """A slice that the program could not be compiled for.

    Attributes:
        target: The program.
        slice_name: The slice.
        error: Why not.
    """

    target: str
    slice_name: str
    error: HloscopeError


Priced = Sequence[Analysis | Unpriced]


def _text(priced: Priced, canvas: Canvas) -> str:
    return drawn(_lines(priced, max(canvas.width, LEAST_WIDTH)), canvas.width, canvas.colour)


def _json(priced: Priced, _: Canvas) -> str:
    return dumped({"target": priced[0].target, "prices": [_document(one) for one in priced]})


def _document(one: Analysis | Unpriced) -> dict[str, Any]:
    if isinstance(one, Unpriced):
        return {"slice": {"name": one.slice_name}, "error": str(one.error)}
    document = to_document(one)
    return {key: document[key] for key in ("slice", "time", "collectives", "notes")}


PRICE_FORMATS: dict[str, Callable[[Priced, Canvas], str]] = {"text": _text, "json": _json}


def _lines(priced: Priced, width: int) -> Iterator[Text]:
    inner = width - INDENT
    yield from fold(Text(priced[0].target, style="bold"), width)
    table = table_lines(_columns(priced), inner)
    yield from section("Predicted time of one step on one device", table, inner)
    marks = legend(table)
    words = [Text("█ computing · ▓ with communication hidden behind it · ░ waiting for communication", style="dim")]
    for words_line in [*words, *([] if marks is None else [marks])]:
        yield from (Text(" " * INDENT) + line for line in fold(words_line, inner))
    failed = [one for one in priced if isinstance(one, Unpriced)]
    if failed:
        lines = [line for one in failed for line in _error_lines(one, inner)]
        yield from section("Slices that it could not be compiled for", lines, inner)
    notes = dict.fromkeys(note for one in _analyses(priced) for note in (*one.notes, *_notes(one)))
    if notes:
        bullets = (Text(f"• {short_note(note)}") for note in notes)
        yield from section("Notes", [line for bullet in bullets for line in hanging(bullet, inner)], inner)


def _analyses(priced: Priced) -> list[Analysis]:
    return [one for one in priced if isinstance(one, Analysis)]


def _time_of(one: Analysis | Unpriced) -> StepTime | None:
    return None if isinstance(one, Unpriced) else one.time


def _slice_name(one: Analysis | Unpriced) -> str:
    if isinstance(one, Unpriced):
        return one.slice_name
    return "" if one.slice is None else one.slice.name


def _error_lines(one: Unpriced, width: int) -> Iterator[Text]:
    yield from hanging(Text(one.slice_name), width)
    for line in str(one.error).splitlines():
        yield from (Text("  ") + part for part in message_line(line, width - 2))


def _columns(priced: Priced) -> list[Column]:
    steps = [time.step_us for one in priced if (time := _time_of(one)) is not None]
    first = next((step for step in steps if step > 0), None)

    def cells(show: Callable[[StepTime], str]) -> list[Text]:
        return [Text("unknown" if (time := _time_of(one)) is None else show(time)) for one in priced]

    def step(time: StepTime) -> str:
        shown = marked(format_time(time.step_us), time.bound)
        return shown if first is None or len(priced) == 1 else f"{shown} ×{time.step_us / first:.2f}"

    return [
        Column(header="slice", cells=[Text(_slice_name(one)) for one in priced]),
        Column(header="step", cells=cells(step), right=True),
        Column(header="split", cells=_bars(priced), given_up=1),
        Column(header="compute", cells=cells(lambda time: format_time(time.compute_us)), right=True),
        Column(header="waiting", cells=cells(lambda time: format_time(time.exposed_us)), right=True),
        Column(header="hidden", cells=cells(lambda time: format_time(time.hidden_us)), right=True),
        Column(header="of peak", cells=cells(_of_peak), right=True, given_up=3),
        Column(header="chip time", cells=[_chip_time(one) for one in priced], right=True, given_up=2),
        Column(header="measured", cells=cells(_accuracy), given_up=4),
    ]


def _bars(priced: Priced) -> list[Text]:
    return [Text() if (time := _time_of(one)) is None else time_bar(time) for one in priced]


def _of_peak(time: StepTime) -> str:
    return "" if time.peak_flops_share is None else format_share(time.peak_flops_share)


def _chip_time(one: Analysis | Unpriced) -> Text:
    """What one step costs of all chips together."""
    if isinstance(one, Unpriced) or one.time is None or one.slice is None:
        return Text("unknown")
    return Text(format_time(one.time.step_us * one.slice.chips))


def _accuracy(time: StepTime) -> str:
    """How far predictions for the generation were off, at worst."""
    if time.unpriced_kernels:
        return "no claim"
    return "never" if time.spread is None else f"within ×{time.spread.worst:.2f}"


def _notes(one: Analysis) -> Iterator[str]:
    if one.time is None or one.slice is None:
        return
    if one.time.basis == "roofline":
        yield f"{one.slice.name}: a roofline of FLOPs and bytes, which no program reaches"
    for name in one.time.unpriced_kernels:
        yield f"{one.slice.name}: nothing says what the kernel {name} costs: give --kernel-cost {name}=FLOPS,BYTES"
    for note in one.time.notes:
        yield f"{one.slice.name}: {note}"
