"""A table for a terminal that gives columns up before it breaks what stands in them.

A column that does not fit moves below its row, on a line of its own with the others that were given up; in a very
narrow terminal each row so becomes a block. Of the layouts that fit, the one with the fewest lines is taken, and of
those the one that breaks the fewest cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from hloscope.report.folding import Breaks, fold, line_count, longest_piece

_GAP, _NARROW_GAP = 3, 2
_INDENT = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """One column.

    Attributes:
        header: Its title.
        cells: One text for each row.
        right: Whether it is aligned to the right.
        breaks: How far its cells may be broken while it stands in the table.
        given_up: Its turn to move below the row, 1 first; None for a column that stays while it fits.
        below: What stands below each row in place of the cells; the cells themselves when empty.
    """

    header: str
    cells: Sequence[Text]
    right: bool = False
    breaks: Breaks = Breaks.NEVER
    given_up: int | None = None
    below: Sequence[str] = ()

    @property
    def natural(self) -> int:
        """The width at which nothing is broken."""
        return max(cell_len(self.header), *(cell.cell_len for cell in self.cells))

    @property
    def narrowest(self) -> int:
        """The least width at which nothing is broken further than the column allows."""
        return max(cell_len(self.header), *(longest_piece(cell, self.breaks) for cell in self.cells))

    def narrower_than(self, width: int) -> int:
        """The next width below `width` at which the cells' lines fit exactly."""
        lines = (line.cell_len for cell in self.cells for line in fold(cell, width - 1))
        return max(self.narrowest, *lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    shown: tuple[Column, ...]
    widths: tuple[int, ...]
    gap: int
    below: tuple[Column, ...]


def table_lines(columns: Sequence[Column], width: int, under: Sequence[Text] = ()) -> list[Text]:
    """Draws a table into `width` columns; a column without any text is left out.

    Args:
        columns: At least one.
        width: Columns of the terminal.
        under: A text for each row that stands below it on lines of its own, whatever else is there.
    """
    filled = [column for column in columns if any(cell.plain for cell in column.cells)]
    if not filled:
        return []
    layout = min(_layouts(filled, width), key=lambda layout: (_height(layout, width), _broken(layout)))
    header = [Text(column.header, style="dim") for column in layout.shown]
    rule = Text("─" * (sum(layout.widths) + layout.gap * (len(layout.shown) - 1)), style="dim")
    lines = [_joined(header, layout), rule]
    for row in range(len(filled[0].cells)):
        lines.extend(_row_lines(layout, row))
        lines.extend(Text(" " * _INDENT) + line for line in fold(_below(layout, row), width - _INDENT) if line.plain)
        if under and under[row].plain:
            lines.extend(Text(" " * _INDENT) + line for line in fold(under[row], width - _INDENT))
    return lines


def _layouts(columns: Sequence[Column], width: int) -> Iterator[_Layout]:
    """The layouts that fit, the one that gives up least first; the last one fits by breaking anything."""
    first, *others = columns
    for turn in (0, *sorted(column.given_up for column in others if column.given_up is not None)):
        shown = (first, *(column for column in others if column.given_up is None or column.given_up > turn))
        below = tuple(column for column in columns if column not in shown)
        fitting = _fitting(shown, width)
        if fitting is not None:
            yield _Layout(shown=shown, widths=fitting[0], gap=fitting[1], below=below)
    yield _Layout(shown=(first,), widths=(min(first.natural, width),), gap=0, below=tuple(others))


def _fitting(columns: Sequence[Column], width: int) -> tuple[tuple[int, ...], int] | None:
    """Widths and gap with which the columns fit: a narrow gap first, then the widest column is broken; None if none."""
    widths = [column.natural for column in columns]
    narrowest = [column.narrowest for column in columns]
    gaps = len(columns) - 1
    while sum(widths) + _NARROW_GAP * gaps > width:
        breakable = [index for index, least in enumerate(narrowest) if widths[index] > least]
        if not breakable:
            return None
        widest = max(breakable, key=lambda index: widths[index])
        widths[widest] = columns[widest].narrower_than(widths[widest])
    return tuple(widths), _GAP if sum(widths) + _GAP * gaps <= width else _NARROW_GAP


def _height(layout: _Layout, width: int) -> int:
    rows = range(len(layout.shown[0].cells))
    return sum(_row_height(layout, row) + _below_height(layout, row, width) for row in rows)


def _broken(layout: _Layout) -> int:
    """Cells that stand on more than one line."""
    columns = zip(layout.shown, layout.widths, strict=True)
    return sum(line_count(cell, wide) > 1 for column, wide in columns for cell in column.cells)


def _row_height(layout: _Layout, row: int) -> int:
    return max(line_count(one.cells[row], wide) for one, wide in zip(layout.shown, layout.widths, strict=True))


def _below_height(layout: _Layout, row: int, width: int) -> int:
    below = _below(layout, row)
    return line_count(below, width - _INDENT) if below.plain else 0


def _below(layout: _Layout, row: int) -> Text:
    """The cells of the columns that were given up, such as `global f32[8,64] · donated`."""
    parts = [Text(one.below[row]) if one.below else one.cells[row] for one in layout.below]
    below = Text(" · ").join(part for part in parts if part.plain)
    below.stylize("dim")
    return below


def _row_lines(layout: _Layout, row: int) -> Iterator[Text]:
    cells = [fold(one.cells[row], wide) for one, wide in zip(layout.shown, layout.widths, strict=True)]
    for index in range(max(map(len, cells))):
        yield _joined([lines[index] if index < len(lines) else Text() for lines in cells], layout)


def _joined(cells: Sequence[Text], layout: _Layout) -> Text:
    padded = []
    for cell, column, wide in zip(cells, layout.shown, layout.widths, strict=True):
        blanks = Text(" " * (wide - cell.cell_len))
        padded.append(blanks + cell if column.right else cell + blanks)
    return Text(" " * layout.gap).join(padded)
