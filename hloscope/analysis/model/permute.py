"""How a permute moves data along the user's mesh."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisShift:
    """Every device sends to the one a fixed distance away along a mesh axis, or along a product of axes.

    Attributes:
        axes: The axis or sub-axis; several, major first, where the devices are counted through all of them.
        size: Devices along them.
        distance: Positions from source to target; negative towards position 0. On a ring the shorter way round, and
            positive where both ways are equally long.
        ring: Whether what leaves at one end enters at the other, so that each device that sends also receives.
    """

    axes: tuple[str, ...]
    size: int
    distance: int
    ring: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutePattern:
    """A permute that is one uniform shift.

    Attributes:
        shifts: The shift along each axis that the data crosses, major first.
        ring: Whether each device that sends also receives.
    """

    shifts: tuple[AxisShift, ...]
    ring: bool
