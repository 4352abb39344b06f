"""Trip counts of `while` loops, from their carried values and conditions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloscope.analysis.defs import Frames, element_type_of, origin
from hloscope.analysis.loop_integers import (
    BOOLEANS,
    Direction,
    Element,
    Linear,
    Part,
    Progression,
    Reader,
    carried,
    count_trips,
    is_in_range,
    read_linear,
    signed,
)
from hloscope.analysis.vocabulary import Bound
from hloscope.hlo import HloComputation, HloInstruction
from hloscope.hlo.call_graph import HloGraph, Value

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
    values = _LoopValues(graph, loop)
    condition = _ConditionReader(graph).read(Value(graph.module.computation(callees["condition"]).root), (), False, 0)
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


def _trips(values: _LoopValues, condition: _Condition | None) -> TripCount | None:
    match condition:
        case _Comparison():
            return _trips_of_comparison(values, condition)
        case _Junction(is_all=True, parts=parts):
            return _soonest([_trips(values, part) for part in parts])
        case _Junction():
            low = _low_word(values, condition)
            return None if low is None else _trips_of_comparison(values, low)
        case False:
            return TripCount(count=0, bound=Bound.EXACT)
    return None


def _trips_of_comparison(values: _LoopValues, comparison: _Comparison) -> TripCount | None:
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


def _holds_at_start(values: _LoopValues, condition: _Condition | None) -> bool | None:
    """Whether the condition holds before the first trip; None when that cannot be known."""
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


def _low_word(values: _LoopValues, condition: _Condition | None) -> _Comparison | None:
    """The comparison that alone decides when a loop with a counter of two words ends.

    The condition is `high < H or (high == H and low < L)`, with any order for `<`. As long as `low` does not wrap
    around, which counting makes sure of, its carry leaves `high` alone: when that begins as H, `low` alone decides.

    Args:
        values: The loop.
        condition: Its condition.

    Returns:
        The comparison of the low words; None when the condition is anything else.

    Source: the form that libtpu prints for s64 and u64 counters, which its vector units do not have.
    """
    if not isinstance(condition, _Junction) or condition.is_all:
        return None
    outer = next((part for part in condition.parts if isinstance(part, _Comparison)), None)
    inner = next((part for part in condition.parts if isinstance(part, _Junction) and part.is_all), None)
    if outer is None or inner is None or outer.direction not in (Direction.LT, Direction.GT):
        return None
    comparisons = [part for part in inner.parts if isinstance(part, _Comparison)]
    equal = next((part for part in comparisons if part.direction is Direction.EQ), None)
    low = next((part for part in comparisons if part.direction is not Direction.EQ), None)
    if equal is None or low is None or not _holds_still(values, outer, equal, low):
        return None
    return low


def _holds_still(values: _LoopValues, outer: _Comparison, equal: _Comparison, low: _Comparison) -> bool:
    """Whether the high word begins as what it is compared with, and only ever takes the carry of the low word."""
    high, counter = _element(outer.left), _element(low.left)
    if high is None or counter is None or outer.left != equal.left or low.element_type != "u32":
        return False
    bounds = [values.constant(outer.right), values.constant(equal.right), values.initial(high)]
    words = {None if word is None else word % _WORD for word in bounds}
    return len(words) == 1 and None not in words and _takes_carry(values, high, counter)


def _element(term: Linear) -> Element | None:
    """The carried scalar that a function is; None when it is anything else."""
    [element] = term.scales if len(term.scales) == 1 else [None]
    return element if element is not None and term == carried(element) else None


def _takes_carry(values: _LoopValues, high: Element, low: Element) -> bool:
    """Whether a trip makes the high word `select(low + step < low, …, high)`, for a step that counts up."""
    graph = values.graph
    choice = origin(values.after_a_trip(high)).instruction
    if choice.opcode != "select" or len(choice.operands) != 3:
        return False
    if read_linear(graph, Value(choice.operands[2])) != carried(high):
        return False
    overflow = _read_comparison(graph, origin(Value(choice.operands[0])).instruction)
    following = values.following(low)
    if overflow is None or overflow.direction is not Direction.LT or following is None:
        return False
    counts_up = following.scales == carried(low).scales and not following.provided and 0 < following.offset < _WORD // 2
    matches = overflow.element_type == "u32" and overflow.left == following and overflow.right == carried(low)
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

    def following(self, element: Element) -> Linear | None:
        """What a trip makes of a carried scalar, as a function of what the loop carries before it."""
        following = read_linear(self.graph, self.after_a_trip(element))
        declared = element_type_of(Value(self.loop, element[1:]))
        return following if following is not None and following.element_type == declared else None

    def after_a_trip(self, element: Element) -> Value:
        """What the body returns for a carried scalar."""
        return Value(self.graph.module.computation(dict(self.loop.called)["body"]).root, element[1:])

    def is_invariant(self, element: Element) -> bool:
        """Whether the loop hands a scalar on unchanged."""
        return self.following(element) == carried(element)

    def initial(self, element: Element, depth: int = 0) -> int | None:
        """A carried scalar before the first trip; None when it is not a constant."""
        number, *path = element
        if number >= len(self.loop.operands):
            return None
        return _constant_value(self.graph, Value(self.loop.operands[number], tuple(path)), depth)

    def at_start(self, term: Linear) -> int | None:
        """A function of carried scalars before the first trip."""
        values = self._initials(set(term.elements()))
        return None if values is None else term.evaluate(values)

    def constant(self, term: Linear) -> int | None:
        """A function of carried scalars that all stay the same."""
        return self.at_start(term) if all(self.is_invariant(element) for element in term.elements()) else None

    def progression(self, term: Linear) -> Progression | None:
        """The values that a function of carried scalars takes, trip after trip."""
        elements = set(term.elements())
        varying = [element for element in elements if not self.is_invariant(element)]
        if len(varying) > 1:
            return None
        if not varying:
            number = self.at_start(term)
            return None if number is None else Progression(start=0, factor=1, step=0, scale=0, offset=number)
        return self._of_counter(term, varying[0])

    def _of_counter(self, term: Linear, counter: Element) -> Progression | None:
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
        state = Part(scale=1, offset=0, element_type=following.element_type)
        conditions = [_part(part, counter, values, in_body=False) for part in term.provided]
        steps = [_part(part, counter, values, in_body=True) for part in following.provided]
        constant = {**values, counter: 0}
        return Progression(
            start=start,
            factor=following.scales[counter],
            step=signed(following.total(constant), following.element_type),
            scale=term.scales.get(counter, 0),
            offset=term.total(constant),
            parts=(state, *conditions, *steps),
        )

    def _initials(self, elements: set[Element]) -> dict[Element, int] | None:
        return _all_known({element: self.initial(element) for element in elements})


def _part(term: Linear, counter: Element, values: dict[Element, int], *, in_body: bool) -> Part:
    return Part(
        scale=term.scales.get(counter, 0),
        offset=term.total({**values, counter: 0}),
        element_type=term.element_type,
        in_body=in_body,
    )


def _all_known(found: dict[Element, int | None]) -> dict[Element, int] | None:
    known = {element: number for element, number in found.items() if number is not None}
    return known if len(known) == len(found) else None


def _constant_value(graph: HloGraph, value: Value, depth: int) -> int | None:
    """The value as a number, also when it comes unchanged through the parameters of the loops and calls around it."""
    term = read_linear(graph, value)
    if term is None:
        return None
    inside = value.instruction.computation
    values = _all_known({element: _argument(graph, inside, element, depth) for element in term.elements()})
    return None if values is None else term.evaluate(values)


def _argument(graph: HloGraph, computation: HloComputation, element: Element, depth: int) -> int | None:
    """What the only caller of a computation passes for an element of its parameters."""
    caller = graph.only_caller(computation.name)
    if caller is None or depth > _NESTING_LIMIT or caller.opcode not in _PASS_ARGUMENTS:
        return None
    loop = _LoopValues(graph, caller)
    if caller.opcode == "while" and not loop.is_invariant(element):
        return None
    return loop.initial(element, depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """`left` `direction` `right`, both functions of what the loop carries, of one integer type."""

    left: Linear
    right: Linear
    direction: Direction

    @property
    def element_type(self) -> str:
        """The type that both sides have."""
        return self.left.element_type


@dataclass(frozen=True, slots=True, kw_only=True)
class _Junction:
    """All of some conditions, or any of them.

    Attributes:
        is_all: Whether all of them have to hold.
        parts: The conditions; None for one that cannot be read.
    """

    is_all: bool
    parts: tuple[_Condition | None, ...]


_Condition = _Comparison | _Junction | bool


def _read_comparison(
    graph: HloGraph, compare: HloInstruction, frames: Frames = (), *, negated: bool = False
) -> _Comparison | None:
    """Reads a `compare` of integers, or its negation."""
    direction = Direction.__members__.get(compare.attributes.get("direction", ""))
    if compare.opcode != "compare" or len(compare.operands) != 2 or direction is None:
        return None
    left, right = (read_linear(graph, Value(operand), frames) for operand in compare.operands)
    if left is None or right is None or left.element_type != right.element_type:
        return None
    signs = {"SIGNED": "s", "UNSIGNED": "u"}
    if not left.element_type.startswith(signs.get(compare.attributes.get("type", ""), "")):
        return None
    return _Comparison(left=left, right=right, direction=direction.opposite if negated else direction)


class _ConditionReader(Reader):
    """Reads a condition; None when it is none of these, or when the text does not fit together."""

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
            case "constant", 0 if (instruction.literal or "") in BOOLEANS:
                return BOOLEANS[instruction.literal or ""] != negated
        return None
