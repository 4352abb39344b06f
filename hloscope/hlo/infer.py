"""The shape of an instruction whose text leaves it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.hlo.shape import UNKNOWN_SHAPE, Shape

if TYPE_CHECKING:
    from hloscope.hlo.instruction import HloInstruction

_LIKE_FIRST_OPERAND_TEXT = """
    abs acos acosh add add-dependency after-all all-reduce and asin asinh atan2 atanh cbrt ceil collective-permute copy
    cos cosine cosh count-leading-zeros divide domain dynamic-update-slice erf exponential exponential-minus-one floor
    log log-plus-one logistic maximum minimum multiply negate not opt-barrier or popcnt power remainder reverse
    round-nearest-afz round-nearest-even rsqrt scatter shift-left shift-right-arithmetic shift-right-logical sign sine
    sinh sqrt subtract tan tanh while xor
    """
_LIKE_FIRST_OPERAND = frozenset(_LIKE_FIRST_OPERAND_TEXT.split())
_LIKE_SECOND_OPERAND = frozenset({"select", "clamp"})
_CALLED_KEYS = frozenset({"to_apply", "calls"})


def infer_shape(instruction: HloInstruction) -> Shape:
    """The shape that XLA would infer, where that follows from the operands or the callee alone.

    Chains of such instructions are settled from the first on, so a long one does not recurse.
    """
    waiting = [instruction]
    known: dict[str, Shape] = {}
    while waiting:
        current = waiting[-1]
        missing = [operand for operand in _needed(current) if _printed(operand) is None and operand.name not in known]
        if missing:
            waiting.extend(missing)
            continue
        known[current.name] = _infer(current, known)
        waiting.pop()
    return known[instruction.name]


def _printed(instruction: HloInstruction) -> Shape | None:
    return instruction._columns.forms[instruction._index].shape


def _needed(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    """The operands whose shapes decide the result's."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "tuple":
        return operands
    if opcode in _LIKE_SECOND_OPERAND:
        return operands[1:2]
    return operands[:1] if opcode in _LIKE_FIRST_OPERAND or opcode == "get-tuple-element" else ()


def _infer(instruction: HloInstruction, known: dict[str, Shape]) -> Shape:
    needed = _needed(instruction)
    shapes = [_printed(operand) or known[operand.name] for operand in needed]
    if instruction.opcode == "tuple":
        return Shape(element_type="tuple", elements=tuple(shapes))
    if instruction.opcode == "get-tuple-element":
        return _element(shapes, instruction.tuple_index)
    if shapes:
        return shapes[0]
    if instruction.opcode == "call":
        return _callee_shape(instruction)
    return UNKNOWN_SHAPE


def _element(shapes: list[Shape], index: int | None) -> Shape:
    if not shapes or index is None or not 0 <= index < len(shapes[0].elements):
        return UNKNOWN_SHAPE
    return shapes[0].elements[index]


def _callee_shape(instruction: HloInstruction) -> Shape:
    module = instruction.computation.module
    for key, name in instruction.called:
        if key in _CALLED_KEYS:
            return module.computation(name).root.shape
    return UNKNOWN_SHAPE
