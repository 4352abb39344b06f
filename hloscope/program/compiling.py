"""The stage `Target -> Capture`: trace on simulated devices, have it compiled for the slice, keep what that says.

Nothing here loads libtpu or runs a compiler: that is asked of `hloscope.compiler`, whose workers are processes of their
own. Only what is compiled for the very devices of this process is compiled in it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from hloscope.compiler import client, jax_internals, libtpu
from hloscope.compiler.cache import CompileCache, Kept, kept_as
from hloscope.compiler.diagnostics import compiler_errors
from hloscope.compiler.jax_internals import LoweredFacts, op_sharding, partition_spec
from hloscope.compiler.model import Compiled, Layout, Program
from hloscope.compiler.placing import require_libtpu
from hloscope.compiler.shardy_model import ShardyModule
from hloscope.compiler.step import compiled_by
from hloscope.errors import MeshError, TimeLimitError
from hloscope.hardware.overrides import overridden
from hloscope.hardware.slices import Slice
from hloscope.program.arguments import argument_letters
from hloscope.program.capture import Capture, CapturedArray, CapturedMesh
from hloscope.program.lowering import lower, watched_backend
from hloscope.program.notation import short_dtype
from hloscope.program.plan import Plan, axis_kinds, axis_sizes, choose_slice, make_plan, users_mesh
from hloscope.program.several_slices import slices_of_own_mesh, slices_per_axis
from hloscope.program.surroundings import stop_where_interrupted
from hloscope.program.target import TargetFacts
from hloscope.store import Store

Stage = Callable[[str], None]
_EXPANDED = re.compile(r"\bstablehlo\.(fft|reduce_window)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A function that is traced and lowered for a slice, and not compiled yet.

    Attributes:
        name: Its name in messages.
        facts: How it is called and placed.
        plan: The mesh it was traced under, and the notes made so far.
        lowered: What JAX made of it.
        seen: The flat facts of that.
        mesh: The mesh to report.
        slice: What it is to be compiled for.
        slice_chosen_by: `user` or `default`.
    """

    name: str
    facts: TargetFacts
    plan: Plan
    lowered: jax.stages.Lowered
    seen: jax_internals.LoweredFacts
    mesh: jax.sharding.Mesh | None
    slice: Slice
    slice_chosen_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A traced program whose compile has begun, or is not needed.

    Attributes:
        program: The program.
        versions: Of all that takes part.
        cache: Where the compile is kept.
        kept: What it is kept as; None where it is not.
        found: What an earlier compile made of it.
        question: What a worker is doing; None where an earlier compile was found, or this process is to compile.
    """

    program: Traced
    versions: Mapping[str, str]
    cache: CompileCache
    kept: Kept | None = None
    found: Compiled | None = None
    question: client.Question[Compiled] | None = None

    def capture(self, stage: Stage = lambda _: None) -> Capture:
        """Waits for the compile.

        Raises:
            HloscopeError: The compiler refuses the program, dies over it or takes too long.
        """
        found = self.found
        if found is None:
            found = _compiled_here(self.program) if self.question is None else self.question.answer()
            stage("asking Shardy for reasons")
            found = _explained(self.program, found)
            if self.kept is not None and found.is_whole:
                self.cache.put(self.kept, self.program.name, found)
        return _capture(self.program, found, self.versions)

    def drop(self) -> None:
        """Ends the compile that nobody waits for any more."""
        if self.question is not None:
            self.question.drop()


def _capture(program: Traced, found: Compiled, versions: Mapping[str, str]) -> Capture:
    facts, seen, chosen = program.facts, program.seen, program.slice
    letters = argument_letters(facts, len(seen.argument_names))
    return Capture(
        hlo_text=found.text,
        partitioned_text=found.partitioned,
        shardy=found.shardy,
        shardy_as_written=found.shardy_as_written,
        slice=chosen,
        slice_chosen_by=program.slice_chosen_by,
        used_devices=seen.device_count,
        mesh=_captured_mesh(program.mesh, seen),
        slice_of_partition=found.slice_of_partition or None,
        device_ids=found.device_ids or None,
        arguments=_argument_records(seen, found, program.mesh, program.plan.argument_shardings, letters),
        outputs=_output_records(seen, found, program.mesh),
        memory_bytes=found.memory_bytes,
        too_large=found.too_large,
        notes=(*program.plan.notes, *found.notes),
        diagnostics=found.diagnostics,
        versions=versions,
        allow=facts.allow,
        rule_options=facts.rule_options,
        kernel_costs=facts.kernel_costs,
    )


def capture(
    function: Callable[..., Any],
    facts: TargetFacts,
    *,
    name: str,
    stage: Stage = lambda _: None,
    store: Store | None = None,
) -> Capture:
    """Compiles a function for a slice that nobody needs to have.

    Args:
        function: The user's function, plain, jitted, shard_mapped or a factory.
        facts: How to call and place it.
        name: Its name in messages.
        stage: Told what is happening, for a progress display.
        store: Where compiles are kept, so that an unchanged program need not be compiled; None keeps none.

    Returns:
        The compiled text and everything the compiler says about it.

    Raises:
        HloscopeError: Bad input, JAX or the compiler refuses the program, or it takes too long.
    """
    return begin(function, facts, name=name, stage=stage, store=store).capture(stage)


def begin(
    function: Callable[..., Any],
    facts: TargetFacts,
    *,
    name: str,
    stage: Stage = lambda _: None,
    store: Store | None = None,
) -> Pending:
    """Traces a function and has its compile started, for `capture` and for those who have several compiled at once.

    Raises:
        HloscopeError: Bad input, or JAX refuses the program.
    """
    return started(traced(function, facts, name=name, stage=stage, store=store), stage=stage, store=store)


def started(program: Traced, *, stage: Stage = lambda _: None, store: Store | None = None) -> Pending:
    """Has the compile of a traced program started.

    Raises:
        HloscopeError: There is no compiler for its slice.
    """
    require_libtpu(program.slice)
    versions = _versions(program.slice)
    stage(f"compiling for {program.slice.name}")
    if _must_be_here(program):
        return Pending(program=program, versions=versions, cache=CompileCache(None))
    asked = _asked(program)
    cache = CompileCache(None if "xla_dump_to" in asked.options else store)
    kept, found = None, None
    if cache.keeps:
        lowered = program.lowered
        kept = kept_as(asked, lowered.as_text(), lowered.as_text(debug_info=True), versions)
        found = cache.get(kept, program.name)
    question = None
    if found is None:
        stop_where_interrupted()
        question = client.compile_program(asked, name=program.name, timeout_s=program.facts.timeout_s)
    return Pending(program=program, versions=versions, cache=cache, kept=kept, found=found, question=question)


def traced(
    function: Callable[..., Any], facts: TargetFacts, *, name: str, stage: Stage = lambda _: None, store: Store | None
) -> Traced:
    """Traces and lowers a function for the slice that its facts name, or the one that fits.

    Raises:
        HloscopeError: Bad input, or JAX refuses the program.
    """
    plan = make_plan(facts)
    stage("tracing")
    with watched_backend([] if plan.is_real else plan.notes):
        lowered = lower(function, facts, plan, name, store)
    seen = jax_internals.lowered_facts(lowered)
    mesh = users_mesh(plan, seen)
    chosen, chosen_by = choose_slice(plan, mesh, seen.device_count)
    return Traced(
        name=name,
        facts=facts,
        plan=plan,
        lowered=lowered,
        seen=seen,
        mesh=mesh,
        slice=overridden(chosen, facts.chip_overrides or ()),
        slice_chosen_by=chosen_by,
    )


def _must_be_here(program: Traced) -> bool:
    """Whether only this process can compile the program: it has the devices, or the functions that it calls back."""
    return program.slice.is_attached or (
        program.slice.chip is None and jax_internals.has_host_callbacks(program.lowered)
    )


def _compiled_here(program: Traced) -> Compiled:
    """Compiles for the devices of this process, in it."""
    from hloscope.compiler.jax_internals import executable_of, no_persistent_cache

    def executable(dumping: Mapping[str, Any]) -> Any:
        with no_persistent_cache():
            return executable_of(program.lowered.compile(compiler_options=dict(dumping)))

    with compiler_errors(program.slice):
        found = compiled_by(executable, program.facts.compiler_options)
    why = "the devices are" if program.slice.is_attached else "the Python functions that it calls back live"
    note = f"compiled in this process, where {why}: a compiler that dies would end it"
    return replace(found, notes=(*found.notes, note))


def _asked(program: Traced) -> Program:
    """What the compiler is told of a program."""
    return Program(
        module=jax_internals.bytecode(program.lowered),
        settings=jax_internals.compile_options(program.lowered, program.facts.compiler_options),
        options=_options(program.facts.compiler_options),
        slice=program.slice,
        layout=_layout(program),
    )


def _options(options: Mapping[str, str]) -> dict[str, str]:
    """The user's XLA options, for a process that may have another working directory."""
    found = dict(options)
    folder = found.get("xla_dump_to")
    if folder and "://" not in folder and folder != "-":
        found["xla_dump_to"] = os.path.abspath(folder)
    return found


