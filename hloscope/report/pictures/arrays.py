"""An array cut along its dimensions by the axes of the mesh, as SVG and in box characters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import log2, prod
from typing import TypeVar

from rich.text import Text

from hloscope.analysis.shards import ShardGrid, Shards, find_shards
from hloscope.base import calls
from hloscope.base.errors import HloscopeError, did_you_mean
from hloscope.base.units import count_array_bytes, format_bytes, pluralize
from hloscope.model import Analysis, ArrayFact, IntermediateFact, Mesh
from hloscope.model.capture import find_evidence
from hloscope.model.picture import Picture
from hloscope.report.escaping import escape_line
from hloscope.report.layout import draw_lines, fold, hang
from hloscope.report.pictures import svg
from hloscope.report.pictures.svg import LINE_HEIGHT, MARGIN
from hloscope.why.shardings import ShardedArray

MOST_SHOWN = 16
"""Pieces along a dimension that are drawn one by one."""
_FIRST, _LAST = 4, 2
_LONGEST_LIST = 30


def choose_places(count: int, most: int = MOST_SHOWN) -> list[int | None]:
    """The pieces of a dimension that are drawn; None for a gap."""
    if count <= most:
        return list(range(count))
    last = min(_LAST, max(most // 3, 1))
    first = max(min(_FIRST, most - 1 - last), 1)
    return [*range(first), None, *range(count - last, count)]


_DETAILS = 4
WAYS_TO_FIT = tuple((detail, most) for detail in range(_DETAILS) for most in (MOST_SHOWN, 7, 5, 3))
"""The detail of labels and the number of columns, from the most to the least detailed drawing."""


_COUNTED = _DETAILS - 1
"""The detail at which only the number of holders is left."""


def label_holders(shards: Shards, grid: ShardGrid, row: int, column: int, detail: int) -> str:
    """The devices that hold a place, in ever fewer letters: from 0, all numbers, to `_COUNTED`, how many they are."""
    devices = grid.holders[row][column]
    if not devices:
        return "nobody" if detail < _COUNTED else "–"
    whole = ("+" if shards.holders_are_addends else ",").join(map(str, devices))
    if detail == 0 and len(whole) <= _LONGEST_LIST:
        return whole
    if detail <= 1:
        return format_ranges(devices)
    if detail == 2 or len(devices) == 1:
        return pluralize(len(devices), "device") if len(devices) > 1 else whole
    return f"×{len(devices)}"


def format_ranges(values: Sequence[int]) -> str:
    """Numbers in rising order in few letters: `0–7`, `0,2,…,14`, `0,1,4,5`."""
    steps = {after - before for before, after in pairwise(values)}
    if len(values) > 2 and steps == {1}:
        return f"{values[0]}–{values[-1]}"
    if len(values) > 4 and len(steps) == 1:
        return f"{values[0]},{values[1]},…,{values[-1]}"
    return ",".join(map(str, values))


def format_head(shards: Shards) -> str:
    """`bf16[8192,2048]  P('X', None)`, the whole array and its sharding."""
    whole = "?" if shards.global_shape is None else ",".join(map(str, shards.global_shape))
    return f"{shards.dtype}[{whole}]  {shards.sharding or 'unknown sharding'}"


def describe(shards: Shards, grid: ShardGrid | None, *, with_mesh: bool = True) -> Iterator[str]:
    """The lines above a drawing: the mesh, the shard of each device, and the drawn dimensions."""
    sizes = " ".join(f"{name}={size}" for name, size in shards.axis_sizes.items())
    mesh = escape_line(f"on mesh {sizes}: ") if sizes and with_mesh else ""
    size = format_bytes(count_array_bytes(shards.dtype, prod(shards.local_shape)))
    yield f"{mesh}each device holds {shards.dtype}[{','.join(map(str, shards.local_shape))}], {size}"
    for arrow, dimension in (("↓", grid.rows), ("→", grid.columns)) if grid is not None else ():
        if dimension is not None:
            yield f"{arrow} {describe_cut(shards, dimension)}"


def describe_cut(shards: Shards, dimension: int) -> str:
    """`dimension 0: 8,192 in 4 pieces of 2,048 over X=4`."""
    cut = shards.cuts[dimension]
    said = f"dimension {dimension}: {cut.size:,}"
    if not cut.axes:
        return f"{said}, whole"
    over = ", ".join(shards.axis_words(axis) for axis in cut.axes)
    minor = ", the last fastest" if len(cut.axes) > 1 else ""
    return f"{said} in {pluralize(cut.pieces, 'piece')} of {cut.piece_size:,} over {over}{minor}"


def format_bounds(shards: Shards, dimension: int, piece: int) -> str:
    """`0:1024`, the elements of a piece."""
    return "{}:{}".format(*shards.cuts[dimension].bounds(piece))


def describe_drawing(shards: Shards, grid: ShardGrid, detail: int, *, with_mesh: bool = True) -> Iterator[str]:
    """Sentences on facts that a picture does not show, and on the meaning of its labels."""
    if shards.copied_over:
        over = ", ".join(map(shards.axis_words, shards.copied_over))
        yield f"{pluralize(shards.copies, 'copy').replace('copys', 'copies')} of everything: replicated over {over}."
    if shards.unreduced:
        over = ", ".join(map(shards.axis_words, shards.unreduced))
        yield f"Not yet summed over {over}: its devices hold {shards.addends} different addends of each element (+)."
    for number in grid.hidden:
        cut = shards.cuts[number]
        if cut.pieces > 1:
            yield f"Not drawn, {describe_cut(shards, number)}: {grid.shards_per_place} shards lie behind each other."
        else:
            yield f"Not drawn, {describe_cut(shards, number)}."
    for number, cut in enumerate(shards.cuts):
        if cut.is_padded:
            padding = cut.pieces * cut.piece_size - cut.size
            elements = pluralize(padding, "element")
            yield f"Dimension {number} does not divide: {elements} of padding at its end (hatched)."
    if with_mesh:
        yield describe_ids(shards)
    if detail >= _COUNTED:
        yield "×4 stands for four devices."


def describe_ids(shards: Shards) -> str:
    """The meaning of device numbers."""
    return {
        "device": "Numbers are device ids.",
        "place": "Numbers are places in the mesh, its last axis fastest.",
        "partition": "Numbers are partitions, as the program counts its devices.",
    }[shards.ids_are]


_LEFT = 96.0
_LEAST_CELL, _LEAST_ROW = 42.0, 24.0
_WIDTH, _HEIGHT = 460.0, 220.0
_GAP = 26.0
_LAYERS, _LAYER_STEP = 2, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The pieces along one side of the drawing.

    Attributes:
        pieces: The pieces that are drawn, each with its position.
        gaps: Positions at which pieces are left out.
        begin: Where the first piece begins.
        end: Where the last one ends.
        size: Length of each piece.
    """

    pieces: dict[int, float]
    gaps: tuple[float, ...]
    begin: float
    end: float
    size: float


