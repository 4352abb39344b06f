"""The mesh that the HLO text itself names, used if the user passes none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from hloscope.analysis.model import Mesh
from hloscope.analysis.opcodes import KIND_OF_OPCODE, strip_start
from hloscope.hlo import HloModule
from hloscope.hlo.call_graph import find_entry
from hloscope.hlo.replica_groups import NamedMesh
from hloscope.program.shardy_meshes import count_shardy_mesh_devices, find_shardy_meshes, make_named_mesh

_INVENTED = re.compile(r"axis_\d+|_axis_\d+|mesh_axis_\d+")


def read_mesh(module: HloModule) -> Mesh | None:
    """Reads the user's mesh from a module.

    Takes Shardy's meshes in the header; else the first mesh among the arguments' shardings and the replica groups
    whose names are the user's, not the `axis_0`, `axis_1` that the partitioner invents.

    Returns:
        The mesh, without axis types; None if the text names none that fits the number of devices. The text of one
        slice's program names the mesh of all slices, so a multiple of its own devices fits.
    """
    return next(read_meshes(module), None)


def read_meshes(module: HloModule) -> Iterator[Mesh]:
    """All of the user's meshes that a module names, in the order of `read_mesh`; one may occur twice."""
    for mesh in chain(find_shardy_meshes(module.header.get("frontend_attributes", "")), _read_named_meshes(module)):
        if mesh.device_count > 1 and mesh.device_count % module.device_count == 0:
            yield mesh


def count_shardy_devices(module: HloModule) -> int | None:
    """Number of devices of the largest Shardy mesh in the header; None if there is none, or one is not understood."""
    text = module.header.get("frontend_attributes", "")
    counts = count_shardy_mesh_devices(text)
    return max(counts) if counts and len(counts) == text.count("#sdy.mesh<") else None


def _read_named_meshes(module: HloModule) -> Iterator[Mesh]:
    for mesh in dict.fromkeys(_find_printed_meshes(module)):
        if not any(_INVENTED.fullmatch(name) for name, _ in mesh.axes):
            yield from make_named_mesh(mesh.axes, mesh.device_ids)


def _find_printed_meshes(module: HloModule) -> Iterator[NamedMesh]:
    entry = find_entry(module)
    for parameter in entry.parameters if entry is not None else ():
        sharding = parameter.sharding
        for part in () if sharding is None else (sharding, *sharding.elements):
            if part.mesh is not None:
                yield part.mesh
    for instruction in module.with_opcodes(
        [opcode for opcode in module.opcodes if strip_start(opcode) in KIND_OF_OPCODE]
    ):
        groups = instruction.replica_groups
        if groups is not None and groups.mesh is not None:
            yield groups.mesh
