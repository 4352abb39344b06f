"""The choices before and after tracing: mesh, slice, and notes about choices made on the user's behalf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from hloscope.errors import NotationError
from hloscope.messages import Option, say
from hloscope.program.devices import find_axis_sizes, make_mesh, make_requested_mesh
from hloscope.program.environment import check_device_count, check_mesh_size
from hloscope.program.target import TargetFacts
from hloscope.tpu.slices import Slice, find_smallest_slice, parse_slice
from hloscope.units import pluralize


@dataclass(slots=True)
class MeshPlan:
    """The mesh and the slice that a program runs on.

    Attributes:
        slice: The slice that the user named; None leaves it to `choose_slice`.
        mesh: The mesh that is current while the program is traced; None when the user gave none.
        axis_types: The types of the mesh's axes when the mesh was made from names and sizes; None for the user's own.
        dcn: The mesh axes that cross DCN, as the user gave them.
        notes: One sentence for each choice made for the user.
    """

    slice: Slice | None
    mesh: jax.sharding.Mesh | None
    axis_types: dict[str, str] | None
    dcn: Mapping[str, int] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def is_real(self) -> bool:
        """True if the program is compiled for the same devices that it is traced on."""
        return self.slice is not None and self.slice.chip is None


def make_mesh_plan(facts: TargetFacts) -> MeshPlan:
    """Reads the slice and makes the mesh that the options name.

    Raises:
        HloscopeError: The slice or the mesh is written wrongly, they do not fit each other, or JAX has too few devices.
    """
    chosen, mesh, kinds = parse_slice(facts.slice) if facts.slice else None, facts.mesh, None
    if mesh is None:
        current = jax.sharding.get_mesh()  # the user's module may have called jax.set_mesh
        mesh = None if current.empty else current
        if facts.axis_types and mesh is None:
            raise NotationError(
                "there are axis types, but no mesh to apply them to",
                why="a mesh that the program creates keeps its own axis types",
                fix=say("add the mesh, for example ", Option("mesh", {"X": 4, "Y": 2})),
            )
    elif isinstance(mesh, Mapping):
        check_mesh_size(chosen, mesh)
        mesh = make_requested_mesh(facts, jax.devices() if chosen is not None and chosen.is_attached else None)
        kinds = dict(zip(facts.mesh, find_axis_types(mesh), strict=True))
    elif not isinstance(mesh, jax.sharding.Mesh):
        mesh = make_concrete_mesh(mesh)
    return MeshPlan(slice=chosen, mesh=mesh, axis_types=kinds, dcn=facts.dcn)


def make_concrete_mesh(abstract: Any) -> jax.sharding.Mesh:
    """Makes a mesh of simulated devices with the axes of an abstract one."""
    return make_mesh(find_axis_sizes(abstract), dict(zip(abstract.axis_names, find_axis_types(abstract), strict=True)))


def find_axis_types(mesh: Any) -> tuple[str, ...]:
    """The type of each axis: `auto`, `explicit` or `manual`."""
    return tuple(str(kind).rpartition(".")[2].lower() for kind in mesh.axis_types)


def choose_slice(plan: MeshPlan, mesh: jax.sharding.Mesh | None, device_count: int) -> tuple[Slice, str]:
    """The slice to compile for, and its origin: the `user` or the `default`.

    Raises:
        MeshError: The slice that the user named and the mesh have different numbers of devices.
    """
    if mesh is not None and device_count < mesh.size:
        plan.notes.append(
            f"the program runs on {device_count} of the mesh's {mesh.size} devices: nothing is sharded over it"
        )
    wanted = max(device_count, mesh.size if mesh is not None else 1)
    chosen, chosen_by = (find_smallest_slice(wanted), "default") if plan.slice is None else (plan.slice, "user")
    if not chosen.is_attached and (mesh is not None or plan.slice is None):
        check_device_count(chosen, {"devices": wanted} if mesh is None else find_axis_sizes(mesh))
        if chosen.chip is not None and wanted < chosen.device_count:
            plan.notes.append(
                f"no {chosen.chip.name} slice has {pluralize(wanted, 'device')}: compiled on {wanted} of the "
                f"{chosen.device_count} devices of {chosen.name}"
            )
    return chosen, chosen_by
