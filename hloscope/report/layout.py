"""Laying text out for a terminal: sections, tables that give columns up, and lines broken where they stay readable."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import zip_longest
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from hloscope.report.escaping import escape_commands, escape_line, escape_prose

INDENT = 2
LEAST_WIDTH = 20

_QUOTED = "   | "
_LABEL = re.compile(r" +(?:-->|= +[\w ]+:|why:|tried:|(?=\S)) *")


class Breaks(IntEnum):
    """The places where a text may be broken before it moves to a line of its own, from none to any."""

    NEVER = -1
    BETWEEN_PARTS = 0
    BETWEEN_WORDS = 1
    AFTER_PUNCTUATION = 2
    IN_IDENTIFIERS = 3
    BETWEEN_CHARACTERS = 4
    IN_NUMBERS = 5


# A number keeps its unit and `+2 more` its word; a dot inside a number or before a file's ending is no place to break.
_PLACES = (
    r"(?<= · )",
    r"(?<=[^\d\s]\s)(?<!\bline\s)(?!·)|(?<=\d\s)(?!·|(?:[kMGTP]?B|[KMG]iB|us|ms|s|more)\b)",
    r"(?<=[,/])|(?<=[\])}])(?![\])},.])|(?<=[^\d.]\.)(?![\d.]|py\b|hlo\b|txt\b)",
    r"(?<=[_=@%-])|(?<=:)(?!\d)|(?=:\d)|(?=[\[({])",
    r"(?<!\d)(?=.)|(?!\d)(?=.)",
    r"(?=.)",
)
_UP_TO = {level: re.compile("|".join(_PLACES[: level + 1]), re.DOTALL) for level in Breaks if level >= 0}


def measure_longest_piece(text: Text, breaks: Breaks) -> int:
    """Columns that the text needs when it is broken no further than `breaks` allows."""
    pieces = [text.plain] if breaks is Breaks.NEVER else _UP_TO[breaks].split(text.plain)
    return max(cell_len(_strip(piece)) for piece in pieces)


def count_lines(text: Text, width: int) -> int:
    """Lines that `fold` makes."""
    return len(_fold(text.plain, width))


def fold(text: Text, width: int) -> list[Text]:
    """Breaks a text into lines of at most `width` columns; its styles stay.

    It is broken between the parts that ` · ` joins, then between words, then after commas, slashes, closing brackets
    and dots; within an identifier, and at last within a number, only where a single piece is wider than a line. The
    ` · ` or the blank that a line is broken after is not drawn.
    """
    ends, end = [], 0
    for part in _fold(text.plain, width)[:-1]:
        end += len(part)
        ends.append(end)
    lines = list(text.divide(ends))
    for line in lines:
        line.truncate(cell_len(_strip(line.plain)))
    return lines


def fold_all(texts: Iterable[Text | None], width: int) -> list[Text]:
    """The lines of all texts except None."""
    return [line for text in texts if text is not None for line in fold(text, width)]


def _strip(line: str) -> str:
    return line.rstrip().removesuffix(" ·").rstrip()


@lru_cache(maxsize=8192)
def _fold(text: str, width: int, level: Breaks = Breaks.BETWEEN_PARTS) -> tuple[str, ...]:
    """The lines, each with the blank it was broken after."""
    if cell_len(_strip(text)) <= width:
        return (text,)
    lines: list[str] = [""]
    for piece in _UP_TO[level].split(text):
        if cell_len(_strip(lines[-1] + piece)) <= width:
            lines[-1] += piece
        elif cell_len(_strip(piece)) <= width or level is Breaks.IN_NUMBERS:
            lines.append(piece)
        else:
            lines[-1:] = _fold(lines[-1] + piece, width, Breaks(level + 1))
    return tuple(line for line in lines if line)


def hang(text: Text, width: int, indent: int = 2) -> list[Text]:
    """Folds a text; its second and further lines are indented, by half of the width at most."""
    indent = min(indent, width // 2)
    first, *others = fold(text, width)
    if not others:
        return [first]
    rest = text[len(first.plain) :]
    rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ·")) :]
    return [first, *(Text(" " * indent) + line for line in fold(rest, width - indent))]


def fold_message(line: str, width: int) -> list[Text]:
    """A line of an error message, folded with the indent of its label; a quoted line is not folded."""
    if line.startswith(_QUOTED):
        return [Text(line)]
    label = _LABEL.match(line)
    return hang(Text(line), width, indent=2 if label is None else label.end())


def draw_lines(lines: Iterable[Text], width: int, colour: bool) -> str:
    """The lines as text, with ANSI colors on request; each stays one line."""
    sink = io.StringIO()
    console = Console(
        file=sink,
        width=width,
        force_terminal=colour,
        force_jupyter=False,  # which would display each line, and write none
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for line in lines:
        line.plain = escape_line(line.plain)
        line.rstrip()
        console.print(line, soft_wrap=True)
    return escape_commands(sink.getvalue())


def section(title: str, body: Iterable[Text], width: int, remark: str = "") -> Iterator[Text]:
    """An empty line, a title with a remark on all lines, and the indented lines."""
    yield Text()
    yield from fold(Text.assemble((title, "bold"), (f" (all: {remark})" if remark else "", "dim")), width)
    for line in body:
        yield Text(" " * INDENT) + line


_GAP, _NARROW_GAP = 3, 2
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """One column.

    Attributes:
        header: Its title.
        cells: One text for each row.
        right: Whether it is aligned to the right.
        breaks: How far its cells may be broken while it is in the table.
        given_up: Its turn to move below the row, 1 first; None for a column that stays while it fits.
        below: The text below each row in place of the cell; the cells themselves if empty.
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
        return max(cell_len(self.header), *(measure_longest_piece(cell, self.breaks) for cell in self.cells))

    def narrower_than(self, width: int) -> int:
        """The next width below `width` at which the cells' lines fit exactly."""
        lines = (line.cell_len for cell in self.cells for line in fold(cell, width - 1))
        return max(self.narrowest, *lines)


