"""Where the partitions of a predicted program are: written into its profile, and read back to price it alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hloscope.analysis.placement import DEVICES_PER_SLICE_ID
from hloscope.documents import written
from hloscope.program.capture import Capture, Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What a program's text does not say.

    Attributes:
        mesh: The user's mesh; None for a program that has none.
        device_ids: The physical device of each partition; empty if unknown.
        slice_of_partition: The slice that each partition is in; empty on one slice.
    """

    mesh: Mesh | None
    device_ids: tuple[int, ...]
    slice_of_partition: tuple[int, ...]


def place_of(program: Capture) -> str:
    """Returns what is to be written into the profile of a program."""
    mesh = None if program.mesh is None or program.mesh.made_up else program.mesh
    compiled = program.compiled
    place = _Place(mesh=mesh, device_ids=compiled.device_ids, slice_of_partition=compiled.slice_of_partition)
    return written(place)


def with_place(program: Capture, said: str) -> Capture:
    """Returns a program with what its profile says of its place; as it is where that does not fit it.

    Args:
        program: The program by its text, for the slice that the profile was predicted for.
        said: What `place_of` returned.
    """
    import msgspec

    try:
        place = msgspec.json.decode(said, type=_Place)
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


def _fits(place: _Place, program: Capture) -> bool:
    """Whether it is a place of as many partitions, on devices and slices that there are."""
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
