"""The layout of a mesh axis on a slice: the chips it connects, over which links, and their distances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hloscope.hardware.torus import Torus, ring_order


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
        """Whether the last device of each ring is as near to the first as neighbours are."""
        return max(map(len, self.rings), default=0) > 2 and self.back_hops <= max(self.hops, 1)


def axis_links(torus: Torus, groups: Sequence[Sequence[int]]) -> AxisLinks:
    """Lays the groups of devices along one axis of a mesh over the links of a slice, as rings.

    Args:
        torus: The slice.
        groups: Devices of the slice.
    """
    rings = tuple(ring_order(torus, group) for group in groups)
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
