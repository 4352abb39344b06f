"""The devices of a slice as JAX lists them there, and the order in which `jax.make_mesh` lays a mesh over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

import numpy as np

from hloscope.tpu.slices import Slice, pad_shape

Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """One device of a slice.

    Attributes:
        id: Its number, which counts places and not the order in which `jax.devices()` lists it.
        coords: The place of its chip.
        core_on_chip: Which of its chip's devices it is.
        slice_index: The slice that it is in.
        host: The host that its chip belongs to, counted through all slices.
    """

    id: int
    coords: Place
    core_on_chip: int
    slice_index: int
    host: int


def list_devices(chosen: Slice) -> tuple[SliceDevice, ...]:
    """The devices of a TPU slice in the order of `jax.devices()`: host after host, as the first axis goes fastest.

    Args:
        chosen: A TPU slice, or several.

    Returns:
        Nothing for simulated CPU devices and attached ones.

    Source: libtpu's topology descriptions, with which a test compares them.
    """
    if chosen.chip is None:
        return ()
    edges = pad_shape(chosen.shape)
    block = chosen.chips_per_host_bounds or chosen.chip.host_bounds
    hosts = [corner for corner in _places(edges) if all(at % edge == 0 for at, edge in zip(corner, block, strict=True))]
    found = []
    for slice_index in range(chosen.slice_count):
        for number, corner in enumerate(hosts):
            for inside in _places(block):
                x, y, z = (start + at for start, at in zip(corner, inside, strict=True))
                chip = (z * edges[1] + y) * edges[0] + x
                for core in range(chosen.chip.devices_per_chip):
                    found.append(
                        SliceDevice(
                            id=slice_index * chosen.devices_per_slice + chip * chosen.chip.devices_per_chip + core,
                            coords=(x, y, z),
                            core_on_chip=core,
                            slice_index=slice_index,
                            host=slice_index * len(hosts) + number,
                        )
                    )
    return tuple(found)


def _places(edges: Place) -> list[Place]:
    """All places of a block, the first axis fastest."""
    return [(x, y, z) for z, y, x in product(*map(range, reversed(edges)))]


def find_device_order(chosen: Slice, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Device ids of one slice in row-major mesh order.

    Args:
        chosen: A TPU slice; of several, one of them is ordered.
        mesh_shape: Sizes of the mesh axes within the slice.

    Returns:
        None when the mesh does not follow the physical axes, so that `jax.make_mesh` refuses it, or when it has
        another number of devices than the slice.

    Source: `create_device_mesh` in jax/_src/mesh_utils.py of JAX 0.12, against which a test compares it.
    """
    chip = chosen.chip
    if chip is None or prod(mesh_shape) != chosen.devices_per_slice:
        return None
    by_hand = None if chip.order_devices is None else chip.order_devices(chosen.shape, mesh_shape)
    return by_hand or _along_axes(pad_shape(chosen.shape), chip.devices_per_chip, mesh_shape)


def _along_axes(edges: Place, cores: int, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Each mesh axis over whole physical axes, the minor mesh axis choosing first and as many of them as it can."""
    ids = np.arange(prod(edges) * cores).reshape(*reversed(edges), cores).transpose(2, 1, 0, 3)
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
