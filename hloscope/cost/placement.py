"""Which device of a slice each partition of a text runs on."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.analysis.model import Analysis, Mesh
from hloscope.analysis.placement import DEVICES_PER_SLICE_ID
from hloscope.analysis.vocabulary import Link
from hloscope.hardware.device_order import device_order
from hloscope.hardware.shapes import shown
from hloscope.hardware.slices import Slice
from hloscope.hlo import HloModule

_ACROSS = "within a slice devices are taken in the order for a mesh whose first axis alone crosses slices"


def devices_of_partitions(
    analysis: Analysis, chosen: Slice, count: int, device_ids: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The device of each partition that the text counts, and what had to be assumed.

    Args:
        analysis: Of the text; of several slices it holds the partitions of one.
        chosen: The slice.
        count: Partitions that the text counts.
        device_ids: The device of each partition of the whole program, as the compiler was told; None when it is not
            known, which leaves the order that `jax.make_mesh` chooses.
    """
    if device_ids is not None:
        first = min(device // DEVICES_PER_SLICE_ID for device in device_ids)
        of_one_slice = [device for device in device_ids if device // DEVICES_PER_SLICE_ID == first]
        return tuple(device % DEVICES_PER_SLICE_ID for device in of_one_slice), ()
    if count == 1:
        return (0,), ()
    shape = _mesh_within_slice(analysis.mesh, chosen, count)
    order = None if shape is None else device_order(chosen, shape)
    several = () if chosen.slice_count == 1 else (_ACROSS,)
    if order is None:
        return tuple(range(min(count, chosen.devices_per_slice))), (
            f"devices are taken in the order of their numbers: jax.make_mesh has no order for "
            f"{'an unknown mesh' if shape is None else f'a mesh of {shown(shape)}'} on {chosen.name}",
        )
    ids = analysis.mesh.partition_ids if analysis.mesh is not None else None
    if ids is None or sorted(ids) != list(range(count)):
        return order, several
    placed = dict(zip(ids, order, strict=True))
    return tuple(placed[partition] for partition in range(count)), several


def partition_count(analysis: Analysis, module: HloModule) -> int:
    """Partitions that the text counts: as its header says, or where that says nothing, as its groups do."""
    said = module.num_partitions * module.replica_count
    named = (
        max(group, default=0)
        for one in analysis.collectives
        for part in one.parts or (one,)
        if part.link is Link.ICI
        for group in part.groups
    )
    return said if said > 1 else 1 + max(named, default=0)


def _mesh_within_slice(mesh: Mesh | None, chosen: Slice, count: int) -> tuple[int, ...] | None:
    """The sizes of the mesh's axes within one slice; None when they are not known."""
    if mesh is None:
        return None
    if mesh.device_count == count:
        return mesh.axis_sizes
    if chosen.slice_count > 1 and mesh.device_count == count * chosen.slice_count:
        first, *rest = mesh.axis_sizes
        if first % chosen.slice_count == 0:
            return (first // chosen.slice_count, *rest)
    return None
