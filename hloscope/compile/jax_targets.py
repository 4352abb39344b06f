"""Targets that are JAX objects rather than functions: traced, lowered, exported or compiled programs.

Flax modules and their methods count too: their weights become arguments of the program instead of constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from types import MethodType
from typing import Any

import jax
from jax import export

from hloscope.base.calls import has_value
from hloscope.base.errors import MeshError, Option, TargetError, say
from hloscope.compile.arguments import check_donated
from hloscope.compile.devices import find_axis_sizes, make_mesh
from hloscope.compile.dumps import ModuleFacts
from hloscope.compile.meshes import check_array_meshes, find_abstract_mesh, find_axis_types, make_concrete_mesh
from hloscope.compile.step import read_memory_fields
from hloscope.compile.target import TargetFacts
from hloscope.model.capture import DeviceLayout
from hloscope.tpu.chips import find_chip_of_kind
from hloscope.tpu.generation import Chip
from hloscope.tpu.slices import Slice, list_shapes

_EXPORTED = ("args", "kwargs", "out", "static", "dims", "axis_types")
"""The options that an exported program has already decided."""
_TRACED = (*_EXPORTED, "mesh", "donate", "platform", "processes")
"""The options that a traced program has already decided; whatever in it asked for devices has seen JAX's own."""


def is_traced_already(target: object) -> bool:
    """Returns whether a target is a program that JAX has already traced, or lowered as well."""
    return isinstance(target, jax.stages.Lowered | jax.stages.Traced)


def lower_traced(target: Any, facts: TargetFacts, *, is_for_tpu: bool) -> tuple[jax.stages.Lowered, Any]:
    """Lowers a program that JAX has already traced, and returns it with its trace if that is kept.

    Args:
        target: The program.
        facts: Its options.
        is_for_tpu: Whether it will be compiled for a TPU slice.

    Raises:
        TargetError: An option is set that applies only to functions.
    """
    why = "JAX has already traced it, with its own arguments and their shardings"
    _refuse_facts(_TRACED, facts, f"jax.stages.{type(target).__name__}", why)
    if isinstance(target, jax.stages.Lowered):
        return target, None
    return (target.lower(lowering_platforms=("tpu",)) if is_for_tpu else target.lower()), target


def _refuse_facts(names: Sequence[str], facts: TargetFacts, kind: str, why: str) -> None:
    """Refuses options that apply only to functions.

    Raises:
        TargetError: One of these options is set.
    """
    name = next((name for name in names if has_value(getattr(facts, name))), None)
    if name is not None:
        fix = f"leave {name} out, or pass the function itself"
        raise TargetError(f"{name} cannot be combined with a {kind}", why=why, fix=fix)


def find_device_chip(devices: Sequence[Any]) -> Chip | None:
    """The TPU generation of attached devices or those of a topology; None for others."""
    if not devices or getattr(devices[0], "platform", None) != "tpu":
        return None
    return find_chip_of_kind(str(devices[0].device_kind))


