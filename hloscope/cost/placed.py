"""The user's mesh on the slice that a program runs on: the position of each device, and what each axis connects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hloscope.analysis.model import Analysis, Mesh
from hloscope.analysis.placement import DEVICES_PER_SLICE_ID
from hloscope.cost.collectives import map_partitions_to_devices
from hloscope.cost.link_traffic import LinkTraffic
from hloscope.errors import SliceError
from hloscope.messages import Option, say
from hloscope.tpu.devices import SliceDevice, list_devices
from hloscope.tpu.slices import Slice, parse_slice
from hloscope.tpu.torus import AxisLinks, Torus, find_axis_links
from hloscope.units import pluralize

_MOST_NAMES, _LONGEST_NAME = 8, 60

DeviceHome = tuple[int, int]
"""The 0-based slice, and the device in it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedAxis:
    """One axis of the mesh.

    Attributes:
        name: Its name.
        size: Number of devices along it.
        slices: Number of slices in which a group along it has devices.
        links: The position of its part within the first slice; None if it has none within a slice.
    """

    name: str
    size: int
    slices: int
    links: AxisLinks | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedMesh:
    """The mesh on its slice.

    Attributes:
        slice: The slice, or several.
        torus: The torus of one slice.
        devices: The devices of the first slice.
        coordinates: The mesh position of each device of the first slice that the program uses; empty without a mesh.
        mesh: The user's mesh; None if the program has none.
        axes: The axes that connect several devices, major first.
        traffic: The traffic over each link in one step; None if unknown.
        notes: Assumptions, and why traffic is unknown, one sentence each.
    """

    slice: Slice
    torus: Torus
    devices: tuple[SliceDevice, ...]
    coordinates: Mapping[int, tuple[int, ...]]
    mesh: Mesh | None
    axes: tuple[PlacedAxis, ...]
    traffic: LinkTraffic | None
    notes: tuple[str, ...]


def place_mesh(
    found: Analysis,
    *,
    chosen: Slice | None = None,
    device_ids: Sequence[int] | None = None,
    traffic: LinkTraffic | None = None,
) -> PlacedMesh:
    """Lays the mesh of an analyzed program over its slice.

    Args:
        found: The analysis.
        chosen: The slice as the program was compiled for; by default the one that the analysis names.
        device_ids: The device of each partition, as passed to the compiler; by default the choice of `jax.make_mesh`.
        traffic: The traffic over its links, if known.

    Raises:
        SliceError: It has no TPU slice.
    """
    chosen = _find_slice(found) if chosen is None else chosen
    if chosen.chip is None:
        raise SliceError(f"{chosen.name} has no links between chips", fix="name a TPU slice, such as v5e:2x4")
    homes, notes = _find_homes(found.mesh, chosen, device_ids)
    if traffic is None:
        notes = (*notes, "what crosses the links is not known")
    elif traffic.unpriced:
        notes = (*notes, f"not counted, because their route is unknown: {_join_first_names(traffic.unpriced)}")
    return PlacedMesh(
        slice=chosen,
        torus=Torus.of(chosen),
        devices=tuple(device for device in list_devices(chosen) if device.slice_index == 0),
        coordinates=_find_coordinates(found.mesh, homes),
        mesh=found.mesh,
        axes=() if found.mesh is None else tuple(_place_axes(found.mesh, homes, Torus.of(chosen))),
        traffic=traffic,
        notes=notes,
    )


def _join_first_names(names: Sequence[str]) -> str:
    """The first names, with long ones cut."""
    shown = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names[:_MOST_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {pluralize(more, 'other')}" if more else "")


def _find_slice(found: Analysis) -> Slice:
    if found.slice is None:
        raise SliceError(f"{found.target} is not placed on a slice", fix=say("name one: ", Option("slice", "v5e:2x4")))
    return parse_slice(found.slice.name)


def _find_homes(
    mesh: Mesh | None, chosen: Slice, device_ids: Sequence[int] | None
) -> tuple[tuple[DeviceHome, ...], tuple[str, ...]]:
    """The device at each position of the mesh, and the assumptions made."""
    if mesh is None:
        return (), ("the program has no mesh whose axes could be shown",)
    if mesh.device_count > chosen.device_count:
        return (), (f"the mesh has {mesh.device_count:,} devices, and {chosen.name} has {chosen.device_count:,}",)
    if device_ids is not None and len(device_ids) == mesh.device_count:
        first = min(device_ids) // DEVICES_PER_SLICE_ID
        placed = [divmod(device, DEVICES_PER_SLICE_ID) for device in device_ids]
        return tuple((placed[partition][0] - first, placed[partition][1]) for partition in mesh.ids), ()
    count = min(mesh.device_count, chosen.devices_per_slice)
    device_of, notes = map_partitions_to_devices(mesh, chosen, count, None)
    assumed = () if notes else ("the order of devices is the one that jax.make_mesh chooses",)
    homes = tuple((partition // count, device_of[partition % count]) for partition in mesh.ids)
    return homes, (*notes, *assumed)


def _find_coordinates(mesh: Mesh | None, homes: Sequence[DeviceHome]) -> dict[int, tuple[int, ...]]:
    if mesh is None:
        return {}
    places = np.stack(np.unravel_index(np.arange(len(homes)), mesh.axis_sizes), axis=-1).tolist() if homes else []
    return {device: tuple(place) for (index, device), place in zip(homes, places, strict=True) if index == 0}


def _place_axes(mesh: Mesh, homes: Sequence[DeviceHome], torus: Torus) -> list[PlacedAxis]:
    found = []
    positions = np.arange(len(homes)).reshape(mesh.axis_sizes if homes else (0,))
    for axis, (name, size) in enumerate(zip(mesh.axis_names, mesh.axis_sizes, strict=True)):
        if size == 1 or not homes:
            continue
        groups = [[homes[position] for position in line] for line in np.moveaxis(positions, axis, -1).reshape(-1, size)]
        inside = [[device for index, device in group if index == 0] for group in groups]
        inside = [group for group in inside if len(group) > 1]
        slices = max(len({index for index, _ in group}) for group in groups)
        links = find_axis_links(torus, inside) if inside else None
        found.append(PlacedAxis(name=name, size=size, slices=slices, links=links))
    return found
