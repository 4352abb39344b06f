"""The callbacks that build records and values during parsing.

Each method handles the rule, or the alias of an alternative, of the same name in `hlo.lark`; its argument is the list
of children.
"""

# ruff: noqa: D102 - a callback is documented by its rule in the grammar
from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hloscope.hlo.lalr_runtime import Token
from hloscope.hlo.opcodes import RULE_OF_VALUE
from hloscope.hlo.records import (
    Attribute,
    Callee,
    Computation,
    ComputationHead,
    Header,
    Instruction,
    Operand,
    ParsedOp,
    ParsedShape,
    ParsedText,
    ReadError,
    StackTableRow,
    TextSpan,
    join_spans,
)
from hloscope.hlo.shape import Layout, Shape
from hloscope.hlo.value_actions import ValueActions, check_value, unquote

_OPERAND_NAME = re.compile(r"/\*[^*]*\*/|%?([A-Za-z_][A-Za-z0-9_.-]*)")

_MOST_ARRAYS = 1 << 14
"""Number of arrays kept for later texts: the same few make up very many shapes."""

MAX_DEPTH = 100
"""Maximum nesting of tuples and operands; XLA's own stack ends not much later."""


class GrammarActions(ValueActions):
    """Callbacks of the upper level; the lower level is inherited."""

    def __init__(self) -> None:
        super().__init__()
        self._arrays: dict[tuple[str, ...], Shape] = {}

    # ---- text

    def module(self, children: list[Any]) -> ParsedText:
        header, *rest = children
        tables = rest.pop(0) if isinstance(rest[0], list) else ()
        return ParsedText(header=header, tables=tuple(tables), computations=tuple(rest))

    def headerless(self, children: list[Any]) -> ParsedText:
        return ParsedText(computations=tuple(children))

    def continuation(self, children: list[Any]) -> tuple[Computation, ...]:
        return tuple(children)

    def single(self, children: list[Any]) -> ParsedText:
        (item,) = children
        instruction = item if isinstance(item, Instruction) else Instruction(True, None, item)
        return ParsedText(instruction=instruction)

    def header(self, children: list[Any]) -> Header:
        _, name, *attributes = children
        return Header(name.rstrip(":").lstrip("%"), _check_unique(attributes))

    def module_name(self, children: list[Any]) -> Any:
        return children[0]

    opcode = table_row = module_name

    # ---- stack tables

    def tables(self, children: list[Any]) -> list[Any]:
        return children

    operands = value = tables

    def file_names(self, children: list[Any]) -> tuple[StackTableRow, ...]:
        return tuple(children[1:])

    function_names = file_locations = stack_frames = file_names

    def name_row(self, children: list[Token]) -> StackTableRow:
        return unquote(children[1])

    def number_row(self, children: list[Token]) -> StackTableRow:
        keys, numbers = children[2:-1:2], children[3:-1:2]
        return {key[:-1]: int(number) for key, number in zip(keys, numbers, strict=True)}

    # ---- computations

    def computation(self, children: list[Any]) -> Computation:
        head, *instructions, thread = children
        return Computation(head, tuple(instructions), thread)

    leading_computation = computation

    def computation_head(self, children: list[Any]) -> ComputationHead:
        is_entry = children[0].type == "ENTRY"
        name = children[1] if is_entry else children[0]
        head = ComputationHead(is_entry, name, join_spans(children[0], children[-1]))
        self.progress.head = head
        return head

    leading_head = computation_head

    def computation_end(self, children: list[Token]) -> str | None:
        self.progress.head = None
        self.progress.end = children[-1].end_pos
        return unquote(children[2]) if len(children) > 1 else None

    signature = parameter = ValueActions._nothing

    # ---- instructions

    def instruction(self, children: list[Any]) -> Instruction:
        is_root = children[0].type == "ROOT"
        return Instruction(is_root, children[1] if is_root else children[0], children[-1])

    def name(self, children: list[Token]) -> Token:
        (name,) = children
        return name.until(-1) if name.type == "PARAMETER_NAME" else name

    def operation(self, children: list[Any]) -> ParsedOp:
        return self._operation(children, with_attributes=True)

    def _operation(self, children: list[Any], *, with_attributes: bool) -> ParsedOp:
        shape = children.pop(0) if isinstance(children[0], ParsedShape) else None
        opcode, _, *rest = children
        operands = rest.pop(0) if isinstance(rest[0], list) else ()
        closing, *attributes = rest
        span = join_spans(opcode, closing)
        unique = _check_unique(attributes) if with_attributes else ()
        return ParsedOp(shape, str(opcode), span, tuple(operands), None, unique)

    def parameter_operation(self, children: list[Any]) -> ParsedOp:
        shape, opcode, _, argument, closing, *attributes = children
        span = join_spans(opcode, closing)
        argument_span = join_spans(argument, argument)
        return ParsedOp(shape, str(opcode), span, (), argument_span, _check_unique(attributes))

    constant_operation = parameter_operation

    def plain_operands(self, children: list[Token]) -> list[Operand]:
        (names,) = children
        base = names.start_pos
        return [
            Operand(None, found.group(1), TextSpan(base + found.start(), base + found.end()), (), None)
            for found in _OPERAND_NAME.finditer(names)
            if found.group(1)
        ]

    def named_operand(self, children: list[Any]) -> Operand:
        shape = children.pop(0) if isinstance(children[0], ParsedShape) else None
        name = children[0]
        indexes = tuple(int(child) for child in children[2::2])
        span = join_spans(name, name)
        return Operand(shape and shape.shape, name.lstrip("%"), span, indexes, None)

    def nested_operand(self, children: list[Any]) -> Operand:
        nested = self._operation(children, with_attributes=False)
        if _count_nesting(nested) > MAX_DEPTH:
            raise ReadError(nested.span.start, f"operands nest deeper than {MAX_DEPTH} levels")
        return Operand(nested.shape and nested.shape.shape, None, nested.span, (), nested)

    def nested_leaf(self, children: list[Any]) -> Operand:
        nested = self.parameter_operation(children)
        return Operand(children[0].shape, None, nested.span, (), nested)

    def nameless_operand(self, children: list[ParsedShape]) -> Operand:
        return Operand(children[0].shape, None, children[0].span, (), None)

    def left_out(self, _children: list[Any]) -> Operand:
        return Operand(None, None, TextSpan(0, 0), (), None)

    # ---- shapes

    def array_shape(self, children: list[Token]) -> ParsedShape:
        shape = self._arrays.get(tuple(children))
        if shape is None:
            if len(self._arrays) >= _MOST_ARRAYS:
                self._arrays.clear()
            shape = self._arrays[tuple(map(str, children))] = self._array(*children)
        return ParsedShape(shape, join_spans(children[0], children[-1]), 0)

    def _array(self, array: Token, layout: Token | None = None) -> Shape:
        shape: Shape = self.read_at("array", array)
        if layout is None:
            return shape
        found: Layout = self.read_at("layout", layout)
        if len(found.minor_to_major) not in (0, len(shape.dimensions)):
            raise ReadError(layout.start_pos, f"the layout of {shape} lists {len(found.minor_to_major)} dimensions")
        return replace(shape, layout=found)

    def tuple_shape(self, children: list[Any]) -> ParsedShape:
        return self._nested_shape("tuple", children)

    def buffer_shape(self, children: list[Any]) -> ParsedShape:
        return self._nested_shape("buffer", children)

    def _nested_shape(self, element_type: str, children: list[Any]) -> ParsedShape:
        opening, *elements, closing = children
        span = join_spans(opening, closing)
        depth = 1 + max((element.depth for element in elements), default=0)
        if depth > MAX_DEPTH:
            raise ReadError(span.start, f"tuple shapes nest deeper than {MAX_DEPTH} levels")
        shape = Shape(element_type=element_type, elements=tuple(element.shape for element in elements))
        return ParsedShape(shape, span, depth)

    # ---- attributes

    def plain_attribute(self, children: list[Any]) -> Attribute:
        key, value = children
        if isinstance(value, list):
            self._check_value(key[:-1], value[0])
            value = join_spans(value[0], value[-1])
        span = value if isinstance(value, TextSpan) else join_spans(value, value)
        return Attribute(key[:-1], span, ())

    def _check_value(self, key: str, first: Token) -> None:
        """Checks a value that, if valid, is a single token."""
        try:
            check_value(self.read, key, first)
        except ReadError:
            self.read_at(RULE_OF_VALUE[key], first)

    def called_attribute(self, children: list[Any]) -> Attribute:
        key, (span, callees) = children
        return Attribute(key[:-1], span, callees)

    def frontend_attribute(self, children: list[Any]) -> Attribute:
        key, entries = children
        return Attribute(key[:-1], entries.span, ())

    def literal(self, children: list[Any]) -> TextSpan:
        first, last = children[0], children[-1]
        return join_spans(first, last)

    def callee_name(self, children: list[Token]) -> tuple[TextSpan, tuple[Callee, ...]]:
        span = join_spans(children[0], children[0])
        return span, (Callee(children[0].lstrip("%"), span, ()),)

    def callee_list(self, children: list[Any]) -> tuple[TextSpan, tuple[Callee, ...]]:
        opening, *items, closing = children
        callees = tuple(callee for _, found in items for callee in found)
        return join_spans(opening, closing), callees

    def callee_body(self, children: list[Any]) -> tuple[TextSpan, tuple[Callee, ...]]:
        opening, *instructions, closing = children
        span = join_spans(opening, closing)
        return span, (Callee(None, span, tuple(instructions)),)


def _count_nesting(operation: ParsedOp) -> int:
    """Number of levels of nested operands below an operation."""
    level, depth = [operation], 0
    while level:
        level = [operand.nested for item in level for operand in item.operands if operand.nested is not None]
        depth += 1
    return depth


def _check_unique(attributes: list[Attribute]) -> tuple[Attribute, ...]:
    seen: set[str] = set()
    for attribute in attributes:
        if attribute.key in seen:
            raise ReadError(attribute.span.start, f"attribute {attribute.key} appears twice")
        seen.add(attribute.key)
    return tuple(attributes)
