"""Orders of a slice's devices in a mesh: that of `jax.make_mesh`, and others that may be better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from types import SimpleNamespace

from hloscope.compile.step import order_devices
from hloscope.tpu.slices import Slice, SliceDevice, list_devices


def follows_axes(chosen: Slice, mesh_shape: Sequence[int]) -> bool:
    """Returns whether `jax.make_mesh` lays a mesh over a slice without splitting an axis of the slice."""
    return _find_default_order(chosen, mesh_shape) is not None


def find_device_orders(chosen: Slice, mesh_shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Other orders of a slice's devices than that of `jax.make_mesh`, by their positions in `jax.devices()`.

    They are that of `jax.devices()` itself and, if one axis takes all devices, a path from neighbor to neighbor.
    """
    known = list_devices(chosen)
    if prod(mesh_shape) != len(known) or chosen.slice_count > 1:
        return
    usual = _find_default_order(chosen, mesh_shape)
    orders = [tuple(range(len(known)))]
    if max(mesh_shape) == len(known):
        orders.insert(0, _make_winding_order(known))
    yield from (order for order in dict.fromkeys(orders) if order != usual)


def _find_default_order(chosen: Slice, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """The order of `jax.make_mesh`; None if it refuses the mesh."""
    assert chosen.chip is not None
    of_all = {"device_kind": chosen.chip.device_kind, "platform": "tpu", "process_index": 0, "slice_index": 0}
    devices = [
        SimpleNamespace(id=place, coords=known.coords, core_on_chip=known.core_on_chip, **of_all)
        for place, known in enumerate(list_devices(chosen))
    ]
    ordered = order_devices(mesh_shape, devices) if prod(mesh_shape) == len(devices) else None
    return None if ordered is None else tuple(device.id for device in ordered)


def _make_winding_order(known: Sequence[SliceDevice]) -> tuple[int, ...]:
    """Row after row in alternating directions, and layer after layer in the same way.

    In two dimensions it winds through the other columns and returns through the first one, so that its last
    device is a neighbor of its first.
    """
    depth, height, width = (max(device.coords[axis] for device in known) + 1 for axis in (2, 1, 0))
    if depth == 1 and height % 2 == 0 and width > 1 and height > 1:
        path = [(x, y, 0) for y in range(height) for x in _turn_row(range(1, width), y)]
        path += [(0, y, 0) for y in reversed(range(height))]
    else:
        rows = [(y, z) for z in range(depth) for y in _turn_row(range(height), z)]
        path = [(x, y, z) for number, (y, z) in enumerate(rows) for x in _turn_row(range(width), number)]
    place = {(*device.coords, device.core_on_chip): at for at, device in enumerate(known)}
    cores = sorted({device.core_on_chip for device in known})
    return tuple(place[*coords, core] for coords in path for core in cores)


def _turn_row(row: range, number: int) -> Sequence[int]:
    """A row, reversed if its number is odd."""
    return row if number % 2 == 0 else row[::-1]
