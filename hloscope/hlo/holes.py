"""Cutting a line into its skeleton and its holes.

A hole is a span whose content cannot change how the line is parsed: a name, an operand list, a string, an integer, a
parameter's number, a simple literal, numbers in braces, the body of metadata or of a backend configuration. What is
left is the skeleton. Two lines with the same skeleton have the same tokens outside the holes, and each hole is the same
tokens or lies within the same token, so one parse speaks for both.

Every alternative begins with a fixed character, which lets `re` skip to the next candidate quickly, and a lookbehind
settles what stands before it. The skeleton around a hole tells what the hole is, so a string cannot stand in for a
name; a hole that begins with a parenthesis has one behind it, and one that begins with `=` has not. Quantifiers are
possessive throughout: no line takes more than linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

_WORD = "A-Za-z0-9_.-"
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*+"
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_CALLED = ("to_apply=", "calls=", "condition=", "body=", "computation=", "select=", "scatter=")


def _body(plain: str, depth: int) -> str:
    """What stands between braces that nest up to `depth` levels; deeper ones make no hole, and so are only slower."""
    body = rf"(?:{plain}|{_STRING})*+"
    for _ in range(depth):
        body = rf"(?:{plain}|{_STRING}|\{{{body}\}})*+"
    return body


def _after(openings: tuple[str, ...]) -> str:
    return "(?:" + "|".join(f"(?<={opening})" for opening in openings) + ")"


def _not_after(openings: tuple[str, ...]) -> str:
    return "".join(f"(?<!{opening})" for opening in openings)


_OPERANDS = rf"%?{_NAME}(?:, (?:/\*index=[0-9]++\*/)?%?{_NAME})*+"
_NUMBERS = r"(?=[0-9\[{])(?:[0-9,:\[\] ]++|\{[0-9, ]*+\})*+"
_HOLES = (
    rf"\({_not_after(('parameter[(]', 'constant[(]'))}{_OPERANDS}(?=\))",
    rf"%(?<![{_WORD}=]%){_NAME}",
    rf"%{_after(tuple(key + '%' for key in _CALLED))}{_NAME}",
    # Outside strings, metadata holds neither quotes nor comments; a backend's configuration may hold anything.
    r"\{(?<=[ ,]metadata=\{)" + _body(r"""[^{}"'/]++""", 1) + r"\}",
    r"\{(?<=[ ,]backend_config=\{)" + _body(r"""[^{}"]++""", 8) + r"\}",
    r"\{(?<==\{)" + _not_after(tuple(key + "[{]" for key in _CALLED)) + _NUMBERS + r"\}",
    rf"=(?<=[{_WORD}]=)(?<![*]index=)[0-9]++(?![A-Za-z0-9_.?+@:)-])",
    r"\((?<=[ ]parameter\()[0-9]{1,18}+(?=\))",
    r"\((?<=[ ]constant\()[A-Za-z0-9_.+-]++(?=\))",
    r'"(?<==")' + _not_after(tuple(key + '"' for key in _CALLED)) + _STRING[1:],
)
_SHAPE_HOLE = r"""\[(?<=[a-z0-9]\[)[0-9,]*+\](?:\{(?=[0-9:])[0-9,]*+(?::[^{}"%=]*+)?\})?"""
# Without `%`, a name is known by what stands around it: the key of a called computation, or a shape and a comma.
_BARE_HOLES = (
    rf"={_after(_CALLED)}{_NAME}(?!\))",
    rf"[ ](?<=[\]\}}][ ]){_NAME}(?=[,)])",
)


def _splitter(*holes: str) -> Callable[[str], list[str]]:
    return re.compile(f"({'|'.join(holes)})", re.DOTALL).split


def _bare(split: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Cuts lines whose names have no `%`: the name before ` = ` is the first hole."""
    is_head = re.compile(rf"( *+(?:ROOT )?)(?!ROOT(?: |$))({_NAME})( *+)").fullmatch

    def cut(line: str) -> list[str]:
        head, equal, rest = line.partition(" = ")
        match = is_head(head)
        if match is None or not equal:
            return split(line)
        indent, name, blanks = match.groups()
        parts = split(rest)
        parts[0] = blanks + equal + parts[0]
        return [indent, name, *parts]

    return cut


METADATA, BACKEND_CONFIG = ", metadata={", ", backend_config={"


def tails(line: str) -> tuple[int, int]:
    """Where metadata begins, and where the backend's configuration after it begins; -1 where there is none.

    The same tails stand on many lines, and are cut once for all. What looks like a tail in the middle of a string is
    cut there too, and then makes a line that is not plain.
    """
    metadata = line.find(METADATA)
    return metadata, line.find(BACKEND_CONFIG, max(metadata, 0))


def _by_tails(cut_head: Callable[[str], list[str]], cut_tail: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    def cut(line: str) -> list[str]:
        borders = [place for place in tails(line) if place >= 0]
        parts = cut_head(line[: borders[0]] if borders else line)
        for start, end in pairwise([*borders, len(line)]):
            parts += ["", *cut_tail(line[start:end])]
        return parts

    return cut


class Dialect:
    """How the lines of one kind of text are cut.

    Attributes:
        cut: Cuts an instruction into skeleton pieces (even places) and holes (odd places); the first hole is the name.
            An empty hole stands before each of the `tails`.
        cut_head: Cuts what stands before the first of the `tails`.
        cut_tail: Cuts one of them.
        cut_shapes: The same with the dimensions and layouts of shapes as further holes.
    """

    def __init__(self, *, percent: bool) -> None:
        holes = _HOLES if percent else (*_HOLES, *_BARE_HOLES)
        split, split_shapes = _splitter(*holes), _splitter(*holes, _SHAPE_HOLE)
        self.cut_head = split if percent else _bare(split)
        self.cut_tail = split
        self.cut = _by_tails(self.cut_head, split)
        self.cut_shapes = _by_tails(split_shapes if percent else _bare(split_shapes), split_shapes)


cut_head = _splitter(rf"{_NAME}:", rf"%{_NAME}", r"\[(?<=[a-z0-9]\[)[0-9,]*+\]")
"""Cuts the line that opens a computation: names, and the dimensions of shapes."""

cut_numbers = re.compile(r"(?<![0-9])([0-9]{1,18})(?![0-9])").split
"""Cuts a row of a stack table."""

_INDEX_COMMENT = re.compile(r"/\*index=[0-9]+\*/")


def is_plain(pieces: list[str]) -> bool:
    """Whether the skeleton lets every hole stand outside strings and comments.

    Each piece must close what it opens: quotes come in pairs, and there is no comment but XLA's `/*index=5*/`.
    """
    for piece in pieces:
        if piece.count('"') % 2 or piece.count("'") % 2:
            return False
        if "/" in piece and ("/*" in _INDEX_COMMENT.sub("", piece) or "//" in piece):
            return False
    return True


def operand_names(hole: str) -> list[str]:
    """The names of an operand list, from its hole: `(%a, /*index=5*/%b`."""
    if "/" in hole:
        hole = _INDEX_COMMENT.sub("", hole)
    return hole[1:].replace("%", "").split(", ")
