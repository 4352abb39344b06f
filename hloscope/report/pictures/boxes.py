"""An array cut along its dimensions by the axes of the mesh, in box characters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from rich.text import Text

from hloscope.analysis.shards import Grid, Shards
from hloscope.report.layout import fold, hanging
from hloscope.report.pictures.words import (
    WAYS_TO_FIT,
    Holders,
    bounds_words,
    described,
    heading,
    remarks,
    shown_places,
)

_TINTS = ("on blue", "on cyan")
_GAP = "⋯"
_ROOMY = 9
_PADDED = "░"


def shards_lines(shards: Shards, width: int, *, alone: bool = True) -> Iterator[Text]:
    """An array cut into its shards, with who holds each, in box characters.

    Args:
        shards: The array.
        width: Columns.
        alone: Whether nothing else says what the mesh is and what numbers mean.
    """
    grid = None if shards.why_unknown is not None else shards.grid()
    yield from hanging(Text.assemble((shards.name, "bold"), f"  {heading(shards)}"), width)
    for words in described(shards, grid, with_mesh=alone):
        yield from hanging(Text(words, style="dim"), width)
    if grid is None:
        yield from fold(Text(f"Who holds what is not known: {shards.why_unknown}.", style="yellow"), width)
        return
    box = _fitting(shards, grid, width)
    yield from box.lines()
    for remark in remarks(shards, grid, box.detail, with_mesh=alone):
        yield from hanging(Text(remark, style="dim"), width)


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
    grid: Grid
    rows: tuple[int | None, ...]
    columns: tuple[int | None, ...]
    detail: int
    cell: int
    margin: int

    def lines(self) -> Iterator[Text]:
        """The drawing."""
        yield from self._header()
        yield self._rule(*"┌┬┐")
        for index, row in enumerate(self.rows):
            if index:
                yield self._rule(*"├┼┤")
            yield self._row(row)
        yield self._rule(*"└┴┘")

    def longest_label(self) -> int:
        """Letters of the longest label that is drawn."""
        return max(
            len(self._holders(row, column).label(self.detail))
            for row in self.rows
            for column in self.columns
            if row is not None and column is not None
        )

    def longest_header(self) -> int:
        """Letters of the longest word above a column."""
        return max(len(self._bounds(self.grid.columns, column or 0)) for column in self.columns)

    def _header(self) -> Iterator[Text]:
        """Which elements each column holds, where there is room for it."""
        if 0 < self.longest_header() <= self.cell:
            words = (_GAP if column is None else self._bounds(self.grid.columns, column) for column in self.columns)
            yield Text(" " * (self.margin + 1) + " ".join(word.center(self.cell) for word in words), style="dim")

    def _bounds(self, dimension: int | None, piece: int) -> str:
        return "" if dimension is None else bounds_words(self.shards, dimension, piece)

    def _rule(self, left: str, middle: str, right: str) -> Text:
        return Text(" " * self.margin + left + middle.join("─" * self.cell for _ in self.columns) + right)

    def _row(self, row: int | None) -> Text:
        words = "" if row is None else self._bounds(self.grid.rows, row)
        line = Text(words[: self.margin - 1].rjust(self.margin - 1) + " " if self.margin else "", style="dim")
        line.append("│")
        for column in self.columns:
            line.append_text(self._cell(row, column))
            line.append("│")
        return line

    def _cell(self, row: int | None, column: int | None) -> Text:
        if row is None or column is None:
            return Text((_GAP if row is not None or column is None else "⋮").center(self.cell))
        label = _blank_around(self._holders(row, column).label(self.detail), self.cell)
        hatched = _hatched(label, self.cell, self.shards.padded_share_at(self.grid, row, column))
        return Text(hatched, style=_TINTS[(row + column) % 2])

    def _holders(self, row: int, column: int) -> Holders:
        return Holders(devices=self.grid.holders[row][column], are_addends=self.shards.holders_are_addends)


def _hatched(label: str, room: int, padded_share: float) -> str:
    """A label in the middle of a cell, whose end is hatched by the share that is padding: all of it only by all."""
    columns = room if padded_share == 1 else min(max(round(padded_share * room), padded_share > 0), room - 1)
    left = (room - len(label)) // 2
    blanks = " " * (room - columns) + _PADDED * columns
    return blanks[:left] + label + blanks[left + len(label) :]


def _blank_around(label: str, room: int) -> str:
    return f" {label} " if len(label) + 2 <= room else label


def _fitting(shards: Shards, grid: Grid, width: int) -> _Box:
    """The layout that shows most in a width: labels as long as they can be, then as many pieces."""
    shown = tuple(shown_places(len(grid.holders)))
    margin = 0
    if grid.rows is not None:
        margin = 2 + max(len(bounds_words(shards, grid.rows, row)) for row in shown if row is not None)
    box = _Box(shards=shards, grid=grid, rows=shown, columns=(), detail=0, cell=0, margin=margin)
    for (detail, most), beside in product(WAYS_TO_FIT, (margin, 0)):
        columns = tuple(shown_places(len(grid.holders[0]), most))
        tried = replace(box, columns=columns, detail=detail, margin=beside)
        room = (width - tried.margin - 1) // len(tried.columns) - 1
        needed = tried.longest_label() + (2 if detail < Holders.COUNTED else 0)
        if needed <= room:
            return replace(tried, cell=min(room, max(needed, tried.longest_header(), _ROOMY)))
    return replace(tried, cell=max(needed, 1))
