"""Breaking text over lines where it stays readable; nothing is ever cut off."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

from rich.cells import cell_len
from rich.text import Text

_QUOTED = "   | "
_LABEL = re.compile(r" +(?:-->|= +[\w ]+:|why:|(?=\S)) *")


class Breaks(IntEnum):
    """How far a text may be broken before it is given a line of its own, from not at all to anywhere."""

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


def longest_piece(text: Text, breaks: Breaks) -> int:
    """Columns that the text needs when it is broken no further than `breaks` allows."""
    pieces = [text.plain] if breaks is Breaks.NEVER else _UP_TO[breaks].split(text.plain)
    return max(cell_len(_bare(piece)) for piece in pieces)


def line_count(text: Text, width: int) -> int:
    """Lines that `fold` makes."""
    return len(_folded(text.plain, width))


def fold(text: Text, width: int) -> list[Text]:
    """Breaks a text into lines of at most `width` columns; its styles stay.

    It is broken between the parts that ` · ` joins, then between words, then after commas, slashes, closing brackets
    and dots; within an identifier, and at last within a number, only where a single piece is wider than a line. The
    ` · ` or the blank that a line is broken after is not drawn.
    """
    ends, end = [], 0
    for part in _folded(text.plain, width)[:-1]:
        end += len(part)
        ends.append(end)
    lines = list(text.divide(ends))
    for line in lines:
        line.truncate(cell_len(_bare(line.plain)))
    return lines


def _bare(line: str) -> str:
    return line.rstrip().removesuffix(" ·").rstrip()


@lru_cache(maxsize=8192)
def _folded(text: str, width: int, level: Breaks = Breaks.BETWEEN_PARTS) -> tuple[str, ...]:
    """The lines, each with the blank it was broken after."""
    if cell_len(_bare(text)) <= width:
        return (text,)
    lines: list[str] = [""]
    for piece in _UP_TO[level].split(text):
        if cell_len(_bare(lines[-1] + piece)) <= width:
            lines[-1] += piece
        elif cell_len(_bare(piece)) <= width or level is Breaks.IN_NUMBERS:
            lines.append(piece)
        else:
            lines[-1:] = _folded(lines[-1] + piece, width, Breaks(level + 1))
    return tuple(line for line in lines if line)


def hanging(text: Text, width: int, indent: int = 2) -> list[Text]:
    """Folds a text; its second and further lines are indented."""
    first, *others = fold(text, width)
    if not others:
        return [first]
    rest = text[len(first.plain) :]
    rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ·")) :]
    return [first, *(Text(" " * indent) + line for line in fold(rest, width - indent))]


def message_line(line: str, width: int) -> list[Text]:
    """A line of an error message, broken below what follows its label; a quoted line stays whole above its caret."""
    if line.startswith(_QUOTED):
        return [Text(line)]
    label = _LABEL.match(line)
    return hanging(Text(line), width, indent=2 if label is None else label.end())
