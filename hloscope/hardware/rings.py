"""Orders in which a ring can be laid through the devices of a group."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.hardware.torus import Coordinates, Torus


def ring_order(torus: Torus, group: Sequence[int]) -> tuple[int, ...]:
    """The devices of a group in an order in which neighbours, the last and the first too, are as near as can be.

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
    """Where a chip of a block comes on the ring: (0, n) on the way out, (1, n) on the way back."""
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
