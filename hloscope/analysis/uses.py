"""What becomes of a collective's result: only the device's own part of it is read, or only a narrower form."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hloscope.analysis.defs import Frames, is_of_device, maker_of
from hloscope.analysis.progressions import wrapped
from hloscope.analysis.transfers import Transfer
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
        for reading in _readings_of(graph, value, wanted=_SLICES):
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
        for reading in _readings_of(graph, value, wanted=_CONVERSIONS):
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
        for reading in _readings_of(graph, value, also=_ELEMENTWISE, wanted=_SLICES):
            if reading is None or not _is_own_part(graph, transfer, part, reading):
                return None
            found.append(reading.outermost)
    return min(found, key=lambda one: one.line).name if found else None


def _is_own_part(graph: HloGraph, transfer: Transfer, part: Shape, reading: _Reading) -> bool:
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


_LIMIT = 64
"""Values looked at before a search gives up."""
_HANDS_ON = frozenset({"bitcast", "copy", "reshape", "opt-barrier"})
_ONLY_HANDS_ON = _HANDS_ON | {"parameter", "tuple", "get-tuple-element"}


@dataclass(frozen=True, slots=True)
class _Reading:
    """One place where a value is read.

    Attributes:
        reader: The instruction that reads it; the root of ENTRY, of a loop or of a branch where it is returned.
        value: What it reads: the value itself, handed on.
        frames: The fusions around `reader`, outermost first.
    """

    reader: HloInstruction
    value: Value
    frames: Frames = ()

    @property
    def outermost(self) -> HloInstruction:
        """The reader, or the outermost fusion around it."""
        return self.frames[0] if self.frames else self.reader


def _readings_of(
    graph: HloGraph,
    value: Value,
    frames: Frames = (),
    *,
    also: Collection[str] = (),
    wanted: frozenset[str] | None = None,
) -> Iterator[_Reading | None]:
    """Every place where a value is read, behind copies, bitcasts, tuples and the fusions that it enters.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions around it, outermost first.
        also: Opcodes of one operand that are looked through as well.
        wanted: The opcodes of readers that matter: a fusion that holds none of them, and does more than hand on, is
            told as the reader itself. None to enter every fusion.

    Yields:
        The readers; None when there are too many values on the way, as the last one.
    """
    pending: list[tuple[Value, Frames]] = [(value, frames)]
    for _ in range(_LIMIT):
        if not pending:
            return
        current, around = pending.pop()
        for user in current.instruction.users:
            found: list[_Reading] = []
            pending.extend(_handed_on(graph, _Reading(user, current, around), also, wanted, found))
            yield from found
        if current.instruction.is_root and around:
            pending.append((Value(around[-1], current.path), around[:-1]))
        elif current.instruction.is_root:
            yield _Reading(current.instruction, current)
    yield None


def only_reading_of(graph: HloGraph, value: Value, frames: Frames = ()) -> _Reading | None:
    """The one place where a value is read; None when there are several, or none."""
    found: _Reading | None = None
    for number, reading in enumerate(_readings_of(graph, value, frames)):
        if reading is None or number:
            return None
        found = reading
    return found


def own_slice(graph: HloGraph, reading: _Reading | None) -> Shape | None:
    """The slice that a reader takes of a value at offsets that only the device decides; None when it does not."""
    if reading is None or reading.reader.opcode != "dynamic-slice":
        return None
    reader = reading.reader
    if reader.operand(0) != reading.value.instruction:
        return None
    offsets = [is_of_device(graph, Value(operand), reading.frames) for operand in reader.operands[1:]]
    smaller = reader.shape.element_count < reader.operands[0].shape.element_count
    return reader.shape if None not in offsets and True in offsets and smaller else None


def _same_value(value: Value, user: HloInstruction, also: Collection[str]) -> Value | None:
    """The value as a user hands it on; None when the user does anything else, or takes another element."""
    path = value.path
    match user.opcode:
        case "get-tuple-element":
            return Value(user, path[1:]) if not path or path[0] == user.tuple_index else None
        case "copy-start":
            return Value(user, (0, *path))
        case "copy-done":
            return Value(user, path[1:]) if path[:1] == (0,) else None
        case opcode if opcode in _HANDS_ON or opcode in also:
            return Value(user, path)
    return None


def _handed_on(
    graph: HloGraph, reading: _Reading, also: Collection[str], wanted: frozenset[str] | None, found: list[_Reading]
) -> Iterator[tuple[Value, Frames]]:
    """The values that a user merely hands on; it is noted in `found` when it does anything else."""
    value, user, frames = reading.value, reading.reader, reading.frames
    same = _same_value(value, user, also)
    if same is not None:
        yield same, frames
    elif user.opcode == "tuple" and (frames or not user.is_root):
        yield from ((Value(user, (position, *value.path)), frames) for position in user.positions_of(value.instruction))
    elif user.opcode == "fusion" and user.called and _is_entered(graph, user, wanted):
        parameters = graph.module.computation(user.called[0][1]).parameters
        inside = (
            parameters[position] for position in user.positions_of(value.instruction) if position < len(parameters)
        )
        yield from ((Value(parameter, value.path), (*frames, user)) for parameter in inside)
    elif user.opcode not in ("get-tuple-element", "copy-done"):
        found.append(reading)


def _is_entered(graph: HloGraph, fusion: HloInstruction, wanted: frozenset[str] | None) -> bool:
    opcodes = graph.module.computation(fusion.called[0][1]).opcodes
    return wanted is None or not wanted.isdisjoint(opcodes) or opcodes <= _ONLY_HANDS_ON


@dataclass(frozen=True, slots=True)
class LoopEdge:
    """One element of what a loop carries, and one of the two ways in which a value becomes another there.

    Attributes:
        loop: The `while`.
        path: The element: tuple indices into what is carried.
        is_inside: Whether the value is that of one iteration and becomes that of the next; else it is the one in front
            of the loop and becomes the one behind it, which it is in a loop without iterations.
    """

    loop: HloInstruction
    path: tuple[int, ...]
    is_inside: bool

    def mirrored(self) -> LoopEdge:
        """The other way of the same element."""
        return LoopEdge(self.loop, self.path, not self.is_inside)


def across_loop_edge(graph: HloGraph, reading: _Reading | None) -> tuple[LoopEdge, Value] | None:
    """Where a value comes out that all that is done with it is to hand it to a loop.

    Args:
        graph: The module.
        reading: The only place where the value is read.

    Returns:
        The edge, and the carried element in the next iteration or behind the loop; None when the reader is neither a
        loop nor the result of one's body.
    """
    if reading is None or reading.frames:
        return None
    reader, value = reading.reader, reading.value
    if reader.opcode == "while":
        return LoopEdge(reader, value.path, is_inside=False), Value(reader, value.path)
    loop = graph.only_caller(reader.computation.name)
    if loop is None or loop.opcode != "while" or not (reader.is_root and reader.opcode == "tuple"):
        return None
    body = graph.module.computation(dict(loop.called)["body"])
    places = reader.positions_of(value.instruction)
    if body is not reader.computation or len(places) != 1:
        return None
    path = (places[0], *value.path)
    return LoopEdge(loop, path, is_inside=True), Value(body.parameters[0], path)


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