def _explained(program: Traced, found: Compiled) -> Compiled:
    """With what Shardy says; where that takes too long, or is killed, the compile does without, and is not kept."""
    notes: list[str] = []
    shardy, as_written, is_whole = None, None, found.is_whole
    try:
        shardy, as_written, is_final = _asked_of_shardy(program, found, notes)
        is_whole = is_whole and is_final
    except TimeLimitError as error:
        notes.append(f"{error.what}: reasons are missing")
        is_whole = False
    return replace(
        found,
        shardy=shardy or as_written,
        shardy_as_written=None if shardy is None else as_written,
        before_propagation=None,
        notes=tuple(dict.fromkeys((*found.notes, *notes))),
        is_whole=is_whole,
    )


def _asked_of_shardy(
    program: Traced, found: Compiled, notes: list[str]
) -> tuple[ShardyModule | None, ShardyModule | None, bool]:
    """What Shardy says of the compiler's own module, where that keeps source lines, and of the lowered one.

    The last is whether it would say the same again.

    Of the lowered one where there is no other, and where it has operations that the compiler expands into others before
    it partitions.
    """
    limit, shardy, is_final = program.facts.timeout_s, None, True
    if found.before_propagation is not None and program.slice.chip is not None:
        shardy, is_final = client.propagate(found.before_propagation, "compiler", notes, timeout_s=limit)
        if shardy is not None and not any(op.source for op in shardy.ops):
            shardy = None
    as_written = None
    if shardy is None or _EXPANDED.search(program.lowered.as_text()):
        lowered = jax_internals.bytecode(program.lowered)
        as_written, is_final_too = client.propagate(lowered, "jax", notes, timeout_s=limit)
        is_final = is_final and is_final_too
    return shardy, as_written, is_final


