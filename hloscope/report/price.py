"""One program on several slices, side by side, for a terminal or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from hloscope.analysis.document import to_document
from hloscope.analysis.model import Analysis, StepTime
from hloscope.report import Canvas
from hloscope.report.drawing import INDENT, LEAST_WIDTH, drawn, section
from hloscope.report.escaping import dumped
from hloscope.report.folding import fold, hanging
from hloscope.report.grid import Column, table_lines
from hloscope.report.time import time_bar
from hloscope.report.words import legend, marked, short_note
from hloscope.units import format_share, format_time

Priced = Sequence[Analysis]


def _text(priced: Priced, canvas: Canvas) -> str:
    return drawn(_lines(priced, max(canvas.width, LEAST_WIDTH)), canvas.width, canvas.colour)


def _json(priced: Priced, _: Canvas) -> str:
    documents = [to_document(one) for one in priced]
    keys = ("slice", "time", "collectives", "notes")
    found = {"target": priced[0].target, "prices": [{key: document[key] for key in keys} for document in documents]}
    return dumped(found)


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
    notes = dict.fromkeys(note for one in priced for note in (*one.notes, *_notes(one)))
    if notes:
        bullets = (Text(f"• {short_note(note)}") for note in notes)
        yield from section("Notes", [line for bullet in bullets for line in hanging(bullet, inner)], inner)


def _columns(priced: Priced) -> list[Column]:
    first = next((one.time.step_us for one in priced if one.time is not None and one.time.step_us > 0), None)

    def cells(show: Callable[[StepTime], str]) -> list[Text]:
        return [Text("unknown" if one.time is None else show(one.time)) for one in priced]

    def step(time: StepTime) -> str:
        shown = marked(format_time(time.step_us), time.bound)
        return shown if first is None or len(priced) == 1 else f"{shown} ×{time.step_us / first:.2f}"

    return [
        Column(header="slice", cells=[Text("" if one.slice is None else one.slice.name) for one in priced]),
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
    return [Text() if one.time is None else time_bar(one.time) for one in priced]


def _of_peak(time: StepTime) -> str:
    return "" if time.peak_flops_share is None else format_share(time.peak_flops_share)


def _chip_time(one: Analysis) -> Text:
    """What one step costs of all chips together."""
    if one.time is None or one.slice is None:
        return Text("unknown")
    return Text(format_time(one.time.step_us * one.slice.chips))


def _accuracy(time: StepTime) -> str:
    """How far predictions for the generation were off, at worst."""
    return "never" if time.spread is None else f"within ×{time.spread.worst:.2f}"


def _notes(one: Analysis) -> Iterator[str]:
    if one.time is None or one.slice is None:
        return
    if one.time.basis == "roofline":
        yield f"{one.slice.name}: a roofline of FLOPs and bytes, which no program reaches"
    for note in one.time.notes:
        yield f"{one.slice.name}: {note}"
