"""The uses of a collective's result: whether only the device's own shard of it is read, or only a narrower type.

A device's own part shows in the offsets that each device computes from its number, which are evaluated for each device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from hloscope.analysis.defs import Frames, find_maker
from hloscope.analysis.loop_integers import CompareDirection, wrap_integer
from hloscope.analysis.model import ArrayShape
from hloscope.analysis.transfers import Transfer
from hloscope.analysis.uses import Reading, find_own_slice, find_readings
from hloscope.analysis.volume import find_common_narrower
from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph, Value

_SLICES = frozenset({"dynamic-slice"})
_CONVERSIONS = frozenset({"convert"})
_ELEMENTWISE = frozenset({"convert", "negate", "abs", "exponential", "tanh", "logistic", "rsqrt", "sqrt"})
"""Opcodes with one operand after which each device still needs only its own part."""


def find_result_slices(graph: HloGraph, results: Iterable[Value]) -> tuple[ArrayShape, ...]:
    """Shapes of the device's own slices, if no other part of some values is ever read; empty otherwise."""
    shapes: list[ArrayShape] = []
    for value in results:
        before = len(shapes)
        for reading in find_readings(graph, value, wanted=_SLICES):
            part = find_own_slice(graph, reading)
            if part is None:
                return ()
            shapes.append(ArrayShape(str(part)))
        if len(shapes) == before:
            return ()
    return tuple(shapes)


def find_narrower_use(graph: HloGraph, results: Iterable[Value]) -> str | None:
    """The narrower element type that every reader converts some values to; None if one reader does not."""
    pairs: set[tuple[str, str]] = set()
    for value in results:
        for reading in find_readings(graph, value, wanted=_CONVERSIONS):
            if reading is None or reading.reader.opcode != "convert":
                return None
            pairs.add((reading.reader.shape.element_type, reading.value.instruction.shape.element_type))
    return find_common_narrower(pairs)


def find_undoing_slice(graph: HloGraph, transfer: Transfer, results: Sequence[Value]) -> str | None:
    """The slice that returns to each device the very part that it contributed to an all-gather.

    Args:
        graph: The module.
        transfer: The all-gather.
        results: Its results.

    Returns:
        The slicing instruction, or the outermost fusion around it; the first one if there are several. None if anything
        reads more or another part, or if offsets are unknown.
    """
    found: list[HloInstruction] = []
    parts = transfer.operands if len(transfer.operands) == len(results) else ()
    for value, part in zip(results, parts, strict=False):
        for reading in find_readings(graph, value, also=_ELEMENTWISE, wanted=_SLICES):
            if reading is None or not _takes_own_part(graph, transfer, part, reading):
                return None
            found.append(reading.outermost)
    return min(found, key=lambda reader: reader.line).name if found else None


def _takes_own_part(graph: HloGraph, transfer: Transfer, part: Shape, reading: Reading) -> bool:
    """Returns whether a reader takes, on each device, the part at the device's own position in its group."""
    taken, dimensions = find_own_slice(graph, reading), transfer.op.dimensions
    if taken is None or taken.dimensions != part.dimensions or not dimensions or transfer.groups is None:
        return False
    gathered, offsets = dimensions[0], reading.reader.operands[1:]
    if len(offsets) != len(part.dimensions) or transfer.op.computation.module.replica_count != 1:
        return False
    positions = [(device, position) for group in transfer.groups for position, device in enumerate(group)]
    return all(
        _evaluate_on_device(graph, Value(offset), device, reading.frames)
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
"""Operations evaluated only if no operand is negative, so that the signs of types do not matter."""


def _evaluate_on_device(graph: HloGraph, value: Value, device: int, frames: Frames = (), depth: int = 0) -> int | None:
    """An integer scalar on one device; None if the text does not determine it, as for elided tables.

    Args:
        graph: The module.
        value: The scalar.
        device: The partition, in a program without replicas.
        frames: The fusions around it, outermost first.
        depth: Number of values on the way that are computed from it.
    """
    maker = find_maker(graph, value, frames, through=_LOOKED_THROUGH)
    instruction = maker.value.instruction
    opcode = instruction.opcode
    if depth > _DEPTH_LIMIT or maker.value.path:
        return None
    if opcode in ("partition-id", "replica-id"):
        return device if opcode == "partition-id" else 0
    if opcode == "constant":
        numbers = _read_table(instruction)
        return numbers[0] if numbers is not None and len(numbers) == 1 else None
    if opcode == "dynamic-slice":
        return _look_up_entry(graph, instruction, device, maker.frames, depth)
    operands = instruction.operands
    parts = [_evaluate_on_device(graph, Value(operand), device, maker.frames, depth + 1) for operand in operands]
    known = [part for part in parts if part is not None]
    if not known or len(known) != len(parts):
        return None
    result = _compute_operation(instruction, known)
    return None if result is None else wrap_integer(result, instruction.shape.element_type)


def _look_up_entry(graph: HloGraph, lookup: HloInstruction, device: int, frames: Frames, depth: int) -> int | None:
    """An entry of a constant table, with the index clamped to its range."""
    if len(lookup.operands) != 2 or lookup.shape.element_count != 1:
        return None
    table = _read_table(find_maker(graph, Value(lookup.operands[0]), frames).value.instruction)
    index = _evaluate_on_device(graph, Value(lookup.operands[1]), device, frames, depth + 1)
    return None if not table or index is None else table[max(0, min(index, len(table) - 1))]


def _read_table(constant: HloInstruction) -> list[int] | None:
    """The entries of an integer constant of at most one dimension; None for any other instruction or an elided one."""
    text = constant.literal or ""
    if text in ("true", "false"):
        return [int(text == "true")]
    numbers = [int(number) for number in _NUMBER.findall(text)]
    is_whole = re.fullmatch(r"[\d\s,{}-]*", text) is not None and len(constant.shape.dimensions) <= 1
    return numbers if is_whole and len(numbers) == constant.shape.element_count else None


def _compute_operation(instruction: HloInstruction, operands: Sequence[int]) -> int | None:
    opcode = instruction.opcode
    match operands:
        case [left, right] if opcode in _ARITHMETIC:
            return _ARITHMETIC[opcode](left, right)
        case [left, right] if opcode in _OF_NATURALS and min(left, right) >= 0:
            return _OF_NATURALS[opcode](left, right)
        case [left, right] if opcode == "compare" and min(left, right) >= 0:
            direction = CompareDirection.__members__.get(instruction.attributes.get("direction", ""))
            return None if direction is None else int(direction.holds(left - right))
        case [low, number, high] if opcode == "clamp":
            return max(low, min(number, high))
        case [condition, left, right] if opcode == "select":
            return left if condition else right
    return None
