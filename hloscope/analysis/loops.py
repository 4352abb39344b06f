"""How often a `while` runs its body."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.model import Bound
from hloscope.analysis.progressions import Direction, Progression, count_trips
from hloscope.analysis.scalars import Element, Frames, Linear, carried, read_linear
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
    if term.element is None:
        return Progression(start=term.offset, factor=1, step=0)
    start = _initial(graph, loop, term.element)
    body = graph.module.computation(dict(loop.called)["body"])
    step = read_linear(graph, Value(body.root, term.element[1:]))
    if start is None or step is None or step.element != term.element:
        return None
    return Progression.of_linear(
        start=start,
        factor=step.scale,
        step=step.offset,
        scale=term.scale,
        offset=term.offset,
        element_type=element_type,
    )


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
    if term.element is None:
        return term.offset
    outer = _argument(graph, value.instruction.computation, term.element, depth)
    return None if outer is None else term.scale * outer + term.offset


def _argument(graph: HloGraph, computation: HloComputation, element: Element, depth: int) -> int | None:
    caller = graph.only_caller(computation.name)
    if caller is None or depth > len(graph.reachable):
        return None
    if caller.opcode == "while":
        body = graph.module.computation(dict(caller.called)["body"])
        if read_linear(graph, Value(body.root, element[1:])) != carried(element):
            return None
    elif caller.opcode not in ("call", "fusion", "async-start"):
        return None
    if element[0] >= len(caller.operands):
        return None
    return _constant_value(graph, Value(caller.operands[element[0]], element[1:]), depth + 1)
