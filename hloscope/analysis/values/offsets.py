"""Offsets that each device computes from its own number, evaluated device by device."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hloscope.analysis.loops.integers import wrapped
from hloscope.analysis.values.handing_on import Frames
from hloscope.analysis.values.makers import maker_of
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

_DEPTH_LIMIT = 64
_NUMBER = re.compile(r"-?\d+")
_LOOKED_THROUGH = frozenset({"bitcast", "reshape", "convert"})
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda one, other: one + other,
    "subtract": lambda one, other: one - other,
    "multiply": lambda one, other: one * other,
    "minimum": min,
    "maximum": max,
    "and": lambda one, other: one & other,
    "or": lambda one, other: one | other,
}
_OF_NATURALS: dict[str, Callable[[int, int], int]] = {
    "divide": lambda one, other: one // other if other else 0,
    "remainder": lambda one, other: one % other if other else one,
    "shift-right-logical": lambda one, other: one >> other,
    "shift-left": lambda one, other: one << min(other, _DEPTH_LIMIT),
}
"""What is only evaluated where nothing is negative, so that the signs of types do not matter."""
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "EQ": lambda one, other: one == other,
    "NE": lambda one, other: one != other,
    "LT": lambda one, other: one < other,
    "LE": lambda one, other: one <= other,
    "GT": lambda one, other: one > other,
    "GE": lambda one, other: one >= other,
}


def value_on_device(graph: HloGraph, value: Value, device: int, frames: Frames = ()) -> int | None:
    """An integer scalar on one device; None where the text does not tell, as for tables that it leaves out.

    Args:
        graph: The module.
        value: The scalar.
        device: The partition, in a program without replicas.
        frames: The fusions around it, outermost first.
    """
    return _evaluate(graph, value, device, frames, 0)


def _evaluate(graph: HloGraph, value: Value, device: int, frames: Frames, depth: int) -> int | None:
    maker = maker_of(graph, value, frames, through=_LOOKED_THROUGH)
    instruction = maker.value.instruction
    opcode = instruction.opcode
    if depth > _DEPTH_LIMIT or maker.value.path:
        return None
    if opcode in ("partition-id", "replica-id"):
        return device if opcode == "partition-id" else 0
    if opcode == "constant":
        numbers = _numbers(instruction)
        return numbers[0] if numbers is not None and len(numbers) == 1 else None
    if opcode == "dynamic-slice":
        return _looked_up(graph, instruction, device, maker.frames, depth)
    parts = [_evaluate(graph, Value(one), device, maker.frames, depth + 1) for one in instruction.operands]
    known = [part for part in parts if part is not None]
    if not known or len(known) != len(parts):
        return None
    result = _computed(instruction, known)
    return None if result is None else wrapped(result, instruction.shape.element_type)


def _looked_up(graph: HloGraph, lookup: HloInstruction, device: int, frames: Frames, depth: int) -> int | None:
    """An entry of a constant table, whose index is clamped into it."""
    if len(lookup.operands) != 2 or lookup.shape.element_count != 1:
        return None
    table = _numbers(maker_of(graph, Value(lookup.operands[0]), frames).value.instruction)
    index = _evaluate(graph, Value(lookup.operands[1]), device, frames, depth + 1)
    return None if not table or index is None else table[max(0, min(index, len(table) - 1))]


def _numbers(constant: HloInstruction) -> list[int] | None:
    """The entries of an integer constant of at most one dimension; None for any other instruction or an elided one."""
    text = constant.literal or ""
    if text in ("true", "false"):
        return [int(text == "true")]
    numbers = [int(number) for number in _NUMBER.findall(text)]
    is_whole = re.fullmatch(r"[\d\s,{}-]*", text) is not None and len(constant.shape.dimensions) <= 1
    return numbers if is_whole and len(numbers) == constant.shape.element_count else None


def _computed(instruction: HloInstruction, operands: Sequence[int]) -> int | None:
    opcode = instruction.opcode
    match operands:
        case [one, other] if opcode in _ARITHMETIC:
            return _ARITHMETIC[opcode](one, other)
        case [one, other] if opcode in _OF_NATURALS and min(one, other) >= 0:
            return _OF_NATURALS[opcode](one, other)
        case [one, other] if opcode == "compare" and min(one, other) >= 0:
            compare = _COMPARISONS.get(instruction.attributes.get("direction", ""))
            return None if compare is None else int(compare(one, other))
        case [low, number, high] if opcode == "clamp":
            return max(low, min(number, high))
        case [condition, one, other] if opcode == "select":
            return one if condition else other
    return None
