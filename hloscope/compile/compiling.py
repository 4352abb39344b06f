"""The stage `Lowered -> Capture`: compiles a program for its slice and keeps the result.

Nothing here loads libtpu or runs a compiler: `hloscope.compile` does that, whose workers are processes of their
own. Only what is compiled for the very devices of this process is compiled in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from hloscope.base.errors import MeshError, Option, TimeLimitError, say
from hloscope.base.store import Store
from hloscope.compile import client, jax_private, jax_support
from hloscope.compile.arguments import find_argument_letters
from hloscope.compile.cache import CachedCompile, make_cached_compile, make_digest
from hloscope.compile.devices import find_axis_sizes
from hloscope.compile.importing import raise_if_interrupted
from hloscope.compile.jax_private import convert_op_sharding, parse_op_sharding
from hloscope.compile.lowering import Lowered
from hloscope.compile.meshes import MeshPlan, find_axis_types
from hloscope.compile.multislice import choose_slices_per_axis, find_slices_per_axis
from hloscope.compile.notation import find_short_dtype
from hloscope.compile.simulated_slice import orders_meshes_as
from hloscope.compile.step import require_libtpu, run_compile, translate_compiler_errors
from hloscope.model.capture import (
    EXPANDED_OPERATIONS,
    Capture,
    CapturedArray,
    CompiledProgram,
    CompileRequest,
    DeviceLayout,
    Mesh,
    format_spec,
)
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import Slice, override_chip

Stage = Callable[[str], None]

SOON_COMPILED_CHARS = 30_000
"""Length of a scheduled text up to which its machine code takes about as long as the start of another worker: measured
on programs of 5 to 110 kB for v5e, v5p and 7x, of which those of 26 kB and less were compiled within 1.9 s, beside 1.1
to 2.3 s for the imports of a new worker. A forked worker starts sooner; a limit for those was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCompile:
    """A lowered program whose compile has started or is not needed.

    Attributes:
        program: The program.
        versions: The versions of JAX, jaxlib and libtpu.
        kept: The cache entry of the compile; None if it is not cached.
        found: The result of an earlier compile, of the wanted stage or a later one; None without one.
        question: The running request to a worker; None if an earlier compile was found or this process compiles.
        asked: The request to send to a worker; None if this process compiles.
        wanted: The stage that is enough.
    """

    program: Lowered
    versions: Mapping[str, str]
    kept: CachedCompile | None = None
    found: CompiledProgram | None = None
    question: client.Question[CompiledProgram] | None = None
    asked: CompileRequest | None = None
    wanted: CompileStage = CompileStage.COMPILED

    def begun(self) -> PendingCompile:
        """The same compile, started in a worker if that is necessary."""
        if self.found is not None or self.asked is None or self.question is not None:
            return self
        raise_if_interrupted()
        name, limit = self.program.name, self.program.facts.timeout_s
        question = client.ask_compile(self.asked, name=name, timeout_s=limit, wanted=self.wanted)
        return replace(self, question=question)

    def capture(
        self,
        stage: Stage = lambda _: None,
        *,
        reasons: bool = True,
        is_enough: Callable[[Capture], bool] = lambda _: True,
        when_scheduled: Callable[[Capture], None] = lambda _: None,
    ) -> Capture:
        """Waits for the compile.

        Args:
            stage: Called with the name of each step.
            reasons: Whether to ask Shardy for the facts that reasons need; a compile without them is not cached.
            is_enough: Called with the scheduled program if that is wanted; after False, its machine code is awaited.
            when_scheduled: Called with the scheduled program if its machine code is awaited, and takes long.

        Raises:
            HloscopeError: The compiler refuses the program, dies over it or takes too long.
        """
        found = self.found
        if found is None:
            found = self._wait()
            try:
                goes_on = found.stage is CompileStage.SCHEDULED and not is_enough(self._describe(found))
                is_enough_now = found.stage is CompileStage.SCHEDULED and not goes_on and self._takes_long(found)
                if is_enough_now:  # ended before Shardy is asked, which may have to wait for this very worker
                    self.drop()
                if reasons:
                    stage("propagating shardings with Shardy")
                    found = _add_shardy(self.program, found)
                if goes_on and self._takes_long(found):
                    when_scheduled(self._describe(found))
                    stage("making machine code")
                found = found if is_enough_now else self._finish(found)
            except BaseException:
                self.drop()
                raise
            if reasons and self.kept is not None and found.is_whole:
                self.kept.put(found)
        elif found.stage is CompileStage.SCHEDULED and not is_enough(self._describe(found)):
            when_scheduled(self._describe(found))
            return replace(self, found=None, wanted=CompileStage.COMPILED).begun().capture(stage, reasons=reasons)
        return self._describe(found)

    def _wait(self) -> CompiledProgram:
        """The compiled program, or the scheduled one if that is enough."""
        if self.question is None:
            return _compile_here(self.program)
        is_first_enough = self.wanted is CompileStage.SCHEDULED
        return self.question.first_answer() if is_first_enough else self.question.answer()

    def _takes_long(self, found: CompiledProgram) -> bool:
        """Returns whether the machine code of a scheduled program takes longer than the start of another worker."""
        return self.question is not None and not self.question.is_answered and len(found.text) > SOON_COMPILED_CHARS

    def _finish(self, found: CompiledProgram) -> CompiledProgram:
        """The compiled program in place of the scheduled one."""
        if found.stage is CompileStage.COMPILED or self.question is None:
            return found
        compiled = self.question.answer()
        return replace(
            compiled,
            shardy=found.shardy,
            shardy_as_written=found.shardy_as_written,
            before_propagation=found.before_propagation,
            notes=tuple(dict.fromkeys((*compiled.notes, *found.notes))),
            is_whole=compiled.is_whole and found.is_whole,
        )

    def drop(self) -> None:
        """Stops a compile whose result is no longer needed."""
        if self.question is not None:
            self.question.drop()

    def _describe(self, found: CompiledProgram) -> Capture:
        digest = None
        if self.asked is not None and self.asked.slice.chip is not None:
            digest = make_digest(self.asked, found.text)
        return replace(_make_capture(self.program, found, self.versions), digest=digest)


