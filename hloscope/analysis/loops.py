"""How often a `while` runs its body."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.progressions import Direction, Progression, count_trips
from hloscope.analysis.scalars import Element, Frames, Linear, carried, read_linear
from hloscope.analysis.vocabulary import Bound
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloComputation, HloInstruction

_HANDS_ON = frozenset({"copy", "bitcast", "convert", "reshape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TripCount:
    """How often a loop's body runs each time the loop is reached.

    Attributes:
        count: Trips; 1 when they cannot be read.
        bound: Exact; at most, when another condition may end the loop sooner; at least, when they cannot be read.
    """

    count: int
    bound: Bound


UNREADABLE = TripCount(count=1, bound=Bound.AT_LEAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """One condition for another trip: `left` `direction` `right`, both in the loop's own elements."""

    left: Linear
    right: Linear
    direction: Direction
    element_type: str


def trip_count(graph: HloGraph, loop: HloInstruction) -> TripCount:
    """Counts the trips of a `while` instruction.

    XLA's own `known_trip_count` is believed. Otherwise the condition is read as a comparison of what the loop carries,
    the starting values from the initial tuple, and the steps from the body's root.

    Source: the forms that libtpu prints, which never holds `known_trip_count`; the printed constant alone is not the
    number of trips, since starts other than 0 and steps other than 1 are common (peeled and windowed loops).
    """
    known = _known_trip_count(loop)
    if known is not None:
        return TripCount(count=known, bound=Bound.EXACT)
    callees = dict(loop.called)
    condition = graph.module.computation(callees["condition"])
    return _trips_of_condition(graph, loop, Value(condition.root), (), False)


def _known_trip_count(loop: HloInstruction) -> int | None:
    known = loop.backend_config.get("known_trip_count")
    count = known.get("n") if isinstance(known, dict) else None
    return int(count) if isinstance(count, str | int) and str(count).isdigit() else None


def _trips_of_condition(
    graph: HloGraph, loop: HloInstruction, value: Value, frames: Frames, negated: bool
) -> TripCount:
    instruction = value.instruction
    match instruction.opcode:
        case "compare":
            comparison = _read_comparison(graph, instruction, frames, negated)
            return UNREADABLE if comparison is None else _trips_of_comparison(graph, loop, comparison)
        case "and" if not negated:
            return _soonest([_trips_of_condition(graph, loop, Value(o), frames, False) for o in instruction.operands])
        case "or" if negated:
            return _soonest([_trips_of_condition(graph, loop, Value(o), frames, True) for o in instruction.operands])
        case "not":
            return _trips_of_condition(graph, loop, Value(instruction.operands[0]), frames, not negated)
        case "fusion" | "call":
            root = graph.module.computation(instruction.called[0][1]).root
            return _trips_of_condition(graph, loop, Value(root, value.path), (*frames, instruction), negated)
        case "constant":
            never = (instruction.literal in ("false", "0")) != negated
            return TripCount(count=0, bound=Bound.EXACT) if never else UNREADABLE
    source, outer = _handed_on(value, frames)
    return UNREADABLE if source is None else _trips_of_condition(graph, loop, source, outer, negated)


def _handed_on(value: Value, frames: Frames) -> tuple[Value | None, Frames]:
    instruction, path = value.instruction, value.path
    if instruction.opcode in _HANDS_ON:
        return Value(instruction.operands[0], path), frames
    if instruction.opcode == "tuple" and path:
        return Value(instruction.operands[path[0]], path[1:]), frames
    if instruction.opcode == "get-tuple-element" and instruction.tuple_index is not None:
        operand = instruction.operands[0]
        return (None if operand.opcode == "parameter" else Value(operand, (instruction.tuple_index, *path))), frames
    if instruction.opcode == "parameter" and frames and instruction.parameter_number is not None:
        return Value(frames[-1].operands[instruction.parameter_number], path), frames[:-1]
    return None, frames


def _soonest(parts: list[TripCount]) -> TripCount:
    """A conjunction ends with the first of its parts; a part that cannot be read leaves an upper bound."""
    readable = [part for part in parts if part.bound is not Bound.AT_LEAST]
    if not readable:
        return UNREADABLE
    exact = len(readable) == len(parts) and all(part.bound is Bound.EXACT for part in parts)
    return TripCount(count=min(part.count for part in readable), bound=Bound.EXACT if exact else Bound.AT_MOST)