def find_device_slice(devices: Sequence[Any]) -> Slice | None:
    """The TPU slice, or slices, formed by attached devices or those of a topology; None if they form none."""
    chip = find_device_chip(devices)
    if chip is None:
        return None
    slices: dict[int, set[tuple[int, ...]]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", None) or 0, set()).add(tuple(device.coords))
    blocks = {tuple(max(at) - min(at) + 1 for at in zip(*places, strict=True)) for places in slices.values()}
    if len(blocks) != 1:
        return None
    (edges,) = blocks
    shape = next((shape for shape in list_shapes(chip) if (*shape, 1, 1)[:3] == (*edges, 1, 1)[:3]), None)
    found = None if shape is None else Slice(chip=chip, shape=shape, slice_count=len(slices))
    return found if found is not None and found.device_count == len(devices) else None


def find_device_layout(devices: Sequence[Any]) -> DeviceLayout | None:
    """The device of each partition of a program for devices of a topology; None for others."""
    if find_device_chip(devices) is None:
        return None
    ordered = sorted(devices, key=lambda device: (getattr(device, "slice_index", None) or 0, device.id))
    place = {device: at for at, device in enumerate(ordered)}
    return DeviceLayout(device_count=len(devices), simulated_ids=tuple(place[device] for device in devices))


def convert_to_function(target: Any, facts: TargetFacts) -> tuple[Callable[..., Any], TargetFacts]:
    """Converts an exported program, a Flax module or one of its methods to a function with arguments.

    Raises:
        MeshError: An exported program is for another number of devices than the mesh has.
    """
    if isinstance(target, export.Exported):
        return _convert_exported(target, facts)
    holder = target.__self__ if isinstance(target, MethodType) else target
    if not _is_nnx_module(holder):
        return target, facts
    from flax import nnx

    function = nnx.jit(target.__func__ if isinstance(target, MethodType) else type(target).__call__)
    args, donate = facts.args, facts.donate
    if not callable(args):
        check_donated(donate, args or ())
    given: Any = partial(_prepend_module, holder, args) if callable(args) else (holder, *(args or ()))
    return function, replace(facts, args=given, donate=None if donate is None else tuple(at + 1 for at in donate))


def _prepend_module(holder: Any, args: Callable[[], Any]) -> tuple[Any, ...]:
    made = args()
    return (holder, *(made if isinstance(made, tuple | list) else (made,)))


def _is_nnx_module(value: object) -> bool:
    """Returns whether a value is a Flax NNX module; does not import Flax for any other object."""
    bases = type(value).__mro__
    return any(base.__name__ == "Module" and base.__module__.startswith("flax.nnx") for base in bases)


def _convert_exported(target: export.Exported, facts: TargetFacts) -> tuple[Callable[..., Any], TargetFacts]:
    """The call of an exported program, with arguments sharded as it was exported.

    Raises:
        MeshError: Its mesh is not named, or another mesh was given.
    """
    why = "it was exported with its own arguments and their shardings"
    _refuse_facts(_EXPORTED, facts, "jax.export.Exported", why)
    own = tuple(getattr(target, "_in_named_shardings", None) or ())
    mesh = _find_exported_mesh(target, facts, find_abstract_mesh(own))
    if mesh is not None and mesh.size != target.nr_devices:
        raise MeshError(f"the exported program is for {target.nr_devices} devices, but the mesh has {mesh.size}")
    check_array_meshes(mesh, ((f"argument {at} of the exported program", one) for at, one in enumerate(own)))
    try:
        shardings = target.in_shardings_jax(mesh) if mesh is not None else [None] * len(target.in_avals)
    except ValueError as error:
        fix = "pass the mesh that it was exported with"
        raise MeshError("the exported program is for a different mesh", why=str(error), fix=fix) from error
    leaves = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(target.in_avals, shardings, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(target.in_tree, leaves)
    made = jax.jit(target.call)
    return made, replace(facts, mesh=mesh, args=tuple(args), kwargs=kwargs)


def _find_exported_mesh(target: export.Exported, facts: TargetFacts, own: Any) -> jax.sharding.Mesh | None:
    """The mesh to call an exported program under; a mesh given by names gets the axis types of the program's own."""
    mesh = facts.mesh or own
    if mesh is None and target.nr_devices > 1:
        raise MeshError(
            f"the exported program is for {target.nr_devices} devices, but its mesh is unknown",
            fix=say("pass the mesh that it was exported with, such as ", Option("mesh", {"X": target.nr_devices})),
        )
    if mesh is None or isinstance(mesh, jax.sharding.Mesh):
        return mesh
    if not isinstance(mesh, Mapping):
        return make_concrete_mesh(mesh)
    kinds = dict(zip(own.axis_names, find_axis_types(own), strict=True)) if own is not None else {}
    return make_mesh(mesh, {name: kinds.get(name, "auto") for name in mesh})


_OTHER_TEMPORARIES = (
    "temporaries are those of memory_analysis(); the buffer assignment, which decides whether a program fits, is known "
    "for a function and for the result of lower()"
)


def read_compiled_facts(target: Any) -> tuple[str, str, dict[str, int], ModuleFacts]:
    """Reads the facts that a `jax.stages.Compiled` reports about itself.

    Returns:
        Its function's name, its HLO text, the sizes of its mesh's axes by name, and the facts that its text lacks.

    Raises:
        TargetError: It has no text, which can happen if it was loaded from elsewhere.
    """
    text = target.as_text()
    if not text:
        raise TargetError("the compiled program has no HLO text", fix="pass the function, or the result of lower()")
    shardings = jax.tree.leaves((target.input_shardings, target.output_shardings))
    named = (each.mesh for each in shardings if isinstance(each, jax.sharding.NamedSharding))
    mesh = next((mesh for mesh in named if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1), None)
    devices: set[Any] = max((each.device_set for each in shardings), key=len, default=set())
    ordered = tuple(devices) if mesh is None else tuple(mesh.devices.flat)  # partitions are in the order of the mesh
    slices = [getattr(device, "slice_index", None) or 0 for device in ordered]
    if mesh is not None and len(list(groupby(slices))) > len(set(slices)):
        raise TargetError(
            "the compiled program's mesh interleaves the devices of several slices, which its text does not show",
            fix="pass the function, or the result of lower()",
        )
    on_cpu, module = {device.platform for device in devices} == {"cpu"}, _MODULE.match(text)
    chosen = Slice(shape=(len(devices),)) if on_cpu else find_device_slice(ordered)
    known = ModuleFacts(
        said_by="compiled",
        slice=chosen,
        notes=(_OTHER_TEMPORARIES,) if chosen is not None and chosen.chip is not None else (),
        device_ids=tuple(int(device.id) for device in ordered) if mesh is not None and not on_cpu else (),
        memory_bytes=read_memory_fields(target.memory_analysis()),
    )
    name = module["name"] if module else "compiled program"
    return name, text, {} if mesh is None else find_axis_sizes(mesh), known


_MODULE = re.compile(r"HloModule (?:jit_)?(?P<name>[\w.-]+?),")
