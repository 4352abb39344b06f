"""The stage `Lowered -> Capture`: have a program compiled for its slice, and keep what that says.

Nothing here loads libtpu or runs a compiler: that is asked of `hloscope.compiler`, whose workers are processes of their
own. Only what is compiled for the very devices of this process is compiled in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from hloscope.compiler import client, jax_internals, libtpu
from hloscope.compiler.cache import Kept, kept_in
from hloscope.compiler.diagnostics import compiler_errors
from hloscope.compiler.jax_internals import op_sharding, partition_spec
from hloscope.compiler.model import Compiled, Layout, Program
from hloscope.compiler.placing import require_libtpu
from hloscope.compiler.shardy_model import EXPANDED
from hloscope.compiler.step import compiled_by
from hloscope.errors import MeshError, TimeLimitError
from hloscope.messages import Option, say
from hloscope.program.arguments import argument_letters
from hloscope.program.capture import Capture, CapturedArray, Mesh, spec_text
from hloscope.program.devices import axis_sizes
from hloscope.program.lowering import Lowered
from hloscope.program.notation import short_dtype
from hloscope.program.plan import Plan, axis_kinds
from hloscope.program.several_slices import slices_of_own_mesh, slices_per_axis
from hloscope.program.stand_ins import orders_meshes_as
from hloscope.program.surroundings import stop_where_interrupted
from hloscope.store import Store
from hloscope.tpu.overrides import override_chip
from hloscope.tpu.slices import Slice

Stage = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A lowered program whose compile has begun, or is not needed.

    Attributes:
        program: The program.
        versions: Of all that takes part.
        kept: Where the compile is kept; None where it is not.
        found: What an earlier compile made of it.
        question: What a worker is doing; None where an earlier compile was found, or this process is to compile.
        asked: What a worker is to be asked; None where this process is to compile.
    """

    program: Lowered
    versions: Mapping[str, str]
    kept: Kept | None = None
    found: Compiled | None = None
    question: client.Question[Compiled] | None = None
    asked: Program | None = None

    def begun(self) -> Pending:
        """The same, a worker compiling it where that is needed."""
        if self.found is not None or self.asked is None or self.question is not None:
            return self
        stop_where_interrupted()
        name, limit = self.program.name, self.program.facts.timeout_s
        return replace(self, question=client.compile_program(self.asked, name=name, timeout_s=limit))

    def capture(self, stage: Stage = lambda _: None, *, reasons: bool = True) -> Capture:
        """Waits for the compile.

        Args:
            stage: Called with what is happening.
            reasons: Whether Shardy is asked for what reasons are found by; a compile without is not kept.

        Raises:
            HloscopeError: The compiler refuses the program, dies over it or takes too long.
        """
        found = self.found
        if found is None:
            found = _compiled_here(self.program) if self.question is None else self.question.answer()
            if not reasons:
                return _capture(self.program, found, self.versions)
            stage("propagating shardings with Shardy")
            found = _explained(self.program, found)
            if self.kept is not None and found.is_whole:
                self.kept.put(found)
        return _capture(self.program, found, self.versions)

    def drop(self) -> None:
        """Ends the compile that nobody waits for any more."""
        if self.question is not None:
            self.question.drop()


def _capture(program: Lowered, found: Compiled, versions: Mapping[str, str]) -> Capture:
    facts, seen, chosen = program.facts, program.seen, program.slice
    return Capture(
        compiled=found,
        slice=chosen,
        slice_chosen_by=program.slice_chosen_by,
        used_devices=seen.device_count,
        mesh=reported_mesh(program.mesh, seen),
        devices_per_slice=chosen.devices_per_slice if chosen.slice_count > 1 else None,
        arguments=_argument_records(program, found.parameter_shardings),
        outputs=_output_records(program, found.output_shardings),
        notes=(*program.plan.notes, *found.notes),
        versions=versions,
        allow=facts.allow,
        rule_options=facts.rule_options,
        kernel_costs=facts.kernel_costs,
    )


def arrays_of(program: Lowered) -> tuple[tuple[CapturedArray, ...], tuple[CapturedArray, ...]]:
    """The arguments and the results of a program as JAX has them, before anything is compiled."""
    return _argument_records(program, None), _output_records(program, None)


def start_compile(program: Lowered, *, stage: Stage = lambda _: None, store: Store | None = None) -> Pending:
    """Has the compile of a lowered program started; arguments and errors as of `prepare_compile`."""
    return prepare_compile(program, stage=stage, store=store).begun()


