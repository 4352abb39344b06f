"""Counting the steps that two progressions of integers take until a comparison fails."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_GEOMETRIC_LIMIT = 4096
"""Trips looked at for a counter that is not advanced by adding: one that grows passes 64 bits long before this."""


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
        return {
            "EQ": gap == 0, "NE": gap != 0, "GE": gap >= 0, "GT": gap > 0, "LE": gap <= 0, "LT": gap < 0,
        }[self.name]  # fmt: skip


_OPPOSITE = {"EQ": "NE", "NE": "EQ", "GE": "LT", "LT": "GE", "GT": "LE", "LE": "GT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progression:
    """Values over a loop's trips: `scale` x n + `offset`, where n begins at `start` and becomes `factor` x n + `step`.

    Attributes:
        start: n before the first trip.
        factor: What n is multiplied by in each trip.
        step: What is then added to it.
        scale: See above.
        offset: See above.
    """

    start: int
    factor: int
    step: int
    scale: int = 1
    offset: int = 0

    @classmethod
    def of_linear(
        cls, *, start: int, factor: int, step: int, scale: int, offset: int, element_type: str
    ) -> Progression:
        """Makes a progression of an XLA integer type; an unsigned step of 2^32 - 1 counts down by one."""
        bits = integer_bits(element_type)
        if element_type.startswith("u") and bits and step >= 1 << (bits - 1):
            step -= 1 << bits
        return cls(start=start, factor=factor, step=step, scale=scale, offset=offset)

    def value(self, state: int) -> int:
        """The value at state n."""
        return self.scale * state + self.offset


def integer_bits(element_type: str) -> int | None:
    """Bits of an XLA integer type such as `s32`; None for any other type."""
    digits = element_type[1:]
    return int(digits) if element_type[:1] in ("s", "u") and digits.isdigit() else None


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
    bits = integer_bits(element_type)
    if bits is None:
        return None
    lowest, highest = (0, (1 << bits) - 1) if element_type[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    if left.factor == right.factor == 1:
        trips = _arithmetic_trips(left, right, direction)
    else:
        trips = _geometric_trips(left, right, direction)
    if trips is None:
        return None
    reached = [_state_after(side, trips) for side in (left, right)]
    ends = [reached[0], reached[1], left.value(reached[0]), right.value(reached[1])]
    return trips if all(lowest <= end <= highest for end in ends) else None


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
        if following == states:
            return None
        states = following
    return None


def _state_after(side: Progression, trips: int) -> int:
    if side.factor == 1:
        return side.start + side.step * trips
    state = side.start
    for _ in range(trips):
        state = side.factor * state + side.step
    return state