def _make_capture(program: Lowered, found: CompiledProgram, versions: Mapping[str, str]) -> Capture:
    facts, seen, chosen = program.facts, program.seen, program.slice
    return Capture(
        compiled=found,
        slice=chosen,
        slice_chosen_by=program.slice_chosen_by,
        used_devices=seen.device_count,
        mesh=make_plain_mesh(program.mesh, seen),
        devices_per_slice=chosen.devices_per_slice if chosen.slice_count > 1 else None,
        arguments=_make_argument_records(program, found.parameter_shardings),
        outputs=_make_output_records(program, found.output_shardings),
        notes=(*program.plan.notes, *found.notes),
        versions=versions,
        allow=facts.allow,
        rule_options=facts.rule_options,
        kernel_costs=facts.kernel_costs,
    )


def make_array_records(program: Lowered) -> tuple[tuple[CapturedArray, ...], tuple[CapturedArray, ...]]:
    """The arguments and results of a program as JAX knows them, before anything is compiled."""
    return _make_argument_records(program, None), _make_output_records(program, None)


def start_compile(
    program: Lowered,
    *,
    stage: Stage = lambda _: None,
    store: Store | None = None,
    wanted: CompileStage = CompileStage.COMPILED,
) -> PendingCompile:
    """Starts the compile of a lowered program; takes the arguments and raises the errors of `prepare_compile`."""
    return prepare_compile(program, stage=stage, store=store, wanted=wanted).begun()


def prepare_compile(
    program: Lowered,
    *,
    stage: Stage = lambda _: None,
    store: Store | None = None,
    wanted: CompileStage = CompileStage.COMPILED,
) -> PendingCompile:
    """Looks for an earlier compile of a lowered program, and otherwise prepares a new one.

    Args:
        program: The program.
        stage: Called with the name of each step, for a progress display.
        store: The cache, so that an unchanged program is not compiled again; None for no cache.
        wanted: The stage that is enough.

    Raises:
        HloscopeError: There is no compiler for its slice, or an override of its chip's figures is invalid.
    """
    program = replace(program, slice=override_chip(program.slice, program.facts.chip_overrides or ()))
    require_libtpu(program.slice)
    versions = _find_versions(program.slice)
    stage(f"compiling for {program.slice.name}")
    calls_back = program.slice.chip is None and jax_private.has_host_callbacks(program.module)
    if program.slice.is_attached or calls_back:  # only this process has the devices or the Python functions
        return PendingCompile(program=program, versions=versions)
    asked = _make_request(program)
    kept, found = None, None
    if store is not None and "xla_dump_to" not in asked.options:
        kept = make_cached_compile(store, program.name, asked, versions)
        found = kept.get(wanted)
    return PendingCompile(program=program, versions=versions, kept=kept, found=found, asked=asked, wanted=wanted)


def _compile_here(program: Lowered) -> CompiledProgram:
    """Compiles the program in this process, for the devices of this process."""

    def executable(dumping: Mapping[str, Any]) -> Any:
        with jax_private.disable_persistent_cache():
            return program.module.compile(compiler_options=dict(dumping)).runtime_executable()

    with translate_compiler_errors(program.slice):
        found = run_compile(executable, program.facts.compiler_options)
    why = "its devices are attached" if program.slice.is_attached else "the Python functions that it calls back live"
    note = f"compiled in this process, where {why}: a crash of the compiler would end it"
    return replace(found, notes=(*found.notes, note))