def prepare_compile(program: Lowered, *, stage: Stage = lambda _: None, store: Store | None = None) -> Pending:
    """Looks for an earlier compile of a lowered program, and makes a new one ready.

    Args:
        program: The program.
        stage: Called with what is happening, for a progress display.
        store: Where compiles are kept, so that an unchanged program need not be compiled; None keeps none.

    Raises:
        HloscopeError: There is no compiler for its slice, or a figure given for its chip is not one.
    """
    program = replace(program, slice=override_chip(program.slice, program.facts.chip_overrides or ()))
    require_libtpu(program.slice)
    versions = _versions(program.slice)
    stage(f"compiling for {program.slice.name}")
    if _must_be_here(program):
        return Pending(program=program, versions=versions)
    asked = _asked(program)
    kept, found = None, None
    if store is not None and "xla_dump_to" not in asked.options:
        texts = program.texts
        kept = kept_in(store, program.name, asked, texts.plain, texts.located, versions)
        found = kept.get()
    return Pending(program=program, versions=versions, kept=kept, found=found, asked=asked)


def _must_be_here(program: Lowered) -> bool:
    """Whether only this process can compile the program: it has the devices, or the functions that it calls back."""
    return program.slice.is_attached or (
        program.slice.chip is None and jax_internals.has_host_callbacks(program.module)
    )


def _compiled_here(program: Lowered) -> Compiled:
    """Compiles for the devices of this process, in it."""

    def executable(dumping: Mapping[str, Any]) -> Any:
        with jax_internals.no_persistent_cache():
            return program.module.compile(compiler_options=dict(dumping)).runtime_executable()

    with compiler_errors(program.slice):
        found = compiled_by(executable, program.facts.compiler_options)
    why = "its devices are attached" if program.slice.is_attached else "the Python functions that it calls back live"
    note = f"compiled in this process, where {why}: a crash of the compiler would end it"
    return replace(found, notes=(*found.notes, note))


def _asked(program: Lowered) -> Program:
    """What the compiler is asked, for a program."""
    return Program(
        module=program.bytecode,
        settings=jax_internals.compile_options(program.module, program.facts.compiler_options),
        options=_options(program.facts.compiler_options),
        slice=program.slice,
        layout=program.layout or _layout(program),
    )


def _options(options: Mapping[str, str]) -> Mapping[str, str]:
    """The user's XLA options, for a process that may have another working directory."""
    folder = options.get("xla_dump_to")
    is_here = folder and "://" not in folder and folder != "-"
    return {**options, "xla_dump_to": os.path.abspath(folder)} if folder and is_here else options


def _explained(program: Lowered, found: Compiled) -> Compiled:
    """With what Shardy says; where that takes too long, or is killed, the compile does without, and is not kept.

    It is asked of the compiler's own module, where that keeps source lines; of the lowered one where there is no other,
    and where that has operations that the compiler expands into others before it partitions.
    """
    limit, notes = program.facts.timeout_s, list(found.notes)
    shardy, as_written, is_whole = None, None, found.is_whole
    try:
        if found.before_propagation is not None and program.slice.chip is not None:
            numbered = found.identities is not None
            compiled = found.before_propagation
            shardy, is_final = client.propagate(compiled, "compiler", notes, timeout_s=limit, numbered=numbered)
            is_whole = is_whole and is_final
        if shardy is not None and not any(op.source for op in shardy.ops):
            shardy = None
        if shardy is None or EXPANDED.search(program.texts.plain):
            as_written, is_final = client.propagate(program.bytecode, "jax", notes, timeout_s=limit)
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


def _layout(program: Lowered) -> Layout:
    """Which device each partition is to run on."""
    seen, mesh, chosen = program.seen, program.mesh, program.slice
    if chosen.chip is None:
        return Layout(device_count=seen.device_count, simulated_ids=tuple(device.id for device in seen.devices) or None)
    own = Layout(device_count=seen.device_count, simulated_ids=tuple(device.id for device in seen.devices))
    plan = program.plan
    asked = () if plan.mesh is None or plan.axis_types is None else tuple(plan.mesh.devices.flat)
    is_own = not plan.dcn and tuple(seen.devices) != asked
    if is_own and len(seen.devices) == chosen.device_count and orders_meshes_as(chosen):
        return own
    if mesh is None or seen.device_count != mesh.size:
        return Layout(device_count=seen.device_count)
    devices = seen.devices or tuple(mesh.devices.flat)
    dcn_shape = _across_slices(mesh, chosen, plan)
    if dcn_shape is None and chosen.slice_count > 1:
        return replace(own, simulated_ids=tuple(device.id for device in devices))
    position = {device.id: index for index, device in enumerate(mesh.devices.flat)}
    positions = tuple(position[device.id] for device in devices)
    return Layout(
        device_count=seen.device_count,
        mesh_shape=tuple(mesh.axis_sizes),
        dcn_shape=dcn_shape,
        positions=None if positions == tuple(range(mesh.size)) else positions,
    )


