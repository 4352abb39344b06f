"""The producers of values, traced through instructions that only pass them on, and what they ultimately depend on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph, Value, call_sites

SEARCH_LIMIT = 96
"""Values looked at before a search gives up: what is further away than this says nothing about the value."""
_LIMIT = 128
_FUSIONS = frozenset({"fusion"})
CALLS = frozenset({"fusion", "call"})
"""Opcodes that run one computation once."""
FORMS = frozenset({"bitcast", "reshape", "transpose", "broadcast"})
"""Opcodes that put the same numbers into another shape."""


class Maker(NamedTuple):
    """Where a value was made.

    Attributes:
        value: What was made: the result of an instruction that does more than hand it on, or a parameter.
        frames: The fusions and asynchronous starts around it, outermost first.
    """

    value: Value
    frames: Frames = ()

    @property
    def outermost(self) -> HloInstruction:
        """The instruction that makes it, or the outermost fusion around that."""
        return self.frames[0] if self.frames else self.value.instruction


def maker_of(
    graph: HloGraph,
    value: Value,
    frames: Frames = (),
    *,
    through: Collection[str] = FORMS,
    into: Collection[str] = _FUSIONS,
) -> Maker:
    """Follows a value back to where it was made, into fusions and out of them.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions and asynchronous starts around it, outermost first.
        through: Opcodes of one operand that are looked through, beside copies and tuples.
        into: Opcodes whose computation is entered.
    """
    for _ in range(_LIMIT):
        instruction, path = value.instruction, value.path
        source = pass_through(value)
        if source is not None:
            value = source
        elif instruction.opcode in through and not path and (operand := instruction.operand(0)) is not None:
            value = Value(operand)
        elif instruction.opcode in into and instruction.called:
            value = Value(graph.module.computation(instruction.called[0][1]).root, path)
            frames = (*frames, instruction)
        elif instruction.opcode == "parameter" and frames:
            argument = _argument(frames[-1], instruction)
            if argument is None:
                break
            value, frames = Value(argument, path), frames[:-1]
        else:
            break
    return Maker(value, frames)


def _unchanged_by_loop(graph: HloGraph, loop: HloInstruction, path: tuple[int, ...]) -> bool:
    """Whether the body of a loop hands on an element of what it carries as it was, perhaps through loops inside it."""
    body = dict(loop.called).get("body")
    if body is None:
        return False
    after = origin(Value(graph.module.computation(body).root, path))
    while after.instruction.opcode == "while" and _unchanged_by_loop(graph, after.instruction, after.path):
        before = after.instruction.operand(0)
        if before is None:
            return False
        after = origin(Value(before, after.path))
    return after.instruction.opcode == "parameter" and after.path == path


def _argument(caller: HloInstruction, parameter: HloInstruction) -> HloInstruction | None:
    """What a caller passes; late operands of an asynchronous start stand on its `-update`."""
    number = parameter.parameter_number
    if number is None:
        return None
    if caller.operand(0) is None and caller.opcode.endswith("-start"):
        updates = [user for user in caller.users if user.opcode.endswith("-update")]
        return updates[0].operand(number + 1) if updates else None
    return caller.operand(number)


Frames = tuple[HloInstruction, ...]
"""The fusions and calls that were entered, outermost first; a parameter inside stands for the last one's operand."""

_DEPTH_LIMIT = 200
_UNCHANGED = frozenset({"copy", "reshape", "opt-barrier"})


def origin(value: Value) -> Value:
    """Where a value was computed, behind copies and the tuples that it was put into and taken out of."""
    return followed(value, pass_through, _DEPTH_LIMIT)


def followed(value: Value, source_of: Callable[[Value], Value | None], limit: int) -> Value:
    """The last of the values that each come from the next one, or the one at which so many were looked at."""
    for _ in range(limit):
        source = source_of(value)
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


_MOST_LOOKED_AT = 256
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


def _leaves_of(graph: HloGraph, value: Value, frames: Frames = ()) -> Iterator[Leaf]:
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
        if len(seen) > _MOST_LOOKED_AT:
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
    for leaf in _leaves_of(graph, value, frames):
        if leaf.kind not in (LeafKind.CONSTANT, LeafKind.DEVICE):
            return None
        found = found or leaf.kind is LeafKind.DEVICE
    return found


def is_fixed_in(graph: HloGraph, loop: str, value: Value, frames: Frames = ()) -> bool | None:
    """Whether a value is the same in every trip of a loop; None when that cannot be known."""
    unknown = False
    for leaf in _leaves_of(graph, value, frames):
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
        unchanged = before is not None and _unchanged_by_loop(graph, instruction, path)
        return Value(before, path) if before is not None and unchanged else Leaf(LeafKind.UNKNOWN)
    if instruction.computation.is_entry:
        return Leaf(LeafKind.ARGUMENT)
    sites = graph.callers(instruction.computation.name)
    number = instruction.parameter_number
    if len(sites) != 1 or number is None:
        return Leaf(LeafKind.UNKNOWN)
    caller = sites[0].caller
    if caller.opcode == "while" and not _unchanged_by_loop(graph, caller, path):
        return Leaf(LeafKind.VARYING, caller.name)
    passed = caller.operand(sites[0].position + 1 if caller.opcode == "conditional" else number)
    return Leaf(LeafKind.UNKNOWN) if passed is None else Value(passed, path)


def search(
    graph: HloGraph, first: Iterable[Value], following: Callable[[HloGraph, Value], Iterable[Value]], limit: int
) -> Iterator[HloInstruction]:
    """The instructions of the first values and of those that follow, nearest first, until there are so many."""
    queue = deque([first])
    seen: set[tuple[str, str, tuple[int, ...]]] = set()
    while queue and len(seen) < limit:
        for value in queue.popleft():
            if value.key not in seen:
                seen.add(value.key)
                yield value.instruction
                queue.append(following(graph, value))


def producers(graph: HloGraph, instruction: HloInstruction, limit: int = SEARCH_LIMIT) -> Iterator[HloInstruction]:
    """Instructions that the operands come from, nearest first; the mirror of `consumers`."""
    return islice(search(graph, map(Value, instruction.operands), _previous_values, limit), limit)


def _previous_values(graph: HloGraph, value: Value) -> Iterator[Value]:
    source = pass_through(value)
    instruction, path = value.instruction, value.path
    if source is not None:
        yield source
        return
    if instruction.opcode == "parameter":
        yield from _into_callers(graph, instruction, path)
        return
    if instruction.opcode in ("fusion", "call", "while", "conditional"):
        for site in call_sites(instruction):
            if site.attribute != "condition":
                yield Value(graph.module.computation(site.callee).root, path)
    yield from (Value(operand, path if instruction.opcode == "while" else ()) for operand in instruction.operands)


def _into_callers(graph: HloGraph, parameter: HloInstruction, path: tuple[int, ...]) -> Iterator[Value]:
    number = parameter.parameter_number or 0
    for site in graph.callers(parameter.computation.name):
        operands = site.caller.operands
        place = site.position + 1 if site.caller.opcode == "conditional" else number
        if place < len(operands):
            yield Value(operands[place], path)
        if site.attribute == "body":
            yield Value(graph.module.computation(site.callee).root, path)
