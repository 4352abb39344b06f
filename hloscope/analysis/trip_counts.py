"""Trip counts of `while` loops, from their carried values and conditions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloscope.analysis.defs import Frames, find_computed_value, find_element_type
from hloscope.analysis.loop_integers import (
    BOOLEAN_LITERALS,
    CarriedElement,
    CompareDirection,
    LinearScalar,
    Progression,
    RangeCondition,
    ScalarReader,
    count_trips,
    is_in_range,
    make_carried,
    read_linear,
    wrap_signed,
)
from hloscope.analysis.vocabulary import Bound
from hloscope.hlo import HloComputation, HloInstruction
from hloscope.hlo.call_graph import HloGraph, Value

_COUNT = re.compile(r"[0-9]{1,19}")
"""A count as XLA prints it, which is 64 bits wide; longer numbers are not counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TripCount:
    """The number of times that a loop's body runs each time the loop is reached.

    Attributes:
        count: Number of trips; 1 if it cannot be read.
        bound: Exact, or at most if another condition may end the loop sooner. If the trips cannot be read: at least if
        the first trip is certain, otherwise unknown, since there may be none.
        contradicted: XLA's `known_trip_count` if it differs from the condition's; None otherwise.
    """

    count: int
    bound: Bound
    contradicted: int | None = None


def find_trip_count(graph: HloGraph, loop: HloInstruction) -> TripCount:
    """Counts the trips of a `while` instruction.

    The condition is read as a comparison of carried values, the starting values from the initial tuple, and the steps
    from the body's root. XLA's own `known_trip_count` is used only if that gives no exact count.

    Source: the forms that libtpu prints, which never holds `known_trip_count`; the printed constant alone is not the
    number of trips, since starts other than 0 and steps other than 1 are common (peeled and windowed loops). The CPU
    backend of jaxlib 0.10 prints one trip too few in `known_trip_count` for a counter that starts below 0, has a step
    of more than one, and does not meet its bound.
    """
    read = _read_trip_count(graph, loop)
    known = _read_known_trip_count(loop)
    if known is None or known == read.count:
        return read if known is None else TripCount(count=known, bound=Bound.EXACT)
    if read.bound is Bound.EXACT:
        return replace(read, contradicted=known)
    return TripCount(count=known, bound=Bound.EXACT)


def _read_trip_count(graph: HloGraph, loop: HloInstruction) -> TripCount:
    callees = dict(loop.called)
    if not {"condition", "body"} <= callees.keys():
        return TripCount(count=1, bound=Bound.UNKNOWN)
    values = _LoopValues(graph, loop)
    condition = _ConditionReader(graph).read(Value(graph.module.computation(callees["condition"]).root), (), False, 0)
    first = _holds_at_start(values, condition)
    if first is False:
        return TripCount(count=0, bound=Bound.EXACT)
    trips = _count_condition_trips(values, condition)
    if trips is not None:
        return trips
    return TripCount(count=1, bound=Bound.UNKNOWN if first is None else Bound.AT_LEAST)


def _read_known_trip_count(loop: HloInstruction) -> int | None:
    known = loop.backend_config.get("known_trip_count")
    count = known.get("n") if isinstance(known, dict) else None
    if not isinstance(count, str | int) or _COUNT.fullmatch(str(count)) is None:
        return None
    return int(count)


def _count_condition_trips(values: _LoopValues, condition: _Condition | None) -> TripCount | None:
    match condition:
        case _Comparison():
            return _count_comparison_trips(values, condition)
        case _Junction(is_all=True, parts=parts):
            return _find_soonest_end([_count_condition_trips(values, part) for part in parts])
        case _Junction():
            low = _find_low_word(values, condition)
            return None if low is None else _count_comparison_trips(values, low)
        case False:
            return TripCount(count=0, bound=Bound.EXACT)
    return None


