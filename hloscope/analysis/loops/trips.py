"""How often a `while` runs its body."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloscope.analysis.loops.carried import LoopValues
from hloscope.analysis.loops.conditions import Comparison, Condition, Junction, read_condition
from hloscope.analysis.loops.progressions import count_trips
from hloscope.analysis.loops.two_words import low_word
from hloscope.analysis.vocabulary import Bound
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

_COUNT = re.compile(r"[0-9]{1,19}")
"""What XLA prints of a count, which is 64 bits wide; anything longer is no count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TripCount:
    """How often a loop's body runs each time the loop is reached.

    Attributes:
        count: Trips; 1 when they cannot be read.
        bound: Exact; at most, when another condition may end the loop sooner; when they cannot be read, at least if
            the first trip is certain, else unknown, since there may be none.
        contradicted: XLA's `known_trip_count`, where it differs from what the condition says; None where it does not.
    """

    count: int
    bound: Bound
    contradicted: int | None = None


def trip_count(graph: HloGraph, loop: HloInstruction) -> TripCount:
    """Counts the trips of a `while` instruction.

    The condition is read as a comparison of what the loop carries, the starting values from the initial tuple, and the
    steps from the body's root. Only where that gives no exact count, XLA's own `known_trip_count` is believed.

    Source: the forms that libtpu prints, which never holds `known_trip_count`; the printed constant alone is not the
    number of trips, since starts other than 0 and steps other than 1 are common (peeled and windowed loops). The CPU
    backend of jaxlib 0.10 prints one trip too few in `known_trip_count` for a counter that starts below 0, has a step
    of more than one, and does not meet its bound.
    """
    read = _read_trip_count(graph, loop)
    known = _known_trip_count(loop)
    if known is None or known == read.count:
        return read if known is None else TripCount(count=known, bound=Bound.EXACT)
    if read.bound is Bound.EXACT:
        return replace(read, contradicted=known)
    return TripCount(count=known, bound=Bound.EXACT)


def _read_trip_count(graph: HloGraph, loop: HloInstruction) -> TripCount:
    callees = dict(loop.called)
    if not {"condition", "body"} <= callees.keys():
        return TripCount(count=1, bound=Bound.UNKNOWN)
    values = LoopValues(graph, loop)
    condition = read_condition(graph, Value(graph.module.computation(callees["condition"]).root))
    first = _holds_at_start(values, condition)
    if first is False:
        return TripCount(count=0, bound=Bound.EXACT)
    trips = _trips(values, condition)
    if trips is not None:
        return trips
    return TripCount(count=1, bound=Bound.UNKNOWN if first is None else Bound.AT_LEAST)


def _known_trip_count(loop: HloInstruction) -> int | None:
    known = loop.backend_config.get("known_trip_count")
    count = known.get("n") if isinstance(known, dict) else None
    if not isinstance(count, str | int) or _COUNT.fullmatch(str(count)) is None:
        return None
    return int(count)


def _trips(values: LoopValues, condition: Condition | None) -> TripCount | None:
    match condition:
        case Comparison():
            return _trips_of_comparison(values, condition)
        case Junction(is_all=True, parts=parts):
            return _soonest([_trips(values, part) for part in parts])
        case Junction():
            low = low_word(values, condition)
            return None if low is None else _trips_of_comparison(values, low)
        case False:
            return TripCount(count=0, bound=Bound.EXACT)
    return None


def _trips_of_comparison(values: LoopValues, comparison: Comparison) -> TripCount | None:
    left, right = values.progression(comparison.left), values.progression(comparison.right)
    if left is None or right is None:
        return None
    count = count_trips(left, right, comparison.direction, comparison.element_type)
    return None if count is None else TripCount(count=count, bound=Bound.EXACT)


def _soonest(parts: Sequence[TripCount | None]) -> TripCount | None:
    """A conjunction ends with the first of its parts; a part that cannot be read leaves an upper bound."""
    readable = [part for part in parts if part is not None]
    if not readable:
        return None
    count = min(part.count for part in readable)
    exact = len(readable) == len(parts) and all(part.bound is Bound.EXACT for part in readable)
    return TripCount(count=count, bound=Bound.EXACT if exact or count == 0 else Bound.AT_MOST)


def _holds_at_start(values: LoopValues, condition: Condition | None) -> bool | None:
    """Whether the condition holds before the first trip; None when that cannot be told."""
    match condition:
        case Comparison():
            left, right = values.at_start(condition.left), values.at_start(condition.right)
            return None if left is None or right is None else condition.direction.holds(left - right)
        case Junction(is_all=is_all, parts=parts):
            found = [_holds_at_start(values, part) for part in parts]
            if (not is_all) in found:
                return not is_all
            return None if None in found else is_all
    return condition
