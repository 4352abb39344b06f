"""What a value depends on in the end: constants, the device's number, arguments, what a loop changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from hloscope.analysis.values.handing_on import Frames
from hloscope.analysis.values.makers import maker_of, unchanged_by_loop
from hloscope.graph import HloGraph, Value

_LIMIT = 256
"""Values looked at before a search gives up."""
_CONSTANTS = frozenset({"constant", "iota"})
_DEVICE_NUMBERS = frozenset({"partition-id", "replica-id"})
_NOT_FOLLOWED = frozenset({
    "infeed", "recv", "recv-done", "rng", "rng-bit-generator", "rng-get-and-update-state", "custom-call", "fusion",
    "conditional", "call", "while",
})  # fmt: skip


class LeafKind(Enum):
    """What a dependency ends in."""

    CONSTANT = auto()
    DEVICE = auto()
    ARGUMENT = auto()
    VARYING = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Leaf:
    """One thing that a value depends on.

    Attributes:
        kind: What it is; unknown also where a search gave up.
        loop: The `while` that changes it from trip to trip; None for all other kinds.
    """

    kind: LeafKind
    loop: str | None = None


def leaves_of(graph: HloGraph, value: Value, frames: Frames = ()) -> Iterator[Leaf]:
    """Everything that a value depends on; what loops carry unchanged is followed out of them.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions and asynchronous starts around it, outermost first.
    """
    pending = [(value, frames)]
    seen = set()
    while pending:
        maker = maker_of(graph, *pending.pop())
        if maker in seen:
            continue
        seen.add(maker)
        if len(seen) > _LIMIT:
            yield Leaf(LeafKind.UNKNOWN)
            return
        opcode, operands = maker.value.instruction.opcode, maker.value.instruction.operands
        before = outside(graph, maker.value) if opcode in ("parameter", "while") and not maker.frames else None
        if isinstance(before, Value):
            pending.append((before, ()))
        elif before is not None:
            yield before
        elif opcode in _CONSTANTS or opcode in _DEVICE_NUMBERS:
            yield Leaf(LeafKind.CONSTANT if opcode in _CONSTANTS else LeafKind.DEVICE)
        elif opcode in _NOT_FOLLOWED or not operands:
            yield Leaf(LeafKind.UNKNOWN)
        else:
            pending.extend((Value(operand), maker.frames) for operand in operands)


def is_of_device(graph: HloGraph, value: Value, frames: Frames = ()) -> bool | None:
    """Whether a value is a function of the device's number alone.

    Returns:
        True when it depends on the number, False when it is a constant, None when it depends on anything else, or may.
    """
    found = False
    for leaf in leaves_of(graph, value, frames):
        if leaf.kind not in (LeafKind.CONSTANT, LeafKind.DEVICE):
            return None
        found = found or leaf.kind is LeafKind.DEVICE
    return found


def is_fixed_in(graph: HloGraph, loop: str, value: Value, frames: Frames = ()) -> bool | None:
    """Whether a value is the same in every trip of a loop; None when that cannot be told."""
    unknown = False
    for leaf in leaves_of(graph, value, frames):
        if leaf.loop == loop:
            return False
        unknown = unknown or leaf.kind is LeafKind.UNKNOWN
    return None if unknown else True


def outside(graph: HloGraph, value: Value) -> Value | Leaf:
    """What a parameter stands for in the only caller of its computation, or a loop's result in front of the loop.

    Returns:
        A value; what it ends in where there is none, since the loop changes it, nothing passes it, or several calls do.
    """
    instruction, path = value.instruction, value.path
    if instruction.opcode == "while":
        before = instruction.operand(0)
        unchanged = before is not None and unchanged_by_loop(graph, instruction, path)
        return Value(before, path) if before is not None and unchanged else Leaf(LeafKind.UNKNOWN)
    if instruction.computation.is_entry:
        return Leaf(LeafKind.ARGUMENT)
    sites = graph.callers(instruction.computation.name)
    number = instruction.parameter_number
    if len(sites) != 1 or number is None:
        return Leaf(LeafKind.UNKNOWN)
    caller = sites[0].caller
    if caller.opcode == "while" and not unchanged_by_loop(graph, caller, path):
        return Leaf(LeafKind.VARYING, caller.name)
    passed = caller.operand(sites[0].position + 1 if caller.opcode == "conditional" else number)
    return Leaf(LeafKind.UNKNOWN) if passed is None else Value(passed, path)
