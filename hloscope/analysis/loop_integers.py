"""The integers of a loop: as linear functions of what it carries, as progressions, and how they wrap around."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hloscope.analysis.defs import CALLS, Frames, Maker, element_type_of, maker_of
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import HloGraph, Value

_GEOMETRIC_LIMIT = 4096
"""Trips looked at for a counter that is not advanced by adding."""
_FARTHEST = 1 << 64
"""No integer type reaches as far as this."""


class Direction(Enum):
    """The direction of XLA's `compare`."""

    EQ = "EQ"
    NE = "NE"
    GE = "GE"
    GT = "GT"
    LE = "LE"
    LT = "LT"

    @property
    def opposite(self) -> Direction:
        """The direction that holds when this one does not."""
        return Direction[_OPPOSITE[self.name]]

    def holds(self, gap: int) -> bool:
        """Whether `left` compares so with `right`, where `gap` is left - right."""
        return bool(getattr(operator, self.name.lower())(gap, 0))


_OPPOSITE = {"EQ": "NE", "NE": "EQ", "GE": "LT", "LT": "GE", "GT": "LE", "LE": "GT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A value on which a progression depends: `scale` x n + `offset` must lie in the range of a type.

    Attributes:
        scale: See above.
        offset: See above.
        element_type: The type.
        in_body: Whether only the body computes it, so that it does not matter for the n on which the loop ends.
    """

    scale: int
    offset: int
    element_type: str
    in_body: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progression:
    """Values over a loop's trips: `scale` x n + `offset`, where n begins at `start` and becomes `factor` x n + `step`.

    Attributes:
        start: n before the first trip.
        factor: What n is multiplied by in each trip.
        step: What is then added to it.
        scale: See above.
        offset: See above.
        parts: What has to hold for every n besides.
    """

    start: int
    factor: int
    step: int
    scale: int = 1
    offset: int = 0
    parts: tuple[Part, ...] = ()

    def value(self, state: int) -> int:
        """The value at state n."""
        return self.scale * state + self.offset

    def begun_in(self, element_type: str) -> Progression:
        """The same values modulo 2 to the bits of an integer type, so that the first one lies in its range."""
        first = self.value(self.start)
        return replace(self, offset=self.offset + wrapped(first, element_type) - first)

    def stays_exact(self, trips: int, element_type: str) -> bool:
        """Whether no value and no part wraps around before the loop has ended.

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


def count_trips(left: Progression, right: Progression, direction: Direction, element_type: str) -> int | None:
    """How often the comparison holds before it first fails.

    Args:
        left: The left side.
        right: The right side.
        direction: The comparison.
        element_type: The XLA type of both sides.

    Returns:
        The number of trips; None for a loop that never ends, one whose counter would wrap around, and one that is not
        counted in integers.
    """
    if integer_bits(element_type) is None:
        return None
    left, right = left.begun_in(element_type), right.begun_in(element_type)
    if left.factor == right.factor == 1:
        trips = _arithmetic_trips(left, right, direction)
    else:
        trips = _geometric_trips(left, right, direction)
    if trips is None:
        return None
    return trips if all(side.stays_exact(trips, element_type) for side in (left, right)) else None


def _arithmetic_trips(left: Progression, right: Progression, direction: Direction) -> int | None:
    gap = left.value(left.start) - right.value(right.start)
    step = left.scale * left.step - right.scale * right.step
    if not direction.holds(gap):
        return 0
    if direction is Direction.EQ:
        return 1 if step else None
    if direction is Direction.NE:
        return -gap // step if step and gap % step == 0 and -gap // step > 0 else None
    if direction in (Direction.GT, Direction.GE):
        gap, step = -gap, -step
    if step <= 0:
        return None
    return -(gap // step) if direction in (Direction.LT, Direction.GT) else -gap // step + 1


def _geometric_trips(left: Progression, right: Progression, direction: Direction) -> int | None:
    states = [left.start, right.start]
    for trips in range(_GEOMETRIC_LIMIT):
        if not direction.holds(left.value(states[0]) - right.value(states[1])):
            return trips
        following = [side.factor * state + side.step for side, state in zip((left, right), states, strict=True)]
        if following == states or max(map(abs, following)) > _FARTHEST:
            return None
        states = following
    return None


Element = tuple[int, ...]
"""A carried scalar: the parameter's number, then tuple indices, outermost first."""

_CONVERSIONS = frozenset({"convert", "bitcast", "bitcast-convert"})
BOOLEANS = {"false": 0, "true": 1, "0": 0, "1": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A sum of carried scalars, each times a whole number, and a constant, modulo 2 to the bits of its type.

    Sums and products of one type wrap around, and so do conversions to a type that is not wider: none of them changes
    the sum modulo 2 to the bits of the last type. A conversion to a wider type needs the wrapped value itself.

    Attributes:
        offset: The constant.
        scales: What each carried scalar is multiplied by; never 0.
        element_type: The XLA type that the value has.
        provided: What was converted to a wider type on the way: the function holds while none of these wraps around.
    """

    offset: int
    scales: dict[Element, int]
    element_type: str = field(compare=False)
    provided: tuple[Linear, ...] = ()

    def elements(self) -> Iterator[Element]:
        """The carried scalars that it depends on."""
        yield from self.scales
        for part in self.provided:
            yield from part.scales

    def evaluate(self, values: Mapping[Element, int]) -> int | None:
        """The value where the carried scalars are known; None when one of `provided` wraps around."""
        if not all(is_in_range(part.total(values), part.element_type) for part in self.provided):
            return None
        return wrapped(self.total(values), self.element_type)

    def total(self, values: Mapping[Element, int]) -> int:
        """The sum before it wraps around."""
        return self.offset + sum(scale * values[element] for element, scale in self.scales.items())


def read_linear(graph: HloGraph, value: Value, frames: Frames = ()) -> Linear | None:
    """Reads an integer scalar.

    Args:
        graph: The module.
        value: The scalar; may be an element of a tuple.
        frames: The fusions and calls around `value`; empty in the computation whose parameters are the elements.

    Returns:
        The scalar as a linear function of the parameters' elements in the outermost computation, or None when it is
        anything else.
    """
    return _LinearReader(graph).read(value, frames, 0)


def carried(element: Element, element_type: str = "") -> Linear:
    """The carried scalar itself."""
    return Linear(offset=0, scales={element: 1}, element_type=element_type)


class Reader:
    """Follows the makers of one scalar, in a limited number of steps.

    Attributes:
        graph: The module.
        depth_limit: Operands of operands that are looked at.
        step_limit: Values looked at: an operand that is used twice is looked at twice, at every level.
    """

    depth_limit = 200
    step_limit = 4096

    def __init__(self, graph: HloGraph) -> None:
        self.graph = graph
        self._steps = 0

    def maker(self, value: Value, frames: Frames, depth: int) -> Maker | None:
        """Where a value was made; None where it is too far away."""
        self._steps += 1
        if depth > self.depth_limit or self._steps > self.step_limit:
            return None
        return maker_of(self.graph, value, frames, through=(), into=CALLS)


class _LinearReader(Reader):
    def read(self, value: Value, frames: Frames, depth: int) -> Linear | None:
        maker = self.maker(value, frames, depth)
        if maker is None:
            return None
        instruction, path, frames = maker.value.instruction, maker.value.path, maker.frames
        if instruction.opcode == "parameter":
            number, element_type = instruction.parameter_number, element_type_of(maker.value)
            if number is None or frames or integer_bits(element_type) is None:
                return None
            return carried((number, *path), element_type)
        if path:
            return None
        match instruction.opcode:
            case "constant":
                return _literal(instruction)
            case "add" | "subtract" | "multiply" | "negate":
                return self._arithmetic(instruction, frames, depth)
        return self._conversion(instruction, frames, depth)

    def _conversion(self, instruction: HloInstruction, frames: Frames, depth: int) -> Linear | None:
        if instruction.opcode not in _CONVERSIONS or len(instruction.operands) != 1:
            return None
        [operand] = instruction.operands
        source, target = operand.shape.element_type, instruction.shape.element_type
        if instruction.opcode != "convert" and integer_bits(source) != integer_bits(target):
            return None
        term = self.read(Value(operand), frames, depth + 1)
        return None if term is None or term.element_type != source else _converted(term, target)

    def _arithmetic(self, instruction: HloInstruction, frames: Frames, depth: int) -> Linear | None:
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
                return _scaled(known[0], -1)
            case "multiply":
                return _product(known[0], known[1])
            case "subtract":
                return _sum(known[0], _scaled(known[1], -1))
        return _sum(known[0], known[1])


def _literal(instruction: HloInstruction) -> Linear | None:
    """A constant; TPU text also prints one-element arrays as `{3}`."""
    element_type, text = instruction.shape.element_type, (instruction.literal or "").strip("{} ")
    if element_type == "pred":
        return _constant(BOOLEANS[text], "pred") if text in BOOLEANS else None
    if not text.removeprefix("-").isdecimal() or not is_in_range(int(text), element_type):
        return None
    return _constant(int(text), element_type)


def _constant(number: int, element_type: str, provided: tuple[Linear, ...] = ()) -> Linear:
    return Linear(offset=number, scales={}, element_type=element_type, provided=provided)


def _converted(term: Linear, target: str) -> Linear | None:
    """The value in another type: integers wrap around, floats are not read."""
    source_bits, bits = integer_bits(term.element_type), integer_bits(target)
    if not term.scales:
        if target == "pred":
            return _constant(int(term.offset != 0), target, term.provided)
        return None if bits is None else _constant(wrapped(term.offset, target), target, term.provided)
    if source_bits is None or bits is None:
        return None
    if bits <= source_bits:
        return _reduced(term.offset, term.scales, target, term.provided)
    provided = (*term.provided, replace(term, provided=()))
    return replace(term, element_type=target, provided=provided)


def _reduced(offset: int, scales: Mapping[Element, int], element_type: str, provided: tuple[Linear, ...]) -> Linear:
    """A function with the smallest numbers that are the same modulo 2 to the bits of its type."""
    small = {element: signed(scale, element_type) for element, scale in scales.items()}
    kept = {element: scale for element, scale in small.items() if scale}
    offset = signed(offset, element_type) if kept else wrapped(offset, element_type)
    return Linear(offset=offset, scales=kept, element_type=element_type, provided=provided)


def _sum(left: Linear, right: Linear) -> Linear:
    elements = dict.fromkeys((*left.scales, *right.scales))
    sums = {element: left.scales.get(element, 0) + right.scales.get(element, 0) for element in elements}
    return _reduced(left.offset + right.offset, sums, left.element_type, _both(left, right))


def _scaled(term: Linear, factor: int) -> Linear:
    scales = {element: scale * factor for element, scale in term.scales.items()}
    return _reduced(term.offset * factor, scales, term.element_type, term.provided)


def _product(left: Linear, right: Linear) -> Linear | None:
    if left.scales and right.scales:
        return None
    product = _scaled(left, right.offset) if left.scales else _scaled(right, left.offset)
    return replace(product, provided=_both(left, right))


def _both(left: Linear, right: Linear) -> tuple[Linear, ...]:
    """What two functions depend on, each once."""
    return (*left.provided, *(part for part in right.provided if part not in left.provided))


_WIDTHS = frozenset({"1", "2", "4", "8", "16", "32", "64"})


def integer_bits(element_type: str) -> int | None:
    """Bits of an XLA integer type such as `s32`; None for any other type."""
    digits = element_type[1:]
    return int(digits) if element_type[:1] in ("s", "u") and digits in _WIDTHS else None


def is_in_range(number: int, element_type: str) -> bool:
    """Whether an integer type holds the number; False for any other type."""
    return integer_bits(element_type) is not None and wrapped(number, element_type) == number


def wrapped(number: int, element_type: str) -> int:
    """The number as an integer type stores it, modulo 2 to its bits; unchanged for any other type."""
    bits = integer_bits(element_type)
    if bits is None:
        return number
    return number % (1 << bits) if element_type[0] == "u" else signed(number, element_type)


def signed(number: int, element_type: str) -> int:
    """The number nearest to 0 that is the same modulo 2 to the bits of an integer type."""
    bits = integer_bits(element_type)
    if bits is None:
        return number
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half