def render_shards(shards: Shards) -> str:
    """An array cut into its shards, each with its holders, as SVG for a page or a file."""
    return svg.render(draw_shards(shards))


def draw_shards(shards: Shards, wrong: Collection[int] = ()) -> svg.Element:
    """An array cut into its shards, each with its holders, as an SVG element.

    Args:
        shards: The array.
        wrong: Devices that hold something wrong, whose shards are marked.
    """
    if shards.why_unknown is not None:
        return _draw_unknown(shards)
    grid = shards.grid()
    head = [format_head(shards), *describe(shards, grid)]
    top = MARGIN + LINE_HEIGHT * (len(head) + 1) + 10
    rows = _make_line(choose_places(len(grid.holders)), top, _choose_height(shards, grid), _LEAST_ROW)
    detail, columns = _fit_labels(shards, grid, rows)
    width = max(columns.end + MARGIN + _LAYERS * _LAYER_STEP, 560)
    marked = [f"✗: elements are wrong on {format_ranges(sorted(wrong))}."] if wrong else []
    said = [*marked, *describe_drawing(shards, grid, detail)]
    notes = [line for remark in said for line in svg.wrap_text(remark, width - 2 * MARGIN)]
    bottom = rows.end + _LAYERS * _LAYER_STEP + 8
    height, title = bottom + LINE_HEIGHT * len(notes) + MARGIN, f"{shards.name}, {head[0].replace('  ', ', ')}"
    root = svg.make_picture(width, height, title, " ".join([*head[1:], *said]))
    _draw_head(root, shards, head, width)
    _draw_layers(root, shards, grid, rows, columns)
    _draw_cells(root, shards, grid, (rows, columns), detail, wrong)
    _draw_bounds(root, shards, grid, rows, columns)
    svg.write_lines(root, notes, bottom + 0.7 * LINE_HEIGHT, width)
    return root


