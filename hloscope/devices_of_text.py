"""How many devices a compiled text is for, and whether the mesh and the slice given beside it can be meant."""

from __future__ import annotations

from hloscope.analysis.model import Mesh
from hloscope.analysis.placement import Placement
from hloscope.errors import HloscopeError, MeshError, SliceError
from hloscope.hardware.slices import Slice
from hloscope.hlo import HloModule
from hloscope.program.target import TargetFacts

MAX_DEVICES = 1 << 20
"""More than any program will be compiled for; a header that says more is damaged."""


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
    if not 0 < devices <= MAX_DEVICES:
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
