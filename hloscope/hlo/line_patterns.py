"""Cutting text into rows: one regular expression takes a line of the form that XLA prints into its pieces.

A piece is one of two things. A name, a list of names, a parameter's number, a simple literal or the body of metadata is
a hole: what stands there cannot change how the rest of the line is parsed. Everything else - the shape with the opcode,
a run of attributes - is kept word for word; the grammar has parsed each of these words once, see `line_cache`. The
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
_CALLING = "calls|to_apply"
"""The keys whose callee is cut out of the line: they name another computation on nearly every line that has them."""

_OPENING = rf"(?>(?:[^ \n]++ )*?{NAME}\(%s)"
_NUMBER = r"(?<=[ ]parameter\()[0-9]{1,18}+"
_LITERAL = r"""(?<=[ ]constant\()[^()"'/\s][^()"'/\n\r]*+"""
_NO_ARGUMENT = r"(?<![ ]parameter\()(?<![ ]constant\()"
_BODY = rf"""[^{{}}"'/\n\r]*+(?:{STRING}[^{{}}"'/\n\r]*+)*+"""
_METADATA = rf"\{{{_BODY}(?:\{{{_BODY}\}}{_BODY})*+\}}"


def _attributes(*stops: str) -> str:
    """A run of attributes up to the first of some keys."""
    return rf"[^,\n\r]*+(?:,(?! (?:{'|'.join(stops)})=)[^,\n\r]*+)*+"


Piece = TypeVar("Piece", str, tuple[str, ...])


class Row(NamedTuple, Generic[Piece]):
    """The pieces of a line, or a column of each.

    Attributes:
        root: `ROOT ` or nothing.
        name: Without `%`; empty where the line is no instruction of the usual form.
        opening: Shape, opcode and parenthesis: `f32[2]{0} add(`; with the `%` that begins a list of names.
        operands: The list of operands, without its first `%`.
        attributes: Those before `calling`.
        calling: `calls` or `to_apply`.
        callee: What `calling` names, without `%`.
        more: The attributes after it.
        metadata: The value of `metadata`, with its braces.
        rest: What comes after the metadata: mostly `, backend_config={…}`.
        other: The whole line where the line is no instruction of the usual form.
    """

    root: Piece
    name: Piece
    opening: Piece
    operands: Piece
    attributes: Piece
    calling: Piece
    callee: Piece
    more: Piece
    metadata: Piece
    rest: Piece
    other: Piece


class Dialect(NamedTuple):
    """One of the ways in which XLA prints instructions.

    Attributes:
        pattern: Finds one row for each line; its groups are the fields of `Row`.
        sigil: What stands before a name.
        between: What stands between the names of a list.
        split: Cuts a list of operands with shapes into what stands between the names, and the names; None where
            operands have no shapes.
    """

    pattern: re.Pattern[str]
    sigil: str
    between: str
    split: re.Pattern[str] | None


@cache
def dialect(*, percent: bool, shapes: bool) -> Dialect:
    """The dialect whose names have a `%` or not, and whose operands have shapes or not."""
    sigil = "%" if percent else ""
    name = f"%({NAME})" if percent else f"(?!ROOT )({NAME})"
    opening = _OPENING % ("" if shapes else "%?+" if percent else "")
    if shapes:  # up to the parenthesis that an attribute or nothing follows; no list of operands holds a `=`
        operands = rf"""{_NO_ARGUMENT}((?:[^"'=\n)]++|(?<=/\*index)=|\)(?!, {NAME}=|\r?$))*+)"""
    else:
        operands = r"(?<=%)([^()#\n]*+)" if percent else rf"{_NO_ARGUMENT}([^()#\n]*+)"
    argument = rf"(?:{_NUMBER}|{_LITERAL}|{operands}{'|' + _NO_ARGUMENT if percent and not shapes else ''})"
    instruction = (
        rf"^ *+(ROOT )?{name} = ({opening}){argument}\)"
        rf"({_attributes(_CALLING, 'metadata', 'backend_config')})(?:, ({_CALLING})={sigil}({NAME}))?"
        rf"({_attributes('metadata', 'backend_config')})(?:, metadata=({_METADATA}))?(,[^\n]*+)?\r?$"
    )
    pattern = re.compile(rf"{instruction}|^(.*+)$", re.MULTILINE)
    return Dialect(pattern, sigil, ", %" if percent and not shapes else ", ", _splitter(percent) if shapes else None)


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
