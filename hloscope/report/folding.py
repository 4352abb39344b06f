"""Breaking text over lines where it stays readable; nothing is ever cut off."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

from rich.cells import cell_len
from rich.text import Text


class Breaks(IntEnum):
    """How far a text may be broken before it is given a line of its own, from not at all to anywhere."""

    NEVER = -1
    BETWEEN_PARTS = 0
    BETWEEN_WORDS = 1
    AFTER_PUNCTUATION = 2
    IN_IDENTIFIERS = 3
    BETWEEN_CHARACTERS = 4
    IN_NUMBERS = 5


# A number keeps its unit; a dot inside a number or before a file's ending is no place to break.
_PLACES = {
    Breaks.BETWEEN_PARTS: re.compile(r"(?<= · )"),
    Breaks.BETWEEN_WORDS: re.compile(r"(?<=[^\d·\s]\s)|(?<=\d\s)(?!(?:[kMGTP]?B|[KMG]iB|us|ms|s)\b)"),
    Breaks.AFTER_PUNCTUATION: re.compile(r"(?<=[,/])|(?<=[\])}])(?![\])},.])|(?<=[^\d.]\.)(?![\d.]|py\b|hlo\b|txt\b)"),
    Breaks.IN_IDENTIFIERS: re.compile(r"(?<=[_:=@%-])|(?=[\[({])"),
    Breaks.BETWEEN_CHARACTERS: re.compile(r"(?<!\d)(?=.)|(?!\d)(?=.)", re.DOTALL),
    Breaks.IN_NUMBERS: re.compile(r"(?=.)", re.DOTALL),
}


def longest_piece(text: Text, breaks: Breaks) -> int:
    """Columns that the text needs when it is broken no further than `breaks` allows."""
    pieces = [text.plain]
    for level, places in _PLACES.items():
        if level <= breaks:
            pieces = [part for piece in pieces for part in places.split(piece)]
    return max(cell_len(piece.rstrip()) for piece in pieces)


def line_count(text: Text, width: int) -> int:
    """Lines that `fold` makes."""
    return len(_folded(text.plain, width))


def fold(text: Text, width: int) -> list[Text]:
    """Breaks a text into lines of at most `width` columns; its styles stay.

    It is broken between the parts that ` · ` joins, then between words, then after commas, slashes, closing brackets
    and dots; within an identifier, and at last within a number, only where a single piece is wider than a line.
    """
    ends, end = [], 0
    for part in _folded(text.plain, width)[:-1]:
        end += len(part)
        ends.append(end)
    lines = list(text.divide(ends))
    for line in lines:
        line.rstrip()
    return lines


@lru_cache(maxsize=8192)
def _folded(text: str, width: int, level: Breaks = Breaks.BETWEEN_PARTS) -> tuple[str, ...]:
    """The lines, each with the blank it was broken after."""
    if cell_len(text.rstrip()) <= width:
        return (text,)
    lines: list[str] = [""]
    for piece in _PLACES[level].split(text):
        if cell_len((lines[-1] + piece).rstrip()) <= width:
            lines[-1] += piece
        elif cell_len(piece.rstrip()) <= width or level is Breaks.IN_NUMBERS:
            lines.append(piece)
        else:
            lines[-1:] = _folded(lines[-1] + piece, width, Breaks(level + 1))
    return tuple(line for line in lines if line)
