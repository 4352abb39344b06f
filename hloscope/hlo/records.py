"""Records of the grammar's upper level, which refer to spans of the text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from hloscope.hlo.lalr_runtime import Token
from hloscope.hlo.shape import Shape


class TextSpan(NamedTuple):
    """Offsets in the parsed text."""

    start: int
    end: int


def join_spans(first: Token, last: Token) -> TextSpan:
    """The span from the first character of one token to the last of another."""
    return TextSpan(first.start_pos, last.end_pos)


class ParsedShape(NamedTuple):
    """A shape, its span, and the nesting depth of its tuples."""

    shape: Shape
    span: TextSpan
    depth: int


class Operand(NamedTuple):
    """One operand: a name with `#` indexes, a nested operation, only a shape, or nothing between two commas.

    `span` is that of the name, if there is one.
    """

    shape: Shape | None
    name: str | None
    span: TextSpan
    indexes: tuple[int, ...]
    nested: ParsedOp | None


class Callee(NamedTuple):
    """A called computation: its name, or an inline body."""

    name: str | None
    span: TextSpan
    body: tuple[Instruction, ...]


class Attribute(NamedTuple):
    """One attribute: key as printed, span of its value, and the computations it calls."""

    key: str
    span: TextSpan
    callees: tuple[Callee, ...]


class ParsedOp(NamedTuple):
    """The right-hand side of an instruction.

    `argument` is the text in the parentheses of a parameter (its number) or a constant (its literal).
    """

    shape: ParsedShape | None
    opcode: str
    span: TextSpan
    operands: tuple[Operand, ...]
    argument: TextSpan | None
    attributes: tuple[Attribute, ...]


class Instruction(NamedTuple):
    """One instruction; a lone right-hand side has no name."""

    is_root: bool
    name: Token | None
    operation: ParsedOp


class ComputationHead(NamedTuple):
    """The line that opens a computation."""

    is_entry: bool
    name: Token
    span: TextSpan


class Computation(NamedTuple):
    """A computation with its body; `execution_thread` is already unquoted."""

    head: ComputationHead
    instructions: tuple[Instruction, ...]
    execution_thread: str | None


class Header(NamedTuple):
    """The module's header."""

    name: str
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A whole text: a module with its header, computations alone, or one instruction."""

    header: Header | None = None
    tables: tuple[tuple[StackTableRow, ...], ...] = ()
    computations: tuple[Computation, ...] = ()
    instruction: Instruction | None = None


StackTableRow = str | dict[str, int]
"""A row of a stack table: its string, or its numbers by key. The printed number of the row is ignored, as XLA does."""


@dataclass(eq=False)
class ReadError(Exception):
    """Text that does not follow the grammar, or that follows it but makes no sense.

    Attributes:
        position: Offset in the parsed text.
        what: One lower-case sentence.
        fix: The suggested fix.
        at_end: Whether the text ends although more was expected.
        opened_at: Offset of a bracket that is never closed.
    """

    position: int
    what: str
    fix: str | None = None
    at_end: bool = False
    opened_at: int | None = None

    def moved(self, offset: int) -> ReadError:
        """The same error in a text that contains the parsed one at `offset`."""
        opened_at = None if self.opened_at is None else self.opened_at + offset
        return replace(self, position=self.position + offset, opened_at=opened_at)


class ContradictionError(ReadError):
    """Text that follows the grammar, but whose values contradict each other."""
