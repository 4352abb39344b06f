"""The shape of an instruction whose text leaves it out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hloscope.hlo.reader import MAX_DEPTH
from hloscope.hlo.shape import UNKNOWN_SHAPE, Shape
from hloscope.hlo.shape_rules import APPLYING, RULES, infer, merged

if TYPE_CHECKING:
    from hloscope.hlo.instruction import HloInstruction

_ELEMENTWISE_TEXT = """
    add and atan2 compare divide maximum minimum mulhi multiply or power remainder shift-left shift-right-arithmetic
    shift-right-logical subtract xor
    """
_ELEMENTWISE = frozenset(_ELEMENTWISE_TEXT.split())
"""Of two operands that may differ in their precision, and in which dimensions are dynamic."""

_LIKE_FIRST_OPERAND_TEXT = """
    abs acos acosh add-dependency asin asinh atanh cbrt ceil copy cosine cosh count-leading-zeros domain
    dynamic-update-slice erf exponential exponential-minus-one floor log log-plus-one logistic negate not opt-barrier
    popcnt reverse round-nearest-afz round-nearest-even rsqrt sign sine sinh sqrt tan tanh while
    """
_LIKE_FIRST_OPERAND = frozenset(_LIKE_FIRST_OPERAND_TEXT.split())
_FROM_FIRST_OPERAND = _LIKE_FIRST_OPERAND | {"get-tuple-element"}
_MOST_LEAVES = 100_000
"""Leaves of a tuple that is put together here: tuples of tuples double at every step."""


def infer_shape(instruction: HloInstruction) -> Shape:
    """The shape that XLA would infer, where that follows from the operands or the callee alone; else unknown.

    What is found is kept in the columns. Chains are settled from their first instruction on, without recursion.
    """
    known = instruction._columns.inferred
    waiting = [instruction]
    while waiting:
        current = waiting[-1]
        missing = [item for item in _needed(current) if _shape(item, known) is None]
        if missing:
            waiting.extend(missing)
            continue
        known[current._index] = _infer(current, [_shape(item, known) or UNKNOWN_SHAPE for item in _needed(current)])
        waiting.pop()
    return known[instruction._index]


def _shape(instruction: HloInstruction, known: dict[int, Shape]) -> Shape | None:
    return instruction._columns.forms[instruction._index].shape or known.get(instruction._index)


def _needed(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    """The instructions whose shapes decide the result's."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "call":
        return _applied(instruction)
    if opcode == "clamp":
        return operands[1:2]
    if opcode == "select":
        return operands[1:3]
    if opcode == "tuple" or opcode in _ELEMENTWISE:
        return operands
    if opcode in RULES:
        return (*operands, *_applied(instruction)) if opcode in APPLYING else operands
    return operands[:1] if opcode in _FROM_FIRST_OPERAND else ()


def _applied(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    """The root of the first computation that an instruction calls."""
    module = instruction.computation.module
    return tuple(module.computation(name).root for _, name in instruction.called[:1])


def _infer(instruction: HloInstruction, shapes: list[Shape]) -> Shape:
    opcode = instruction.opcode
    if opcode == "tuple":
        return _tuple(shapes)
    if opcode == "after-all":
        return Shape(element_type="token")
    if opcode in RULES:
        return infer(instruction, shapes)
    if not shapes or UNKNOWN_SHAPE in shapes:
        return UNKNOWN_SHAPE
    if opcode == "get-tuple-element":
        return _element(shapes[0], instruction.tuple_index)
    if opcode in _ELEMENTWISE or opcode == "select":
        return _elementwise(opcode, shapes)
    return shapes[0]


def _elementwise(opcode: str, shapes: list[Shape]) -> Shape:
    found = shapes[0]
    if len(shapes) > 1 and (found.element_type, str(found)) != (shapes[1].element_type, str(shapes[1])):
        try:
            found = merged(shapes)
        except (KeyError, ValueError):
            return UNKNOWN_SHAPE  # which XLA refuses
    return replace(found, element_type="pred", layout=None) if opcode == "compare" else found


def _tuple(shapes: list[Shape]) -> Shape:
    extents = [_extent(shape) for shape in shapes]
    leaves, depth = sum(count for count, _ in extents), 1 + max((depth for _, depth in extents), default=0)
    if leaves > _MOST_LEAVES or depth > MAX_DEPTH:
        return UNKNOWN_SHAPE
    return Shape(element_type="tuple", elements=tuple(shapes))


def _extent(shape: Shape) -> tuple[int, int]:
    """Leaves of a tuple, and how deep it nests."""
    if not shape.elements:
        return 1, 0
    extents = [_extent(element) for element in shape.elements]
    return sum(count for count, _ in extents), 1 + max(depth for _, depth in extents)


def _element(shape: Shape, index: int | None) -> Shape:
    return UNKNOWN_SHAPE if index is None or not 0 <= index < len(shape.elements) else shape.elements[index]
