"""The users of a value, traced through instructions that only pass it on, and all instructions that it reaches."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hloscope.analysis.defs import SEARCH_LIMIT, Frames, is_of_device, search_nearest_first
from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph, Value, find_call_sites

_LIMIT = 64
"""Maximum number of values that a search visits."""
_HANDS_ON = frozenset({"bitcast", "copy", "reshape", "opt-barrier"})
_ONLY_HANDS_ON = _HANDS_ON | {"parameter", "tuple", "get-tuple-element"}


class Reading(NamedTuple):
    """A place where a value is read.

    Attributes:
        reader: The instruction that reads it; if it is returned, the root of ENTRY, of a loop or of a branch.
        value: The value as it is read there.
        frames: The fusions around `reader`, outermost first.
    """

    reader: HloInstruction
    value: Value
    frames: Frames = ()

    @property
    def outermost(self) -> HloInstruction:
        """The reader, or the outermost fusion around it."""
        return self.frames[0] if self.frames else self.reader


def find_readings(
    graph: HloGraph,
    value: Value,
    frames: Frames = (),
    *,
    also: Collection[str] = (),
    wanted: frozenset[str] | None = None,
) -> Iterator[Reading | None]:
    """Every place where a value is read, beyond copies, bitcasts, tuples and the fusions that it enters.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions around it, outermost first.
        also: Further opcodes with one operand that are looked through.
        wanted: The opcodes of readers that matter: a fusion without any of them that does more than pass values on is
        reported as the reader itself. None to enter every fusion.

    Yields:
        The readers; None as the last item if there are too many values on the way.
    """
    pending: list[tuple[Value, Frames]] = [(value, frames)]
    for _ in range(_LIMIT):
        if not pending:
            return
        current, around = pending.pop()
        for user in current.instruction.users:
            found: list[Reading] = []
            pending.extend(_find_handed_on_values(graph, Reading(user, current, around), also, wanted, found))
            yield from found
        if current.instruction.is_root and around:
            pending.append((Value(around[-1], current.path), around[:-1]))
        elif current.instruction.is_root:
            yield Reading(current.instruction, current)
    yield None


def find_only_reading(graph: HloGraph, value: Value, frames: Frames = ()) -> Reading | None:
    """The only place where a value is read; None if there are several or none."""
    found: Reading | None = None
    for number, reading in enumerate(find_readings(graph, value, frames)):
        if reading is None or number:
            return None
        found = reading
    return found


def find_own_slice(graph: HloGraph, reading: Reading | None) -> Shape | None:
    """The slice that a reader takes of a value at offsets that only the device determines; None if it takes none."""
    if reading is None or reading.reader.opcode != "dynamic-slice":
        return None
    reader = reading.reader
    if reader.operand(0) != reading.value.instruction:
        return None
    offsets = [is_of_device(graph, Value(operand), reading.frames) for operand in reader.operands[1:]]
    smaller = reader.shape.element_count < reader.operands[0].shape.element_count
    return reader.shape if None not in offsets and True in offsets and smaller else None


def _find_same_value(value: Value, user: HloInstruction, also: Collection[str] = ()) -> Value | None:
    """The value as a user passes it on; None if the user does anything else, or takes another element."""
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


def _find_handed_on_values(
    graph: HloGraph, reading: Reading, also: Collection[str], wanted: frozenset[str] | None, found: list[Reading]
) -> Iterator[tuple[Value, Frames]]:
    """The values that a user merely passes on; `found` records a user that does anything else."""
    value, user, frames = reading.value, reading.reader, reading.frames
    same = _find_same_value(value, user, also)
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
    """One element that a loop carries, and one of the two ways in which it turns one value into another.

    Attributes:
        loop: The `while`.
        path: The element, as tuple indices into the carried value.
        is_inside: Whether the value of one iteration becomes that of the next; otherwise the value before the loop
        becomes the one after it, as in a loop without iterations.
    """

    loop: HloInstruction
    path: tuple[int, ...]
    is_inside: bool

    def mirrored(self) -> LoopEdge:
        """The other edge of the same element."""
        return LoopEdge(self.loop, self.path, not self.is_inside)


def cross_loop_edge(graph: HloGraph, reading: Reading | None) -> tuple[LoopEdge, Value] | None:
    """The value on the other side of a loop edge, if all that happens to a value is that a loop carries it.

    Args:
        graph: The module.
        reading: The only place where the value is read.

    Returns:
        The edge, and the carried element in the next iteration or after the loop; None if the reader is neither a loop
        nor the root of a loop's body.
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


def find_consumers(graph: HloGraph, instruction: HloInstruction, limit: int = SEARCH_LIMIT) -> Iterator[HloInstruction]:
    """Instructions that the result reaches, nearest first.

    Follows elements through tuples, loop bodies (also into the next iteration), calls and fused computations.
    """
    return search_nearest_first(graph, _find_next_values(graph, Value(instruction)), _find_next_values, limit)


def _find_next_values(graph: HloGraph, value: Value) -> Iterator[Value]:
    for user in value.instruction.users:
        yield from _step_through_user(graph, value, user)
    if value.instruction.is_root:
        yield from _step_out_of_computation(graph, value)


def _step_through_user(graph: HloGraph, value: Value, user: HloInstruction) -> Iterator[Value]:
    path, positions = value.path, user.positions_of(value.instruction)
    same = _find_same_value(value, user)
    if same is not None:
        yield same
    elif user.opcode == "tuple":
        yield from (Value(user, (position, *path)) for position in positions)
    elif user.opcode != "get-tuple-element":
        if user.opcode in ("fusion", "call", "while", "conditional", "async-start"):
            for site in find_call_sites(user):
                numbers = positions
                if user.opcode == "conditional":  # branch n takes only operand n + 1
                    numbers = [0] if site.position + 1 in positions else []
                yield from _step_into_callee(graph, site.callee, numbers, path)
        yield Value(user, path if user.opcode == "while" else ())


def _step_into_callee(graph: HloGraph, callee: str, numbers: list[int], path: tuple[int, ...]) -> Iterator[Value]:
    parameters = graph.module.computation(callee).parameters
    yield from (Value(parameters[number], path) for number in numbers if number < len(parameters))


def _step_out_of_computation(graph: HloGraph, value: Value) -> Iterator[Value]:
    for site in graph.callers(value.instruction.computation.name):
        if site.attribute == "condition":
            continue
        if site.attribute == "body":
            yield from _step_into_callee(graph, site.callee, [0], value.path)
        yield Value(site.caller, value.path)
