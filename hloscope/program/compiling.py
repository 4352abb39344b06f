"""The stage `Target -> Capture`: trace on simulated devices, compile for the slice, keep what the compiler says."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from hloscope.errors import CompileError, HbmError, MeshError
from hloscope.hardware.overrides import overridden
from hloscope.hardware.slices import Slice
from hloscope.program import devices, jax_internals, leaves
from hloscope.program.argument_letters import argument_letters
from hloscope.program.backend_watch import watched_backend
from hloscope.program.capture import Capture, CapturedMesh
from hloscope.program.compiler_errors import compiler_errors
from hloscope.program.dumps import Dumps, dump_folder, read_dumps
from hloscope.program.kept_compiles import Compiled, compiled_once
from hloscope.program.lowering import lower
from hloscope.program.plan import Plan, axis_kinds, axis_sizes, choose_slice, make_plan, users_mesh
from hloscope.program.quiet import captured_stderr
from hloscope.program.several_slices import by_simulated_slice, slices_of_own_mesh, slices_per_axis
from hloscope.program.shardy_model import ShardyModule
from hloscope.program.shardy_passes import shardy_of_lowered, shardy_of_text
from hloscope.program.target import TargetFacts
from hloscope.store import Store

Stage = Callable[[str], None]
_NO_HBM_LIMIT = "xla_tpu_no_crash_on_oom"
_EXPANDED = re.compile(r"\bstablehlo\.(fft|reduce_window)\b")
_MEMORY_FIELD = re.compile(r"^(?!host_)\w+_in_bytes$")


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
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    plan = make_plan(facts)
    stage("tracing")
    with watched_backend([] if plan.is_real else plan.notes):
        lowered = lower(function, facts, plan, name)
    seen = jax_internals.lowered_facts(lowered)
    mesh = users_mesh(plan, seen)
    chosen, chosen_by = choose_slice(plan, mesh, seen.device_count)
    chosen = overridden(chosen, facts.chip_overrides or ())
    stage(f"compiling for {chosen.name}")
    versions = _versions(chosen)
    options = facts.compiler_options
    with captured_stderr():
        physical = _assignment(seen, chosen, mesh, plan)
        compile_now = partial(_compiled_or_too_large, lowered, physical, chosen, options)
        compiled = compiled_once(store, lowered, physical, chosen, options, versions, compile_now)
        shardy, as_written = _shardy(lowered, compiled.dumps, chosen, plan.notes)
    letters = argument_letters(facts, len(seen.argument_names))
    return Capture(
        hlo_text=compiled.text,
        partitioned_text=compiled.dumps.partitioned,
        shardy=shardy,
        shardy_as_written=as_written,
        slice=chosen,
        slice_chosen_by=chosen_by,
        used_devices=seen.device_count,
        mesh=_captured_mesh(mesh, seen),
        slice_of_partition=tuple(device.slice_index for device in physical) if chosen.slice_count > 1 else None,
        device_ids=tuple(device.id for device in physical) or None,
        arguments=leaves.arguments(seen, compiled, mesh, plan.argument_shardings, letters),
        outputs=leaves.outputs(seen, compiled, mesh),
        memory_bytes=compiled.memory_bytes,
        too_large=compiled.too_large,
        notes=tuple(plan.notes),
        diagnostics=compiled.diagnostics,
        versions=versions,
        allow=facts.allow,
        rule_options=facts.rule_options,
        kernel_costs=facts.kernel_costs,
    )


def _assignment(
    seen: jax_internals.LoweredFacts, chosen: Slice, mesh: jax.sharding.Mesh | None, plan: Plan
) -> list[Any]:
    """The compile-only device of each partition; empty when the program is compiled for the devices at hand."""
    if chosen.chip is None:
        return []
    physical = devices.compile_only_devices(chosen)
    if mesh is None or seen.device_count != mesh.size:
        return physical[: seen.device_count]
    laid_out = _laid_out(mesh, physical, chosen, plan)
    position = {device.id: index for index, device in enumerate(mesh.devices.flat)}
    return [laid_out[position[device.id]] for device in seen.devices] if seen.devices else laid_out


def _laid_out(mesh: jax.sharding.Mesh, physical: list[Any], chosen: Slice, plan: Plan) -> list[Any]:
    """Physical devices in row-major mesh order."""
    if chosen.slice_count == 1:
        if plan.dcn:
            raise MeshError(
                "--dcn needs a slice of several, such as 2*v5e:2x4", fix="drop --dcn, or name several slices"
            )
        return devices.arrange(mesh.axis_sizes, physical, None, plan.notes)
    if plan.axis_types is None and not plan.dcn:
        across = slices_of_own_mesh(mesh, chosen.slice_count)
        if across is None:
            return by_simulated_slice(mesh, physical, chosen.slice_count)
    else:
        across = slices_per_axis(axis_sizes(mesh), chosen.slice_count, plan.dcn, plan.notes)
    return devices.arrange(mesh.axis_sizes, physical, across, plan.notes)


def _compiled_or_too_large(
    lowered: jax.stages.Lowered, physical: list[Any], chosen: Slice, options: Mapping[str, str]
) -> Compiled:
    """What the compiler makes of the program; of one that does not fit in HBM, what it makes of it without a limit."""
    try:
        return _compiled(lowered, physical, chosen, options)
    except HbmError as error:
        if chosen.chip is None or _NO_HBM_LIMIT in options:
            raise
        try:
            anyway = _compiled(lowered, physical, chosen, {**options, _NO_HBM_LIMIT: "true"}, text_is_enough=True)
        except CompileError:
            raise error from None
        return replace(anyway, too_large=error.why)


def _compiled(
    lowered: jax.stages.Lowered,
    physical: list[Any],
    chosen: Slice,
    options: Mapping[str, str],
    *,
    text_is_enough: bool = False,
) -> Compiled:
    """What the compiler makes of the program, with what it wrote down on its way.

    With `text_is_enough`, a compiler that writes down the whole program and then refuses to make an executable of it,
    as libtpu 0.0.50 does where HBM is too small, is taken by its word. Text that this jaxlib cannot read back from its
    own compiler is taken from there too: asynchronous calls with late operands are such text on jaxlib 0.10.
    """
    with compiler_errors(chosen), captured_stderr() as stderr, dump_folder(options) as (dumping, folder):
        try:
            executable = _executable(lowered, physical, chosen, dumping)
        except jax.errors.JaxRuntimeError:
            dumps = read_dumps(folder)
            if not text_is_enough or dumps.final is None:
                raise
            executable, text = None, dumps.final
        else:
            dumps = read_dumps(folder)
            text = _text(executable, dumps)
    return Compiled(
        text=text,
        dumps=dumps,
        memory_bytes=dumps.memory_bytes if executable is None else _memory(executable),
        parameter_shardings=None if executable is None else executable.get_parameter_shardings(),
        output_shardings=None if executable is None else executable.get_output_shardings(),
        diagnostics=stderr.diagnostics(),
    )


def _executable(lowered: jax.stages.Lowered, physical: list[Any], chosen: Slice, dumping: dict[str, Any]) -> Any:
    if chosen.chip is not None:
        return jax_internals.compile_for(lowered, physical, dumping)
    with jax_internals.no_persistent_cache():
        return jax_internals.executable_of(lowered.compile(compiler_options=dumping))


def _text(executable: Any, dumps: Dumps) -> str:
    try:
        text: str = executable.hlo_modules()[0].to_string()
    except jax.errors.JaxRuntimeError:
        if dumps.final is None:
            raise
        return dumps.final
    return text


def _shardy(
    lowered: jax.stages.Lowered, dumps: Dumps, chosen: Slice, notes: list[str]
) -> tuple[ShardyModule | None, ShardyModule | None]:
    """What Shardy says, of the compiler's own module where that tells lines; else of the lowered one.

    Of the lowered one besides where it has operations that the compiler expands into others before it partitions.
    """
    compiled = _shardy_of_dumps(dumps) if chosen.chip is not None else None
    if compiled is None:
        return shardy_of_lowered(lowered, notes), None
    return compiled, shardy_of_lowered(lowered, notes) if _EXPANDED.search(lowered.as_text()) else None


def _shardy_of_dumps(dumps: Dumps) -> ShardyModule | None:
    """What Shardy says of the compiler's own module; None without a dump that keeps source lines, as CPU's do not."""
    if dumps.before_propagation is None:
        return None
    found = shardy_of_text(dumps.before_propagation, [])
    return found if found is not None and any(op.source for op in found.ops) else None


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
        axis_types=axis_kinds(mesh),
        partition_ids=None if ids == tuple(range(mesh.size)) else ids,
    )


def _versions(chosen: Slice) -> dict[str, str]:
    from importlib import metadata

    names = ("jax", "jaxlib", "libtpu") if chosen.chip is not None else ("jax", "jaxlib")
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
