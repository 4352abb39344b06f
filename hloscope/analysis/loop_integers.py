"""The integers of a loop: linear functions of carried values, progressions, and wrap-around."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hloscope.analysis.defs import CALLING_OPCODES, Frames, Maker, find_element_type, find_maker
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import HloGraph, Value

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeCondition:
    """A value that a progression depends on: `scale` x n + `offset` must be in the range of a type.

    Attributes:
        scale: See above.
        offset: See above.
        element_type: The type.
        in_body: Whether only the body computes it, so that it need not hold for the n at which the loop ends.
    """

    scale: int
    offset: int
    element_type: str
    in_body: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progression:
    """The values of a loop's trips: `scale` x n + `offset`, where n goes from `start` to `factor` x n + `step`.

    Attributes:
        start: n before the first trip.
        factor: The factor that n is multiplied by in each trip.
        step: The amount that is then added to it.
        scale: See above.
        offset: See above.
        parts: Further conditions that must hold for every n.
    """

    start: int
    factor: int
    step: int
    scale: int = 1
    offset: int = 0
    parts: tuple[RangeCondition, ...] = ()

    def value(self, state: int) -> int:
        """The value at state n."""
        return self.scale * state + self.offset

    def begun_in(self, element_type: str) -> Progression:
        """The same values modulo 2 to the bits of an integer type, with the first one in its range."""
        first = self.value(self.start)
        return replace(self, offset=self.offset + wrap_integer(first, element_type) - first)

    def stays_exact(self, trips: int, element_type: str) -> bool:
        """Returns whether no value and no part wraps around before the loop ends.

        All of them grow or shrink steadily where n is advanced by adding, so that the first and the last one say so.
        """
        states = self._states(trips)
        if not all(is_in_range(self.value(state), element_type) for state in states):
            return False
        before = self._states(trips - 1) if trips else []
        return all(
            is_in_range(part.scale * state + part.offset, part.element_type)
            for part in self.parts
            for state in (before if part.in_body else states)
        )

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
    return trips if all(side.stays_exact(trips, element_type) for side in (left, right)) else None


def _count_arithmetic_trips(left: Progression, right: Progression, direction: CompareDirection) -> int | None:
    gap = left.value(left.start) - right.value(right.start)
    step = left.scale * left.step - right.scale * right.step
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
        if not direction.holds(left.value(states[0]) - right.value(states[1])):
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
    return _LinearReader(graph).read(value, frames, 0)


def make_carried(element: CarriedElement, element_type: str = "") -> LinearScalar:
    """A carried scalar as a linear function."""
    return LinearScalar(offset=0, scales={element: 1}, element_type=element_type)


class ScalarReader:
    """Traces one scalar through its producers, in a limited number of steps.

    Attributes:
        graph: The module.
        depth_limit: Maximum depth of operands of operands.
        step_limit: Maximum number of values visited: an operand that is used twice is visited twice, at every level.
    """

    depth_limit = 200
    step_limit = 4096

    def __init__(self, graph: HloGraph) -> None:
        self.graph = graph
        self._steps = 0

    def maker(self, value: Value, frames: Frames, depth: int) -> Maker | None:
        """The producer of a value; None if it is too far away."""
        self._steps += 1
        if depth > self.depth_limit or self._steps > self.step_limit:
            return None
        return find_maker(self.graph, value, frames, through=(), into=CALLING_OPCODES)


class _LinearReader(ScalarReader):
    def read(self, value: Value, frames: Frames, depth: int) -> LinearScalar | None:
        maker = self.maker(value, frames, depth)
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
        term = self.read(Value(operand), frames, depth + 1)
        return None if term is None or term.element_type != source else _convert_type(term, target)

    def _arithmetic(self, instruction: HloInstruction, frames: Frames, depth: int) -> LinearScalar | None:
        operands = instruction.operands
        element_type = instruction.shape.element_type
        if len(operands) != (1 if instruction.opcode == "negate" else 2) or integer_bits(element_type) is None:
            return None
        terms = [self.read(Value(operand), frames, depth + 1) for operand in operands]
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
