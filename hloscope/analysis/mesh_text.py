"""The mesh as the HLO text itself names it, for when the user gives none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from hloscope.analysis.model import Mesh
from hloscope.analysis.opcodes import KIND_OF_OPCODE, base_opcode
from hloscope.hlo import HloModule
from hloscope.hlo.call_graph import entry_of
from hloscope.hlo.replica_groups import NamedMesh
from hloscope.program.shardy_meshes import mesh_of, shardy_device_counts, shardy_meshes

_INVENTED = re.compile(r"axis_\d+|_axis_\d+|mesh_axis_\d+")


def mesh_from_text(module: HloModule) -> Mesh | None:
    """Reads the user's mesh out of a module.

    Takes Shardy's meshes in the header; else the first mesh among the arguments' shardings and the replica groups
    whose names are the user's, not the `axis_0`, `axis_1` that the partitioner invents.

    Returns:
        The mesh, without axis types; None when the text names none that fits the number of devices. The text of one
        slice's program names the mesh of all slices, so a multiple of its own devices fits.
    """
    return next(meshes_in_text(module), None)


def meshes_in_text(module: HloModule) -> Iterator[Mesh]:
    """All meshes of the user's that a module names, as `mesh_from_text` reads them; one of them may come again."""
    for mesh in chain(shardy_meshes(module.header.get("frontend_attributes", "")), _named_meshes(module)):
        if mesh.device_count > 1 and mesh.device_count % module.device_count == 0:
            yield mesh


def shardy_devices(module: HloModule) -> int | None:
    """Devices of the largest mesh that Shardy put into the header; None when it holds none, or one not understood."""
    text = module.header.get("frontend_attributes", "")
    counts = shardy_device_counts(text)
    return max(counts) if counts and len(counts) == text.count("#sdy.mesh<") else None


def _named_meshes(module: HloModule) -> Iterator[Mesh]:
    for mesh in dict.fromkeys(_printed_meshes(module)):
        if not any(_INVENTED.fullmatch(name) for name, _ in mesh.axes):
            yield from mesh_of(mesh.axes, mesh.device_ids)


def _printed_meshes(module: HloModule) -> Iterator[NamedMesh]:
    entry = entry_of(module)
    for parameter in entry.parameters if entry is not None else ():
        sharding = parameter.sharding
        for part in () if sharding is None else (sharding, *sharding.elements):
            if part.mesh is not None:
                yield part.mesh
    for instruction in module.with_opcodes(
        [opcode for opcode in module.opcodes if base_opcode(opcode) in KIND_OF_OPCODE]
    ):
        groups = instruction.replica_groups
        if groups is not None and groups.mesh is not None:
            yield groups.mesh
