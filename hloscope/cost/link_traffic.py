"""The bytes over each link of a slice in one step, on the same paths that give the times of collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hloscope.analysis.groups import DEVICES_PER_SLICE_ID
from hloscope.base.errors import Option, SliceError, say
from hloscope.base.units import format_bytes, pluralize
from hloscope.cost.collectives import map_partitions_to_devices
from hloscope.cost.price import make_program_walk
from hloscope.hlo import HloModule
from hloscope.model import Analysis, Mesh, bytes_bound
from hloscope.model.capture import Capture
from hloscope.model.vocabulary import Bound
from hloscope.tpu.slices import Slice, SliceDevice, list_devices, parse_slice
from hloscope.tpu.torus import AxisLinks, Torus, find_axis_links


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTraffic:
    """Bytes over the links of one slice in one step; other slices carry the same.

    Whole tiles are sent, so these are bytes as in memory: somewhat more than `wire_bytes`.

    Attributes:
        torus: The slice.
        link_bytes: Bytes over each directed link, `[chip, axis, direction]`, with direction 0 upwards.
        host_bytes: Bytes from the busiest host to other slices.
        bound: Whether the bytes are exact or bounds.
        unpriced: Collectives whose bytes or paths are unknown, and which are not included.
    """

    torus: Torus
    link_bytes: np.ndarray
    host_bytes: float
    bound: Bound
    unpriced: tuple[str, ...] = ()

    def busiest_bytes(self, axis: int, direction: int) -> float:
        """Bytes over the busiest link along an axis in one direction."""
        return float(self.link_bytes[:, axis, direction].max(initial=0.0))

    def words(self, count: float) -> str:
        """Renders bytes over a link with their bound: `≥12.6 MB`."""
        return self.bound.marked(format_bytes(count))

    def bytes_between(self, chip: int, axis: int) -> tuple[float, float]:
        """Bytes over the link from a chip to the next one along an axis, upwards and downwards."""
        size = self.torus.shape[axis]
        stride = int(np.prod(self.torus.shape[:axis], dtype=int))
        position = chip // stride % size
        following = chip + ((position + 1) % size - position) * stride
        return float(self.link_bytes[chip, axis, 0]), float(self.link_bytes[following, axis, 1])


def sum_link_traffic(program: Capture, module: HloModule, found: Analysis) -> LinkTraffic | None:
    """The bytes over each link; None without TPU chips, or if the text is cut off.

    Args:
        program: The compiled program.
        module: Its parsed text.
        found: Its analysis.
    """
    if program.slice is None or program.slice.chip is None or module.truncated:
        return None
    walk = make_program_walk(program, module, found)
    torus = Torus.of(program.slice)
    link_bytes = np.zeros((int(np.prod(torus.shape)), len(torus.shape), 2))
    host_bytes, bounds, unpriced = 0.0, [Bound.EXACT], []
    for collective in found.collectives:
        for transfer in collective.parts or (collective,):
            time = walk.priced.times.get((collective.computation, transfer.name))
            if time is None or (time.loads is None and not time.is_between_slices and time.time_us > 0):
                unpriced.append(transfer.name)  # its way is not known; what has nothing to move takes none
                continue
            bounds += [bytes_bound(collective), time.loads_bound]
            if time.loads is not None:
                link_bytes += time.loads.reshape(link_bytes.shape) * (time.each_bytes * transfer.executions)
            elif time.is_between_slices:
                host_bytes += time.each_bytes * transfer.executions
    bounds += [Bound.AT_LEAST] if unpriced else []
    return LinkTraffic(
        torus=torus,
        link_bytes=link_bytes,
        host_bytes=host_bytes,
        bound=reduce(lambda bound, other: bound + other, bounds),
        unpriced=tuple(unpriced),
    )


# ---- the user's mesh on the slice that a program runs on: the position of each device, and what each axis connects

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
