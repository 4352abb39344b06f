"""Permutes as shifts along the axes of the user's mesh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hloscope.analysis.axes import SubAxis, changing_digit, coordinates_in, mesh_positions
from hloscope.analysis.model import AxisShift, Mesh, PermutePattern

Steps = Sequence[tuple[int, int]]
"""Where each moving device sends from and to, as coordinates along one axis or one product of axes."""


def pattern_of_pairs(pairs: Iterable[tuple[int, ...]], mesh: Mesh) -> PermutePattern | None:
    """The one shift that a permute makes everywhere.

    Args:
        pairs: Source and target partition ids; those that keep their data say nothing about a shift.
        mesh: The user's mesh.

    Returns:
        The shift along each axis by itself; else along the product of all axes that are crossed, for a ring through
        several axes. None when nothing moves, when a device sends or receives twice, and when it is no such shift.
    """
    positions = mesh_positions(mesh)
    moving = sorted({pair for pair in pairs if pair[0] != pair[-1]})
    sources, targets = {pair[0] for pair in moving}, {pair[-1] for pair in moving}
    if not moving or not (len(sources) == len(targets) == len(moving)) or not sources | targets <= positions.keys():
        return None
    coordinates = coordinates_in(mesh)
    ends = [tuple(coordinates[positions[device]] for device in pair) for pair in moving]
    axes = [axis for axis in range(len(mesh.axis_sizes)) if any(s[axis] != t[axis] for s, t in ends)]
    shifts = [_along_axis([(s[axis], t[axis]) for s, t in ends], axis, mesh) for axis in axes]
    known = [shift for shift in shifts if shift is not None]
    if len(known) < len(shifts):
        steps = [(_through(s, axes, mesh), _through(t, axes, mesh)) for s, t in ends]
        whole = [SubAxis(axis, 1, mesh.axis_sizes[axis], 1) for axis in axes]
        through = _shift(steps, whole, mesh)
        known = [] if through is None else [through]
    return PermutePattern(shifts=tuple(known), ring=sources == targets) if known else None


def _along_axis(steps: Steps, axis: int, mesh: Mesh) -> AxisShift | None:
    """The shift along a whole axis, else along the part of it that changes."""
    whole = _shift(steps, [SubAxis(axis, 1, mesh.axis_sizes[axis], 1)], mesh)
    if whole is not None:
        return whole
    digit = changing_digit(axis, set(steps), mesh, whole=False)
    return _shift([(digit.value(source), digit.value(target)) for source, target in steps], [digit], mesh)


def _through(coordinates: Sequence[int], axes: Sequence[int], mesh: Mesh) -> int:
    """The position of some coordinates, counted through several axes, major first."""
    position = 0
    for axis in axes:
        position = position * mesh.axis_sizes[axis] + coordinates[axis]
    return position


def _shift(steps: Steps, digits: Sequence[SubAxis], mesh: Mesh) -> AxisShift | None:
    """The distance that all steps have in common, on a line or else on a ring; None when they have none."""
    size = 1
    for digit in digits:
        size *= digit.size
    straight = {target - source for source, target in steps}
    around = {distance % size for distance in straight}
    if len(around) > 1:
        return None
    [distance] = straight if len(straight) == 1 else around
    if len(straight) > 1 and 2 * distance > size:
        distance -= size
    return AxisShift(
        axes=tuple(digit.name(mesh) for digit in digits),
        size=size,
        distance=distance,
        ring=Counter(source for source, _ in steps) == Counter(target for _, target in steps),
    )