def _layout(program: Traced) -> Layout:
    """Which device each partition is to run on."""
    seen, mesh, chosen = program.seen, program.mesh, program.slice
    if chosen.chip is None:
        return Layout(device_count=seen.device_count, simulated_ids=tuple(device.id for device in seen.devices) or None)
    if mesh is None or seen.device_count != mesh.size:
        return Layout(device_count=seen.device_count)
    position = {device.id: index for index, device in enumerate(mesh.devices.flat)}
    positions = tuple(position[device.id] for device in seen.devices)
    dcn_shape, simulated_ids = _across_slices(mesh, chosen, program.plan)
    return Layout(
        device_count=seen.device_count,
        mesh_shape=tuple(mesh.axis_sizes),
        dcn_shape=dcn_shape,
        simulated_ids=simulated_ids,
        positions=None if positions in ((), tuple(range(mesh.size))) else positions,
    )


def _across_slices(
    mesh: jax.sharding.Mesh, chosen: Slice, plan: Plan
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """How many slices each axis spans, or else, for a mesh of no regular arrangement, its simulated devices."""
    if chosen.slice_count == 1:
        if plan.dcn:
            raise MeshError(
                "--dcn needs a slice of several, such as 2*v5e:2x4", fix="drop --dcn, or name several slices"
            )
        return None, None
    if plan.axis_types is None and not plan.dcn:
        across = slices_of_own_mesh(mesh, chosen.slice_count)
        return across, None if across is not None else tuple(device.id for device in mesh.devices.flat)
    return slices_per_axis(axis_sizes(mesh), chosen.slice_count, plan.dcn, plan.notes), None


def _captured_mesh(mesh: jax.sharding.Mesh | None, seen: jax_internals.LoweredFacts) -> CapturedMesh | None:
    if mesh is None:
        return None
    partition = {device.id: index for index, device in enumerate(seen.devices)}
    ids = tuple(partition.get(device.id, index) for index, device in enumerate(mesh.devices.flat))
    return CapturedMesh(
        axis_names=tuple(str(name) for name in mesh.axis_names),
        axis_sizes=tuple(mesh.axis_sizes),
        axis_types=axis_kinds(mesh),
        partition_ids=None if ids == tuple(range(mesh.size)) else ids,
    )


def _versions(chosen: Slice) -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in ("jax", "jaxlib"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    compiler = libtpu.version() if chosen.chip is not None else None
    return found if compiler is None else {**found, "libtpu": compiler}


def _argument_records(
    seen: LoweredFacts,
    compiled: Compiled,
    mesh: jax.sharding.Mesh | None,
    given: Sequence[Any],
    letters: Sequence[tuple[str | None, ...] | None],
) -> tuple[CapturedArray, ...]:
    """One record per argument leaf; those that the program does not read have the sharding they were `given`."""
    dropped = list(given) if len(given) == len(seen.argument_names) else [None] * len(seen.argument_names)
    chosen = _op_shardings(compiled.parameter_shardings, len(seen.kept))
    kept = {index: (seen.in_shardings[at], chosen[at]) for at, index in enumerate(seen.kept)}
    return tuple(
        _record(
            name,
            aval,
            *kept.get(index, (dropped[index], None)),
            mesh=mesh,
            device_count=seen.device_count,
            donated=seen.donated[index],
            used=index in kept,
            letters=letters[index],
        )
        for index, (name, aval) in enumerate(zip(seen.argument_names, seen.argument_avals, strict=True))
    )


def _output_records(
    seen: LoweredFacts, compiled: Compiled, mesh: jax.sharding.Mesh | None
) -> tuple[CapturedArray, ...]:
    """One record per output leaf."""
    chosen = _op_shardings(compiled.output_shardings, len(seen.result_avals))
    rows = zip(seen.result_names, seen.result_avals, seen.out_shardings, chosen, strict=True)
    return tuple(
        _record(name, aval, asked, op_sharding, mesh=mesh, device_count=seen.device_count)
        for name, aval, asked, op_sharding in rows
    )


def _op_shardings(found: Sequence[bytes] | None, count: int) -> list[Any]:
    """The compiler's shardings for the last `count` leaves; tokens of ordered effects come before them."""
    shardings = [op_sharding(serialized) for serialized in found or ()]
    return shardings[-count:] if count and len(shardings) >= count else [None] * count


def _record(
    name: str,
    aval: Any,
    asked: Any,
    op_sharding: Any,
    *,
    mesh: jax.sharding.Mesh | None,
    device_count: int,
    donated: bool = False,
    used: bool = True,
    letters: tuple[str | None, ...] | None = None,
) -> CapturedArray:
    by_user = isinstance(asked, jax.sharding.Sharding)
    spec = None
    if isinstance(asked, jax.sharding.NamedSharding):
        spec, mesh = asked.spec, asked.mesh if isinstance(asked.mesh, jax.sharding.Mesh) else mesh
        if jax.sharding.PartitionSpec.UNCONSTRAINED in tuple(spec.partitions):  # explicit axes alone are decided
            spec, by_user = None, False
    if spec is None and op_sharding is not None and mesh is not None:
        spec = partition_spec(op_sharding, mesh)
    shape = tuple(aval.shape)
    local = None
    if spec is not None and mesh is not None:
        local = tuple(jax.sharding.NamedSharding(mesh, spec).shard_shape(shape))
    elif device_count == 1:
        local = shape
    return CapturedArray(
        name=name,
        dtype=short_dtype(str(aval.dtype)) or str(aval.dtype),
        global_shape=shape,
        local_shape=local,
        sharding=None if spec is None else _shown_spec(spec, len(shape)),
        asked=by_user,
        itemsize_bytes=int(aval.dtype.itemsize),
        donated=donated,
        used=used,
        letters=letters,
    )


def _shown_spec(spec: jax.sharding.PartitionSpec, rank: int) -> str:
    """`P('X', None, unreduced={'Y'})`: one entry for each dimension, as the user would write it."""
    partitions = tuple(spec.partitions)
    shown = [_entry(entry) for entry in (*partitions, *([None] * (rank - len(partitions))))]
    for name, axes in (("unreduced", spec.unreduced), ("reduced", spec.reduced)):
        if axes:
            shown.append(f"{name}={{{', '.join(map(repr, sorted(axes)))}}}")
    return f"P({', '.join(shown)})"


def _entry(entry: Any) -> str:
    if isinstance(entry, tuple):
        return repr(entry[0]) if len(entry) == 1 else "(" + ", ".join(repr(axis) for axis in entry) + ")"
    return "None" if entry is None else repr(entry)
