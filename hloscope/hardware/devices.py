"""The devices of a slice as JAX lists them there: their numbers, their places and their hosts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hloscope.hardware.slices import HOST_BLOCK, Slice

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


def slice_devices(chosen: Slice) -> tuple[SliceDevice, ...]:
    """The devices of a TPU slice in the order of `jax.devices()`: host after host, as the first axis goes fastest.

    Args:
        chosen: A TPU slice, or several.

    Returns:
        Nothing for simulated CPU devices and attached ones.

    Source: libtpu's topology descriptions, with which a test compares them.
    """
    if chosen.chip is None:
        return ()
    edges = _three(chosen.shape)
    block = chosen.chips_per_host_bounds or HOST_BLOCK
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


def _three(shape: tuple[int, ...]) -> Place:
    first, second, third = (*shape, *(1,) * (3 - len(shape)))
    return first, second, third


def _places(edges: Place) -> list[Place]:
    """All places of a block, the first axis fastest."""
    return [(x, y, z) for z, y, x in product(*map(range, reversed(edges)))]
