"""From groups of partition ids to the axes of the user's mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from hloscope.analysis.groups import Groups
from hloscope.analysis.model import Mesh


@dataclass(frozen=True, slots=True, order=True)
class SubAxis:
    """A digit of one mesh axis: its coordinate is `before` x `size` x `after` combinations, major to minor.

    Attributes:
        axis: The axis's position in the mesh.
        before: Product of the sizes of the more major digits.
        size: Values of this digit.
        after: Product of the sizes of the more minor digits.
    """

    axis: int
    before: int
    size: int
    after: int

    def value(self, coordinate: int) -> int:
        """This digit of a coordinate along the axis."""
        return coordinate // self.after % self.size

    def name(self, mesh: Mesh) -> str:
        """The axis's own name, or Shardy's `X:(before)size` for a part of it."""
        whole = mesh.axis_names[self.axis]
        return whole if self.before == self.after == 1 else f"{whole}:({self.before}){self.size}"


def axes_of_groups(groups: Groups, mesh: Mesh) -> tuple[str, ...] | None:
    """The mesh axes along which the devices of each group differ.

    Args:
        groups: Groups of partition ids, in any order.
        mesh: The user's mesh.

    Returns:
        Axis names, major first, without axes of size 1; None when the groups are no product of (sub-)axes.
    """
    positions = mesh_positions(mesh)
    if not all(device in positions for group in groups for device in group):
        return None
    placed = [frozenset(positions[device] for device in group) for group in groups]
    if not placed or sum(len(group) for group in groups) != mesh.device_count:
        return None
    digits = _digits_of_group(placed[0], mesh)
    if digits is None or set(placed) != _groups_over(digits, mesh):
        return None
    return tuple(digit.name(mesh) for digit in digits)


def axes_of_pairs(pairs: Iterable[tuple[int, ...]], mesh: Mesh, *, whole_axes: bool = False) -> tuple[str, ...] | None:
    """The mesh axes whose coordinate a permute changes.

    Args:
        pairs: Source and target partition ids.
        mesh: The user's mesh.
        whole_axes: Name an axis as a whole even when only a part of its coordinate changes.

    Returns:
        Axis names, major first; parts of an axis only when every device is a source. None when an id is not in the
        mesh.
    """
    positions = mesh_positions(mesh)
    pairs = tuple(pairs)
    if not all(device in positions for pair in pairs for device in pair):
        return None
    coordinates = coordinates_in(mesh)
    moves = [(coordinates[positions[s]], coordinates[positions[t]]) for s, t in pairs]
    whole_axes = whole_axes or len({pair[0] for pair in pairs}) < mesh.device_count
    names = []
    for axis in range(len(mesh.axis_sizes)):
        steps = {(source[axis], target[axis]) for source, target in moves if source[axis] != target[axis]}
        if steps:
            names.append(changing_digit(axis, steps, mesh, whole=whole_axes).name(mesh))
    return tuple(names)


@lru_cache(maxsize=8)
def mesh_positions(mesh: Mesh) -> Mapping[int, int]:
    """The position in the mesh, counted row by row, of each partition id."""
    ids: Sequence[int] = range(mesh.device_count) if mesh.partition_ids is None else mesh.partition_ids
    return {device: position for position, device in enumerate(ids)}


@lru_cache(maxsize=8)
def coordinates_in(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """The coordinate along each axis, for each position in the mesh, counted row by row."""
    return tuple(product(*map(range, mesh.axis_sizes)))


def _digits_of_group(group: frozenset[int], mesh: Mesh) -> list[SubAxis] | None:
    """The digits that vary inside one group, if it is the product of them; major first."""
    coordinates = [coordinates_in(mesh)[position] for position in group]
    digits: list[SubAxis] = []
    for axis, size in enumerate(mesh.axis_sizes):
        values = sorted({coordinate[axis] for coordinate in coordinates})
        found = _digits_of_values(axis, values, size)
        if found is None:
            return None
        digits.extend(found)
    return digits


def _digits_of_values(axis: int, values: list[int], size: int) -> list[SubAxis] | None:
    """Splits sorted coordinates into arithmetic progressions nested in each other; major first."""
    offsets = [value - values[0] for value in values]
    digits: list[SubAxis] = []
    covered = 1
    while covered < len(offsets):
        stride = offsets[covered]
        count = 1
        while count * covered < len(offsets) and offsets[count * covered] == count * stride:
            count += 1
        block = offsets[:covered]
        if offsets[: count * covered] != [step * stride + low for step in range(count) for low in block]:
            return None
        extent = digits[0].after * digits[0].size if digits else 1
        if size % (stride * count) or stride % extent:
            return None
        digits.insert(0, SubAxis(axis, size // (stride * count), count, stride))
        covered *= count
    return digits if covered == len(offsets) else None


def _groups_over(digits: list[SubAxis], mesh: Mesh) -> set[frozenset[int]]:
    """All groups of mesh positions that differ in these digits alone."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, coordinates in enumerate(coordinates_in(mesh)):
        fixed = list(coordinates)
        for digit in digits:
            fixed[digit.axis] -= digit.value(fixed[digit.axis]) * digit.after
        groups.setdefault(tuple(fixed), []).append(position)
    return {frozenset(group) for group in groups.values()}


def changing_digit(axis: int, steps: set[tuple[int, int]], mesh: Mesh, *, whole: bool) -> SubAxis:
    """The smallest contiguous digit of an axis that explains all its coordinate changes."""
    size = mesh.axis_sizes[axis]
    if whole:
        return SubAxis(axis, 1, size, 1)
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    after = max(d for d in divisors if all(s % d == t % d for s, t in steps))
    block = min(d for d in divisors if d % after == 0 and all(s // d == t // d for s, t in steps))
    return SubAxis(axis, size // block, block // after, after)