def _across_slices(mesh: jax.sharding.Mesh, chosen: Slice, plan: Plan) -> tuple[int, ...] | None:
    """How many slices each axis spans; None on one slice, and for a mesh of no regular arrangement."""
    if chosen.slice_count == 1:
        if plan.dcn:
            raise MeshError(
                say(Option("dcn"), " needs a slice of several, such as 2*v5e:2x4"),
                fix=say("drop ", Option("dcn"), ", or name several slices"),
            )
        return None
    if plan.axis_types is None and not plan.dcn:
        return slices_of_own_mesh(mesh, chosen.slice_count)
    return slices_per_axis(axis_sizes(mesh), chosen.slice_count, plan.dcn, plan.notes)


def reported_mesh(mesh: jax.sharding.Mesh | None, seen: jax_internals.LoweredFacts) -> Mesh | None:
    """A mesh of JAX as plain data, by the partitions of a program's devices."""
    if mesh is None:
        return None
    partition = {device.id: index for index, device in enumerate(seen.devices)}
    ids = tuple(partition.get(device.id, index) for index, device in enumerate(mesh.devices.flat))
    return Mesh(
        axis_names=tuple(str(name) for name in mesh.axis_names),
        axis_sizes=tuple(mesh.axis_sizes),
        axis_types=axis_kinds(mesh),
        partition_ids=None if ids == tuple(range(mesh.size)) else ids,
    )


def _versions(chosen: Slice) -> dict[str, str]:
    packages = ("jax", "jaxlib", "libtpu") if chosen.chip is not None else ("jax", "jaxlib")
    found = {package: libtpu.version(package) for package in packages}
    return {package: version for package, version in found.items() if version is not None}


def _argument_records(program: Lowered, shardings: Sequence[bytes] | None) -> tuple[CapturedArray, ...]:
    """One record per argument leaf; those that the program does not read have the sharding that they were given."""
    seen, count = program.seen, len(program.seen.argument_names)
    given = program.argument_shardings if len(program.argument_shardings) == count else [None] * count
    letters = argument_letters(program.facts, count)
    chosen = _op_shardings(shardings, len(seen.kept))
    kept = {index: (seen.in_shardings[at], chosen[at]) for at, index in enumerate(seen.kept)}
    return tuple(
        _record(
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


def _output_records(program: Lowered, shardings: Sequence[bytes] | None) -> tuple[CapturedArray, ...]:
    """One record per output leaf."""
    seen = program.seen
    chosen = _op_shardings(shardings, len(seen.result_avals))
    rows = zip(seen.result_names, seen.result_avals, seen.out_shardings, chosen, strict=True)
    return tuple(_record(program, *row) for row in rows)


def _op_shardings(found: Sequence[bytes] | None, count: int) -> list[Any]:
    """The compiler's shardings for the last `count` leaves; tokens of ordered effects come before them."""
    shardings = [op_sharding(serialized) for serialized in found or ()]
    return shardings[-count:] if count and len(shardings) >= count else [None] * count


def _record(program: Lowered, name: str, aval: Any, asked: Any, op_sharding: Any, **of_argument: Any) -> CapturedArray:
    """One leaf, with the sharding that was asked for or else the compiler's."""
    by_user, mesh, spec = isinstance(asked, jax.sharding.Sharding), program.mesh, None
    if isinstance(asked, jax.sharding.NamedSharding):
        spec, mesh = asked.spec, asked.mesh if isinstance(asked.mesh, jax.sharding.Mesh) else mesh
        if jax.sharding.PartitionSpec.UNCONSTRAINED in tuple(spec.partitions):  # explicit axes alone are decided
            spec, by_user = None, False
    if spec is None and op_sharding is not None and mesh is not None:
        spec = partition_spec(op_sharding, mesh)
    shape, local = tuple(aval.shape), None
    if spec is not None and mesh is not None:
        local = tuple(jax.sharding.NamedSharding(mesh, spec).shard_shape(shape))
    elif program.seen.device_count == 1:
        local = shape
    return CapturedArray(
        name=name,
        dtype=short_dtype(str(aval.dtype)) or str(aval.dtype),
        global_shape=shape,
        local_shape=local,
        sharding=None if spec is None else _shown_spec(spec, len(shape)),
        asked=by_user,
        itemsize_bytes=int(aval.dtype.itemsize),
        **of_argument,
    )


def _shown_spec(spec: jax.sharding.PartitionSpec, rank: int) -> str:
    """One entry for each dimension, as the user would write it."""
    entries = [*spec.partitions, *([None] * (rank - len(spec.partitions)))]
    axes = [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in entries]
    return spec_text(axes, unreduced=sorted(spec.unreduced), reduced=sorted(spec.reduced))
