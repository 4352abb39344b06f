"""Trip counts of `while` loops, from their carried values and conditions."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from hloscope.analysis.dataflow import (
    CALLING_OPCODES,
    Frames,
    Maker,
    find_computed_value,
    find_element_type,
    find_maker,
)
from hloscope.hlo import HloComputation, HloInstruction
from hloscope.hlo.call_graph import HloGraph, Value
from hloscope.model.vocabulary import Bound

# ---- the integers of a loop: linear functions of carried values, progressions, and wrap-around

_DEPTH_LIMIT, _STEP_LIMIT = 200, 4096
"""Maximum depth of operands of operands, and number of values visited, for one scalar or condition."""
_GEOMETRIC_LIMIT = 4096
"""Maximum number of trips simulated for a counter that is not advanced by addition."""
_FARTHEST = 1 << 64
"""Larger than the range of any integer type."""


class CompareDirection(Enum):
    """The direction of XLA's `compare`."""

    EQ = "EQ"
    NE = "NE"
    GE = "GE"
    GT = "GT"
    LE = "LE"
    LT = "LT"

    @property
    def opposite(self) -> CompareDirection:
        """The direction that holds if this one does not."""
        return CompareDirection[_OPPOSITE[self.name]]

    def holds(self, gap: int) -> bool:
        """Returns whether the comparison of `left` and `right` holds, where `gap` is left - right."""
        return bool(getattr(operator, self.name.lower())(gap, 0))


_OPPOSITE = {"EQ": "NE", "NE": "EQ", "GE": "LT", "LT": "GE", "GT": "LE", "LE": "GT"}


class Line(NamedTuple):
    """A linear function of n, `scale` x n + `offset`, of an integer type."""

    scale: int
    offset: int
    element_type: str

    def at(self, state: int) -> int:
        """The value at state n, before it wraps around."""
        return self.scale * state + self.offset


