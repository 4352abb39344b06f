"""How many devices a compiled text is for, and where they lie when the program spans several slices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.errors import HloscopeError, MeshError, SliceError

if TYPE_CHECKING:
    from hloscope.analysis.groups import Groups
    from hloscope.analysis.model import Mesh
    from hloscope.hardware.slices import Slice
    from hloscope.hlo import HloModule
    from hloscope.program.target import TargetFacts

DEVICES_PER_SLICE_ID = 100_000
"""A device's id in a program of several slices is its slice's number, from 1, times this, plus its number in there."""

_MOST_DEVICES = 1 << 20
"""More than any program will be compiled for; a header that says more is damaged."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The slice and the device of each partition of the whole program.

    Attributes:
        slice_of_partition: The index of the slice that each partition lies in.
        device_ids: The physical device of each partition; None when not known.
    """

    slice_of_partition: tuple[int, ...]
    device_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.device_ids is not None and len(self.device_ids) != len(self.slice_of_partition):
            raise ValueError(
                f"a placement needs one device for each partition: {len(self.device_ids)} devices, "
                f"{len(self.slice_of_partition)} partitions"
            )

    @classmethod
    def in_blocks(cls, devices: int, devices_per_slice: int) -> Placement:
        """The placement in which slice s has the partitions from s x `devices_per_slice` on."""
        return cls(tuple(partition // devices_per_slice for partition in range(devices)))

    def partitions_by_slice(self) -> tuple[tuple[int, ...], ...]:
        """The partitions of each slice.

        The text of one slice's program numbers them in this order, from 0.

        Source: programs compiled with libtpu whose DCN axis is the minor one, or a part of both axes.
        """
        partitions: dict[int, list[int]] = defaultdict(list)
        for partition, slice_index in enumerate(self.slice_of_partition):
            partitions[slice_index].append(partition)
        return tuple(tuple(partitions[slice_index]) for slice_index in sorted(partitions))

    def over_all_slices(self, groups: Groups) -> Groups | None:
        """Groups of one slice's program, repeated for each slice in partition ids of the whole program.

        Returns:
            None when the slices differ in size, or an id is none of a slice's.
        """
        slices = self.partitions_by_slice()
        sizes = {len(partitions) for partitions in slices}
        if len(sizes) != 1 or any(device not in range(min(sizes)) for group in groups for device in group):
            return None
        return tuple(tuple(partitions[device] for device in group) for partitions in slices for group in groups)

    def partitions_of(self, devices: Groups) -> Groups | None:
        """Partition ids for groups of physical device ids; None when one of them is not known."""
        partition_of = {device: partition for partition, device in enumerate(self.device_ids or ())}
        if any(device not in partition_of for group in devices for device in group):
            return None
        return tuple(tuple(partition_of[device] for device in group) for group in devices)

    def slice_of(self, partition: int) -> int | None:
        """The slice of a partition; None when there is no such partition."""
        return self.slice_of_partition[partition] if partition in range(len(self.slice_of_partition)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ids in a text are to be read.

    Attributes:
        placement: Where partitions lie; None when the program runs on one slice or nothing is known about it.
        one_slice: Whether the text is the program of one slice of several, whose ids count the devices of that slice.
        guessed: Whether nothing says which partitions such a slice holds, so that consecutive ones are taken.
    """

    placement: Placement | None = None
    one_slice: bool = False
    guessed: bool = False

    def everywhere(self, groups: Groups) -> Groups | None:
        """Groups of the text in partition ids of the whole program; None when they do not fit the placement."""
        return self.placement.over_all_slices(groups) if self.placement is not None and self.one_slice else groups


def lay_out(
    devices: int, mesh: Mesh | None, *, devices_per_slice: int | None = None, placement: Placement | None = None
) -> Layout:
    """Tells the text of one slice's program from text that counts all devices.

    Args:
        devices: Devices that the text counts.
        mesh: The user's mesh, over all slices.
        devices_per_slice: Devices of one slice when there are several.
        placement: Where partitions lie; by default slice after slice, in partition order.
    """
    if placement is not None:
        sizes = {len(partitions) for partitions in placement.partitions_by_slice()}
        if sizes == {devices}:
            return Layout(placement=placement, one_slice=len(placement.slice_of_partition) > devices)
        if len(placement.slice_of_partition) == devices or devices == 1:
            return Layout(placement=placement)
    counted = devices > 1 or devices_per_slice == 1
    if mesh is not None and counted and devices != mesh.device_count:
        return Layout(placement=Placement.in_blocks(mesh.device_count, devices), one_slice=True, guessed=True)
    if devices_per_slice is not None and devices > devices_per_slice:
        return Layout(placement=Placement.in_blocks(devices, devices_per_slice))
    return Layout()


def placement_of_text(facts: TargetFacts, slices: int) -> Placement | None:
    """The slice of each mesh position, as `dcn` says; None leaves it to the order of the mesh."""
    if slices == 1 or not facts.dcn or not facts.mesh:
        return None
    from hloscope.program.several_slices import slice_of_position, slices_per_axis

    across = slices_per_axis(facts.mesh, slices, facts.dcn, [])
    return Placement(tuple(int(one) for one in slice_of_position(tuple(facts.mesh.values()), across).flat))


def slice_count(text: str, per_slice: int, mesh: Mesh | None, chosen: Slice | None) -> int:
    """Slices that a program spans; its text holds the partitions of one slice only."""
    if chosen is not None and chosen.slice_count > 1:
        return chosen.slice_count
    if mesh is not None and per_slice > 0 and "_xla_megascale" in text and mesh.device_count % per_slice == 0:
        return mesh.device_count // per_slice
    return 1


def check_devices(name: str, devices: int, module: HloModule, mesh: Mesh | None, chosen: Slice | None) -> None:
    """Checks a mesh and a slice against what a text says of itself.

    Raises:
        HloscopeError: The text claims more devices than any program has, or none.
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    why = f"its header says num_partitions={module.num_partitions}, replica_count={module.replica_count}"
    if not 0 < devices <= _MOST_DEVICES:
        raise HloscopeError(f"{name} claims to be a program for {devices} devices", why=why, fix="check its header")
    says = devices > 1 or "num_partitions" in module.header
    if mesh is not None and says and mesh.device_count != devices:
        raise MeshError(
            f"the mesh has {mesh.device_count} devices and {name} is a program for {devices}",
            why=why,
            fix="give the mesh that the program was compiled for",
        )
    if chosen is not None and not chosen.is_attached and chosen.device_count < devices:
        raise SliceError(
            f"{chosen.name} has {chosen.device_count} devices and {name} is a program for {devices}",
            why=why,
            fix="name a slice that is large enough",
        )
