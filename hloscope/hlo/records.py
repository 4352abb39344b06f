"""The result of the grammar's upper level: records that point at spans of the text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from hloscope.hlo.lalr_runtime import Token
from hloscope.hlo.shape import Shape


class Span(NamedTuple):
    """Offsets in the parsed text."""

    start: int
    end: int


def span_of(first: Token, last: Token) -> Span:
    """From the first character of one token to the last of another."""
    return Span(first.start_pos, last.end_pos)


class ParsedShape(NamedTuple):
    """A shape, its span, and how deep its tuples nest."""

    shape: Shape
    span: Span
    depth: int


class Operand(NamedTuple):
    """One operand: a name with `#` indexes, a nested operation, only a shape, or nothing between two commas.

    `span` is the name's, where there is one.
    """

    shape: Shape | None
    name: str | None
    span: Span
    indexes: tuple[int, ...]
    nested: Operation | None


class Callee(NamedTuple):
    """A called computation: its name, or an inline body."""

    name: str | None
    span: Span
    body: tuple[Instruction, ...]


class Attribute(NamedTuple):
    """One attribute: key as printed, span of its value, and the computations it calls."""

    key: str
    span: Span
    callees: tuple[Callee, ...]


class Operation(NamedTuple):
    """The right-hand side of an instruction.

    `argument` is what stands in the parentheses of a parameter (its number) or a constant (its literal).
    """

    shape: ParsedShape | None
    opcode: str
    span: Span
    operands: tuple[Operand, ...]
    argument: Span | None
    attributes: tuple[Attribute, ...]


class Instruction(NamedTuple):
    """One instruction; a lone right-hand side has no name."""

    is_root: bool
    name: Token | None
    operation: Operation


class ComputationHead(NamedTuple):
    """The line that opens a computation."""

    is_entry: bool
    name: Token
    span: Span


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
class Text:
    """A whole text: a module with its header, computations alone, or one instruction."""

    header: Header | None = None
    tables: tuple[tuple[Row, ...], ...] = ()
    computations: tuple[Computation, ...] = ()
    instruction: Instruction | None = None


Row = str | dict[str, int]
"""A row of a stack table: its string, or its numbers by key. The printed number of the row is ignored, as XLA does."""


@dataclass(eq=False)
class ReadError(Exception):
    """Text that does not follow the grammar, or that follows it and makes no sense all the same.

    Attributes:
        position: Offset in the parsed text.
        what: One lower-case sentence.
        fix: What to do about it.
        at_end: The text ends where something more was expected.
        opened_at: Offset of a bracket that is never closed.
    """

    position: int
    what: str
    fix: str | None = None
    at_end: bool = False
    opened_at: int | None = None

    def moved(self, offset: int) -> ReadError:
        """The same error in a text that holds the parsed one at `offset`."""
        opened_at = None if self.opened_at is None else self.opened_at + offset
        return replace(self, position=self.position + offset, opened_at=opened_at)


class ContradictionError(ReadError):
    """Text that follows the grammar, and whose values do not fit together."""