_ITSELF = Line(1, 0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progression:
    """The values of a loop's trips: a function of n, which goes from `start` to `factor` x n + `step`.

    Attributes:
        start: n before the first trip.
        factor: The factor that n is multiplied by in each trip.
        step: The amount that is then added to it.
        value: The values.
        held: Further functions of n that must stay in the range of their type.
        held_in_body: Those that only the body computes, so that they need not stay there for the n at which the loop
        ends.
    """

    start: int
    factor: int
    step: int
    value: Line = _ITSELF
    held: tuple[Line, ...] = ()
    held_in_body: tuple[Line, ...] = ()

    def begun_in(self, element_type: str) -> Progression:
        """The same values modulo 2 to the bits of an integer type, with the first one in its range."""
        first = self.value.at(self.start)
        moved = self.value.offset + wrap_integer(first, element_type) - first
        return replace(self, value=self.value._replace(offset=moved, element_type=element_type))

    def stays_exact(self, trips: int) -> bool:
        """Returns whether no value and no other function wraps around before the loop ends.

        All of them grow or shrink steadily where n is advanced by adding, so that the first and the last one say so.
        """
        states = self._states(trips)
        before = self._states(trips - 1) if trips else []
        checked = [(line, state) for line in (self.value, *self.held) for state in states]
        checked += [(line, state) for line in self.held_in_body for state in before]
        return all(is_in_range(line.at(state), line.element_type) for line, state in checked)

    def _states(self, trips: int) -> list[int]:
        if self.factor == 1:
            return [self.start, self.start + self.step * trips]
        states = [self.start]
        for _ in range(trips):
            states.append(self.factor * states[-1] + self.step)
        return states


def count_trips(left: Progression, right: Progression, direction: CompareDirection, element_type: str) -> int | None:
    """Number of times that the comparison holds before it first fails.

    Args:
        left: The left side.
        right: The right side.
        direction: The comparison.
        element_type: The XLA type of both sides.

    Returns:
        The number of trips; None for a loop that never ends, whose counter would wrap around, or that is not counted in
        integers.
    """
    if integer_bits(element_type) is None:
        return None
    left, right = left.begun_in(element_type), right.begun_in(element_type)
    if left.factor == right.factor == 1:
        trips = _count_arithmetic_trips(left, right, direction)
    else:
        trips = _count_geometric_trips(left, right, direction)
    if trips is None:
        return None
    return trips if all(side.stays_exact(trips) for side in (left, right)) else None


def _count_arithmetic_trips(left: Progression, right: Progression, direction: CompareDirection) -> int | None:
    gap = left.value.at(left.start) - right.value.at(right.start)
    step = left.value.scale * left.step - right.value.scale * right.step
    if not direction.holds(gap):
        return 0
    if direction is CompareDirection.EQ:
        return 1 if step else None
    if direction is CompareDirection.NE:
        return -gap // step if step and gap % step == 0 and -gap // step > 0 else None
    if direction in (CompareDirection.GT, CompareDirection.GE):
        gap, step = -gap, -step
    if step <= 0:
        return None
    return -(gap // step) if direction in (CompareDirection.LT, CompareDirection.GT) else -gap // step + 1


def _count_geometric_trips(left: Progression, right: Progression, direction: CompareDirection) -> int | None:
    states = [left.start, right.start]
    for trips in range(_GEOMETRIC_LIMIT):
        if not direction.holds(left.value.at(states[0]) - right.value.at(states[1])):
            return trips
        following = [side.factor * state + side.step for side, state in zip((left, right), states, strict=True)]
        if following == states or max(map(abs, following)) > _FARTHEST:
            return None
        states = following
    return None


CarriedElement = tuple[int, ...]
"""A carried scalar: the parameter's number, then tuple indices, outermost first."""

_CONVERSIONS = frozenset({"convert", "bitcast", "bitcast-convert"})
BOOLEAN_LITERALS = {"false": 0, "true": 1, "0": 0, "1": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScalar:
    """A linear function of carried scalars with integer coefficients, modulo 2 to the bits of its type.

    Sums and products of one type wrap around, and so do conversions to a type that is not wider: none of them changes
    the sum modulo 2 to the bits of the last type. A conversion to a wider type needs the wrapped value itself.

    Attributes:
        offset: The constant.
        scales: The factor of each carried scalar; never 0.
        element_type: The XLA type of the value.
        provided: Values converted to a wider type on the way: the function holds while none of them wraps around.
    """

    offset: int
    scales: dict[CarriedElement, int]
    element_type: str = field(compare=False)
    provided: tuple[LinearScalar, ...] = ()

    def elements(self) -> Iterator[CarriedElement]:
        """The carried scalars that the function depends on."""
        yield from self.scales
        for part in self.provided:
            yield from part.scales

    def evaluate(self, values: Mapping[CarriedElement, int]) -> int | None:
        """The value for known carried scalars; None if one of `provided` wraps around."""
        if not all(is_in_range(part.total(values), part.element_type) for part in self.provided):
            return None
        return wrap_integer(self.total(values), self.element_type)

    def total(self, values: Mapping[CarriedElement, int]) -> int:
        """The sum before it wraps around."""
        return self.offset + sum(scale * values[element] for element, scale in self.scales.items())


def read_linear(graph: HloGraph, value: Value, frames: Frames = ()) -> LinearScalar | None:
    """Reads an integer scalar as a linear function.

    Args:
        graph: The module.
        value: The scalar; may be an element of a tuple.
        frames: The fusions and calls around `value`; empty in the computation whose parameters are the elements.

    Returns:
        The scalar as a linear function of the parameters' elements in the outermost computation; None if it is not one.
    """
    return _ScalarReader(graph).linear(value, frames, 0)


def make_carried(element: CarriedElement, element_type: str = "") -> LinearScalar:
    """A carried scalar as a linear function."""
    return LinearScalar(offset=0, scales={element: 1}, element_type=element_type)


class _ScalarReader:
    """Reads scalars and conditions through their producers, in a limited number of steps.

    Each operand is visited as often as it is used, at every level, so that steps are limited as well as depth.
    """

    def __init__(self, graph: HloGraph) -> None:
        self._graph = graph
        self._steps = 0

    def _maker(self, value: Value, frames: Frames, depth: int) -> Maker | None:
        """The producer of a value; None if it is too far away."""
        self._steps += 1
        if depth > _DEPTH_LIMIT or self._steps > _STEP_LIMIT:
            return None
        return find_maker(self._graph, value, frames, through=(), into=CALLING_OPCODES)

    def linear(self, value: Value, frames: Frames, depth: int) -> LinearScalar | None:
        """A value as a linear function; None if it is not one."""
        maker = self._maker(value, frames, depth)
        if maker is None:
            return None
        instruction, path, frames = maker.value.instruction, maker.value.path, maker.frames
        if instruction.opcode == "parameter":
            number, element_type = instruction.parameter_number, find_element_type(maker.value)
            if number is None or frames or integer_bits(element_type) is None:
                return None
            return make_carried((number, *path), element_type)
        if path:
            return None
        match instruction.opcode:
            case "constant":
                return _read_literal(instruction)
            case "add" | "subtract" | "multiply" | "negate":
                return self._arithmetic(instruction, frames, depth)
        return self._conversion(instruction, frames, depth)

    def _conversion(self, instruction: HloInstruction, frames: Frames, depth: int) -> LinearScalar | None:
        if instruction.opcode not in _CONVERSIONS or len(instruction.operands) != 1:
            return None
        [operand] = instruction.operands
        source, target = operand.shape.element_type, instruction.shape.element_type
        if instruction.opcode != "convert" and integer_bits(source) != integer_bits(target):
            return None
        term = self.linear(Value(operand), frames, depth + 1)
        return None if term is None or term.element_type != source else _convert_type(term, target)

    def _arithmetic(self, instruction: HloInstruction, frames: Frames, depth: int) -> LinearScalar | None:
        operands = instruction.operands
        element_type = instruction.shape.element_type
        if len(operands) != (1 if instruction.opcode == "negate" else 2) or integer_bits(element_type) is None:
            return None
        terms = [self.linear(Value(operand), frames, depth + 1) for operand in operands]
        known = [term for term in terms if term is not None and term.element_type == element_type]
        if len(known) != len(operands):
            return None
        match instruction.opcode:
            case "negate":
                return _scale_function(known[0], -1)
            case "multiply":
                return _multiply_functions(known[0], known[1])
            case "subtract":
                return _add_functions(known[0], _scale_function(known[1], -1))
        return _add_functions(known[0], known[1])

    def condition(self, value: Value, frames: Frames, negated: bool, depth: int) -> _Condition | None:
        """A condition, or its negation; None for one of another form, or if the text is inconsistent."""
        maker = self._maker(value, frames, depth)
        if maker is None:
            return None
        instruction, frames = maker.value.instruction, maker.frames
        operands = instruction.operands
        if instruction.opcode == "compare":
            return _read_comparison(self._graph, instruction, frames, negated=negated)
        if any(item.shape.element_type != "pred" for item in (instruction, *operands)):
            return None
        match instruction.opcode, len(operands):
            case (("and" | "or"), 2):
                parts = tuple(self.condition(Value(operand), frames, negated, depth + 1) for operand in operands)
                return _Junction(is_all=(instruction.opcode == "and") != negated, parts=parts)
            case (("not" | "convert"), 1):
                return self.condition(Value(operands[0]), frames, negated != (instruction.opcode == "not"), depth + 1)
            case "constant", 0 if (instruction.literal or "") in BOOLEAN_LITERALS:
                return BOOLEAN_LITERALS[instruction.literal or ""] != negated
        return None


def _read_literal(instruction: HloInstruction) -> LinearScalar | None:
    """A constant; TPU text also prints one-element arrays as `{3}`."""
    element_type, text = instruction.shape.element_type, (instruction.literal or "").strip("{} ")
    if element_type == "pred":
        return _make_constant(BOOLEAN_LITERALS[text], "pred") if text in BOOLEAN_LITERALS else None
    if not text.removeprefix("-").isdecimal() or not is_in_range(int(text), element_type):
        return None
    return _make_constant(int(text), element_type)


def _make_constant(number: int, element_type: str, provided: tuple[LinearScalar, ...] = ()) -> LinearScalar:
    return LinearScalar(offset=number, scales={}, element_type=element_type, provided=provided)


def _convert_type(term: LinearScalar, target: str) -> LinearScalar | None:
    """The value in another type: integers wrap around; floats are not supported."""
    source_bits, bits = integer_bits(term.element_type), integer_bits(target)
    if not term.scales:
        if target == "pred":
            return _make_constant(int(term.offset != 0), target, term.provided)
        return None if bits is None else _make_constant(wrap_integer(term.offset, target), target, term.provided)
    if source_bits is None or bits is None:
        return None
    if bits <= source_bits:
        return _reduce_modulo(term.offset, term.scales, target, term.provided)
    provided = (*term.provided, replace(term, provided=()))
    return replace(term, element_type=target, provided=provided)


def _reduce_modulo(
    offset: int, scales: Mapping[CarriedElement, int], element_type: str, provided: tuple[LinearScalar, ...]
) -> LinearScalar:
    """The function with the smallest coefficients, modulo 2 to the bits of its type."""
    small = {element: wrap_signed(scale, element_type) for element, scale in scales.items()}
    kept = {element: scale for element, scale in small.items() if scale}
    offset = wrap_signed(offset, element_type) if kept else wrap_integer(offset, element_type)
    return LinearScalar(offset=offset, scales=kept, element_type=element_type, provided=provided)


def _add_functions(left: LinearScalar, right: LinearScalar) -> LinearScalar:
    elements = dict.fromkeys((*left.scales, *right.scales))
    sums = {element: left.scales.get(element, 0) + right.scales.get(element, 0) for element in elements}
    return _reduce_modulo(left.offset + right.offset, sums, left.element_type, _merge_provided(left, right))


def _scale_function(term: LinearScalar, factor: int) -> LinearScalar:
    scales = {element: scale * factor for element, scale in term.scales.items()}
    return _reduce_modulo(term.offset * factor, scales, term.element_type, term.provided)


def _multiply_functions(left: LinearScalar, right: LinearScalar) -> LinearScalar | None:
    if left.scales and right.scales:
        return None
    product = _scale_function(left, right.offset) if left.scales else _scale_function(right, left.offset)
    return replace(product, provided=_merge_provided(left, right))


def _merge_provided(left: LinearScalar, right: LinearScalar) -> tuple[LinearScalar, ...]:
    """The conditions of two functions, each once."""
    return (*left.provided, *(part for part in right.provided if part not in left.provided))


_WIDTHS = frozenset({"1", "2", "4", "8", "16", "32", "64"})


def integer_bits(element_type: str) -> int | None:
    """Number of bits of an XLA integer type such as `s32`; None for any other type."""
    digits = element_type[1:]
    return int(digits) if element_type[:1] in ("s", "u") and digits in _WIDTHS else None


def is_in_range(number: int, element_type: str) -> bool:
    """Returns whether an integer type can represent the number; False for any other type."""
    return integer_bits(element_type) is not None and wrap_integer(number, element_type) == number


def wrap_integer(number: int, element_type: str) -> int:
    """The number as an integer type stores it, modulo 2 to its bits; unchanged for other types."""
    bits = integer_bits(element_type)
    if bits is None:
        return number
    return number % (1 << bits) if element_type[0] == "u" else wrap_signed(number, element_type)


def wrap_signed(number: int, element_type: str) -> int:
    """The number nearest to 0 that is equal modulo 2 to the bits of an integer type."""
    bits = integer_bits(element_type)
    if bits is None:
        return number
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


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
    condition = _ScalarReader(graph).condition(Value(graph.module.computation(callees["condition"]).root), (), False, 0)
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
            if number is None:
                return None
            return Progression(start=0, factor=1, step=0, value=Line(0, number, term.element_type))
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
        constant = {**values, counter: 0}

        def of_counter(function: LinearScalar) -> Line:
            return Line(function.scales.get(counter, 0), function.total(constant), function.element_type)

        scale, offset, element_type = of_counter(following)
        return Progression(
            start=start,
            factor=scale,
            step=wrap_signed(offset, element_type),
            value=of_counter(term),
            held=(Line(1, 0, element_type), *map(of_counter, term.provided)),
            held_in_body=tuple(map(of_counter, following.provided)),
        )

    def _initials(self, elements: set[CarriedElement]) -> dict[CarriedElement, int] | None:
        return _require_all_known({element: self.initial(element) for element in elements})


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
