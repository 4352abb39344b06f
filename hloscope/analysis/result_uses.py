"""The uses of a collective's result: whether only the device's own shard of it is read, or only a narrower type.

Which part is a device's own shows in offsets that each computes from its number: they are evaluated device by device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from hloscope.analysis.defs import Frames, maker_of
from hloscope.analysis.loop_integers import Direction, wrapped
from hloscope.analysis.model import ArrayShape
from hloscope.analysis.transfers import Transfer
from hloscope.analysis.uses import Reading, own_slice, readings_of
from hloscope.analysis.volume import common_narrower
from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph, Value

_SLICES = frozenset({"dynamic-slice"})
_CONVERSIONS = frozenset({"convert"})
_ELEMENTWISE = frozenset({"convert", "negate", "abs", "exponential", "tanh", "logistic", "rsqrt", "sqrt"})
"""Opcodes of one operand after which each device still needs only its own part."""


def result_slices(graph: HloGraph, results: Iterable[Value]) -> tuple[ArrayShape, ...]:
    """Shapes of the device's own slices, where nothing else is ever read of some values; else nothing."""
    shapes: list[ArrayShape] = []
    for value in results:
        before = len(shapes)
        for reading in readings_of(graph, value, wanted=_SLICES):
            part = own_slice(graph, reading)
            if part is None:
                return ()
            shapes.append(ArrayShape(str(part)))
        if len(shapes) == before:
            return ()
    return tuple(shapes)


def narrower_uses(graph: HloGraph, results: Iterable[Value]) -> str | None:
    """The narrower element type that every reader converts some values to; None when one does not."""
    pairs: set[tuple[str, str]] = set()
    for value in results:
        for reading in readings_of(graph, value, wanted=_CONVERSIONS):
            if reading is None or reading.reader.opcode != "convert":
                return None
            pairs.add((reading.reader.shape.element_type, reading.value.instruction.shape.element_type))
    return common_narrower(pairs)


def undone_by(graph: HloGraph, transfer: Transfer, results: Sequence[Value]) -> str | None:
    """The slice that gives each device back the very part that it put into an all-gather.

    Args:
        graph: The module.
        transfer: The all-gather.
        results: What it yields.

    Returns:
        The instruction that takes the slice, or the outermost fusion around it; the first one where there are several.
        None when anything reads more or another part, and where offsets cannot be known.
    """
    found: list[HloInstruction] = []
    parts = transfer.operands if len(transfer.operands) == len(results) else ()
    for value, part in zip(results, parts, strict=False):
        for reading in readings_of(graph, value, also=_ELEMENTWISE, wanted=_SLICES):
            if reading is None or not _is_own_part(graph, transfer, part, reading):
                return None
            found.append(reading.outermost)
    return min(found, key=lambda reader: reader.line).name if found else None


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
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
    "minimum": min,
    "maximum": max,
    "and": lambda left, right: left & right,
    "or": lambda left, right: left | right,
}
_OF_NATURALS: dict[str, Callable[[int, int], int]] = {
    "divide": lambda left, right: left // right if right else 0,
    "remainder": lambda left, right: left % right if right else left,
    "shift-right-logical": lambda left, right: left >> right,
    "shift-left": lambda left, right: left << min(right, _DEPTH_LIMIT),
}
"""What is only evaluated where nothing is negative, so that the signs of types do not matter."""


def _value_on_device(graph: HloGraph, value: Value, device: int, frames: Frames = (), depth: int = 0) -> int | None:
    """An integer scalar on one device; None where the text does not say, as for tables that it leaves out.

    Args:
        graph: The module.
        value: The scalar.
        device: The partition, in a program without replicas.
        frames: The fusions around it, outermost first.
        depth: Values that are made from it.
    """
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
    operands = instruction.operands
    parts = [_value_on_device(graph, Value(operand), device, maker.frames, depth + 1) for operand in operands]
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
    index = _value_on_device(graph, Value(lookup.operands[1]), device, frames, depth + 1)
    return None if not table or index is None else table[max(0, min(index, len(table) - 1))]


def _numbers(constant: HloInstruction) -> list[int] | None:
    """The entries of an integer constant of at most one dimension; None for any right instruction or an elided one."""
    text = constant.literal or ""
    if text in ("true", "false"):
        return [int(text == "true")]
    numbers = [int(number) for number in _NUMBER.findall(text)]
    is_whole = re.fullmatch(r"[\d\s,{}-]*", text) is not None and len(constant.shape.dimensions) <= 1
    return numbers if is_whole and len(numbers) == constant.shape.element_count else None


def _computed(instruction: HloInstruction, operands: Sequence[int]) -> int | None:
    opcode = instruction.opcode
    match operands:
        case [left, right] if opcode in _ARITHMETIC:
            return _ARITHMETIC[opcode](left, right)
        case [left, right] if opcode in _OF_NATURALS and min(left, right) >= 0:
            return _OF_NATURALS[opcode](left, right)
        case [left, right] if opcode == "compare" and min(left, right) >= 0:
            direction = Direction.__members__.get(instruction.attributes.get("direction", ""))
            return None if direction is None else int(direction.holds(left - right))
        case [low, number, high] if opcode == "clamp":
            return max(low, min(number, high))
        case [condition, left, right] if opcode == "select":
            return left if condition else right
    return None