def _count_comparison_trips(values: _LoopValues, comparison: _Comparison) -> TripCount | None:
    left, right = values.progression(comparison.left), values.progression(comparison.right)
    if left is None or right is None:
        return None
    count = count_trips(left, right, comparison.direction, comparison.element_type)
    return None if count is None else TripCount(count=count, bound=Bound.EXACT)


def _find_soonest_end(parts: Sequence[TripCount | None]) -> TripCount | None:
    """The end of a conjunction, which comes with the first of its parts; an unreadable part leaves an upper bound."""
    readable = [part for part in parts if part is not None]
    if not readable:
        return None
    count = min(part.count for part in readable)
    exact = len(readable) == len(parts) and all(part.bound is Bound.EXACT for part in readable)
    return TripCount(count=count, bound=Bound.EXACT if exact or count == 0 else Bound.AT_MOST)


def _holds_at_start(values: _LoopValues, condition: _Condition | None) -> bool | None:
    """Returns whether the condition holds before the first trip; None if unknown."""
    match condition:
        case _Comparison():
            left, right = values.at_start(condition.left), values.at_start(condition.right)
            return None if left is None or right is None else condition.direction.holds(left - right)
        case _Junction(is_all=is_all, parts=parts):
            found = [_holds_at_start(values, part) for part in parts]
            if (not is_all) in found:
                return not is_all
            return None if None in found else is_all
    return condition


_WORD = 1 << 32


def _find_low_word(values: _LoopValues, condition: _Condition | None) -> _Comparison | None:
    """The comparison that alone decides when a loop with a two-word counter ends.

    The condition is `high < H or (high == H and low < L)`, with any order for `<`. As long as `low` does not wrap
    around, which counting makes sure of, its carry leaves `high` alone: when that begins as H, `low` alone decides.

    Args:
        values: The loop.
        condition: Its condition.

    Returns:
        The comparison of the low words; None if the condition has another form.

    Source: the form that libtpu prints for s64 and u64 counters, which its vector units do not have.
    """
    if not isinstance(condition, _Junction) or condition.is_all:
        return None
    outer = next((part for part in condition.parts if isinstance(part, _Comparison)), None)
    inner = next((part for part in condition.parts if isinstance(part, _Junction) and part.is_all), None)
    if outer is None or inner is None or outer.direction not in (CompareDirection.LT, CompareDirection.GT):
        return None
    comparisons = [part for part in inner.parts if isinstance(part, _Comparison)]
    equal = next((part for part in comparisons if part.direction is CompareDirection.EQ), None)
    low = next((part for part in comparisons if part.direction is not CompareDirection.EQ), None)
    if equal is None or low is None or not _holds_still(values, outer, equal, low):
        return None
    return low


def _holds_still(values: _LoopValues, outer: _Comparison, equal: _Comparison, low: _Comparison) -> bool:
    """Returns whether the high word starts equal to its bound and changes only by the low word's carry."""
    high, counter = _find_carried_element(outer.left), _find_carried_element(low.left)
    if high is None or counter is None or outer.left != equal.left or low.element_type != "u32":
        return False
    bounds = [values.constant(outer.right), values.constant(equal.right), values.initial(high)]
    words = {None if word is None else word % _WORD for word in bounds}
    return len(words) == 1 and None not in words and _takes_carry(values, high, counter)


def _find_carried_element(term: LinearScalar) -> CarriedElement | None:
    """The carried scalar that a function equals; None if it is anything else."""
    [element] = term.scales if len(term.scales) == 1 else [None]
    return element if element is not None and term == make_carried(element) else None


def _takes_carry(values: _LoopValues, high: CarriedElement, low: CarriedElement) -> bool:
    """Returns whether a trip makes the high word `select(low + step < low, …, high)`, for a step that counts up."""
    graph = values.graph
    choice = find_computed_value(values.after_a_trip(high)).instruction
    if choice.opcode != "select" or len(choice.operands) != 3:
        return False
    if read_linear(graph, Value(choice.operands[2])) != make_carried(high):
        return False
    overflow = _read_comparison(graph, find_computed_value(Value(choice.operands[0])).instruction)
    following = values.following(low)
    if overflow is None or overflow.direction is not CompareDirection.LT or following is None:
        return False
    counts_up = (
        following.scales == make_carried(low).scales and not following.provided and 0 < following.offset < _WORD // 2
    )
    matches = overflow.element_type == "u32" and overflow.left == following and overflow.right == make_carried(low)
    return counts_up and matches


