"""The stage `Target -> Capture`: trace on simulated devices, compile for the slice, keep what the compiler says."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import jax

from hloscope.errors import CompileError, HloscopeError, MeshError, TraceError
from hloscope.hardware.slices import Slice, default_slice, parse_slice
from hloscope.program import devices, jax_internals, leaves
from hloscope.program.backend_watch import watched_backend
from hloscope.program.capture import Capture, CapturedMesh
from hloscope.program.compiler_errors import compiler_errors
from hloscope.program.notation import parse_axis_types
from hloscope.program.quiet import captured_stderr
from hloscope.program.target import TargetFacts
from hloscope.program.tracing import build_call, other_axis_types, trace_and_lower

Stage = Callable[[str], None]
_MEMORY_FIELD = re.compile(r"^(?!host_)\w+_in_bytes$")


@dataclass(slots=True)
class _Plan:
    """What is decided before tracing, and the notes taken on the way."""

    slice: Slice | None
    mesh: jax.sharding.Mesh | None
    axis_types: dict[str, str] | None
    notes: list[str] = field(default_factory=list)

    @property
    def is_real(self) -> bool:
        """Whether the program is compiled for the very devices that it is traced on."""
        return self.slice is not None and self.slice.chip is None


def capture(function: Callable[..., Any], facts: TargetFacts, *, name: str, stage: Stage = lambda _: None) -> Capture:
    """Compiles a function for a slice that nobody needs to have.

    Args:
        function: The user's function, plain, jitted, shard_mapped or a factory.
        facts: How to call and place it.
        name: Its name in messages.
        stage: Told what is happening, for a progress display.

    Returns:
        The compiled text and everything the compiler says about it.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    plan = _plan(facts)
    stage("tracing")
    with watched_backend([] if plan.is_real else plan.notes):
        lowered, mesh = _lowered(function, facts, plan, name)
    seen = jax_internals.lowered_facts(lowered)
    user_mesh = mesh or _mesh_of(seen)
    chosen, chosen_by = _slice_for(plan, user_mesh, seen.device_count)
    stage(f"compiling for {chosen.name}")
    with captured_stderr() as stderr:
        executable, text = _compiled(lowered, seen, chosen, user_mesh, facts, plan)
    diagnostics = stderr.diagnostics()
    return Capture(
        hlo_text=text,
        slice=chosen,
        slice_chosen_by=chosen_by,
        used_devices=seen.device_count,
        mesh=_captured_mesh(user_mesh, seen),
        arguments=leaves.arguments(seen, executable, user_mesh),
        outputs=leaves.outputs(seen, executable, user_mesh),
        memory_bytes=_memory(executable),
        notes=tuple(plan.notes),
        diagnostics=diagnostics,
        versions=_versions(chosen),
    )


def _plan(facts: TargetFacts) -> _Plan:
    chosen = parse_slice(facts.slice) if facts.slice else None
    if facts.mesh is None:
        current = jax.sharding.get_mesh()  # the user's module may have called jax.set_mesh
        own = None if current.empty else current
        return _Plan(slice=chosen, mesh=own, axis_types=None)
    if not isinstance(facts.mesh, Mapping):
        sizes = dict(zip(facts.mesh.axis_names, facts.mesh.axis_sizes, strict=True))
        kinds = dict(zip(sizes, _kinds(facts.mesh), strict=True))
        own = facts.mesh if isinstance(facts.mesh, jax.sharding.Mesh) else None
        return _Plan(slice=chosen, mesh=own or devices.make_mesh(sizes, kinds), axis_types=None)
    kinds = dict(parse_axis_types(facts.axis_types or "auto", tuple(facts.mesh)))
    _check_device_count(chosen, facts.mesh)
    real = None
    if chosen is not None and chosen.is_attached:
        real = jax.devices()[: prod(facts.mesh.values())]
    return _Plan(slice=chosen, mesh=devices.make_mesh(facts.mesh, kinds, real), axis_types=kinds)


def _check_device_count(chosen: Slice | None, mesh: Mapping[str, int]) -> None:
    count = prod(mesh.values())
    available = len(jax.devices()) if chosen is not None and chosen.is_attached else chosen and chosen.device_count
    if available is None or available == count:
        return
    shown = " x ".join(f"{axis}={size}" for axis, size in mesh.items())
    assert chosen is not None
    raise MeshError(
        f"the mesh has {count} devices and the slice {chosen.name} has {available}",
        why=f"{shown} = {count}",
        fix=f"use a mesh of {available} devices"
        + ("" if chosen.chip is None else f", or --slice {_fitting(count, chosen)}"),
    )


def _fitting(count: int, chosen: Slice) -> str:
    assert chosen.chip is not None
    return default_slice(count, chosen.chip.name).name


