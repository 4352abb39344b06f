"""What becomes of a collective's result: only the device's own part of it is read, or only a narrower form.

Which part is a device's own shows in offsets that each computes from its number: they are evaluated device by device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from hloscope.analysis.defs import Frames, maker_of
from hloscope.analysis.loop_integers import wrapped
from hloscope.analysis.transfers import Transfer
from hloscope.analysis.uses import Reading, own_slice, readings_of
from hloscope.analysis.volume import narrower
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction, Shape

_SLICES = frozenset({"dynamic-slice"})
_CONVERSIONS = frozenset({"convert"})
_ELEMENTWISE = frozenset({"convert", "negate", "abs", "exponential", "tanh", "logistic", "rsqrt", "sqrt"})
"""Opcodes of one operand after which each device still needs only its own part."""


def result_slices(graph: HloGraph, results: Iterable[Value]) -> tuple[str, ...]:
    """Shapes of the device's own slices, where nothing else is ever read of some values; else nothing."""
    shapes: list[str] = []
    for value in results:
        before = len(shapes)
        for reading in readings_of(graph, value, wanted=_SLICES):
            part = own_slice(graph, reading)
            if part is None:
                return ()
            shapes.append(str(part))
        if len(shapes) == before:
            return ()
    return tuple(shapes)


def narrower_uses(graph: HloGraph, results: Iterable[Value]) -> str | None:
    """The narrower element type that every reader converts some values to; None when one does not."""
    types = set()
    for value in results:
        for reading in readings_of(graph, value, wanted=_CONVERSIONS):
            if reading is None or reading.reader.opcode != "convert":
                return None
            types.add(narrower(reading.reader.shape.element_type, reading.value.instruction.shape.element_type))
    return types.pop() if len(types) == 1 else None


def undone_by(graph: HloGraph, transfer: Transfer, results: Sequence[Value]) -> str | None:
    """The slice that gives each device back the very part that it put into an all-gather.

    Args:
        graph: The module.
        transfer: The all-gather.
        results: What it yields.

    Returns:
        The instruction that takes the slice, or the outermost fusion around it; the first one where there are several.
        None when anything reads more or another part, and where offsets cannot be told.
    """
    found: list[HloInstruction] = []
    parts = transfer.operands if len(transfer.operands) == len(results) else ()
    for value, part in zip(results, parts, strict=False):
        for reading in readings_of(graph, value, also=_ELEMENTWISE, wanted=_SLICES):
            if reading is None or not _is_own_part(graph, transfer, part, reading):
                return None
            found.append(reading.outermost)
    return min(found, key=lambda one: one.line).name if found else None


def _is_own_part(graph: HloGraph, transfer: Transfer, part: Shape, reading: Reading) -> bool:
    """Whether a reader takes, on each device, the part at the device's own position in its group."""
    taken, dimensions = own_slice(graph, reading), transfer.op.dimensions
    if taken is None or taken.dimensions != part.dimensions or not dimensions or transfer.groups is None:
        return False
    gathered, offsets = dimensions[0], reading.reader.operands[1:]
    if len(offsets) != len(part.dimensions) or transfer.op.computation.module.replica_count != 1:
        return False
    positions = [(device, position) for group in transfer.groups for position, device in enumerate(group)]
    return all(
        _value_on_device(graph, Value(offset), device, reading.frames)
        == (position * part.dimensions[gathered] if dimension == gathered else 0)
        for device, position in positions
        for dimension, offset in enumerate(offsets)
    )


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


def _value_on_device(graph: HloGraph, value: Value, device: int, frames: Frames = ()) -> int | None:
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