def _draw_head(root: svg.Element, shards: Shards, head: Sequence[str], width: float) -> None:
    room = width - 2 * MARGIN
    title = svg.add(root, "text", x=MARGIN, y=MARGIN + 6, fill=svg.LINE, font_size=14)
    name = svg.cut_to(shards.name, room / 2, 14)
    svg.add(title, "tspan", text=name, font_weight="bold")
    svg.add(title, "tspan", text=svg.cut_to(head[0], room - len(name) * 14 * svg.LETTER, 14), dx=12)
    svg.write_lines(root, head[1:], MARGIN + 6 + LINE_HEIGHT, width)


def _fit_labels(shards: Shards, grid: ShardGrid, rows: _Line) -> tuple[int, _Line]:
    """The detail of labels that fits every cell, and the columns that are drawn."""
    for detail, most in WAYS_TO_FIT:
        columns = _make_line(choose_places(len(grid.holders[0]), most), _LEFT, _WIDTH, _LEAST_CELL)
        cells = product(rows.pieces, columns.pieces)
        labels = (label_holders(shards, grid, row, column, detail) for row, column in cells)
        if all(svg.fits(label, columns.size - 8) for label in labels):
            break
    return detail, columns


def _make_line(numbers: Sequence[int | None], begin: float, room: float, least: float) -> _Line:
    """Pieces side by side, which share the room but are not shorter than `least`."""
    count = sum(piece is None for piece in numbers)
    size = max((room - count * _GAP) / (len(numbers) - count), least)
    pieces: dict[int, float] = {}
    gaps, end = [], begin
    for piece in numbers:
        if piece is None:
            gaps.append(end)
        else:
            pieces[piece] = end
        end += _GAP if piece is None else size
    return _Line(pieces=pieces, gaps=tuple(gaps), begin=begin, end=end, size=size)


def _choose_height(shards: Shards, grid: ShardGrid) -> float:
    """The height of the drawing: that of a taller array is greater, but not by as much."""
    if grid.rows is None or grid.columns is None:
        return 2 * _LEAST_ROW
    down, across = shards.cuts[grid.rows].size, shards.cuts[grid.columns].size
    slant = log2(max(down, 1) / max(across, 1))
    return _HEIGHT * min(max(1 + slant / 6, 0.5), 1.5)


def _draw_layers(root: svg.Element, shards: Shards, grid: ShardGrid, rows: _Line, columns: _Line) -> None:
    """Sheets behind the array, for its copies and for hidden shards."""
    behind = max(shards.copies, shards.addends, grid.shards_per_place) - 1
    for layer in range(min(behind, _LAYERS), 0, -1):
        step = layer * _LAYER_STEP
        left, top, right, bottom = columns.begin, rows.begin, columns.end, rows.end
        path = f"M{left + step} {bottom}V{bottom + step}H{right + step}V{top + step}H{right}"
        svg.add(root, "path", d=path, fill="none", stroke=svg.LINE, stroke_opacity=0.5)