@contextlib.contextmanager
def _current(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        yield


def _lowered(
    function: Callable[..., Any], facts: TargetFacts, plan: _Plan, name: str
) -> tuple[jax.stages.Lowered, jax.sharding.Mesh | None]:
    try:
        return _lower(function, facts, plan.slice, plan.mesh, name)
    except TraceError as error:
        mode = _working_mode(function, facts, plan, name)
        if mode is None:
            raise
        used = "auto" if mode == "explicit" else "explicit"
        raise TraceError(
            error.what,
            where=error.where,
            excerpt=error.excerpt,
            why=f"{error.why}",
            fix=f"this program traces with --axis-types {mode}, and not with {used} mesh axes",
        ) from error


def _lower(
    function: Callable[..., Any], facts: TargetFacts, chosen: Slice | None, mesh: jax.sharding.Mesh | None, name: str
) -> tuple[jax.stages.Lowered, jax.sharding.Mesh | None]:
    simulated = chosen is None or chosen.chip is not None
    with _current(mesh):
        call = build_call(function, facts, mesh, name)
        if not simulated:
            return trace_and_lower(call, mesh, None), mesh
        client = devices.compile_only_devices(chosen or default_slice(8))[0].client
        with jax_internals.lowering_for(client):
            return trace_and_lower(call, mesh, "tpu"), mesh


def _working_mode(function: Callable[..., Any], facts: TargetFacts, plan: _Plan, name: str) -> str | None:
    """The other axis-types mode, if the program that failed in the one asked for traces in it."""
    for mode in other_axis_types(plan.axis_types or {}) if plan.axis_types else []:
        mesh = devices.make_mesh(facts.mesh, dict.fromkeys(facts.mesh, mode))
        with contextlib.suppress(HloscopeError), captured_stderr():
            _lower(function, facts, plan.slice, mesh, name)
            return mode
    return None


def _mesh_of(seen: jax_internals.LoweredFacts) -> jax.sharding.Mesh | None:
    """The mesh that a function brought along: the current one, or that of its shardings."""
    meshes = [getattr(sharding, "mesh", None) for sharding in (*seen.in_shardings, *seen.out_shardings)]
    for mesh in meshes:
        if isinstance(mesh, jax.sharding.Mesh) and mesh.size == seen.device_count > 1:
            return mesh
    current = jax.sharding.get_mesh()
    return current if isinstance(current, jax.sharding.Mesh) and current.size == seen.device_count > 1 else None


def _slice_for(plan: _Plan, mesh: jax.sharding.Mesh | None, device_count: int) -> tuple[Slice, str]:
    if mesh is not None and device_count < mesh.size:
        plan.notes.append(
            f"the program runs on {device_count} of the mesh's {mesh.size} devices: nothing is sharded over it"
        )
    if plan.slice is not None:
        if not plan.slice.is_attached and mesh is not None and plan.slice.device_count != mesh.size:
            _check_device_count(plan.slice, dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)))
        return plan.slice, "user"
    wanted = max(device_count, mesh.size if mesh is not None else 1)
    chosen = default_slice(wanted)
    if chosen.device_count > wanted:
        plan.notes.append(
            f"no {chosen.chip.name if chosen.chip else ''} block has {wanted} chips: compiled on {wanted} of the "
            f"{chosen.device_count} chips of {chosen.name}"
        )
    return chosen, "default"


def _compiled(
    lowered: jax.stages.Lowered,
    seen: jax_internals.LoweredFacts,
    chosen: Slice,
    mesh: jax.sharding.Mesh | None,
    facts: TargetFacts,
    plan: _Plan,
) -> tuple[Any, str]:
    options = dict(facts.compiler_options)
    if chosen.chip is None:
        with compiler_errors(chosen):
            executable = jax_internals.executable_of(lowered.compile(compiler_options=options))
            return executable, executable.hlo_modules()[0].to_string()
    physical = devices.compile_only_devices(chosen)
    assignment = physical[: seen.device_count]
    if mesh is not None and seen.device_count == mesh.size:
        sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        across = devices.slices_per_axis(sizes, chosen.slice_count, facts.dcn)
        laid_out = devices.arrange(mesh.axis_sizes, physical, across, plan.notes)
        position = {device.id: index for index, device in enumerate(mesh.devices.flat)}
        assignment = [laid_out[position[device.id]] for device in seen.devices] if seen.devices else laid_out
    with compiler_errors(chosen):
        executable = jax_internals.compile_for(lowered, assignment, options)
        try:
            return executable, executable.hlo_modules()[0].to_string()
        except jax.errors.JaxRuntimeError:
            return executable, _dumped_text(lowered, assignment, options)


def _dumped_text(lowered: jax.stages.Lowered, assignment: list[Any], options: Mapping[str, str]) -> str:
    """The final module from the compiler's dump, for text that this jaxlib cannot read back from its own compiler.

    Asynchronous calls with late operands are such text on jaxlib 0.10.
    """
    with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
        dump = {"xla_dump_to": folder, "xla_dump_hlo_as_text": "true", "xla_dump_hlo_as_long_text": "true"}
        jax_internals.compile_for(lowered, assignment, {**options, **dump})
        found = sorted(Path(folder).glob("*after_codegen.txt")) or sorted(Path(folder).glob("*after_optimizations.txt"))
        if not found:
            raise CompileError("the compiler wrote no final module", fix="report this with the program that shows it")
        return found[-1].read_text(encoding="utf-8")


def _memory(executable: Any) -> dict[str, int]:
    try:
        stats = executable.get_compiled_memory_stats()
    except (AttributeError, jax.errors.JaxRuntimeError):
        return {}
    names = [name for name in dir(stats) if _MEMORY_FIELD.match(name)]
    return {name: int(getattr(stats, name)) for name in names}


def _captured_mesh(mesh: jax.sharding.Mesh | None, seen: jax_internals.LoweredFacts) -> CapturedMesh | None:
    if mesh is None:
        return None
    partition = {device.id: index for index, device in enumerate(seen.devices)}
    ids = tuple(partition.get(device.id, index) for index, device in enumerate(mesh.devices.flat))
    return CapturedMesh(
        axis_names=tuple(str(name) for name in mesh.axis_names),
        axis_sizes=tuple(mesh.axis_sizes),
        axis_types=_kinds(mesh),
        partition_ids=None if ids == tuple(range(mesh.size)) else ids,
    )


def _kinds(mesh: Any) -> tuple[str, ...]:
    return tuple(str(kind).rpartition(".")[2].lower() for kind in mesh.axis_types)


def _versions(chosen: Slice) -> dict[str, str]:
    from importlib import metadata

    names = ("jax", "jaxlib", "libtpu") if chosen.chip is not None else ("jax", "jaxlib")
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
