"""The chips of a slice, the links between them, the load on the links, and rings through groups of devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from hloscope.tpu.generation import HOST_BOUNDS
from hloscope.tpu.slices import Slice

Coordinates = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """One slice as a grid of chips with a link in each direction between neighbors.

    Devices are numbered as libtpu numbers them: the cores of a chip first, then along the first axis.

    Attributes:
        shape: Chips along each axis.
        wraparound: Whether the last chip of each axis is joined to the first.
        devices_per_chip: Devices that share the links of one chip.
        host_bounds: The chips of one host along each axis.
    """

    shape: tuple[int, ...]
    wraparound: tuple[bool, ...]
    devices_per_chip: int = 1
    host_bounds: tuple[int, int, int] = HOST_BOUNDS

    @classmethod
    def of(cls, chosen: Slice) -> Torus:
        """The grid of one TPU slice."""
        assert chosen.chip is not None, "other devices have no links between chips"
        return cls(
            shape=chosen.shape,
            wraparound=chosen.wraparound(),
            devices_per_chip=chosen.chip.devices_per_chip,
            host_bounds=chosen.chip.host_bounds,
        )

    @property
    def device_count(self) -> int:
        """Devices of the slice."""
        return prod(self.shape) * self.devices_per_chip

    def chip_of(self, device: int) -> int:
        """The number of the chip that holds a device."""
        return device // self.devices_per_chip

    def coordinates(self, device: int) -> Coordinates:
        """The coordinates of the chip that holds a device, first axis first."""
        chip, found = self.chip_of(device), []
        for size in self.shape:
            chip, position = divmod(chip, size)
            found.append(position)
        return tuple(found)

    @property
    def host_shape(self) -> Coordinates:
        """The block of chips of one host, as libtpu lays them out; a slice not made of such blocks has one host."""
        block = (*self.host_bounds, *(1,) * len(self.shape))[: len(self.shape)]
        divisible = all(size % edge == 0 for size, edge in zip(self.shape, block, strict=True))
        return block if divisible else self.shape

    def host_of(self, device: int) -> Coordinates:
        """The host that a device belongs to, by the position of its block of chips."""
        places = zip(self.coordinates(device), self.host_shape, strict=True)
        return tuple(position // edge for position, edge in places)

    def longest_way(self, pairs: Sequence[tuple[int, int]]) -> int:
        """The most links on the shortest way of any of some transfers; 0 for none."""
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2) // self.devices_per_chip
        total = np.zeros(len(ends), dtype=np.int64)
        stride = 1
        for size, closed in zip(self.shape, self.wraparound, strict=True):
            distance = np.abs(ends[:, 0] // stride % size - ends[:, 1] // stride % size)
            total += np.minimum(distance, size - distance) if closed else distance
            stride *= size
        return int(total.max(initial=0))

    def link_loads(self, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
        """The number of transfers that cross each directed link, `[chip, axis, direction]`; direction 0 is upwards.

        Transfers are routed along one axis after the other, the shorter way round a ring; where both ways are equally
        long half of the transfer takes each. Transfers within a chip use no link.

        Args:
            pairs: (source, target) devices; one that occurs twice counts twice.

        Source: dimension-ordered routing, as the scaling book describes the TPU's network (chapter on TPUs).
        """
        loads = np.zeros((prod(self.shape), len(self.shape), 2))
        ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2) // self.devices_per_chip
        here, there = ends[:, 0], ends[:, 1]
        stride = 1
        for axis, (size, closed) in enumerate(zip(self.shape, self.wraparound, strict=True)):
            start, end = here // stride % size, there // stride % size
            up, down = (end - start) % size, (start - end) % size
            if closed:
                share_up = np.where(up < down, 1.0, np.where(up == down, 0.5, 0.0))
            else:
                share_up = (end >= start).astype(float)
            for direction, (distance, share) in enumerate(((up, share_up), (down, 1.0 - share_up))):
                step = 1 if direction == 0 else -1
                _add_steps(loads[:, axis, direction], here, distance * (share > 0), share, (start, step, size, stride))
            here = here + (end - start) * stride
            stride *= size
        return loads


def _add_steps(
    loads: np.ndarray,
    chips: np.ndarray,
    distance: np.ndarray,
    share: np.ndarray,
    walk: tuple[np.ndarray, int, int, int],
) -> None:
    """Adds each transfer's share to every link it crosses along one axis in one direction."""
    start, step, size, stride = walk
    base = chips - start * stride
    for taken in range(int(distance.max(initial=0))):
        moving = distance > taken
        position = (start[moving] + step * taken) % size
        np.add.at(loads, base[moving] + position * stride, share[moving])


