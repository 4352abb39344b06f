"""The order in which `jax.make_mesh` lays a mesh over a slice, without JAX."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np

from hloscope.hardware.slices import Slice

_RING_OF_EIGHT = (0, 1, 2, 3, 7, 6, 5, 4)
_RING_OF_EIGHT_CORES = (0, 1, 2, 3, 6, 7, 4, 5)
_RING_OF_2X2 = (0, 1, 3, 2)
_RING_OF_2X2X2 = (0, 1, 3, 2, 6, 7, 5, 4)
_RING_OF_4X4 = (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4)


def device_order(chosen: Slice, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Device ids of one slice in row-major mesh order.

    Args:
        chosen: A TPU slice; of several, one of them is ordered.
        mesh_shape: Sizes of the mesh axes within the slice.

    Returns:
        None when the mesh does not follow the physical axes, so that `jax.make_mesh` refuses it, or when it has
        another number of devices than the slice.

    Source: `create_device_mesh` in jax/_src/mesh_utils.py of JAX 0.12, against which a test compares it; JAX 0.10 knows
        v5p by another name and lays its 2x2x2 out along the axes.
    """
    chip = chosen.chip
    if chip is None or prod(mesh_shape) != chosen.devices_per_slice:
        return None
    if chip.name in ("v2", "v3"):
        count = chosen.devices_per_slice
        return _eights_of_cores(count) if count == 8 or mesh_shape[-1] == 8 else tuple(range(count))
    return _special_ring(chosen, mesh_shape) or _along_axes(chosen, mesh_shape)


def _eights_of_cores(count: int) -> tuple[int, ...]:
    return tuple(block + core for block in range(0, count, 8) for core in _RING_OF_EIGHT_CORES)


def _special_ring(chosen: Slice, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """The orders that are written down by hand for small slices."""
    name, shape, count = chosen.chip.name if chosen.chip else "", chosen.shape, chosen.devices_per_slice
    if name in ("v5e", "v6e"):
        if shape == (2, 2):
            return _RING_OF_2X2
        if count == 8:
            return _RING_OF_EIGHT
        if shape == (4, 4) and max(mesh_shape) == count:
            return _RING_OF_4X4
    if name == "v5p" and shape == (2, 2, 2):
        return _RING_OF_2X2X2
    if name == "v7x" and count % 8 == 0 and count <= 32 and shape[0] <= 2 and shape[1] <= 2:
        return _eights_of_cores(count)
    return None


def _along_axes(chosen: Slice, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Each mesh axis over whole physical axes, the minor mesh axis choosing first and as many of them as it can."""
    chip = chosen.chip
    three = (*chosen.shape, *(1,) * (3 - len(chosen.shape)))
    cores = chip.devices_per_chip if chip is not None else 1
    ids = np.arange(prod(three) * cores).reshape(*reversed(three), cores).transpose(2, 1, 0, 3)
    physical = ids if cores > 1 else ids[..., 0]
    left = list(physical.shape)
    taken: list[tuple[int, ...]] = []
    for size in reversed(mesh_shape):
        axes = _axes_for(size, left)
        if axes is None:
            return None
        taken.insert(0, axes)
        left = [0 if axis in axes else edge for axis, edge in enumerate(left)]
    order = [axis for axes in taken for axis in axes]
    rest = [axis for axis in range(physical.ndim) if axis not in order]
    return tuple(int(device) for device in physical.transpose(*order, *rest).reshape(-1))


def _axes_for(size: int, left: Sequence[int]) -> tuple[int, ...] | None:
    for count in range(len(left), 0, -1):
        for axes in combinations(range(len(left)), count):
            if prod(left[axis] for axis in axes) == size:
                return axes
    return () if size == 1 else None