_NESTING_LIMIT = 64
_PASS_ARGUMENTS = frozenset({"while", "call", "fusion", "async-start"})


@dataclass(frozen=True, slots=True)
class _LoopValues:
    """The scalars that a `while` carries.

    Attributes:
        graph: The module.
        loop: The `while`, which names its body.
    """

    graph: HloGraph
    loop: HloInstruction

    def following(self, element: CarriedElement) -> LinearScalar | None:
        """A carried scalar after a trip, as a function of the values carried before it; None if unknown."""
        following = read_linear(self.graph, self.after_a_trip(element))
        declared = find_element_type(Value(self.loop, element[1:]))
        return following if following is not None and following.element_type == declared else None

    def after_a_trip(self, element: CarriedElement) -> Value:
        """The value that the body returns for a carried scalar."""
        return Value(self.graph.module.computation(dict(self.loop.called)["body"]).root, element[1:])

    def is_invariant(self, element: CarriedElement) -> bool:
        """Returns whether the loop returns a scalar unchanged."""
        return self.following(element) == make_carried(element)

    def initial(self, element: CarriedElement, depth: int = 0) -> int | None:
        """A carried scalar before the first trip; None if it is not a constant."""
        number, *path = element
        if number >= len(self.loop.operands):
            return None
        return _find_constant_value(self.graph, Value(self.loop.operands[number], tuple(path)), depth)

    def at_start(self, term: LinearScalar) -> int | None:
        """The value, before the first trip, of a function of carried scalars."""
        values = self._initials(set(term.elements()))
        return None if values is None else term.evaluate(values)

    def constant(self, term: LinearScalar) -> int | None:
        """The value of a function of carried scalars that never change."""
        return self.at_start(term) if all(self.is_invariant(element) for element in term.elements()) else None

    def progression(self, term: LinearScalar) -> Progression | None:
        """The values of a function of carried scalars, trip after trip."""
        elements = set(term.elements())
        varying = [element for element in elements if not self.is_invariant(element)]
        if len(varying) > 1:
            return None
        if not varying:
            number = self.at_start(term)
            return None if number is None else Progression(start=0, factor=1, step=0, scale=0, offset=number)
        return self._of_counter(term, varying[0])

    def _of_counter(self, term: LinearScalar, counter: CarriedElement) -> Progression | None:
        following = self.following(counter)
        start = self.initial(counter)
        if following is None or counter not in following.scales or start is None:
            return None
        others = {*term.elements(), *following.elements()} - {counter}
        if not all(self.is_invariant(element) for element in others):
            return None
        values = self._initials(others)
        if values is None or not is_in_range(start, following.element_type):
            return None
        state = RangeCondition(scale=1, offset=0, element_type=following.element_type)
        conditions = [_make_range_condition(part, counter, values, in_body=False) for part in term.provided]
        steps = [_make_range_condition(part, counter, values, in_body=True) for part in following.provided]
        constant = {**values, counter: 0}
        return Progression(
            start=start,
            factor=following.scales[counter],
            step=wrap_signed(following.total(constant), following.element_type),
            scale=term.scales.get(counter, 0),
            offset=term.total(constant),
            parts=(state, *conditions, *steps),
        )

    def _initials(self, elements: set[CarriedElement]) -> dict[CarriedElement, int] | None:
        return _require_all_known({element: self.initial(element) for element in elements})