def _draw_cells(
    root: svg.Element, shards: Shards, grid: ShardGrid, lines: tuple[_Line, _Line], detail: int, wrong: Collection[int]
) -> None:
    rows, columns = lines
    for (row, y), (column, x) in product(rows.pieces.items(), columns.pieces.items()):
        group = svg.add(root, "g")
        svg.add(group, "title", text=_describe_cell(shards, grid, row, column))
        tint = 0.26 if (row + column) % 2 == 0 else 0.13
        size = columns.size, rows.size
        svg.box(group, (x, y), size, fill=svg.TINT, fill_opacity=tint, stroke_opacity=0.7)
        for hatched in _find_padding(shards, grid, (row, y, rows.size), (column, x, columns.size)):
            svg.add_path(group, svg.hatch(*hatched), 0.5)
        if any(device in wrong for device in grid.holders[row][column]):
            svg.label(group, x + 6, y + 15, "✗", size=14, font_weight="bold")
            svg.box(group, (x + 2, y + 2), (columns.size - 4, rows.size - 4), fill="none", stroke_width=2.5)
        label = label_holders(shards, grid, row, column, detail)
        svg.label(group, x + columns.size / 2, y + rows.size / 2 + 4, label, anchor="middle")
    for y in rows.gaps:
        svg.label(root, (columns.begin + columns.end) / 2, y + _GAP / 2 + 4, "⋮", anchor="middle")
    for x in columns.gaps:
        svg.label(root, x + _GAP / 2, (rows.begin + rows.end) / 2 + 4, "⋯", anchor="middle")


def _describe_cell(shards: Shards, grid: ShardGrid, row: int, column: int) -> str:
    """A cell in words."""
    part = ["all"] * len(shards.cuts)
    for dimension, piece in ((grid.rows, row), (grid.columns, column)):
        if dimension is not None:
            part[dimension] = format_bounds(shards, dimension, piece)
    return f"[{', '.join(part)}] {shards.ids_are} {label_holders(shards, grid, row, column, 0)}"


def _find_padding(
    shards: Shards, grid: ShardGrid, row: tuple[int, float, float], column: tuple[int, float, float]
) -> Iterator[tuple[float, float, float, float]]:
    """The parts of a cell that are padding, as rectangles."""
    (row_number, y, height), (column_number, x, width) = row, column
    below = 0.0
    if grid.rows is not None:
        below = height * shards.cuts[grid.rows].padded_share(row_number)
    if below:
        yield x, y + height - below, width, below
    if grid.columns is not None and below < height:
        right = width * shards.cuts[grid.columns].padded_share(column_number)
        if right:
            yield x + width - right, y, right, height - below


def _draw_bounds(root: svg.Element, shards: Shards, grid: ShardGrid, rows: _Line, columns: _Line) -> None:
    """Labels each row and column with the range of its elements."""
    if grid.columns is not None:
        named = {column: format_bounds(shards, grid.columns, column) for column, _ in columns.pieces.items()}
        turned = not all(svg.fits(text, columns.size - 4, 10) for text in named.values())
        for column, x in columns.pieces.items():
            text = str(shards.cuts[grid.columns].bounds(column)[0]) if turned else named[column]
            if svg.fits(text, columns.size - 4, 10):
                svg.label(root, x + columns.size / 2, rows.begin - 6, text, anchor="middle", size=10, opacity="0.8")
    if grid.rows is not None:
        for row, y in rows.pieces.items():
            text = svg.cut_to(format_bounds(shards, grid.rows, row), _LEFT - 12, 10)
            svg.label(root, _LEFT - 8, y + rows.size / 2 + 3, text, anchor="end", size=10, opacity="0.8")


def _draw_unknown(shards: Shards) -> svg.Element:
    """An empty outline for an array whose shards are unknown, with the reason."""
    why = f"who holds what is not known: {shards.why_unknown}"
    head = [format_head(shards), *describe(shards, None, with_mesh=False)]
    root = svg.make_picture(560, 140, f"{shards.name}, {head[0]}", f"{head[1]}; {why}")
    _draw_head(root, shards, head, 560)
    svg.box(root, (MARGIN, 56), (532, 64), fill="none", stroke_dasharray="5 4", stroke_opacity=0.7)
    for index, line in enumerate(list(svg.wrap_text(why, 500))[:3]):
        svg.label(root, 280, 84 + index * LINE_HEIGHT, line, anchor="middle")
    return root


