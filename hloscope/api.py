"""The use cases, as Python functions and as what the command line calls. Joins the stages and owns no logic."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloscope.analysis.model import Analysis, ArrayFact, Memory, Mesh, SliceFact, SourceFrame
from hloscope.analysis.placement import Placement
from hloscope.devices_of_text import check_devices, placement_of_text, slice_count
from hloscope.hardware.slices import Slice, parse_slice
from hloscope.program.target import TargetFacts, make_facts
from hloscope.rules import run_rules
from hloscope.units import array_bytes
from hloscope.version import __version__

if TYPE_CHECKING:
    from hloscope.program.capture import Capture, CapturedArray

Stage = Callable[[str], None]
HLO_SUFFIXES = (".hlo", ".txt")


def analyze(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    mesh: Any = None,
    slice: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    out: Any = None,
    static: Mapping[str, Any] | None = None,
    donate: tuple[int, ...] | None = None,
    dims: Mapping[str, int] | None = None,
    axis_types: str | None = None,
    dcn: Mapping[str, int] | None = None,
    compiler_options: Mapping[str, str] | None = None,
) -> Analysis:
    """Compiles a function for a TPU slice that nobody needs to have, and says what really moves.

    What is not given here is taken from `@hloscope.target` and then from the function itself.

    Example:
        >>> found = hloscope.analyze(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
        >>> [c.kind for c in found.collectives]
        ['all-reduce']

    Args:
        target: A function (plain, jitted or shard_mapped), `module:fn`, `file.py:fn`, or the path of a file of HLO
            text.
        args: One entry per positional argument: a notation (`bf16[8@X,2048@Y]`), a pytree of notations,
            ShapeDtypeStructs or arrays, or a callable that returns one of these.
        mesh: Axis name to size, or a `jax.sharding.Mesh` or `AbstractMesh`.
        slice: Such as `v5e:2x4`, `2*v5e:2x4`, `cpu:8` or `attached`; by default the smallest v5e block that fits the
            mesh.
        kwargs: Like `args`, by keyword.
        out: Output shardings in pytree-leaf order.
        static: Python values passed by keyword.
        donate: Positions of donated arguments.
        dims: Sizes of the letters used in notations.
        axis_types: `auto` (the default), `explicit`, or `X=explicit,Y=auto`.
        dcn: For several slices: the mesh axis that crosses DCN and how many slices it spans.
        compiler_options: XLA compiler options by name.

    Returns:
        The analysis; `to_dict()` gives plain data.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    if isinstance(target, Path) or (isinstance(target, str) and target.endswith(HLO_SUFFIXES)):
        from hloscope.program.files import read_hlo

        sizes = make_facts(mesh=mesh, slice=slice, dcn=dcn)
        return analyze_text(read_hlo(target), name=str(target), mesh=sizes.mesh, slice=slice, dcn=sizes.dcn)
    facts = make_facts(
        mesh=mesh,
        axis_types=axis_types,
        slice=slice,
        dcn=dcn,
        args=args,
        kwargs=kwargs,
        out=out,
        static=static,
        donate=donate,
        dims=dims,
        compiler_options=compiler_options,
    )
    return analyze_function(target, facts)


def analyze_function(
    target: Callable[..., Any] | str, facts: TargetFacts, *, stage: Stage = lambda _: None
) -> Analysis:
    """`analyze` for a function, with its facts in one piece and a progress display.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    from hloscope.program import devices
    from hloscope.program.compiling import capture
    from hloscope.program.loading import load
    from hloscope.program.target import attached_facts

    name = target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))
    if isinstance(target, str):
        stage("importing")
        with devices.current_for_import(facts):
            function = load(target)
    else:
        function = target
    captured = capture(function, facts.over(attached_facts(function)), name=name, stage=stage)
    stage("reading the compiled program")
    return _joined(captured, name)


def analyze_text(
    text: str,
    *,
    name: str = "-",
    mesh: Any = None,
    slice: str | None = None,
    dcn: Mapping[str, int] | str | None = None,
) -> Analysis:
    """Says what moves in a compiled program's HLO text; needs no JAX.

    Args:
        text: What `compiled.as_text()` prints, or a dump of the final module.
        name: The file's name, for messages.
        mesh: Axis name to size, major first; by default the names in the text, else raw groups are shown.
        slice: The slice that the program is meant for.
        dcn: For several slices: the mesh axes that cross DCN and how many slices each spans.

    Raises:
        HloParseError: The text is not HLO, or is cut off.
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    from hloscope.analysis import analyze_module
    from hloscope.hlo import parse_module

    module = parse_module(text, name=name)
    chosen = parse_slice(slice) if slice else None
    facts = make_facts(mesh=mesh, dcn=dcn)
    axis_sizes = facts.mesh or {}
    user_mesh = Mesh(axis_names=tuple(axis_sizes), axis_sizes=tuple(axis_sizes.values())) if axis_sizes else None
    per_slice = module.num_partitions * module.replica_count
    slices = slice_count(text, per_slice, user_mesh, chosen)
    check_devices(name, per_slice * slices, module, user_mesh, chosen)
    found = analyze_module(
        module,
        target=name,
        mesh=user_mesh,
        devices_per_slice=per_slice if slices > 1 else None,
        placement=placement_of_text(facts, slices),
    )
    if chosen is not None:
        hbm = chosen.chip.hbm_bytes_per_device if chosen.chip else None
        fact = _slice_fact(chosen, "user", per_slice * slices)
        found = replace(found, slice=fact, memory=replace(found.memory, hbm_bytes=hbm))
    return _finished(found)


def _joined(captured: Capture, name: str) -> Analysis:
    """The analysis of the text, with what JAX and the compiler know beside it."""
    from hloscope.analysis import analyze_module
    from hloscope.hlo import parse_module

    seen = captured.mesh
    mesh = None
    if seen is not None:
        mesh = Mesh(
            axis_names=seen.axis_names,
            axis_sizes=seen.axis_sizes,
            axis_types=seen.axis_types,
            partition_ids=seen.partition_ids,
        )
    chosen = captured.slice
    per_slice = chosen.devices_per_slice if chosen.slice_count > 1 else None
    module = parse_module(captured.hlo_text, name=f"{name} (compiled)")
    placement = None
    if captured.slice_of_partition is not None:
        placement = Placement(captured.slice_of_partition, captured.device_ids)
    found = analyze_module(module, target=name, mesh=mesh, devices_per_slice=per_slice, placement=placement)
    return _finished(
        replace(
            found,
            collectives=tuple(replace(one, source=_users_frames(one.source)) for one in found.collectives),
            slice=_slice_fact(chosen, captured.slice_chosen_by, captured.used_devices),
            arguments=_arrays(captured.arguments, found.arguments),
            outputs=_arrays(captured.outputs, found.outputs),
            memory=_memory(captured),
            notes=(*captured.notes, *captured.diagnostics, *found.notes),
            versions={**captured.versions, **found.versions},
        )
    )


def _users_frames(frames: tuple[SourceFrame, ...]) -> tuple[SourceFrame, ...]:
    """The frames inside the user's program: those outside it are hloscope's own, and whoever called it."""
    own = f"{Path(__file__).parent}{os.sep}"
    inside = tuple(takewhile(lambda frame: not frame.file.startswith(own), frames))
    return tuple(frame for frame, _ in groupby(inside))


def _finished(found: Analysis) -> Analysis:
    found = replace(found, versions={"hloscope": __version__, **found.versions})
    return replace(found, findings=run_rules(found))


def _slice_fact(chosen: Slice, chosen_by: str, used_devices: int) -> SliceFact:
    return SliceFact(
        name=chosen.name,
        chip=chosen.chip.name if chosen.chip else chosen.name.partition(":")[0],
        chips=chosen.chip_count if chosen.chip else used_devices,
        devices=chosen.device_count if not chosen.is_attached else used_devices,
        slices=chosen.slice_count,
        used_devices=used_devices,
        chosen_by=chosen_by,
    )


def _arrays(captured: tuple[CapturedArray, ...], in_text: tuple[ArrayFact, ...]) -> tuple[ArrayFact, ...]:
    """JAX's names, global shapes and shardings; local shapes and aliasing from the text, which is what runs."""
    used = [array for array in captured if array.used]
    beside = dict(zip((id(array) for array in used), in_text, strict=True)) if len(used) == len(in_text) else {}
    return tuple(_array(array, beside.get(id(array))) for array in captured)


def _array(array: CapturedArray, printed: ArrayFact | None) -> ArrayFact:
    local = array.local_shape
    if local is None:
        local = printed.local_shape if printed is not None else array.global_shape
    count = 1
    for size in local:
        count *= size
    known = array_bytes(array.dtype, count)
    return ArrayFact(
        name=array.name,
        dtype=array.dtype,
        global_shape=array.global_shape,
        local_shape=local,
        sharding=array.sharding or (printed.sharding if printed is not None else None),
        chosen_by=None if not array.used else "user" if array.asked else "compiler",
        bytes_per_device=count * array.itemsize_bytes if known is None else known,
        donated=array.donated or (printed is not None and printed.donated),
        used=array.used,
    )


def _memory(captured: Capture) -> Memory:
    figures = captured.memory_bytes
    names = ("argument", "output", "temp", "alias", "generated_code")
    parts = {f"{name}_bytes": figures.get(f"{name}_size_in_bytes") for name in names}
    chip = captured.slice.chip
    peak = None
    if all(value is not None for value in parts.values()):
        signs = {"alias_bytes": -1}
        peak = sum(signs.get(name, 1) * (value or 0) for name, value in parts.items())
    return Memory(**parts, peak_bytes=peak, hbm_bytes=chip.hbm_bytes_per_device if chip else None)
