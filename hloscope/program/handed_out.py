"""What JAX hands out in place of a function: a program that is traced, lowered, exported or compiled already.

Also a Flax module, and its methods: their weights are arguments of the program, and no constants in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from typing import Any

import jax
from jax import export

from hloscope.errors import MeshError, TargetError
from hloscope.hardware.chips import CHIPS
from hloscope.hardware.slices import Slice, default_slice, slice_shapes
from hloscope.program.devices import axis_sizes, make_mesh
from hloscope.program.target import TargetFacts

_DECIDED = ("mesh", "args", "kwargs", "out", "static", "donate", "dims", "axis_types")
"""What a traced program has settled."""


def is_traced_already(target: object) -> bool:
    """Whether it is a program that JAX traced, or lowered as well."""
    return isinstance(target, jax.stages.Lowered | jax.stages.Traced)


def lowered_already(target: Any, facts: TargetFacts, *, is_for_tpu: bool) -> tuple[jax.stages.Lowered, Any]:
    """A program that JAX traced already, as it is lowered, and as it was traced, where that is kept.

    Args:
        target: The program.
        facts: What is said of it.
        is_for_tpu: Whether it is to be compiled for a TPU slice.

    Raises:
        TargetError: Something is said of it that only a function can obey.
    """
    refuse_what_is_decided(target, facts)
    if isinstance(target, jax.stages.Lowered):
        return target, None
    return (target.lower(lowering_platforms=("tpu",)) if is_for_tpu else target.lower()), target


def refuse_what_is_decided(target: object, facts: TargetFacts) -> None:
    """Refuses, beside what JAX traced already, what only a function can obey.

    Raises:
        TargetError: It is said.
    """
    for name in _DECIDED:
        value = getattr(facts, name)
        if value is not None and value != {}:
            kind = type(target).__name__
            raise TargetError(
                f"{name} does not go with a jax.stages.{kind}",
                why="JAX traced it already, with its own arguments and their shardings",
                fix=f"leave {name} out, or give the function itself",
            )


def mesh_of(shardings: Sequence[Any]) -> jax.sharding.Mesh | None:
    """A mesh with the axes of the abstract one that shardings name; None where they name none."""
    found = _abstract_mesh(shardings)
    return None if found is None else make_mesh(axis_sizes(found), dict.fromkeys(found.axis_names, "auto"))


def _abstract_mesh(shardings: Sequence[Any]) -> Any:
    meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
    return next((mesh for mesh in meshes if isinstance(mesh, jax.sharding.AbstractMesh) and mesh.axis_names), None)


def slice_of_devices(devices: Sequence[Any]) -> Slice | None:
    """The TPU slice that devices of a topology, or attached ones, are; None where they are none."""
    if not devices or getattr(devices[0], "platform", None) != "tpu":
        return None
    kind = str(devices[0].device_kind)
    chip = next((chip for chip in CHIPS if chip.device_kind == kind), None)
    if chip is None:
        return None
    places = {tuple(device.coords) for device in devices}
    edges = tuple(max(at) - min(at) + 1 for at in zip(*places, strict=True))
    shape = next((shape for shape in slice_shapes(chip) if (*shape, 1, 1)[:3] == (*edges, 1, 1)[:3]), None)
    found = None if shape is None else Slice(chip=chip, shape=shape)
    return found if found is not None and found.device_count == len(devices) else default_slice(len(devices), chip.name)


def as_function(target: Any, facts: TargetFacts) -> tuple[Callable[..., Any], TargetFacts]:
    """A target as a function with arguments, where it is an exported program, a Flax module or one of its methods.

    Raises:
        MeshError: An exported program is for another number of devices than the mesh has.
    """
    if isinstance(target, export.Exported):
        return _exported(target, facts)
    holder = target.__self__ if isinstance(target, MethodType) else target
    if not _is_nnx_module(holder):
        return target, facts
    from flax import nnx

    function = nnx.jit(target.__func__ if isinstance(target, MethodType) else type(target).__call__)
    args, donate = facts.args, facts.donate
    given: Any = partial(_with_module, holder, args) if callable(args) else (holder, *(args or ()))
    return function, replace(facts, args=given, donate=None if donate is None else tuple(at + 1 for at in donate))


def _with_module(holder: Any, args: Callable[[], Any]) -> tuple[Any, ...]:
    made = args()
    return (holder, *(made if isinstance(made, tuple | list) else (made,)))


def _is_nnx_module(value: object) -> bool:
    """Whether it is a module of Flax NNX; asks no other object to import Flax."""
    bases = type(value).__mro__
    return any(base.__name__ == "Module" and base.__module__.startswith("flax.nnx") for base in bases)


def _exported(target: export.Exported, facts: TargetFacts) -> tuple[Callable[..., Any], TargetFacts]:
    """The call of an exported program, with arguments that are sharded as it was exported."""
    for name in ("args", "kwargs", "out", "static", "dims"):
        value = getattr(facts, name)
        if value is not None and value != {}:
            raise TargetError(
                f"{name} does not go with a jax.export.Exported",
                why="it was exported with its own arguments and their shardings",
                fix=f"leave {name} out, or give the function itself",
            )
    mesh = facts.mesh or _abstract_mesh(getattr(target, "_in_named_shardings", None) or ())
    if mesh is None and target.nr_devices > 1:
        raise MeshError(
            f"the exported program is for {target.nr_devices} devices, and nothing names its mesh",
            fix=f"give the mesh that it was exported with, such as --mesh X={target.nr_devices}",
        )
    if mesh is not None and not isinstance(mesh, jax.sharding.Mesh):
        sizes = axis_sizes(mesh) if hasattr(mesh, "axis_names") else dict(mesh)
        mesh = make_mesh(sizes, dict.fromkeys(sizes, "auto"))
    if mesh is not None and mesh.size != target.nr_devices:
        raise MeshError(f"the exported program is for {target.nr_devices} devices, and the mesh has {mesh.size}")
    shardings = target.in_shardings_jax(mesh) if mesh is not None else [None] * len(target.in_avals)
    leaves = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(target.in_avals, shardings, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(target.in_tree, leaves)
    made = jax.jit(target.call)
    return made, replace(facts, mesh=mesh, args=tuple(args), kwargs=kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFacts:
    """What a `jax.stages.Compiled` says of itself.

    Attributes:
        name: Its function's name.
        text: Its HLO text.
        mesh: The sizes of its mesh's axes by name; empty where it has none.
        slice: The slice that it is compiled for, `cpu:8` for CPU devices; None for devices of another kind.
    """

    name: str
    text: str
    mesh: dict[str, int]
    slice: str | None


def compiled_facts(target: Any) -> CompiledFacts:
    """What a `jax.stages.Compiled` says of itself.

    Raises:
        TargetError: It has no text, as one that is loaded from elsewhere may have none.
    """
    text = target.as_text()
    if not text:
        raise TargetError("the compiled program has no HLO text", fix="give the function, or what lower() made of it")
    shardings = jax.tree.leaves((target.input_shardings, target.output_shardings))
    named = (one.mesh for one in shardings if isinstance(one, jax.sharding.NamedSharding) and one.mesh.size > 1)
    mesh = next(named, None)
    devices: set[Any] = max((one.device_set for one in shardings), key=len, default=set())
    chosen = slice_of_devices(sorted(devices, key=lambda device: int(device.id)))
    module, on_cpu = _MODULE.match(text), {device.platform for device in devices} == {"cpu"}
    return CompiledFacts(
        name=module["name"] if module else "compiled program",
        text=text,
        mesh={} if mesh is None else axis_sizes(mesh),
        slice=chosen.name if chosen is not None else f"cpu:{len(devices)}" if on_cpu else None,
    )


_MODULE = re.compile(r"HloModule (?:jit_)?(?P<name>[\w.-]+?),")