_TINTS = ("on blue", "on cyan")
_BOX_GAP = "⋯"
_ROOMY = 9
_PADDED = "░"


def draw_shards_lines(shards: Shards, width: int, *, alone: bool = True) -> Iterator[Text]:
    """An array cut into its shards, each with its holders, in box characters.

    Args:
        shards: The array.
        width: Columns.
        alone: Whether the drawing itself explains the mesh and the numbers.
    """
    grid = None if shards.why_unknown is not None else shards.grid()
    yield from hang(Text.assemble((shards.name, "bold"), f"  {format_head(shards)}"), width)
    for words in describe(shards, grid, with_mesh=alone):
        yield from hang(Text(words, style="dim"), width)
    if grid is None:
        yield from fold(Text(f"Who holds what is not known: {shards.why_unknown}.", style="yellow"), width)
        return
    box = _fit_boxes(shards, grid, width)
    yield from box.draw()
    for remark in describe_drawing(shards, grid, box.detail, with_mesh=alone):
        yield from hang(Text(remark, style="dim"), width)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """The grid, laid out for a width.

    Attributes:
        shards: The array.
        grid: As it is seen.
        rows: The rows that are drawn; None for those that are left out.
        columns: The columns that are drawn; None for those that are left out.
        detail: How short the labels are.
        cell: Columns of the terminal for each piece.
        margin: Columns of the terminal beside the box.
    """

    shards: Shards
    grid: ShardGrid
    rows: tuple[int | None, ...]
    columns: tuple[int | None, ...]
    detail: int
    cell: int
    margin: int

    def draw(self) -> Iterator[Text]:
        """The drawing."""
        yield from self._draw_header()
        yield self._draw_rule(*"┌┬┐")
        for index, row in enumerate(self.rows):
            if index:
                yield self._draw_rule(*"├┼┤")
            yield self._draw_row(row)
        yield self._draw_rule(*"└┴┘")

    def measure_labels(self) -> int:
        """Letters of the longest label that is drawn."""
        return max(
            len(label_holders(self.shards, self.grid, row, column, self.detail))
            for row, column in product(self.rows, self.columns)
            if row is not None and column is not None
        )

    def measure_headers(self) -> int:
        """Letters of the longest word above a column."""
        return max(len(self._format_bounds(self.grid.columns, column or 0)) for column in self.columns)

    def _draw_header(self) -> Iterator[Text]:
        """The range of elements of each column, if there is room."""
        if 0 < self.measure_headers() <= self.cell:
            words = (
                _BOX_GAP if column is None else self._format_bounds(self.grid.columns, column)
                for column in self.columns
            )
            yield Text(" " * (self.margin + 1) + " ".join(word.center(self.cell) for word in words), style="dim")

    def _format_bounds(self, dimension: int | None, piece: int) -> str:
        return "" if dimension is None else format_bounds(self.shards, dimension, piece)

    def _draw_rule(self, left: str, middle: str, right: str) -> Text:
        return Text(" " * self.margin + left + middle.join("─" * self.cell for _ in self.columns) + right)

    def _draw_row(self, row: int | None) -> Text:
        words = "" if row is None else self._format_bounds(self.grid.rows, row)
        line = Text(words[: self.margin - 1].rjust(self.margin - 1) + " " if self.margin else "", style="dim")
        line.append("│")
        for column in self.columns:
            line.append_text(self._draw_cell(row, column))
            line.append("│")
        return line

    def _draw_cell(self, row: int | None, column: int | None) -> Text:
        if row is None or column is None:
            return Text((_BOX_GAP if row is not None or column is None else "⋮").center(self.cell))
        label = label_holders(self.shards, self.grid, row, column, self.detail)
        label = f" {label} " if len(label) + 2 <= self.cell else label
        hatched = _hatch_label(label, self.cell, self.shards.padded_share_at(self.grid, row, column))
        return Text(hatched, style=_TINTS[(row + column) % 2])


