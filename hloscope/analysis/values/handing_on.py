"""Instructions that only hand a value on: copies, and tuples that it is put into and taken out of."""

from __future__ import annotations

from hloscope.graph import Value
from hloscope.hlo import HloInstruction, Shape

Frames = tuple[HloInstruction, ...]
"""The fusions and calls that were entered, outermost first; a parameter inside stands for the last one's operand."""

_DEPTH_LIMIT = 200
_UNCHANGED = frozenset({"copy", "reshape", "opt-barrier"})


def origin(value: Value) -> Value:
    """Where a value was computed, behind copies and the tuples that it was put into and taken out of."""
    for _ in range(_DEPTH_LIMIT):
        source = pass_through(value)
        if source is None:
            break
        value = source
    return value


def element_type_of(value: Value) -> str:
    """The type of a scalar, also of one inside a tuple; `unknown` where the shape has no such element."""
    shape: Shape = value.instruction.shape
    for index in value.path:
        if not 0 <= index < len(shape.elements):
            return "unknown"
        shape = shape.elements[index]
    return shape.element_type


def pass_through(value: Value) -> Value | None:
    """The value that this one merely hands on; None when it is computed, or when the text does not fit together."""
    instruction, path = value.instruction, value.path
    match instruction.opcode:
        case "get-tuple-element" if instruction.tuple_index is not None:
            number, path = 0, (instruction.tuple_index, *path)
        case "tuple" if path and path[0] >= 0:
            number, path = path[0], path[1:]
        case "copy-start" if path and path[0] in (0, 1):
            number, path = 0, path[1:]
        case "copy-done":
            number, path = 0, (0, *path)
        case opcode if opcode in _UNCHANGED:
            number = 0
        case "bitcast":
            source = instruction.operand(0)
            same = source is not None and element_type_of(value) == element_type_of(Value(source, path))
            return Value(source, path) if source is not None and same else None
        case _:
            return None
    operand = instruction.operand(number)
    return None if operand is None else Value(operand, path)
