"""The shape of an instruction whose text leaves it out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hloscope.hlo.reader import MAX_DEPTH
from hloscope.hlo.shape import UNKNOWN_SHAPE, Shape

if TYPE_CHECKING:
    from hloscope.hlo.instruction import HloInstruction

_LIKE_FIRST_OPERAND_TEXT = """
    abs acos acosh add add-dependency and asin asinh atan2 atanh cbrt ceil copy cosine cosh count-leading-zeros divide
    domain dynamic-update-slice erf exponential exponential-minus-one floor log log-plus-one logistic maximum minimum
    multiply negate not opt-barrier or popcnt power remainder reverse round-nearest-afz round-nearest-even rsqrt
    shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt subtract tan tanh while xor
    """
_LIKE_FIRST_OPERAND = frozenset(_LIKE_FIRST_OPERAND_TEXT.split())
_FROM_FIRST_OPERAND = _LIKE_FIRST_OPERAND | {"compare", "get-tuple-element", "imag", "is-finite", "real", "transpose"}
_LIKE_SECOND_OPERAND = frozenset({"clamp", "select"})
_PARTS = {"c64": "f32", "c128": "f64"}
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
    if opcode == "tuple":
        return operands
    if opcode == "call":
        module = instruction.computation.module
        return tuple(module.computation(name).root for _, name in instruction.called[:1])
    if opcode in _LIKE_SECOND_OPERAND:
        return operands[1:2]
    return operands[:1] if opcode in _FROM_FIRST_OPERAND else ()


def _infer(instruction: HloInstruction, shapes: list[Shape]) -> Shape:
    opcode = instruction.opcode
    if opcode == "tuple":
        return _tuple(shapes)
    if opcode == "after-all":
        return Shape(element_type="token")
    if not shapes or shapes[0] == UNKNOWN_SHAPE:
        return UNKNOWN_SHAPE
    if opcode == "get-tuple-element":
        return _element(shapes[0], instruction.tuple_index)
    if opcode in ("compare", "is-finite"):
        return replace(shapes[0], element_type="pred", layout=None)
    if opcode in ("real", "imag"):
        return replace(shapes[0], element_type=_PARTS.get(shapes[0].element_type, shapes[0].element_type), layout=None)
    if opcode == "transpose":
        return _transposed(shapes[0], instruction.dimensions)
    return shapes[0]


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


def _transposed(shape: Shape, dimensions: tuple[int, ...] | None) -> Shape:
    if dimensions is None or sorted(dimensions) != list(range(len(shape.dimensions))):
        return UNKNOWN_SHAPE
    return Shape(
        element_type=shape.element_type,
        dimensions=tuple(shape.dimensions[dimension] for dimension in dimensions),
        dynamic=tuple(shape.dynamic[dimension] for dimension in dimensions),
    )