def _hatch_label(label: str, room: int, padded_share: float) -> str:
    """A label in the middle of a cell; the end of the cell is hatched in proportion to its padding."""
    columns = room if padded_share == 1 else min(max(round(padded_share * room), padded_share > 0), room - 1)
    left = (room - len(label)) // 2
    blanks = " " * (room - columns) + _PADDED * columns
    return blanks[:left] + label + blanks[left + len(label) :]


def _fit_boxes(shards: Shards, grid: ShardGrid, width: int) -> _Box:
    """The layout that shows most in a width: labels as long as they can be, then as many pieces."""
    shown = tuple(choose_places(len(grid.holders)))
    margin = 0
    if grid.rows is not None:
        margin = 2 + max(len(format_bounds(shards, grid.rows, row)) for row in shown if row is not None)
    box = _Box(shards=shards, grid=grid, rows=shown, columns=(), detail=0, cell=0, margin=margin)
    for (detail, most), beside in product(WAYS_TO_FIT, (margin, 0)):
        columns = tuple(choose_places(len(grid.holders[0]), most))
        tried = replace(box, columns=columns, detail=detail, margin=beside)
        room = (width - tried.margin - 1) // len(tried.columns) - 1
        needed = tried.measure_labels() + (2 if detail < _COUNTED else 0)
        if needed <= room:
            return replace(tried, cell=min(room, max(needed, tried.measure_headers(), _ROOMY)))
    return replace(tried, cell=max(needed, 1))


_Array = TypeVar("_Array", ArrayFact | IntermediateFact, ShardedArray)
_COLUMNS = 100
_ONE_DEVICE = Mesh(axis_names=(), axis_sizes=())
_NEAR = 3


def draw_array_picture(found: Analysis, name: str) -> Picture:
    """An argument, an output or a large intermediate of an analyzed program, cut into its shards.

    Args:
        found: The analysis.
        name: The array's name, as reports have it.

    Raises:
        HloscopeError: No array has this name.
    """
    arrays: tuple[ArrayFact | IntermediateFact, ...] = (*found.arguments, *found.outputs, *found.intermediates)
    return make_picture(find_shards_of(found, find_array(arrays, name, found.target)))


def make_picture(shards: Shards) -> Picture:
    """An array cut into its shards, drawn."""
    text = draw_lines(draw_shards_lines(shards, _COLUMNS), _COLUMNS, False).rstrip("\n")
    return Picture(
        title=f"{shards.name}, {shards.sharding or 'unknown sharding'}", svg=render_shards(shards), text=text
    )


def find_shards_of(found: Analysis, array: ArrayFact | IntermediateFact) -> Shards:
    """The shards of an array of an analyzed program, with JAX's device ids if they are known."""
    evidence = find_evidence(found)
    device_ids = None if evidence is None else evidence.program.compiled.device_ids or None
    mesh = _ONE_DEVICE if found.mesh is None and found.num_partitions == 1 else found.mesh
    return find_shards(array, mesh, device_ids=device_ids)


def find_array(arrays: Sequence[_Array], name: str, target: str) -> _Array:
    """The array of a name.

    Args:
        arrays: The known arrays.
        name: The name.
        target: The program.

    Raises:
        HloscopeError: No array has this name.
    """
    array = next((array for array in arrays if array.name == name), None)
    if array is not None:
        return array
    names = list(dict.fromkeys(array.name for array in arrays))
    shown = ", ".join(names[:_NEAR]) + (f" and {len(names) - _NEAR} more" if len(names) > _NEAR else "")
    raise HloscopeError(
        f"{target} has no array {calls.format_value(name)} among its arguments, outputs and large intermediates",
        fix=did_you_mean(str(name), names, f"it has {shown}" if names else None, most=_NEAR),
    )
