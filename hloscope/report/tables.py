"""The tables of the text report: traffic by axis, collectives, arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hloscope.analysis.model import Analysis, ArrayFact, Collective, Total
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.report.places import short_source
from hloscope.units import format_bytes, format_count, plural

_AXIS_WORDS = {"?": "not an axis", "": "none"}
_ARRAYS_SHOWN = 40
_ROWS_SHOWN = 40
_MARKS = {Bound.AT_LEAST: "≥", Bound.AT_MOST: "≤", Bound.UNKNOWN: "~", Bound.EXACT: ""}


def bounded(text: str, bound: Bound) -> str:
    """`at least 3 MB`: a quantity with its bound in words."""
    prefix = {Bound.EXACT: "", Bound.AT_LEAST: "at least ", Bound.AT_MOST: "at most ", Bound.UNKNOWN: "about "}
    return prefix[bound] + text


def _table(*columns: tuple[str, str]) -> Table:
    """A table without edges; columns are `left`, `right` or `fold` (left, and broken where the line is too short)."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, kind in columns:
        table.add_column(
            name, justify="right" if kind == "right" else "left", no_wrap=kind != "fold", overflow="fold", min_width=4
        )
    return table


def _keep_whole(table: Table, column: str, columns: int) -> None:
    """Keeps a foldable column from being broken before it is `columns` wide."""
    for one in table.columns:
        if one.header == column:
            one.min_width = min(columns, max(len(str(cell)) for cell in one.cells))


def fitted(table: Table, width: int) -> Table:
    """The table, with its columns allowed to break where it would not fit into `width` columns otherwise."""
    console = Console(width=width)
    if Measurement.get(console, console.options.update(width=10 * width), table).minimum > width:
        for one in table.columns:
            one.min_width, one.no_wrap = None, False
    return table


def axis_table(analysis: Analysis) -> Table:
    """Wire bytes per step by mesh axis, the busiest first."""
    table = _table(
        ("axis", "left"), ("wire bytes", "right"), ("share", "right"), ("collectives", "right"), ("transfers", "right")
    )
    whole = analysis.totals.wire_bytes
    for axis, total in sorted(analysis.totals.by_axis.items(), key=lambda item: -item[1].wire_bytes):
        name = Text(_AXIS_WORDS.get(axis, axis), style="bold cyan")
        table.add_row(
            name, _total_bytes(total), _share(total, whole), str(total.collectives), format_count(total.executions)
        )
    return table


def _total_bytes(total: Total) -> str:
    return bounded(format_bytes(total.wire_bytes), total.bound)


def _share(total: Total, whole: int) -> str:
    return f"{100 * total.wire_bytes / whole:.0f}%" if whole else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Collectives that read the same: one row of the table."""

    first: Collective
    places: int
    wire_bytes_per_step: int | None


def _rows(collectives: Iterable[Collective]) -> list[_Row]:
    """Joins collectives that differ in their place in the HLO only, largest sum first, unknown before all."""
    alike: dict[object, list[Collective]] = {}
    for one in collectives:
        place = (one.source[:1], one.source_of is None, one.executions, one.executions_bound)
        alike.setdefault((one.kind, one.axes or one.groups, one.operand_shapes, one.result_shapes, place), []).append(
            one
        )
    rows = [_row(members) for members in alike.values()]
    return sorted(rows, key=lambda row: (row.wire_bytes_per_step is not None, -(row.wire_bytes_per_step or 0)))


def _row(members: Sequence[Collective]) -> _Row:
    each = members[0].wire_bytes_per_step
    return _Row(
        first=members[0], places=len(members), wire_bytes_per_step=None if each is None else each * len(members)
    )


def collective_table(collectives: Sequence[Collective], width: int) -> RenderableType:
    """One row for collectives that read the same, most bytes per step first."""
    table = _table(
        ("collective", "left"),
        ("axes", "left"),
        ("per device", "fold"),
        ("places", "right"),
        ("times", "right"),
        ("wire/step", "right"),
        ("source", "fold"),
    )
    rows = _rows(collectives)
    for row in rows[:_ROWS_SHOWN]:
        one = row.first
        table.add_row(
            Text(one.kind, style="bold"),
            _axes(one),
            _shapes(one),
            format_count(row.places),
            _MARKS[one.executions_bound] + format_count(one.executions),
            _wire(row),
            _source(one),
        )
    _keep_whole(table, "per device", 18)
    _keep_whole(table, "source", 16)
    left = len(rows) - _ROWS_SHOWN
    table = fitted(table, width)
    if left <= 0:
        return table
    return Group(table, Text(f"… and {plural(left, 'smaller row')} (all of them with --format json)", style="dim"))


def _axes(collective: Collective) -> Text:
    if collective.axes is not None:
        return Text(",".join(collective.axes) or "none", style="cyan")
    count = len(collective.groups)
    if not collective.groups:
        return Text("unknown")
    if collective.group_size is None:
        return Text(f"{plural(count, 'pair')}")
    return Text(f"{plural(count, 'group')} of {collective.group_size}")


def _shapes(collective: Collective) -> Text:
    """The larger side on one device, which is what `payload_bytes` counts; long tuples are cut."""
    gathers = collective.kind in (Kind.ALL_GATHER, Kind.OPAQUE)
    first, second = collective.operand_shapes, collective.result_shapes
    return Text(_shape_list(second if gathers else first) or _shape_list(first if gathers else second))


def _shape_list(shapes: Sequence[str]) -> str:
    shown = ", ".join(shapes[:2])
    return shown if len(shapes) <= 2 else f"{shown}, … {len(shapes)} arrays"


def _wire(row: _Row) -> str:
    if row.wire_bytes_per_step is None:
        return "unknown"
    return _MARKS[row.first.executions_bound] + format_bytes(row.wire_bytes_per_step)


def _source(collective: Collective) -> Text:
    words = short_source(collective.source)
    if words is None:
        return Text(f"%{collective.name}, HLO line {collective.line}", style="dim")
    text = Text(words)
    if collective.source_of is not None:
        text.append(f" (of %{collective.source_of})", style="dim")
    return text


def array_table(arrays: Sequence[ArrayFact], width: int) -> RenderableType:
    """Global shape, sharding and per-device shape of arguments or outputs."""
    table = _table(
        ("name", "fold"),
        ("global", "fold"),
        ("sharding", "fold"),
        ("per device", "fold"),
        ("bytes", "right"),
        ("", "left"),
    )
    for array in arrays[:_ARRAYS_SHOWN]:
        table.add_row(
            Text(array.name, style="bold"),
            _shape(array.dtype, array.global_shape),
            array.sharding or "unknown",
            Text("" if not array.used else _shape(array.dtype, array.local_shape)),
            format_bytes(array.bytes_per_device) if array.used else "",
            Text(_remarks(array), style="dim"),
        )
    for column, columns in (("name", 22), ("global", 24), ("sharding", 18), ("per device", 22)):
        _keep_whole(table, column, columns)
    table = fitted(table, width)
    left = len(arrays) - _ARRAYS_SHOWN
    return (
        table if left <= 0 else Group(table, Text(f"… and {left} more (all of them with --format json)", style="dim"))
    )


def _shape(dtype: str, dimensions: tuple[int, ...] | None) -> str:
    return "unknown" if dimensions is None else f"{dtype}[{','.join(map(str, dimensions))}]"


def _remarks(array: ArrayFact) -> str:
    remarks = (
        ("not used", not array.used),
        ("donated", array.donated),
        ("compiler's choice", array.chosen_by == "compiler"),
    )
    return ", ".join(words for words, holds in remarks if holds)