def _make_range_condition(
    term: LinearScalar, counter: CarriedElement, values: dict[CarriedElement, int], *, in_body: bool
) -> RangeCondition:
    return RangeCondition(
        scale=term.scales.get(counter, 0),
        offset=term.total({**values, counter: 0}),
        element_type=term.element_type,
        in_body=in_body,
    )


def _require_all_known(found: dict[CarriedElement, int | None]) -> dict[CarriedElement, int] | None:
    known = {element: number for element, number in found.items() if number is not None}
    return known if len(known) == len(found) else None


def _find_constant_value(graph: HloGraph, value: Value, depth: int) -> int | None:
    """The value as a number, also if it passes unchanged through parameters of enclosing loops and calls."""
    term = read_linear(graph, value)
    if term is None:
        return None
    inside = value.instruction.computation
    values = _require_all_known({element: _find_argument(graph, inside, element, depth) for element in term.elements()})
    return None if values is None else term.evaluate(values)


def _find_argument(graph: HloGraph, computation: HloComputation, element: CarriedElement, depth: int) -> int | None:
    """The value that the only caller of a computation passes for an element of its parameters."""
    caller = graph.only_caller(computation.name)
    if caller is None or depth > _NESTING_LIMIT or caller.opcode not in _PASS_ARGUMENTS:
        return None
    loop = _LoopValues(graph, caller)
    if caller.opcode == "while" and not loop.is_invariant(element):
        return None
    return loop.initial(element, depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """A comparison, `left` `direction` `right`, of two functions of carried values with one integer type."""

    left: LinearScalar
    right: LinearScalar
    direction: CompareDirection

    @property
    def element_type(self) -> str:
        """The type of both sides."""
        return self.left.element_type


@dataclass(frozen=True, slots=True, kw_only=True)
class _Junction:
    """A conjunction or disjunction of conditions.

    Attributes:
        is_all: Whether all of them must hold.
        parts: The conditions; None for one that cannot be read.
    """

    is_all: bool
    parts: tuple[_Condition | None, ...]


_Condition = _Comparison | _Junction | bool


def _read_comparison(
    graph: HloGraph, compare: HloInstruction, frames: Frames = (), *, negated: bool = False
) -> _Comparison | None:
    """Reads a `compare` of integers, or its negation."""
    direction = CompareDirection.__members__.get(compare.attributes.get("direction", ""))
    if compare.opcode != "compare" or len(compare.operands) != 2 or direction is None:
        return None
    left, right = (read_linear(graph, Value(operand), frames) for operand in compare.operands)
    if left is None or right is None or left.element_type != right.element_type:
        return None
    signs = {"SIGNED": "s", "UNSIGNED": "u"}
    if not left.element_type.startswith(signs.get(compare.attributes.get("type", ""), "")):
        return None
    return _Comparison(left=left, right=right, direction=direction.opposite if negated else direction)


class _ConditionReader(ScalarReader):
    """Reads a condition; None for other conditions, or if the text is inconsistent."""

    depth_limit = 100
    step_limit = 1000

    def read(self, value: Value, frames: Frames, negated: bool, depth: int) -> _Condition | None:
        maker = self.maker(value, frames, depth)
        if maker is None:
            return None
        instruction, frames = maker.value.instruction, maker.frames
        operands = instruction.operands
        if instruction.opcode == "compare":
            return _read_comparison(self.graph, instruction, frames, negated=negated)
        if any(item.shape.element_type != "pred" for item in (instruction, *operands)):
            return None
        match instruction.opcode, len(operands):
            case (("and" | "or"), 2):
                parts = tuple(self.read(Value(operand), frames, negated, depth + 1) for operand in operands)
                return _Junction(is_all=(instruction.opcode == "and") != negated, parts=parts)
            case (("not" | "convert"), 1):
                return self.read(Value(operands[0]), frames, negated != (instruction.opcode == "not"), depth + 1)
            case "constant", 0 if (instruction.literal or "") in BOOLEAN_LITERALS:
                return BOOLEAN_LITERALS[instruction.literal or ""] != negated
        return None
