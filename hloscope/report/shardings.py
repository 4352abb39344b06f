"""`hloscope shardings` as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from hloscope.analysis.provenance import short_source
from hloscope.analysis.shards import Shards, find_shards
from hloscope.base.calls import front_door, whole
from hloscope.base.documents import SCHEMA, Schema, make_document
from hloscope.base.results import Shown, fix_tables, group_by, shorten_to_line
from hloscope.base.units import format_bytes, pluralize
from hloscope.model import ArrayFact, Mesh
from hloscope.model.picture import Picture
from hloscope.report.layout import (
    INDENT,
    LEAST_WIDTH,
    Breaks,
    Column,
    column,
    draw_lines,
    fold_all,
    hang,
    render_table,
    section,
)
from hloscope.report.pictures.arrays import describe_ids, draw_shards_lines, find_array, make_picture
from hloscope.report.words import explain_axis_parts, shorten_note
from hloscope.why.shardings import ArrayRole, ShardedArray

if TYPE_CHECKING:
    from hloscope.plain_types import ShardingTableDict

_TITLES = {
    ArrayRole.ARGUMENT: "Arguments",
    ArrayRole.CONSTRAINT: "Constraints",
    ArrayRole.OUTPUT: "Outputs",
    ArrayRole.INTERMEDIATE: "Largest intermediates of one device",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardingTable(Shown):
    """The shardings of a program's arrays, as Shardy propagates them.

    Attributes:
        schema: Schema version of the document.
        target: The target as the user named it.
        slice_name: The slice that it would be compiled for.
        axis_sizes: Size of each mesh axis; empty without a mesh.
        arrays: All arrays with a sharding, in display order.
        unused: Names of unused arguments.
        notes: Notes, one sentence each.
    """

    _subject = "shardings"

    schema: Schema = SCHEMA
    target: str
    slice_name: str
    axis_sizes: dict[str, int] = field(hash=False)
    arrays: tuple[ShardedArray, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        fix_tables(self, "axis_sizes")

    def __repr__(self) -> str:
        return shorten_to_line(
            f"<Shardings of {self.target} on {self.slice_name}: {pluralize(len(self.arrays), 'array')}>"
        )

    @front_door
    def draw(self, *, width: int = 100, colour: bool = False) -> str:
        """Draws in box characters how the arrays are sharded and which devices hold each shard.

        Args:
            width: Width of text in columns.
            colour: Whether to use ANSI colors.
        """
        columns = whole("width", width, least=1, example="width=100")
        return draw_lines(render_drawn_shardings(self, max(columns, LEAST_WIDTH)), columns, colour)

    @front_door
    def array(self, name: str) -> Picture:
        """Draws how one array is sharded, and which devices hold each shard.

        Args:
            name: The array's name in the report.

        Raises:
            HloscopeError: No array has this name.
        """
        return make_picture(_find_shards(self, find_array(self.arrays, name, self.target)))

    if TYPE_CHECKING:

        def to_dict(self) -> ShardingTableDict:
            """The result as plain data."""


def render_shardings(table: ShardingTable, width: int) -> Iterator[Text]:
    """A section for each role."""
    return _render_frame(table, lambda arrays: render_table(_make_columns(arrays), width - INDENT), width)


def render_drawn_shardings(table: ShardingTable, width: int) -> Iterator[Text]:
    """A section of drawn arrays for each role; arrays of the same sharding are drawn once."""
    if table.arrays and table.axis_sizes:
        table = replace(table, notes=(*table.notes, describe_ids(_find_shards(table, table.arrays[0]))))
    return _render_frame(table, lambda arrays: _render_drawings(table, arrays, width - INDENT), width)


def _render_frame(
    table: ShardingTable, shown: Callable[[Sequence[ShardedArray]], Iterable[Text]], width: int
) -> Iterator[Text]:
    """The frame of a report on shardings, around the rendered arrays of each role."""
    mesh = " ".join(f"{name}={size}" for name, size in table.axis_sizes.items())
    place = f" on {table.slice_name}{f', mesh {mesh}' if mesh else ''}"
    remark = Text("The shardings as Shardy propagates them; nothing was compiled.", style="dim")
    yield from fold_all((Text.assemble((table.target, "bold"), place), remark), width)
    for role, title in _TITLES.items():
        arrays = [array for array in table.arrays if array.role is role]
        if arrays:
            yield from section(title, shown(arrays), width)
    parts = explain_axis_parts(array.sharding for array in table.arrays)
    notes = [*([f"unused: {', '.join(table.unused)}"] if table.unused else []), *table.notes]
    if parts is not None or notes:
        yield Text()
    yield from fold_all([parts], width)
    for note in notes:
        yield from hang(Text(f"• {shorten_note(note)}"), width)


def _render_drawings(table: ShardingTable, arrays: Sequence[ShardedArray], width: int) -> Iterator[Text]:
    alike = group_by(arrays, lambda array: (array.element_type, array.global_shape, array.sharding))
    for index, (first, *others) in enumerate(alike.values()):
        if index:
            yield Text()
        yield from draw_shards_lines(_find_shards(table, first), width, alone=False)
        if others:
            yield from hang(Text(f"Cut just so: {', '.join(other.name for other in others)}."), width)


def _find_shards(table: ShardingTable, array: ShardedArray) -> Shards:
    """The shards of an array. Devices are counted through the mesh, because nothing was compiled."""
    fact = make_document(ArrayFact, array, dtype=array.element_type, chosen_by=None)
    mesh = Mesh(axis_names=tuple(table.axis_sizes), axis_sizes=tuple(table.axis_sizes.values()))
    return replace(find_shards(fact, mesh), ids_are="place")


def _make_columns(arrays: Sequence[ShardedArray]) -> tuple[Column, ...]:
    of_array = partial(column, arrays)
    return (
        of_array("name", lambda array: array.name, style="bold", breaks=Breaks.IN_IDENTIFIERS),
        of_array("global", lambda array: _format_shape(array, array.global_shape), given_up=2),
        of_array("sharding", _format_sharding, breaks=Breaks.AFTER_PUNCTUATION),
        of_array("per device", lambda array: _format_shape(array, array.local_shape)),
        of_array("bytes", lambda array: format_bytes(array.bytes_per_device), right=True),
        of_array("source", _format_source, breaks=Breaks.BETWEEN_WORDS, given_up=1),
        of_array("", lambda array: "moves" if array.is_moved else "", style="yellow", given_up=3),
    )


def _format_sharding(array: ShardedArray) -> Text:
    whole = "'" not in array.sharding
    return Text(array.sharding, style="dim" if whole else "")


def _format_shape(array: ShardedArray, dimensions: tuple[int, ...]) -> str:
    return f"{array.element_type}[{','.join(map(str, dimensions))}]"


def _format_source(array: ShardedArray) -> str:
    return "" if array.source is None else short_source((array.source,)) or ""
