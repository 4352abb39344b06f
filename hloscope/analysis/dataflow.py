"""The producers of values, traced through instructions that only pass them on, and their ultimate dependencies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph, Value, find_call_sites

SEARCH_LIMIT = 96
"""Maximum number of values that a search visits: anything farther away says nothing about the value."""
_LIMIT = 128
_FUSIONS = frozenset({"fusion"})
CALLING_OPCODES = frozenset({"fusion", "call"})
"""Opcodes that run one computation exactly once."""
RESHAPES = frozenset({"bitcast", "reshape", "transpose", "broadcast"})
"""Opcodes that change the shape but not the elements."""


class Maker(NamedTuple):
    """The producer of a value.

    Attributes:
        value: The result of an instruction that does more than pass a value on, or a parameter.
        frames: The fusions and asynchronous starts around it, outermost first.
    """

    value: Value
    frames: Frames = ()

    @property
    def outermost(self) -> HloInstruction:
        """The instruction that produces it, or the outermost fusion around that."""
        return self.frames[0] if self.frames else self.value.instruction


def find_maker(
    graph: HloGraph,
    value: Value,
    frames: Frames = (),
    *,
    through: Collection[str] = RESHAPES,
    into: Collection[str] = _FUSIONS,
) -> Maker:
    """Traces a value back to its producer, into fusions and out of them.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions and asynchronous starts around it, outermost first.
        through: Further opcodes with one operand that are looked through, in addition to copies and tuples.
        into: Opcodes whose computations are entered.
    """
    for _ in range(_LIMIT):
        instruction, path = value.instruction, value.path
        source = find_passed_value(value)
        if source is not None:
            value = source
        elif instruction.opcode in through and not path and (operand := instruction.operand(0)) is not None:
            value = Value(operand)
        elif instruction.opcode in into and instruction.called:
            value = Value(graph.module.computation(instruction.called[0][1]).root, path)
            frames = (*frames, instruction)
        elif instruction.opcode == "parameter" and frames:
            argument = _find_passed_argument(frames[-1], instruction)
            if argument is None:
                break
            value, frames = Value(argument, path), frames[:-1]
        else:
            break
    return Maker(value, frames)


def _is_unchanged_by_loop(graph: HloGraph, loop: HloInstruction, path: tuple[int, ...]) -> bool:
    """Returns whether a loop's body returns a carried element unchanged, perhaps through inner loops."""
    body = dict(loop.called).get("body")
    if body is None:
        return False
    after = find_computed_value(Value(graph.module.computation(body).root, path))
    while after.instruction.opcode == "while" and _is_unchanged_by_loop(graph, after.instruction, after.path):
        before = after.instruction.operand(0)
        if before is None:
            return False
        after = find_computed_value(Value(before, after.path))
    return after.instruction.opcode == "parameter" and after.path == path


def _find_passed_argument(caller: HloInstruction, parameter: HloInstruction) -> HloInstruction | None:
    """The argument that a caller passes; late operands of an asynchronous start are printed on its `-update`."""
    number = parameter.parameter_number
    if number is None:
        return None
    if caller.operand(0) is None and caller.opcode.endswith("-start"):
        updates = [user for user in caller.users if user.opcode.endswith("-update")]
        return updates[0].operand(number + 1) if updates else None
    return caller.operand(number)


Frames = tuple[HloInstruction, ...]
"""The enclosing fusions and calls, outermost first; a parameter inside refers to the last one's operand."""

_DEPTH_LIMIT = 200
_UNCHANGED = frozenset({"copy", "reshape", "opt-barrier"})


def find_computed_value(value: Value) -> Value:
    """The value before copies and before the tuples that it was put into and taken out of."""
    return follow_values(value, find_passed_value, _DEPTH_LIMIT)


def follow_values(value: Value, source_of: Callable[[Value], Value | None], limit: int) -> Value:
    """The last value of a chain in which each comes from the next, or the last one within the limit."""
    for _ in range(limit):
        source = source_of(value)
        if source is None:
            break
        value = source
    return value


def find_shape(value: Value) -> Shape | None:
    """The shape of a value; None if the instruction's shape has no such element."""
    shape: Shape = value.instruction.shape
    for index in value.path:
        if not 0 <= index < len(shape.elements):
            return None
        shape = shape.elements[index]
    return shape


def find_element_type(value: Value) -> str:
    """The element type of a scalar, also of one inside a tuple; `unknown` if the shape has no such element."""
    shape = find_shape(value)
    return "unknown" if shape is None else shape.element_type


def find_passed_value(value: Value) -> Value | None:
    """The value that this one merely passes on; None if it is computed, or if the text is inconsistent."""
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
            same = source is not None and find_element_type(value) == find_element_type(Value(source, path))
            return Value(source, path) if source is not None and same else None
        case _:
            return None
    operand = instruction.operand(number)
    return None if operand is None else Value(operand, path)


_MOST_LOOKED_AT = 256
"""Maximum number of values that a search visits."""
_CONSTANTS = frozenset({"constant", "iota"})
_DEVICE_NUMBERS = frozenset({"partition-id", "replica-id"})
_NOT_FOLLOWED = frozenset({
    "infeed", "recv", "recv-done", "rng", "rng-bit-generator", "rng-get-and-update-state", "custom-call", "fusion",
    "conditional", "call", "while",
})  # fmt: skip


class DependencyKind(Enum):
    """A dependency other than a loop that changes the value; unknown also if the search gave up."""

    CONSTANT = auto()
    DEVICE = auto()
    ARGUMENT = auto()
    UNKNOWN = auto()


Dependency = DependencyKind | str
"""A dependency of a value; a text is the name of the `while` that changes it in every trip."""