def column(
    rows: Sequence[_Row],
    header: str,
    show: Callable[[_Row], Text | str],
    *,
    style: str = "",
    below: str | Callable[[_Row], str] = "",
    right: bool = False,
    breaks: Breaks = Breaks.NEVER,
    given_up: int | None = None,
) -> Column:
    """A column with the cell of each row; see `Column`.

    Args:
        rows: The items of the rows.
        header: Its title.
        show: The cell of a row.
        style: The style of cells that have none of their own.
        below: The text below a row in place of its cell: made from the row, or a template for cells that are not
            empty, such as `{} exposed`.
        right: Whether it is aligned to the right.
        breaks: How far its cells may be broken.
        given_up: Its turn to move below the row.
    """
    cells = [shown if isinstance(shown := show(row), Text) else Text(shown, style=style) for row in rows]
    if isinstance(below, str):
        others = [below.format(cell.plain) if cell.plain else "" for cell in cells] if below else []
    else:
        others = list(map(below, rows))
    return Column(header=header, cells=cells, right=right, breaks=breaks, given_up=given_up, below=others)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    shown: tuple[Column, ...]
    widths: tuple[int, ...]
    gap: int
    below: tuple[Column, ...]


def render_table(columns: Sequence[Column], width: int, under: Sequence[Text] = ()) -> list[Text]:
    """Draws a table into `width` columns; a column without any text is left out.

    Args:
        columns: At least one.
        width: Columns of the terminal.
        under: A text for each row, on lines of its own below it.
    """
    filled = [column for column in columns if any(cell.plain for cell in column.cells)]
    if not filled:
        return []
    layout = min(_list_layouts(filled, width), key=lambda layout: _measure(layout, width))
    header = [Text(column.header, style="dim") for column in layout.shown]
    rule = Text("─" * (sum(layout.widths) + layout.gap * (len(layout.shown) - 1)), style="dim")
    lines = [_join_cells(header, layout), rule] if any(column.header for column in layout.shown) else []
    for row in range(len(filled[0].cells)):
        cells = [fold(column.cells[row], wide) for column, wide in zip(layout.shown, layout.widths, strict=True)]
        lines.extend(_join_cells(parts, layout) for parts in zip_longest(*cells, fillvalue=Text()))
        lines.extend(Text(" " * INDENT) + line for line in fold(_join_below(layout, row), width - INDENT) if line.plain)
        if under and under[row].plain:
            lines.extend(Text(" " * INDENT) + line for line in fold(under[row], width - INDENT))
    return lines


def render_markdown_table(columns: Sequence[Column]) -> Iterator[str]:
    """The lines of the same table in Markdown."""
    yield f"| {' | '.join(column.header for column in columns)} |"
    yield f"| {' | '.join('---:' if column.right else '---' for column in columns)} |"
    for cells in zip(*(column.cells for column in columns), strict=True):
        yield f"| {' | '.join(escape_prose(cell.plain) for cell in cells)} |"


def _list_layouts(columns: Sequence[Column], width: int) -> Iterator[_Layout]:
    """The layouts that fit, the one that gives up least first; the last one fits by breaking anything."""
    first, *others = columns
    for turn in (0, *sorted(column.given_up for column in others if column.given_up is not None)):
        shown = (first, *(column for column in others if column.given_up is None or column.given_up > turn))
        below = tuple(column for column in columns if column not in shown)
        fitting = _fit(shown, width)
        if fitting is not None:
            yield _Layout(shown=shown, widths=fitting[0], gap=fitting[1], below=below)
    yield _Layout(shown=(first,), widths=(min(first.natural, width),), gap=0, below=tuple(others))


def _fit(columns: Sequence[Column], width: int) -> tuple[tuple[int, ...], int] | None:
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


def _measure(layout: _Layout, width: int) -> tuple[int, int]:
    """The number of lines that a layout takes, and of its cells that take more than one."""
    columns = zip(layout.shown, layout.widths, strict=True)
    heights = [[count_lines(cell, wide) for cell in column.cells] for column, wide in columns]
    below = (_join_below(layout, row) for row in range(len(heights[0])))
    lines = sum(map(max, zip(*heights, strict=True)))
    lines += sum(count_lines(text, width - INDENT) for text in below if text.plain)
    return lines, sum(height > 1 for column in heights for height in column)


def _join_below(layout: _Layout, row: int) -> Text:
    """The cells of the columns that were given up, such as `global f32[8,64] · donated`."""
    parts = [Text(column.below[row]) if column.below else column.cells[row] for column in layout.below]
    below = Text(" · ").join(part for part in parts if part.plain)
    below.stylize("dim")
    return below


def _join_cells(cells: Sequence[Text], layout: _Layout) -> Text:
    padded = []
    for cell, column, wide in zip(cells, layout.shown, layout.widths, strict=True):
        blanks = Text(" " * (wide - cell.cell_len))
        padded.append(blanks + cell if column.right else cell + blanks)
    return Text(" " * layout.gap).join(padded)