def _make_request(program: Lowered) -> CompileRequest:
    """The request to the compiler for a program."""
    return CompileRequest(
        module=program.bytecode,
        settings=jax_private.make_compile_options(program.module, program.facts.compiler_options),
        options=_make_dump_folder_absolute(program.facts.compiler_options),
        slice=program.slice,
        layout=program.layout or _find_device_layout(program),
    )


def _make_dump_folder_absolute(options: Mapping[str, str]) -> Mapping[str, str]:
    """The user's XLA options with an absolute dump folder, because the worker may run in another directory."""
    folder = options.get("xla_dump_to")
    is_here = folder and "://" not in folder and folder != "-"
    return {**options, "xla_dump_to": os.path.abspath(folder)} if folder and is_here else options


def _add_shardy(program: Lowered, found: CompiledProgram) -> CompiledProgram:
    """Adds Shardy's output; without it, and without caching, if Shardy takes too long or its process is killed.

    Shardy gets the compiler's own module if that keeps source lines, and the lowered module if there is no other
    or if it has operations that the compiler expands into others before partitioning.
    """
    limit, notes = program.facts.timeout_s, list(found.notes)
    shardy, as_written, is_whole = None, None, found.is_whole
    try:
        if found.before_propagation is not None and program.slice.chip is not None:
            numbered = found.identities is not None
            compiled = found.before_propagation
            shardy, is_final = client.ask_propagation(compiled, "compiler", notes, timeout_s=limit, numbered=numbered)
            is_whole = is_whole and is_final
        if shardy is not None and not any(op.source for op in shardy.ops):
            shardy = None
        if shardy is None or EXPANDED_OPERATIONS.search(program.text):
            as_written, is_final = client.ask_propagation(program.bytecode, "jax", notes, timeout_s=limit)
            is_whole = is_whole and is_final
    except TimeLimitError as error:
        notes.append(say(error.what, ": the report gives no reasons"))
        shardy, as_written, is_whole = None, None, False
    return replace(
        found,
        shardy=shardy or as_written,
        shardy_as_written=None if shardy is None else as_written,
        before_propagation=None,
        notes=tuple(dict.fromkeys(notes)),
        is_whole=is_whole,
    )


def _find_device_layout(program: Lowered) -> DeviceLayout:
    """The device that each partition runs on, as far as the program decides it."""
    seen, mesh, chosen = program.seen, program.mesh, program.slice
    if chosen.chip is None:
        return DeviceLayout(
            device_count=seen.device_count, simulated_ids=tuple(device.id for device in seen.devices) or None
        )
    own = DeviceLayout(device_count=seen.device_count, simulated_ids=tuple(device.id for device in seen.devices))
    plan = program.plan
    asked = () if plan.mesh is None or plan.axis_types is None else tuple(plan.mesh.devices.flat)
    is_own = not plan.dcn and tuple(seen.devices) != asked
    if is_own and len(seen.devices) == chosen.device_count and orders_meshes_as(chosen):
        return own
    if mesh is None or seen.device_count != mesh.size:
        return DeviceLayout(device_count=seen.device_count)
    devices = seen.devices or tuple(mesh.devices.flat)
    dcn_shape = _find_dcn_shape(mesh, chosen, plan)
    if dcn_shape is None and chosen.slice_count > 1:
        return replace(own, simulated_ids=tuple(device.id for device in devices))
    position = {device.id: index for index, device in enumerate(mesh.devices.flat)}
    if not position.keys() >= {device.id for device in devices}:
        if plan.dcn:  # which could not be heeded
            raise MeshError(
                say("the devices of the program are not those of its mesh, so that ", Option("dcn"), " says nothing"),
                fix=say("leave ", Option("dcn"), " out: the program's own mesh decides what crosses DCN"),
            )
        return DeviceLayout(device_count=seen.device_count)
    positions = tuple(position[device.id] for device in devices)
    return DeviceLayout(
        device_count=seen.device_count,
        mesh_shape=tuple(mesh.axis_sizes),
        dcn_shape=dcn_shape,
        positions=None if positions == tuple(range(mesh.size)) else positions,
    )


def _find_dcn_shape(mesh: jax.sharding.Mesh, chosen: Slice, plan: MeshPlan) -> tuple[int, ...] | None:
    """The number of slices that each axis spans; None on one slice, and for a mesh without a regular arrangement."""
    if chosen.slice_count == 1:
        if plan.dcn:
            raise MeshError(
                say(Option("dcn"), " needs a slice of several, such as 2*v5e:2x4"),
                fix=say("drop ", Option("dcn"), ", or name several slices"),
            )
        return None
    if plan.axis_types is None and not plan.dcn:
        return find_slices_per_axis(mesh, chosen.slice_count)
    return choose_slices_per_axis(find_axis_sizes(mesh), chosen.slice_count, plan.dcn, plan.notes)