def _find_dependencies(graph: HloGraph, value: Value, frames: Frames = ()) -> Iterator[Dependency]:
    """The dependencies of a value; values that loops carry unchanged are traced to before the loop.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions and asynchronous starts around it, outermost first.
    """
    pending = [(value, frames)]
    seen = set()
    known = graph.dependencies  # the searches of one program meet the same values
    while pending:
        place = pending.pop()
        if place not in known:
            maker = find_maker(graph, *place)
            known[place] = maker, _find_next_dependencies(graph, maker)
        maker, following = known[place]
        if maker in seen:
            continue
        seen.add(maker)
        if len(seen) > _MOST_LOOKED_AT:
            yield DependencyKind.UNKNOWN
            return
        if isinstance(following, list):
            pending.extend(following)
        else:
            yield following


def _find_next_dependencies(graph: HloGraph, maker: Maker) -> Dependency | list[tuple[Value, Frames]]:
    """The values that a value is computed from, or what it depends on if that ends there."""
    opcode, operands = maker.value.instruction.opcode, maker.value.instruction.operands
    before = step_outside(graph, maker.value) if opcode in ("parameter", "while") and not maker.frames else None
    if before is not None:
        return [(before, ())] if isinstance(before, Value) else before
    if opcode in _CONSTANTS or opcode in _DEVICE_NUMBERS:
        return DependencyKind.CONSTANT if opcode in _CONSTANTS else DependencyKind.DEVICE
    if opcode in _NOT_FOLLOWED or not operands:
        return DependencyKind.UNKNOWN
    return [(Value(operand), maker.frames) for operand in operands]


def is_of_device(graph: HloGraph, value: Value, frames: Frames = ()) -> bool | None:
    """Returns whether a value depends on the device's number and nothing else.

    Returns:
        True if it depends on the number, False if it is a constant, None if it depends or may depend on anything else.
    """
    found = False
    for leaf in _find_dependencies(graph, value, frames):
        if leaf not in (DependencyKind.CONSTANT, DependencyKind.DEVICE):
            return None
        found = found or leaf is DependencyKind.DEVICE
    return found


def is_fixed_in(graph: HloGraph, loop: str, value: Value, frames: Frames = ()) -> bool | None:
    """Returns whether a value is the same in every trip of a loop; None if unknown."""
    unknown = False
    for leaf in _find_dependencies(graph, value, frames):
        if leaf == loop:
            return False
        unknown = unknown or leaf is DependencyKind.UNKNOWN
    return None if unknown else True


def step_outside(graph: HloGraph, value: Value) -> Value | Dependency:
    """The value outside of a parameter, in its only caller, or of a loop's result, before the loop.

    Returns:
        The value, or the dependency that it ends in if the loop changes it, nothing passes it, or several calls do.
    """
    instruction, path = value.instruction, value.path
    if instruction.opcode == "while":
        before = instruction.operand(0)
        unchanged = before is not None and _is_unchanged_by_loop(graph, instruction, path)
        return Value(before, path) if before is not None and unchanged else DependencyKind.UNKNOWN
    if instruction.computation.is_entry:
        return DependencyKind.ARGUMENT
    sites = graph.callers(instruction.computation.name)
    number = instruction.parameter_number
    if len(sites) != 1 or number is None:
        return DependencyKind.UNKNOWN
    caller = sites[0].caller
    if caller.opcode == "while" and not _is_unchanged_by_loop(graph, caller, path):
        return caller.name
    passed = caller.operand(sites[0].position + 1 if caller.opcode == "conditional" else number)
    return DependencyKind.UNKNOWN if passed is None else Value(passed, path)


def search_nearest_first(
    graph: HloGraph, first: Iterable[Value], following: Callable[[HloGraph, Value], Iterable[Value]], limit: int
) -> Iterator[HloInstruction]:
    """The instructions of the first values and of those that follow, nearest first, up to a limit."""
    queue = deque([first])
    seen: set[tuple[str, str, tuple[int, ...]]] = set()
    while queue and len(seen) < limit:
        for value in queue.popleft():
            if value.key not in seen:
                seen.add(value.key)
                yield value.instruction
                queue.append(following(graph, value))


def find_producers(graph: HloGraph, instruction: HloInstruction, limit: int = SEARCH_LIMIT) -> Iterator[HloInstruction]:
    """The instructions that the operands come from, nearest first; the mirror image of `find_consumers`."""
    return islice(search_nearest_first(graph, map(Value, instruction.operands), _find_previous_values, limit), limit)


def _find_previous_values(graph: HloGraph, value: Value) -> Iterator[Value]:
    source = find_passed_value(value)
    instruction, path = value.instruction, value.path
    if source is not None:
        yield source
        return
    if instruction.opcode == "parameter":
        yield from _step_into_callers(graph, instruction, path)
        return
    if instruction.opcode in ("fusion", "call", "while", "conditional"):
        for site in find_call_sites(instruction):
            if site.attribute != "condition":
                yield Value(graph.module.computation(site.callee).root, path)
    yield from (Value(operand, path if instruction.opcode == "while" else ()) for operand in instruction.operands)


def _step_into_callers(graph: HloGraph, parameter: HloInstruction, path: tuple[int, ...]) -> Iterator[Value]:
    number = parameter.parameter_number or 0
    for site in graph.callers(parameter.computation.name):
        operands = site.caller.operands
        place = site.position + 1 if site.caller.opcode == "conditional" else number
        if place < len(operands):
            yield Value(operands[place], path)
        if site.attribute == "body":
            yield Value(graph.module.computation(site.callee).root, path)


# ---- the users of a value, traced through instructions that only pass it on, and all instructions that it reaches

_MOST_USES_FOLLOWED = 64
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
    for _ in range(_MOST_USES_FOLLOWED):
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
