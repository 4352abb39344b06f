"""An array cut along its dimensions by the axes of the mesh, as SVG."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import log2

from hloscope.analysis.shards import Grid, Shards
from hloscope.report.pictures import svg
from hloscope.report.pictures.words import (
    WAYS_TO_FIT,
    Holders,
    bounds_words,
    described,
    heading,
    ranges,
    remarks,
    shown_places,
)

_LEFT, _MARGIN = 96.0, 14.0
_LEAST_CELL, _LEAST_ROW = 42.0, 24.0
_WIDTH, _HEIGHT = 460.0, 220.0
_GAP = 26.0
_LINE_HEIGHT = 17.0
_LAYERS, _LAYER_STEP = 2, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The pieces along one side of the drawing.

    Attributes:
        numbers: The pieces that are drawn; None for a gap.
        starts: Where each begins.
        size: How long each is.
    """

    numbers: tuple[int | None, ...]
    starts: tuple[float, ...]
    size: float

    @property
    def end(self) -> float:
        """Where the last one ends."""
        return self.starts[-1] + self.size

    def drawn(self) -> Iterator[tuple[int, float]]:
        """The pieces and where they begin."""
        for piece, start in zip(self.numbers, self.starts, strict=True):
            if piece is not None:
                yield piece, start

    def gaps(self) -> Iterator[float]:
        """Where pieces are left out."""
        for piece, start in zip(self.numbers, self.starts, strict=True):
            if piece is None:
                yield start


def shards_svg(shards: Shards) -> str:
    """An array cut into its shards, with who holds each, as an SVG element for a page or a file."""
    return svg.written(shards_picture(shards))


def shards_picture(shards: Shards, wrong: Collection[int] = ()) -> svg.Element:
    """The same, not yet written.

    Args:
        shards: The array.
        wrong: Devices that hold something wrong, whose shards are marked.
    """
    if shards.why_unknown is not None:
        return _unknown(shards)
    grid = shards.grid()
    detail, columns = _fitting(shards, grid)
    head = [heading(shards), *described(shards, grid)]
    top = _MARGIN + _LINE_HEIGHT * (len(head) + 1) + 10
    rows = _line(shown_places(len(grid.holders)), top, _height(shards, grid), _LEAST_ROW)
    width = max(columns.end + _MARGIN + _LAYERS * _LAYER_STEP, 560)
    marked = [f"✗: elements are wrong on {ranges(sorted(wrong))}."] if wrong else []
    said = [*marked, *remarks(shards, grid, detail)]
    notes = [line for remark in said for line in svg.wrapped(remark, width - 2 * _MARGIN)]
    bottom = rows.end + _LAYERS * _LAYER_STEP + 8
    root = svg.picture(
        width,
        bottom + _LINE_HEIGHT * len(notes) + _MARGIN,
        f"{shards.name}, {head[0].replace('  ', ', ')}",
        " ".join([*head[1:], *said]),
    )
    _draw_head(root, shards, head, width)
    _draw_layers(root, shards, grid, rows, columns)
    _draw_cells(root, shards, grid, (rows, columns), detail, wrong)
    _draw_bounds(root, shards, grid, rows, columns)
    for index, note in enumerate(notes):
        svg.label(root, _MARGIN, bottom + _LINE_HEIGHT * (index + 0.7), note, opacity="0.8")
    return root


def _draw_head(root: svg.Element, shards: Shards, head: Sequence[str], width: float) -> None:
    room = width - 2 * _MARGIN
    title = svg.add(root, "text", x=_MARGIN, y=_MARGIN + 6, fill=svg.LINE, font_size=14)
    name = svg.cut_to(shards.name, room / 2, 14)
    svg.add(title, "tspan", text=name, font_weight="bold")
    svg.add(title, "tspan", text=svg.cut_to(head[0], room - len(name) * 14 * svg.LETTER, 14), dx=12)
    for index, line in enumerate(head[1:], 1):
        svg.label(root, _MARGIN, _MARGIN + 6 + _LINE_HEIGHT * index, svg.cut_to(line, room), opacity="0.8")


def _fitting(shards: Shards, grid: Grid) -> tuple[int, _Line]:
    """How short labels have to be, all alike, and the columns that are drawn."""
    for detail, most in WAYS_TO_FIT:
        columns = _line(shown_places(len(grid.holders[0]), most), _LEFT, _WIDTH, _LEAST_CELL)
        labels = (
            _holders(shards, grid, row, column).label(detail)
            for row in shown_places(len(grid.holders))
            for column in columns.numbers
            if row is not None and column is not None
        )
        if all(svg.fits(label, columns.size - 8) for label in labels):
            break
    return detail, columns


def _holders(shards: Shards, grid: Grid, row: int, column: int) -> Holders:
    return Holders(devices=grid.holders[row][column], are_addends=shards.holders_are_addends)


def _line(numbers: Sequence[int | None], begin: float, room: float, least: float) -> _Line:
    """Pieces side by side in a room, each of which has at least some of it."""
    gaps = sum(piece is None for piece in numbers)
    size = max((room - gaps * _GAP) / (len(numbers) - gaps), least)
    starts, at = [], begin
    for piece in numbers:
        starts.append(at)
        at += _GAP if piece is None else size
    return _Line(numbers=tuple(numbers), starts=tuple(starts), size=size)


