"""`hloscope shardings` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from hloscope.analysis.model.analysis import plain
from hloscope.analysis.places import short_source
from hloscope.report.escaping import dumped
from hloscope.report.formats import Canvas
from hloscope.report.layout import Breaks, Column, drawn, fold, hanging, section, table_lines
from hloscope.report.words import part_of_axis, short_note
from hloscope.units import format_bytes
from hloscope.why.shardings import Role, ShardedArray

_TITLES = {
    Role.ARGUMENT: "Arguments",
    Role.CONSTRAINT: "Constraints",
    Role.OUTPUT: "Outputs",
    Role.INTERMEDIATE: "Largest intermediates of one device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingTable:
    """What the report shows.

    Attributes:
        target: What the user named.
        slice_name: What it would be compiled for.
        axis_sizes: Size of each axis of the mesh; empty without one.
        arrays: Everything that has a sharding, in the order to show it.
        unused: Names of arguments that the program does not read.
        notes: One sentence each.
    """

    target: str
    slice_name: str
    axis_sizes: dict[str, int]
    arrays: tuple[ShardedArray, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]


def render(table: ShardingTable, canvas: Canvas) -> str:
    """A section for each role."""
    return drawn(_lines(table, canvas.width), canvas.width, canvas.colour)


def render_json(table: ShardingTable, canvas: Canvas) -> str:
    """The table as one document."""
    return dumped(plain(table))


def _lines(table: ShardingTable, width: int) -> Iterator[Text]:
    mesh = " ".join(f"{name}={size}" for name, size in table.axis_sizes.items())
    yield from fold(
        Text.assemble((table.target, "bold"), f" on {table.slice_name}", f", mesh {mesh}" if mesh else ""), width
    )
    yield from fold(Text("As Shardy propagates the shardings; nothing was compiled.", style="dim"), width)
    for role, title in _TITLES.items():
        arrays = [one for one in table.arrays if one.role is role]
        if arrays:
            yield from section(title, table_lines(_columns(arrays), width - 2), width)
    remark = part_of_axis(one.sharding for one in table.arrays)
    notes = [*([f"not read by the program: {', '.join(table.unused)}"] if table.unused else []), *table.notes]
    if remark is not None or notes:
        yield Text()
    yield from [] if remark is None else fold(remark, width)
    for note in notes:
        yield from hanging(Text(f"• {short_note(note)}"), width)


def _columns(arrays: Sequence[ShardedArray]) -> tuple[Column, ...]:
    return (
        Column(header="name", cells=[Text(one.name, style="bold") for one in arrays], breaks=Breaks.IN_IDENTIFIERS),
        Column(header="global", cells=[Text(_shape(one, one.global_shape)) for one in arrays], given_up=2),
        Column(header="sharding", cells=[_sharding(one) for one in arrays], breaks=Breaks.AFTER_PUNCTUATION),
        Column(header="per device", cells=[Text(_shape(one, one.local_shape)) for one in arrays]),
        Column(header="bytes", cells=[Text(format_bytes(one.bytes_per_device)) for one in arrays], right=True),
        Column(header="source", cells=[_source(one) for one in arrays], breaks=Breaks.BETWEEN_WORDS, given_up=1),
        Column(header="", cells=[Text("moves" if one.is_moved else "", style="yellow") for one in arrays], given_up=3),
    )


def _sharding(one: ShardedArray) -> Text:
    whole = "'" not in one.sharding
    return Text(one.sharding, style="dim" if whole else "")


def _shape(one: ShardedArray, dimensions: tuple[int, ...]) -> str:
    return f"{one.element_type}[{','.join(map(str, dimensions))}]"


def _source(one: ShardedArray) -> Text:
    words = None if one.source is None else short_source((one.source,))
    return Text(words or "")
