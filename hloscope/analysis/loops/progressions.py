"""Counting the steps that two progressions of integers take until a comparison fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from hloscope.analysis.loops.integers import integer_bits, is_in_range, wrapped

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
        return {
            "EQ": gap == 0, "NE": gap != 0, "GE": gap >= 0, "GT": gap > 0, "LE": gap <= 0, "LT": gap < 0,
        }[self.name]  # fmt: skip


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

        All of them grow or shrink steadily where n is advanced by adding, so that the first and the last one tell.
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