def make_plain_mesh(mesh: jax.sharding.Mesh | None, seen: jax_private.LoweredFacts) -> Mesh | None:
    """A mesh of JAX as plain data, with the partitions of the program's devices."""
    if mesh is None:
        return None
    partition = {device.id: index for index, device in enumerate(seen.devices)}
    ids = tuple(partition.get(device.id, index) for index, device in enumerate(mesh.devices.flat))
    return Mesh(
        axis_names=tuple(str(name) for name in mesh.axis_names),
        axis_sizes=tuple(mesh.axis_sizes),
        axis_types=find_axis_types(mesh),
        partition_ids=None if ids == tuple(range(mesh.size)) else ids,
    )


def _find_versions(chosen: Slice) -> dict[str, str]:
    packages = ("jax", "jaxlib", "libtpu") if chosen.chip is not None else ("jax", "jaxlib")
    found = {package: jax_support.find_package_version(package) for package in packages}
    return {package: version for package, version in found.items() if version is not None}


def _make_argument_records(program: Lowered, shardings: Sequence[bytes] | None) -> tuple[CapturedArray, ...]:
    """One record per argument leaf; arguments that the program does not read keep the sharding they were given."""
    seen, count = program.seen, len(program.seen.argument_names)
    given = program.argument_shardings if len(program.argument_shardings) == count else [None] * count
    letters = find_argument_letters(program.facts, count)
    chosen = _parse_op_shardings(shardings, len(seen.kept))
    kept = {index: (seen.in_shardings[at], chosen[at]) for at, index in enumerate(seen.kept)}
    return tuple(
        _make_record(
            program,
            name,
            aval,
            *kept.get(index, (given[index], None)),
            donated=seen.donated[index],
            used=index in kept,
            letters=letters[index],
        )
        for index, (name, aval) in enumerate(zip(seen.argument_names, seen.argument_avals, strict=True))
    )


def _make_output_records(program: Lowered, shardings: Sequence[bytes] | None) -> tuple[CapturedArray, ...]:
    """One record per output leaf."""
    seen = program.seen
    chosen = _parse_op_shardings(shardings, len(seen.result_avals))
    rows = zip(seen.result_names, seen.result_avals, seen.out_shardings, chosen, strict=True)
    return tuple(_make_record(program, *row) for row in rows)


def _parse_op_shardings(found: Sequence[bytes] | None, count: int) -> list[Any]:
    """The compiler's shardings for the last `count` leaves; tokens of ordered effects come before them."""
    shardings = [parse_op_sharding(serialized) for serialized in found or ()]
    return shardings[-count:] if count and len(shardings) >= count else [None] * count


def _make_record(
    program: Lowered, name: str, aval: Any, asked: Any, op_sharding: Any, **of_argument: Any
) -> CapturedArray:
    """One leaf, with the sharding that the user asked for, or otherwise the compiler's."""
    by_user, mesh, spec = isinstance(asked, jax.sharding.Sharding), program.mesh, None
    if isinstance(asked, jax.sharding.NamedSharding):
        spec, mesh = asked.spec, asked.mesh if isinstance(asked.mesh, jax.sharding.Mesh) else mesh
        if jax.sharding.PartitionSpec.UNCONSTRAINED in tuple(spec.partitions):  # explicit axes alone are decided
            spec, by_user = None, False
    if spec is None and op_sharding is not None and mesh is not None:
        spec = convert_op_sharding(op_sharding, mesh)
    shape, local = tuple(aval.shape), None
    if spec is not None and mesh is not None:
        local = tuple(jax.sharding.NamedSharding(mesh, spec).shard_shape(shape))
    elif program.seen.device_count == 1:
        local = shape
    return CapturedArray(
        name=name,
        dtype=find_short_dtype(str(aval.dtype)) or str(aval.dtype),
        global_shape=shape,
        local_shape=local,
        sharding=None if spec is None else _format_full_spec(spec, len(shape)),
        asked=by_user,
        itemsize_bytes=int(aval.dtype.itemsize),
        **of_argument,
    )


def _format_full_spec(spec: jax.sharding.PartitionSpec, rank: int) -> str:
    """A spec as the user would write it, with one entry for each dimension."""
    entries = [*spec.partitions, *([None] * (rank - len(spec.partitions)))]
    axes = [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in entries]
    return format_spec(axes, unreduced=sorted(spec.unreduced), reduced=sorted(spec.reduced))
