"""What is known of every line with one skeleton: where its fields stand between the holes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

from hloscope.hlo.columns import Details
from hloscope.hlo.holes import operand_names
from hloscope.hlo.records import Instruction, Span, span_of
from hloscope.hlo.shape import Shape


class Irregular(Exception):  # noqa: N818 - no error: such a line is parsed each time instead
    """A field's border lies inside a hole, or the line holds what templates do not describe."""


class Recipe(NamedTuple):
    """A span in terms of a line's parts: from `skip` characters into part `first` to `drop` before `last`'s end."""

    first: int
    skip: int
    last: int
    drop: int

    def text(self, parts: list[str]) -> str:
        """The span's text."""
        first, skip, last, drop = self
        if first == last:
            part = parts[first]
            return part[skip : len(part) - drop]
        end = parts[last]
        return "".join((parts[first][skip:], *parts[first + 1 : last], end[: len(end) - drop]))

    def span(self, borders: list[int]) -> Span:
        """The span in a line whose parts begin and end at `borders`."""
        return Span(borders[self.first] + self.skip, borders[self.last + 1] - self.drop)


Place = TypeVar("Place", Span, Recipe)


class Outline(NamedTuple, Generic[Place]):
    """Where the fields of one instruction stand: as spans of its line, or in terms of its parts.

    `operand_list` is the hole that holds all operands; they are in `operands` where there is none.
    """

    opcode: str
    is_root: bool
    name: Place
    shape: Place | None
    operand_list: Place | None
    operands: tuple[Place, ...]
    argument: Place | None
    attributes: tuple[tuple[str, Place], ...]
    called: tuple[tuple[str, Place], ...]


Old = TypeVar("Old", Span, Recipe)
New = TypeVar("New", Span, Recipe)


def mapped(lines: Outline[Old], place: Callable[[Old], New]) -> Outline[New]:
    """The outline with every place replaced."""
    return Outline(
        opcode=lines.opcode,
        is_root=lines.is_root,
        name=place(lines.name),
        shape=None if lines.shape is None else place(lines.shape),
        operand_list=None if lines.operand_list is None else place(lines.operand_list),
        operands=tuple(place(item) for item in lines.operands),
        argument=None if lines.argument is None else place(lines.argument),
        attributes=tuple((key, place(item)) for key, item in lines.attributes),
        called=tuple((key, place(item)) for key, item in lines.called),
    )


def outline(instruction: Instruction, parts: list[str]) -> Outline[Span]:
    """The outline of a parsed line.

    Raises:
        Irregular: It holds nested or nameless operands, tuple indexes or an inline computation.
    """
    operation = instruction.operation
    callees = [(item.key, callee) for item in operation.attributes for callee in item.callees]
    plain_operands = all(item.name is not None and not item.indexes for item in operation.operands)
    if instruction.name is None or not plain_operands or any(callee.name is None for _, callee in callees):
        raise Irregular
    operands = tuple(item.span for item in operation.operands)
    operand_list = _operand_list(operands, parts)
    name = instruction.name
    return Outline(
        opcode=operation.opcode,
        is_root=instruction.is_root,
        name=span_of(name, name),
        shape=None if operation.shape is None else operation.shape.span,
        operand_list=operand_list,
        operands=() if operand_list else operands,
        argument=operation.argument,
        attributes=tuple((item.key, item.span) for item in operation.attributes),
        called=tuple((key, callee.span) for key, callee in callees),
    )


def _operand_list(operands: tuple[Span, ...], parts: list[str]) -> Span | None:
    """The hole that holds exactly these operands as a plain list."""
    if not operands:
        return None
    borders = borders_of(parts)
    index = bisect_right(borders, operands[0].start) - 1
    if index % 2 == 0 or parts[index][:1] != "(" or operands[-1].end != borders[index + 1]:
        return None
    named = len(operand_names(parts[index]))
    return Span(borders[index], borders[index + 1]) if named == len(operands) else None


def borders_of(parts: list[str]) -> list[int]:
    """Where each part begins, and where the last one ends."""
    return [0, *accumulate(map(len, parts))]


def recipe(span: Span, parts: list[str], borders: list[int]) -> Recipe:
    """The span in terms of the parts.

    Raises:
        Irregular: A border lies inside a hole, where other contents would move it.
    """
    first = bisect_right(borders, span.start) - 1
    last = bisect_left(borders, span.end) - 1
    if first > last:
        raise Irregular
    skip, drop = span.start - borders[first], borders[last + 1] - span.end
    opening = 1 if parts[first][:1] in ("=", "(", " ") else 0
    if (first % 2 and skip not in (0, opening)) or (last % 2 and drop):
        raise Irregular
    return Recipe(first, skip, last, drop)


def in_parts(lines: Outline[Span], parts: list[str]) -> Outline[Recipe]:
    """The outline in terms of the line's parts, so that it fits every line with the same skeleton.

    Raises:
        Irregular: The name is not the first hole, operands or callees stand behind the metadata, a body in braces is no
            attribute's value, or as for `recipe`.
    """
    borders = borders_of(parts)
    found = mapped(lines, lambda span: recipe(span, parts, borders))
    if found.name != Recipe(1, 0, 1, 0):
        raise Irregular
    border = next((place for place in range(1, len(parts), 2) if not parts[place]), len(parts))
    if any(item.last > border for item in (*found.operands, *(place for _, place in found.called))):
        raise Irregular
    if found.operand_list is not None and found.operand_list.first > border:
        raise Irregular
    whole = {item.first for _, item in found.attributes if item == Recipe(item.first, 0, item.first, 0)}
    if any(part[:1] == "{" and index not in whole for index, part in enumerate(parts) if index % 2):
        raise Irregular
    return found


class Template:
    """The form of every instruction with one skeleton.

    Attributes:
        outline: Where everything stands.
        opcode: As printed.
        is_root: Whether `ROOT` stands before the name.
        shape: None when the text leaves it out.
        operand_list: The part that holds all operands; 0 where they do not stand in one hole.
        operands: The operands where they do not stand in one hole.
        called: (attribute key, where the name of the called computation stands).
    """

    __slots__ = (
        "_argument",
        "_attributes",
        "_cut",
        "called",
        "is_root",
        "opcode",
        "operand_list",
        "operands",
        "outline",
        "shape",
    )

    def __init__(self, lines: Outline[Recipe], shape: Shape | None, cut: Callable[[str], list[str]]) -> None:
        self.outline = lines
        self.opcode = lines.opcode
        self.is_root = lines.is_root
        self.shape = shape
        self.called = lines.called
        self.operand_list = 0 if lines.operand_list is None else lines.operand_list.first
        self.operands = lines.operands
        self._attributes = lines.attributes
        self._argument = lines.argument
        self._cut = cut

    def details(self, line: str) -> Details:
        """Reads the attributes from an instruction's text."""
        parts = self._cut(line)
        attributes = {key: item.text(parts) for key, item in self._attributes}
        return Details(attributes, None if self._argument is None else self._argument.text(parts))
