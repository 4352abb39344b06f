"""Cutting text into rows: one regular expression takes a line of the form that XLA prints into its pieces.

A piece is one of two things. A name, a list of names, a parameter's number, a simple literal or the body of metadata is
a hole: what stands there cannot change how the rest of the line is parsed. Everything else - the shape with the opcode,
a run of attributes - is a word; the grammar has read each of these words, or its form, once, see `line_cache`. The
grammar's rule for an instruction is nothing but these pieces one after the other, and each of them is whole in itself,
so a line whose pieces all follow their rules follows the rule for the whole.

Quantifiers are possessive and groups atomic: no line takes more than linear time. What the expression does not match is
no error; such a line is parsed by itself.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Generic, NamedTuple, TypeVar

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*+"
STRING = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
LEAVES = ("parameter", "constant")
"""The opcodes with something else than operands in their parentheses; to the grammar all others are the same."""

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
        name: Without `%`; empty where the line is no instruction of the usual form.
        opening: Shape, opcode and parenthesis: `f32[2]{0} add(`; with the `%` that begins a list of names.
        operands: The list of operands, without its first `%`.
        attributes: Those before the metadata.
        metadata: The value of `metadata`, with its braces.
        config: The attribute `backend_config`, which comes last.
        other: The whole line where the line is no instruction of the usual form.
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
    """One of the ways in which XLA prints instructions.

    Attributes:
        pattern: Finds one row for each line; its groups are the fields of `Row`.
        between: What stands between the names of a list.
        split: Cuts a list of operands with shapes into what stands between the names, and the names; None where
            operands have no shapes.
    """

    pattern: re.Pattern[str]
    between: str
    split: re.Pattern[str] | None


@cache
def dialect(*, percent: bool, shapes: bool) -> Dialect:
    """The dialect whose names have a `%` or not, and whose operands have shapes or not."""
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
    return Dialect(pattern, ", %" if percent and not shapes else ", ", _splitter(percent) if shapes else None)


def _splitter(percent: bool) -> re.Pattern[str]:
    if percent:
        return re.compile(rf"%({NAME})")
    return re.compile(rf"(?:(?<=[\]}}\)] )|(?<=, )|(?<=\*/)|^)({NAME})(?=, |$)")


_FIRST_NAME = re.compile(rf"^[ \t]*+(?:ROOT )?(%?){NAME} = ", re.MULTILINE)
_OPERAND_SHAPE = re.compile(rf"^[^\n=]*+= [^\n\"=]*? {NAME}\([a-z][a-z0-9]*+\[", re.MULTILINE)
_LOOKED_AT = 1 << 16


def dialect_of(text: str, start: int) -> Dialect:
    """The dialect of a text, judged by its first instructions from an offset on. A wrong guess is only slower."""
    first = _FIRST_NAME.search(text, start)
    start = first.start() if first else start
    shapes = _OPERAND_SHAPE.search(text, start, start + _LOOKED_AT) is not None
    return dialect(percent=first is not None and first.group(1) == "%", shapes=shapes)


_nested = rf"""(?:[^{{}}"\n]++|{STRING})*+"""
for _ in range(8):  # deeper ones are parsed with their line, which is only slower
    _nested = rf"""(?:[^{{}}"\n]++|{STRING}|\{{{_nested}\}})*+"""
_PLAIN = r"""[^,"{\[]*+"""
_VALUE = rf"""{_PLAIN}(?:(?:\[[^\[\]"{{}}]*+\]|\{{{_nested}\}}|,(?! {NAME}=)|{STRING}){_PLAIN})*+"""

cut_attributes = re.compile(rf", ({NAME})=({_VALUE})").findall
"""Cuts a run of attributes into (key, value). It is believed only of forms of which the grammar says the same."""


def is_comment(line: str) -> bool:
    """Whether a line is nothing but comments, which a carriage return ends too."""
    return all(part.lstrip(" \t")[:2] in ("", "//") for part in line.split("\r"))


_ONES = bytes.maketrans(b"0123456789", b"1" * 10)
_LONG = b"1" * 19


def form_of(text: str) -> str:
    """The text with every number replaced by 1: to the grammar, which knows only digits, all numbers are the same.

    A text with one that may be too long for 64 bits is its own form. Bytes take a third of the time that `re` does.
    """
    digits = text.encode("utf-8", "surrogatepass").translate(_ONES)
    if _LONG in digits:
        return text
    for run in (b"1111", b"11", b"11", b"11"):  # 18 digits become 6, 3, 2 and 1
        digits = digits.replace(run, b"1")
    return digits.decode("utf-8", "surrogatepass")
