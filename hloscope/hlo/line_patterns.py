"""Rows of text: one regular expression cuts a line of the form that XLA prints into its pieces.

A piece is one of two things. A name, a list of names, a parameter's number, a simple literal or the body of metadata is
a hole: its text cannot change how the rest of the line is parsed. Everything else - the shape with the opcode, a run of
attributes - is a word; the grammar has read each of these words, or its form, once, see `line_cache`. The grammar's
rule for an instruction is exactly these pieces in sequence, and each of them is self-contained, so a line whose pieces
all follow their rules follows the rule for the whole.

Quantifiers are possessive and groups atomic: no line takes more than linear time. A line that the expression does not
match is not an error; it is parsed separately.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Generic, NamedTuple, TypeVar

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*+"
STRING = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
LEAF_OPCODES = ("parameter", "constant")
"""The opcodes whose parentheses hold no operands; to the grammar all others are alike."""

_OPENING = rf"(?>(?:[^ \n]++ )*?{NAME}\(%s)"
_PARAMETER = r"(?<=[ ]parameter\()[0-9]{1,18}+"
_LITERAL = r"""(?<=[ ]constant\()[^()"'/\s][^()"'/\n\r]*+"""
_NO_ARGUMENT = r"(?<![ ]parameter\()(?<![ ]constant\()"
_BODY = rf"""[^{{}}"'/\n\r]*+(?:{STRING}[^{{}}"'/\n\r]*+)*+"""
_METADATA = rf"\{{{_BODY}(?:\{{{_BODY}\}}{_BODY})*+\}}"


_ATTRIBUTES = r"[^,\n\r]*+(?:,(?! (?:metadata|backend_config)=)[^,\n\r]*+)*+"


Piece = TypeVar("Piece", str, tuple[str, ...])


class Row(NamedTuple, Generic[Piece]):
    """The pieces of a line, or a column of each.

    Attributes:
        root: `ROOT ` or nothing.
        name: The name without `%`; empty if the line is not an instruction of the usual form.
        opening: Shape, opcode and parenthesis: `f32[2]{0} add(`; with the `%` that begins a list of names.
        operands: The list of operands, without its first `%`.
        attributes: The attributes before the metadata.
        metadata: The value of `metadata`, with its braces.
        config: The attribute `backend_config`, which comes last.
        other: The whole line if it is not an instruction of the usual form.
    """

    root: Piece
    name: Piece
    opening: Piece
    operands: Piece
    attributes: Piece
    metadata: Piece
    config: Piece
    other: Piece


class Dialect(NamedTuple):
    """One of XLA's ways of printing instructions.

    Attributes:
        pattern: A pattern that finds one row per line; its groups are the fields of `Row`.
        between: The text between the names of a list.
        split: A pattern that splits a list of operands with shapes into names and the text between them; None if
        operands have no shapes.
    """

    pattern: re.Pattern[str]
    between: str
    split: re.Pattern[str] | None


@cache
def make_dialect(*, percent: bool, shapes: bool) -> Dialect:
    """The dialect with or without `%` before names, and with or without operand shapes."""
    name = f"%({NAME})" if percent else f"(?!ROOT )({NAME})"
    opening = _OPENING % ("" if shapes else "%?+" if percent else "")
    if shapes:  # up to the parenthesis that an attribute or nothing follows; no list of operands holds a `=`
        operands = rf"""{_NO_ARGUMENT}((?:[^"'=\n)]++|(?<=/\*index)=|\)(?!, {NAME}=|\r?$))*+)"""
    else:
        operands = r"(?<=%)([^()#\n]*+)" if percent else rf"{_NO_ARGUMENT}([^()#\n]*+)"
    argument = rf"(?:{_PARAMETER}|{_LITERAL}|{operands}{'|' + _NO_ARGUMENT if percent and not shapes else ''})"
    instruction = (
        rf"^ *+(ROOT )?{name} = ({opening}){argument}\)"
        rf"({_ATTRIBUTES})(?:, metadata=({_METADATA}))?(, backend_config=[^\n\r]*+)?\r?$"
    )
    pattern = re.compile(rf"{instruction}|^(.*+)$", re.MULTILINE)
    return Dialect(pattern, ", %" if percent and not shapes else ", ", _compile_splitter(percent) if shapes else None)


def _compile_splitter(percent: bool) -> re.Pattern[str]:
    if percent:
        return re.compile(rf"%({NAME})")
    return re.compile(rf"(?:(?<=[\]}}\)] )|(?<=, )|(?<=\*/)|^)({NAME})(?=, |$)")


_FIRST_NAME = re.compile(rf"^[ \t]*+(?:ROOT )?(%?){NAME} = ", re.MULTILINE)
_OPERAND_SHAPE = re.compile(rf"^[^\n=]*+= [^\n\"=]*? {NAME}\([a-z][a-z0-9]*+\[", re.MULTILINE)
_LOOKED_AT = 1 << 16


def detect_dialect(text: str, start: int) -> Dialect:
    """The dialect of a text, judged by its first instructions from an offset on. A wrong guess is only slower."""
    first = _FIRST_NAME.search(text, start)
    start = first.start() if first else start
    shapes = _OPERAND_SHAPE.search(text, start, start + _LOOKED_AT) is not None
    return make_dialect(percent=first is not None and first.group(1) == "%", shapes=shapes)


_nested = rf"""(?:[^{{}}"\n]++|{STRING})*+"""
for _ in range(8):  # deeper ones are parsed with their line, only more slowly
    _nested = rf"""(?:[^{{}}"\n]++|{STRING}|\{{{_nested}\}})*+"""
_PLAIN = r"""[^,"{\[]*+"""
_VALUE = rf"""{_PLAIN}(?:(?:\[[^\[\]"{{}}]*+\]|\{{{_nested}\}}|,(?! {NAME}=)|{STRING}){_PLAIN})*+"""

cut_attributes = re.compile(rf", ({NAME})=({_VALUE})").findall
"""Cuts a run of attributes into (key, value). It is only trusted for forms on which the grammar agrees."""


def is_comment(line: str) -> bool:
    """Returns whether a line consists only of comments, which a carriage return also ends."""
    return all(part.lstrip(" \t")[:2] in ("", "//") for part in line.split("\r"))


_ONES = bytes.maketrans(b"0123456789", b"1" * 10)
_LONG = b"1" * 19


def replace_numbers(text: str) -> str:
    """The text with every number replaced by 1: to the grammar, which only knows digits, all numbers are alike.

    A text with a number that may exceed 64 bits is its own form. Bytes take a third of the time that `re` does.
    """
    digits = text.encode("utf-8", "surrogatepass").translate(_ONES)
    if _LONG in digits:
        return text
    for run in (b"1111", b"11", b"11", b"11"):  # 18 digits become 6, 3, 2 and 1
        digits = digits.replace(run, b"1")
    return digits.decode("utf-8", "surrogatepass")
