"""The meshes of a program itself: the one to report, and the check that all arrays are sharded over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding

from hloscope.base.errors import MeshError, NotationError, Option, say
from hloscope.base.units import pluralize
from hloscope.compile.arguments import Call
from hloscope.compile.devices import find_axis_sizes, make_mesh, make_requested_mesh
from hloscope.compile.environment import check_device_count, check_mesh_size
from hloscope.compile.jax_private import LoweredFacts
from hloscope.compile.jaxprs import find_jaxpr_mesh, open_jaxpr
from hloscope.compile.multislice import format_axis_sizes
from hloscope.compile.target import TargetFacts
from hloscope.tpu.slices import Slice, find_smallest_slice, parse_slice

# ---- the choices before and after tracing: mesh, slice, and notes about choices made on the user's behalf


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


def find_reported_mesh(plan: MeshPlan, seen: LoweredFacts, jaxpr: Any) -> jax.sharding.Mesh | None:
    """The mesh to report: the one that the program's arrays are sharded over, or otherwise the requested one.

    If both have the same axes, the program's own is reported, because it was traced with that one's axis types.
    A mesh without devices is the program's own if there is no other, and so is one that only its operations name.

    Args:
        plan: The requested mesh.
        seen: The lowered program.
        jaxpr: Its operations; None if they are unknown.
    """
    shardings = (*seen.in_shardings, *seen.out_shardings)
    meshes = [getattr(sharding, "mesh", None) for sharding in shardings]
    meshes.append(jax.sharding.get_mesh())
    fitting = (mesh for mesh in meshes if isinstance(mesh, jax.sharding.Mesh) and mesh.size == seen.device_count > 1)
    own = next(fitting, None)
    abstract = find_abstract_mesh(shardings)
    if own is None and abstract is None and jaxpr is not None:
        own = find_jaxpr_mesh(open_jaxpr(jaxpr), seen.devices)
    if own is None:
        return plan.mesh if plan.mesh is not None or abstract is None else make_concrete_mesh(abstract)
    if plan.mesh is not None and find_axis_sizes(own) != find_axis_sizes(plan.mesh):
        plan.notes.append(
            f"the program has its own mesh {format_axis_sizes(find_axis_sizes(own))}: "
            f"{format_axis_sizes(find_axis_sizes(plan.mesh))} is not used"
        )
    return own


def find_abstract_mesh(shardings: Iterable[Any]) -> Any:
    """The first mesh without devices among shardings, or None."""
    meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
    return next((mesh for mesh in meshes if isinstance(mesh, AbstractMesh) and mesh.axis_names), None)


def check_array_meshes(mesh: jax.sharding.Mesh | None, named: Iterable[tuple[str, Any]]) -> list[str]:
    """Checks that the shardings of arrays use the axes of the reported mesh, in their order.

    JAX checks only the number of devices: it compiles the axes of a mesh without devices as they are divided there,
    and hloscope would report them as axes of the other mesh.

    Args:
        mesh: The mesh that is reported.
        named: The name of each argument and result, and its sharding.

    Returns:
        A note for each array on a mesh of its own with known devices: the program really is sharded that way.

    Raises:
        MeshError: An array's mesh has no devices and other axes.
    """
    notes: dict[str, None] = {}
    for name, sharding in named:
        own = getattr(sharding, "mesh", None)
        if mesh is None or own is None or not own.axis_names or own.size == 1 or _find_axes(own) == _find_axes(mesh):
            continue
        if isinstance(own, AbstractMesh):
            raise MeshError(
                f"{name} is sharded over the mesh {_format_mesh(own)}, but the program's mesh is {_format_mesh(mesh)}",
                why=f"{sharding.spec} names axes of {_format_mesh(own)}, which divides the devices differently",
                fix="make all shardings with one mesh, or pass the mesh that they are made with",
            )
        if any(sharding.spec):
            note = f"{name} is on its own mesh, {_format_mesh(own)}, whose axes are not those of {_format_mesh(mesh)}"
            notes.setdefault(note)
    return list(notes)


def _find_axes(mesh: Any) -> tuple[Sequence[str], Sequence[int]]:
    return mesh.axis_names, mesh.axis_sizes


def _format_mesh(mesh: Any) -> str:
    return format_axis_sizes(find_axis_sizes(mesh))


def list_named_shardings(seen: LoweredFacts, given: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The name and sharding of each argument and result: those given for arguments, and those of JAX's lowering."""
    if len(given) == len(seen.argument_names):
        yield from zip(seen.argument_names, given, strict=True)
    yield from zip((seen.argument_names[index] for index in seen.kept), seen.in_shardings, strict=True)
    yield from zip(seen.result_names, seen.out_shardings, strict=True)


def check_argument_meshes(call: Call, mesh: jax.sharding.Mesh | None) -> None:
    """Checks, before JAX does, that arguments sharded over a mesh without devices fit the current mesh."""
    leaves = jax.tree_util.tree_leaves_with_path({"args": call.args, "kwargs": dict(call.kwargs)})
    named = [
        (f"{path[0].key}{jax.tree_util.keystr(path[1:])}", getattr(leaf, "sharding", None)) for path, leaf in leaves
    ]
    abstract = find_abstract_mesh(sharding for _, sharding in named)
    if mesh is not None and abstract is not None and abstract.size != mesh.size:
        check_array_meshes(mesh, named)


def find_call_mesh(shardings: Sequence[Any]) -> jax.sharding.Mesh | None:
    """The mesh of the arguments, on simulated devices if it has none of its own."""
    meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
    own = next((mesh for mesh in meshes if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1), None)
    abstract = find_abstract_mesh(shardings)
    return own if own is not None or abstract is None else make_concrete_mesh(abstract)


def place_call_on_mesh(mesh: jax.sharding.Mesh, call: Call) -> Call:
    """The call with its arguments placed on a mesh that equals theirs without devices: JAX distinguishes the two."""

    def laid(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(leaf, jax.ShapeDtypeStruct) or not isinstance(sharding, NamedSharding):
            return leaf
        if sharding.mesh != AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types):
            return leaf
        return leaf.update(sharding=NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind))

    return replace(call, args=jax.tree.map(laid, call.args), kwargs=jax.tree.map(laid, dict(call.kwargs)))
