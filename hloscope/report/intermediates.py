"""The largest arrays that the program makes on the way, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hloscope.analysis.model import IntermediateFact
from hloscope.analysis.places import short_source
from hloscope.report.folding import Breaks
from hloscope.report.grid import Column, table_lines
from hloscope.units import format_bytes, plural

_SHOWN = 5
_MEMORIES = {0: "", 1: "in vector memory", 5: "in host memory"}


def intermediate_lines(intermediates: Sequence[IntermediateFact], width: int) -> list[Text]:
    """A row for each array that reads differently, the largest first; at least one must be given."""
    alike: dict[tuple[object, ...], list[IntermediateFact]] = {}
    for one in intermediates:
        alike.setdefault((_shape(one), _whole(one), one.memory_space, short_source(one.source)), []).append(one)
    return table_lines(_columns(list(alike.values())[:_SHOWN]), width)


def _columns(rows: Sequence[Sequence[IntermediateFact]]) -> tuple[Column, ...]:
    return (
        Column(header="per device", cells=[Text(_shape(row[0]), style="bold") for row in rows]),
        Column(header="bytes", cells=[Text(format_bytes(row[0].bytes_per_device)) for row in rows], right=True),
        Column(
            header="arrays",
            cells=[Text(str(len(row))) for row in rows],
            right=True,
            given_up=3,
            below=[f"{plural(len(row), 'array')} alike" if len(row) > 1 else "" for row in rows],
        ),
        Column(
            header="of the whole",
            cells=[Text(_whole(row[0])) for row in rows],
            breaks=Breaks.BETWEEN_WORDS,
            given_up=2,
        ),
        Column(
            header="source",
            cells=[_source(row[0]) for row in rows],
            breaks=Breaks.BETWEEN_WORDS,
            given_up=1,
        ),
        Column(header="", cells=[Text(_remark(row[0]), style="dim") for row in rows], given_up=4),
    )


def _shape(one: IntermediateFact) -> str:
    return f"{one.dtype}[{_dimensions(one.local_shape)}]"


def _whole(one: IntermediateFact) -> str:
    """`[256,4096] P('X', None)`; empty when neither is known."""
    whole = "" if one.global_shape is None else f"[{_dimensions(one.global_shape)}]"
    return f"{whole} {one.sharding or ''}".strip()


def _dimensions(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def _source(one: IntermediateFact) -> Text:
    words = short_source(one.source)
    return Text(words) if words is not None else Text(f"%{one.name}, HLO line {one.line}", style="dim")


def _remark(one: IntermediateFact) -> str:
    place = _MEMORIES.get(one.memory_space, f"in memory space {one.memory_space}")
    return ", ".join(words for words in (place, "in a loop" if one.loops else "") if words)