def order_ring(torus: Torus, group: Sequence[int]) -> tuple[int, ...]:
    """The devices of a group in an order in which neighbors, the last and the first too, are as near as can be.

    A block with an even edge has a closed path of single hops: out through all columns but the first, back through
    the first one. A line is walked from end to end. Devices of one chip follow each other.

    Args:
        torus: The slice.
        group: Devices, in any order.
    """
    at: dict[Coordinates, list[int]] = {}
    for device in group:
        at.setdefault(torus.coordinates(device), []).append(device)
    axes = [sorted({place[axis] for place in at}) for axis in range(len(torus.shape))]
    ranks = {place: tuple(axes[axis].index(position) for axis, position in enumerate(place)) for place in at}
    sizes = [len(positions) for positions in axes]
    wide = sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: sizes[axis] % 2)
    places = sorted(at, key=lambda place: _place_on_ring(ranks[place], wide, sizes))
    return tuple(device for place in places for device in sorted(at[place]))


def _place_on_ring(rank: Coordinates, wide: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    """The place of a chip of a block on the ring: (0, n) on the way out, (1, n) on the way back."""
    if not wide:
        return 0, 0
    rows = wide[0]
    column, columns = _snake([rank[axis] for axis in wide[1:]], [sizes[axis] for axis in wide[1:]])
    row = rank[rows]
    if columns > 1 and column == 0 and sizes[rows] % 2 == 0:
        return 1, sizes[rows] - row
    along = column if row % 2 == 0 else columns - 1 - column
    return 0, row * columns + along


def _snake(position: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    """The number of a position on a path that turns round at the end of every row, and how many there are."""
    number, count = 0, 1
    for index, size in zip(reversed(position), reversed(sizes), strict=True):
        number, count = index * count + (number if index % 2 == 0 else count - 1 - number), count * size
    return number, count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AxisLinks:
    """One axis of a mesh on a slice.

    Attributes:
        rings: The devices of each group along the axis, each next to those that are nearest to it.
        torus_axes: The axes of the torus along which devices of a group differ; empty where each group is on one chip.
        hops: Links on the longest way from a device of a ring to the next one, but for the way back from the last.
        back_hops: Links on the longest way from the last device of a ring back to the first.
        links: Whether a ring uses each directed link, `[chip, axis, direction]`.
    """

    rings: tuple[tuple[int, ...], ...]
    torus_axes: tuple[int, ...]
    hops: int
    back_hops: int
    links: np.ndarray

    @property
    def is_closed(self) -> bool:
        """True if the last device of each ring is as near to the first as neighbors are."""
        return max(map(len, self.rings), default=0) > 2 and self.back_hops <= max(self.hops, 1)


def find_axis_links(torus: Torus, groups: Sequence[Sequence[int]]) -> AxisLinks:
    """Lays the groups of devices along one axis of a mesh over the links of a slice, as rings.

    Args:
        torus: The slice.
        groups: Devices of the slice.
    """
    rings = tuple(order_ring(torus, group) for group in groups)
    onward = [pair for ring in rings for pair in pairwise(ring)]
    back = [(ring[-1], ring[0]) for ring in rings if len(ring) > 1]
    steps = [*onward, *back]
    loads = torus.link_loads([*steps, *((target, source) for source, target in steps)])
    places = [[torus.coordinates(device) for device in ring] for ring in rings]
    differing = tuple(
        axis for axis in range(len(torus.shape)) if any(len({place[axis] for place in ring}) > 1 for ring in places)
    )
    return AxisLinks(
        rings=rings,
        torus_axes=differing,
        hops=torus.longest_way(onward),
        back_hops=torus.longest_way(back),
        links=loads > 0,
    )