def _height(shards: Shards, grid: Grid) -> float:
    """The height of the drawing: that of a taller array is greater, but not by as much."""
    if grid.rows is None or grid.columns is None:
        return 2 * _LEAST_ROW
    down, across = shards.cuts[grid.rows].size, shards.cuts[grid.columns].size
    slant = log2(max(down, 1) / max(across, 1))
    return _HEIGHT * min(max(1 + slant / 6, 0.5), 1.5)


def _draw_layers(root: svg.Element, shards: Shards, grid: Grid, rows: _Line, columns: _Line) -> None:
    """Sheets behind the array, for its copies and for what lies behind each other."""
    behind = max(shards.copies, shards.addends, grid.shards_per_place) - 1
    for layer in range(min(behind, _LAYERS), 0, -1):
        step = layer * _LAYER_STEP
        left, top, right, bottom = columns.starts[0], rows.starts[0], columns.end, rows.end
        path = f"M{left + step} {bottom}V{bottom + step}H{right + step}V{top + step}H{right}"
        svg.add(root, "path", d=path, fill="none", stroke=svg.LINE, stroke_opacity=0.5)


def _draw_cells(
    root: svg.Element, shards: Shards, grid: Grid, lines: tuple[_Line, _Line], detail: int, wrong: Collection[int]
) -> None:
    rows, columns = lines
    for (row, y), (column, x) in product(rows.drawn(), columns.drawn()):
        holders = _holders(shards, grid, row, column)
        group = svg.add(root, "g")
        svg.add(group, "title", text=_spoken(shards, grid, row, column, holders))
        tint = 0.26 if (row + column) % 2 == 0 else 0.13
        size = columns.size, rows.size
        svg.box(group, (x, y), size, fill=svg.TINT, fill_opacity=tint, stroke_opacity=0.7)
        for hatched in _padding(shards, grid, (row, y, rows.size), (column, x, columns.size)):
            svg.add(group, "path", d=svg.hatch(*hatched), stroke=svg.LINE, stroke_opacity=0.5, fill="none")
        if any(device in wrong for device in holders.devices):
            svg.label(group, x + 6, y + 15, "✗", size=14, font_weight="bold")
            svg.box(group, (x + 2, y + 2), (columns.size - 4, rows.size - 4), fill="none", stroke_width=2.5)
        shown = holders.label(detail)
        svg.label(group, x + columns.size / 2, y + rows.size / 2 + 4, shown, anchor="middle")
    for y in rows.gaps():
        svg.label(root, (columns.starts[0] + columns.end) / 2, y + _GAP / 2 + 4, "⋮", anchor="middle")
    for x in columns.gaps():
        svg.label(root, x + _GAP / 2, (rows.starts[0] + rows.end) / 2 + 4, "⋯", anchor="middle")


def _spoken(shards: Shards, grid: Grid, row: int, column: int, holders: Holders) -> str:
    """What a cell is, in words."""
    part = ["all"] * len(shards.cuts)
    for dimension, piece in ((grid.rows, row), (grid.columns, column)):
        if dimension is not None:
            part[dimension] = bounds_words(shards, dimension, piece)
    return f"[{', '.join(part)}] {shards.ids_are} {holders.label(0)}"


def _padding(
    shards: Shards, grid: Grid, row: tuple[int, float, float], column: tuple[int, float, float]
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


def _draw_bounds(root: svg.Element, shards: Shards, grid: Grid, rows: _Line, columns: _Line) -> None:
    """Which elements each row and each column holds."""
    if grid.columns is not None:
        named = {column: bounds_words(shards, grid.columns, column) for column, _ in columns.drawn()}
        turned = not all(svg.fits(text, columns.size - 4, 10) for text in named.values())
        for column, x in columns.drawn():
            text = str(shards.cuts[grid.columns].bounds(column)[0]) if turned else named[column]
            if svg.fits(text, columns.size - 4, 10):
                svg.label(root, x + columns.size / 2, rows.starts[0] - 6, text, anchor="middle", size=10, opacity="0.8")
    if grid.rows is not None:
        for row, y in rows.drawn():
            text = svg.cut_to(bounds_words(shards, grid.rows, row), _LEFT - 12, 10)
            svg.label(root, _LEFT - 8, y + rows.size / 2 + 3, text, anchor="end", size=10, opacity="0.8")


def _unknown(shards: Shards) -> svg.Element:
    """An array of which nobody can tell who holds what: an empty outline that says so."""
    why = f"who holds what is not known: {shards.why_unknown}"
    head = [heading(shards), *described(shards, None, with_mesh=False)]
    root = svg.picture(560, 140, f"{shards.name}, {head[0]}", f"{head[1]}; {why}")
    _draw_head(root, shards, head, 560)
    svg.box(root, (_MARGIN, 56), (532, 64), fill="none", stroke_dasharray="5 4", stroke_opacity=0.7)
    for index, line in enumerate(list(svg.wrapped(why, 500))[:3]):
        svg.label(root, 280, 84 + index * _LINE_HEIGHT, line, anchor="middle")
    return root