def _read_comparison(graph: HloGraph, compare: HloInstruction, frames: Frames, negated: bool) -> _Comparison | None:
    left, right = (read_linear(graph, Value(operand), frames) for operand in compare.operands)
    direction = Direction.__members__.get(compare.attributes.get("direction", ""))
    if left is None or right is None or direction is None:
        return None
    return _Comparison(
        left=left,
        right=right,
        direction=direction.opposite if negated else direction,
        element_type=compare.operands[0].shape.element_type,
    )


def _trips_of_comparison(graph: HloGraph, loop: HloInstruction, comparison: _Comparison) -> TripCount:
    left = _progression(graph, loop, comparison.left, comparison.element_type)
    right = _progression(graph, loop, comparison.right, comparison.element_type)
    if left is None or right is None:
        return UNREADABLE
    count = count_trips(left, right, comparison.direction, comparison.element_type)
    return UNREADABLE if count is None else TripCount(count=count, bound=Bound.EXACT)


def _progression(graph: HloGraph, loop: HloInstruction, term: Linear, element_type: str) -> Progression | None:
    """The values that one side of the condition takes, trip after trip."""
    varying = [element for element in term.scales if not _is_invariant(graph, loop, element)]
    if len(varying) > 1:
        return None
    offset = _without_invariants(graph, loop, term, varying)
    if offset is None:
        return None
    if not varying:
        return Progression(start=offset, factor=1, step=0)
    [counter] = varying
    following = read_linear(graph, _after_a_trip(graph, loop, counter))
    if following is None or counter not in following.scales:
        return None
    start = _initial(graph, loop, counter)
    step = _without_invariants(graph, loop, following, varying)
    if start is None or step is None:
        return None
    factor, scale = following.scales[counter], term.scales[counter]
    return Progression.of_linear(
        start=start, factor=factor, step=step, scale=scale, offset=offset, element_type=element_type
    )


def _without_invariants(graph: HloGraph, loop: HloInstruction, term: Linear, kept: list[Element]) -> int | None:
    """The constant of a function once what the loop carries unchanged is replaced by its initial value."""
    total = term.offset
    for element, scale in term.scales.items():
        if element in kept:
            continue
        initial = _initial(graph, loop, element) if _is_invariant(graph, loop, element) else None
        if initial is None:
            return None
        total += scale * initial
    return total


def _is_invariant(graph: HloGraph, loop: HloInstruction, element: Element) -> bool:
    return read_linear(graph, _after_a_trip(graph, loop, element)) == carried(element)


def _after_a_trip(graph: HloGraph, loop: HloInstruction, element: Element) -> Value:
    """What the body makes of a carried scalar."""
    return Value(graph.module.computation(dict(loop.called)["body"]).root, element[1:])


def _initial(graph: HloGraph, loop: HloInstruction, element: Element) -> int | None:
    number, *path = element
    if number >= len(loop.operands):
        return None
    return _constant_value(graph, Value(loop.operands[number], tuple(path)), 0)


def _constant_value(graph: HloGraph, value: Value, depth: int) -> int | None:
    """The value as a number, also when it comes unchanged through the parameters of the loops and calls around it."""
    term = read_linear(graph, value)
    if term is None:
        return None
    total = term.offset
    for element, scale in term.scales.items():
        outer = _argument(graph, value.instruction.computation, element, depth)
        if outer is None:
            return None
        total += scale * outer
    return total


def _argument(graph: HloGraph, computation: HloComputation, element: Element, depth: int) -> int | None:
    """What the only caller of a computation passes for an element of its parameters."""
    caller = graph.only_caller(computation.name)
    if caller is None or depth > len(graph.reachable) or element[0] >= len(caller.operands):
        return None
    if caller.opcode == "while" and not _is_invariant(graph, caller, element):
        return None
    if caller.opcode not in ("while", "call", "fusion", "async-start"):
        return None
    return _constant_value(graph, Value(caller.operands[element[0]], element[1:]), depth + 1)
