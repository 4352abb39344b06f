"""The places of a predicted program's partitions: written into its profile, and read back to price it alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hloscope.analysis.placement import DEVICES_PER_SLICE_ID
from hloscope.documents import encode_document
from hloscope.program.capture import Capture, Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionPlaces:
    """The facts that a program's text does not contain.

    Attributes:
        mesh: The user's mesh; None for a program without one.
        device_ids: The physical device of each partition; empty if unknown.
        slice_of_partition: The slice of each partition; empty on one slice.
    """

    mesh: Mesh | None
    device_ids: tuple[int, ...]
    slice_of_partition: tuple[int, ...]


def encode_partition_places(program: Capture) -> str:
    """Returns the places of a program's partitions as text for its profile."""
    mesh = None if program.mesh is None or program.mesh.made_up else program.mesh
    compiled = program.compiled
    place = _PartitionPlaces(mesh=mesh, device_ids=compiled.device_ids, slice_of_partition=compiled.slice_of_partition)
    return encode_document(place)


def restore_partition_places(program: Capture, said: str) -> Capture:
    """Returns a program with the places from its profile; unchanged if these do not fit it.

    Args:
        program: The program by its text, for the slice that the profile was predicted for.
        said: The result of `encode_partition_places`.
    """
    import msgspec

    try:
        place = msgspec.json.decode(said, type=_PartitionPlaces)
    except msgspec.MsgspecError:
        return program
    if not _fits(place, program):
        return program
    compiled = replace(
        program.compiled,
        device_ids=place.device_ids or program.compiled.device_ids,
        slice_of_partition=place.slice_of_partition,
    )
    return replace(program, mesh=place.mesh, compiled=compiled)


def _fits(place: _PartitionPlaces, program: Capture) -> bool:
    """Returns whether places match the number of partitions, and name existing devices and slices."""
    assert program.slice is not None  # whose name the profile has
    count, chosen = program.used_devices, program.slice
    in_slices = [device % DEVICES_PER_SLICE_ID for device in place.device_ids]
    return (
        (place.mesh is None or sorted(place.mesh.ids) == [*range(count)])
        and len(set(place.device_ids)) in (0, count)
        and len(place.device_ids) in (0, count)
        and all(device < chosen.devices_per_slice for device in in_slices)
        and len(place.slice_of_partition) in (0, count)
        and all(0 <= number < chosen.slice_count for number in place.slice_of_partition)
    )
