"""The placement of a program's devices if it spans several slices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.units import pluralize

if TYPE_CHECKING:
    from hloscope.analysis.groups import Groups
    from hloscope.analysis.model import Mesh

DEVICES_PER_SLICE_ID = 100_000
"""The factor in ids of multi-slice programs: an id is the 1-based slice number times this, plus the device number."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The slice and the device of each partition of the whole program.

    Attributes:
        slice_of_partition: The index of each partition's slice.
        device_ids: The physical device of each partition; None if unknown.
    """

    slice_of_partition: tuple[int, ...]
    device_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.device_ids is not None and len(self.device_ids) != len(self.slice_of_partition):
            raise ValueError(
                f"a placement needs one device for each partition: {pluralize(len(self.device_ids), 'device')}, "
                f"{pluralize(len(self.slice_of_partition), 'partition')}"
            )

    @classmethod
    def in_blocks(cls, devices: int, devices_per_slice: int) -> Placement:
        """The placement in which slice s has the partitions starting at s x `devices_per_slice`."""
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
        """Groups of one slice's program, repeated for each slice, as partition ids of the whole program.

        Returns:
            None if the slices differ in size, or an id is not in a slice.
        """
        slices = self.partitions_by_slice()
        sizes = {len(partitions) for partitions in slices}
        if len(sizes) != 1 or any(device not in range(min(sizes)) for group in groups for device in group):
            return None
        return tuple(tuple(partitions[device] for device in group) for partitions in slices for group in groups)

    def partitions_of(self, devices: Groups) -> Groups | None:
        """Partition ids for groups of physical device ids; None if one of them is unknown."""
        partition_of = {device: partition for partition, device in enumerate(self.device_ids or ())}
        if any(device not in partition_of for group in devices for device in group):
            return None
        return tuple(tuple(partition_of[device] for device in group) for group in devices)

    def slice_of(self, partition: int) -> int | None:
        """The slice of a partition; None if there is no such partition."""
        return self.slice_of_partition[partition] if partition in range(len(self.slice_of_partition)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The meaning of device ids in a text.

    Attributes:
        placement: The placement of partitions; None if the program runs on one slice or the placement is unknown.
        one_slice: Whether the text is the program of one slice of several, whose ids count the devices of that slice.
        guessed: Whether the partitions of such a slice are unknown, so that consecutive ones are assumed.
    """

    placement: Placement | None = None
    one_slice: bool = False
    guessed: bool = False

    def everywhere(self, groups: Groups) -> Groups | None:
        """Groups of the text as partition ids of the whole program; None if they do not fit the placement."""
        return self.placement.over_all_slices(groups) if self.placement is not None and self.one_slice else groups


def find_numbering(
    devices: int, mesh: Mesh | None, *, devices_per_slice: int | None = None, placement: Placement | None = None
) -> Numbering:
    """Distinguishes the text of one slice's program from text that counts all devices.

    Args:
        devices: Number of devices according to the text.
        mesh: The user's mesh, over all slices.
        devices_per_slice: Devices of one slice if there are several.
        placement: The placement of partitions; by default slice after slice, in partition order.
    """
    if placement is not None:
        sizes = {len(partitions) for partitions in placement.partitions_by_slice()}
        if sizes == {devices}:
            return Numbering(placement=placement, one_slice=len(placement.slice_of_partition) > devices)
        if len(placement.slice_of_partition) == devices or devices == 1:
            return Numbering(placement=placement)
    counted = devices > 1 or devices_per_slice == 1
    if mesh is not None and counted and devices != mesh.device_count:
        return Numbering(placement=Placement.in_blocks(mesh.device_count, devices), one_slice=True, guessed=True)
    if devices_per_slice is not None and devices > devices_per_slice:
        return Numbering(placement=Placement.in_blocks(devices, devices_per_slice))
    return Numbering()
