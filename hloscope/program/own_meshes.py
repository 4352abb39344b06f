"""The meshes that a program brings along: which is reported, and whether all arrays are sharded over that one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding

from hloscope.compiler.jax_internals import LoweredFacts
from hloscope.errors import MeshError
from hloscope.program.arguments import Call
from hloscope.program.devices import axis_sizes
from hloscope.program.plan import Plan, concrete_mesh
from hloscope.program.several_slices import shown


def users_mesh(plan: Plan, seen: LoweredFacts) -> jax.sharding.Mesh | None:
    """The mesh to report: the one that the program's arrays are sharded over, else the one asked for.

    Where both have the same axes the program's own is taken too, since its axis types are the ones it was traced with.
    A mesh without devices is the program's own where nothing else names one.
    """
    shardings = (*seen.in_shardings, *seen.out_shardings)
    meshes = [getattr(sharding, "mesh", None) for sharding in shardings]
    meshes.append(jax.sharding.get_mesh())
    fitting = (mesh for mesh in meshes if isinstance(mesh, jax.sharding.Mesh) and mesh.size == seen.device_count > 1)
    own = next(fitting, None)
    if own is None:
        abstract = abstract_mesh_of(shardings)
        return plan.mesh if plan.mesh is not None or abstract is None else concrete_mesh(abstract)
    if plan.mesh is not None and axis_sizes(own) != axis_sizes(plan.mesh):
        plan.notes.append(
            f"the program has its own mesh {shown(axis_sizes(own))}: {shown(axis_sizes(plan.mesh))} is not used"
        )
    return own


def abstract_mesh_of(shardings: Iterable[Any]) -> Any:
    """The first mesh without devices that shardings name; None where they name none."""
    meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
    return next((mesh for mesh in meshes if isinstance(mesh, AbstractMesh) and mesh.axis_names), None)


def check_own_meshes(mesh: jax.sharding.Mesh | None, named: Iterable[tuple[str, Any]]) -> list[str]:
    """Checks that the shardings of arrays mean the axes of the mesh that is reported, in their order.

    JAX looks at the number of devices only: of a mesh without devices it compiles the axes as they are divided there,
    and they would be told as those of the other mesh.

    Args:
        mesh: The mesh that is reported.
        named: The name of each argument and result, and its sharding.

    Returns:
        A note on each array that lies on a mesh of its own whose devices are known: the program is as it says.

    Raises:
        MeshError: The mesh of one has no devices, and other axes.
    """
    notes: dict[str, None] = {}
    for name, sharding in named:
        own = getattr(sharding, "mesh", None)
        if mesh is None or own is None or not own.axis_names or own.size == 1 or _axes(own) == _axes(mesh):
            continue
        if isinstance(own, AbstractMesh):
            raise MeshError(
                f"{name} is sharded over the mesh {_shown(own)}, but the program's mesh is {_shown(mesh)}",
                why=f"{sharding.spec} names axes of {_shown(own)}, which divides the devices differently",
                fix="make all shardings with one mesh, or pass the mesh that they are made with",
            )
        if any(sharding.spec):
            note = f"{name} is on its own mesh, {_shown(own)}, whose axes are not those of {_shown(mesh)}"
            notes.setdefault(note)
    return list(notes)


def _axes(mesh: Any) -> tuple[Sequence[str], Sequence[int]]:
    return mesh.axis_names, mesh.axis_sizes


def _shown(mesh: Any) -> str:
    return shown(axis_sizes(mesh))


def named_shardings(seen: LoweredFacts, given: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The sharding of each argument and result with its name: what arguments were given, and what JAX made of it."""
    if len(given) == len(seen.argument_names):
        yield from zip(seen.argument_names, given, strict=True)
    yield from zip((seen.argument_names[index] for index in seen.kept), seen.in_shardings, strict=True)
    yield from zip(seen.result_names, seen.out_shardings, strict=True)


def check_call(call: Call, mesh: jax.sharding.Mesh | None) -> None:
    """Checks before JAX does that arguments sharded over a mesh without devices fit the mesh that is current."""
    leaves = jax.tree_util.tree_leaves_with_path({"args": call.args, "kwargs": dict(call.kwargs)})
    named = [
        (f"{path[0].key}{jax.tree_util.keystr(path[1:])}", getattr(leaf, "sharding", None)) for path, leaf in leaves
    ]
    abstract = abstract_mesh_of(sharding for _, sharding in named)
    if mesh is not None and abstract is not None and abstract.size != mesh.size:
        check_own_meshes(mesh, named)


def mesh_of_call(shardings: Sequence[Any]) -> jax.sharding.Mesh | None:
    """The mesh that arguments lie on; one of simulated devices where theirs has none."""
    meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
    own = next((mesh for mesh in meshes if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1), None)
    abstract = abstract_mesh_of(shardings)
    return own if own is not None or abstract is None else concrete_mesh(abstract)


def laid_on(mesh: jax.sharding.Mesh, call: Call) -> Call:
    """A call whose arguments lie on a mesh, where theirs is the same without devices: JAX holds explicit axes apart."""

    def laid(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(leaf, jax.ShapeDtypeStruct) or not isinstance(sharding, NamedSharding):
            return leaf
        if sharding.mesh != AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types):
            return leaf
        return leaf.update(sharding=NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind))

    return replace(call, args=jax.tree.map(laid, call.args), kwargs=jax.tree.map(laid, dict(call.kwargs)))
