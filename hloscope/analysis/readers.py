"""Who reads a value, behind everything that only hands it on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hloscope.analysis.device_values import is_of_device
from hloscope.analysis.scalars import Frames
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction, Shape

_LIMIT = 64
"""Values looked at before a search gives up."""
_HANDS_ON = frozenset({"bitcast", "copy", "reshape", "opt-barrier"})


@dataclass(frozen=True, slots=True)
class Reading:
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


def readings_of(graph: HloGraph, value: Value, frames: Frames = ()) -> tuple[Reading, ...] | None:
    """Every place where a value is read, behind copies, bitcasts, tuples and the fusions that it enters.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions around it, outermost first.

    Returns:
        The readers; None when there are too many values on the way.
    """
    found: list[Reading] = []
    pending: list[tuple[Value, Frames]] = [(value, frames)]
    for _ in range(_LIMIT):
        if not pending:
            return tuple(found)
        current, around = pending.pop()
        for user in current.instruction.users:
            pending.extend(_handed_on(graph, current, user, around, found))
        if current.instruction.is_root and around:
            pending.append((Value(around[-1], current.path), around[:-1]))
        elif current.instruction.is_root:
            found.append(Reading(current.instruction, current))
    return None


def own_slice(graph: HloGraph, reading: Reading) -> Shape | None:
    """The slice that a reader takes of a value at offsets that only the device decides; None when it does not."""
    reader = reading.reader
    if reader.opcode != "dynamic-slice" or reader.operands[0] != reading.value.instruction:
        return None
    offsets = [is_of_device(graph, Value(operand), reading.frames) for operand in reader.operands[1:]]
    smaller = reader.shape.element_count < reader.operands[0].shape.element_count
    return reader.shape if None not in offsets and True in offsets and smaller else None


def _handed_on(
    graph: HloGraph, value: Value, user: HloInstruction, frames: Frames, found: list[Reading]
) -> Iterator[tuple[Value, Frames]]:
    """The values that a user merely hands on; it is noted in `found` when it does anything else."""
    path = value.path
    match user.opcode:
        case "get-tuple-element":
            if not path or path[0] == user.tuple_index:
                yield Value(user, path[1:]), frames
        case opcode if opcode in _HANDS_ON:
            yield Value(user, path), frames
        case "copy-start":
            yield Value(user, (0, *path)), frames
        case "copy-done":
            if path[:1] == (0,):
                yield Value(user, path[1:]), frames
        case "tuple" if not user.is_root or frames:
            for position, operand in enumerate(user.operands):
                if operand == value.instruction:
                    yield Value(user, (position, *path)), frames
        case "fusion" if user.called:
            parameters = graph.module.computation(user.called[0][1]).parameters
            for position, operand in enumerate(user.operands):
                if operand == value.instruction and position < len(parameters):
                    yield Value(parameters[position], path), (*frames, user)
        case _:
            found.append(Reading(user, value, frames))
