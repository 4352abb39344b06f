"""The analysis of a compiled function: the facts in its text, with what JAX and the compiler know beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hloscope.analysis.model import Analysis, ArrayFact, Memory, Mesh, SliceFact
from hloscope.analysis.placement import Placement
from hloscope.analysis.places import CAPTURED
from hloscope.hardware.slices import Slice
from hloscope.rules.selection import DEFAULT_SELECTION, RuleSelection, judged
from hloscope.units import array_bytes
from hloscope.version import __version__

if TYPE_CHECKING:
    from hloscope.program.capture import Capture, CapturedArray


def analysis_of(captured: Capture, name: str, judging: RuleSelection = DEFAULT_SELECTION) -> Analysis:
    """The analysis of the text, with what JAX and the compiler know beside it.

    Raises:
        NotationError: What the target accepts of the rules' findings cannot be read.
    """
    from hloscope.analysis import analyze_module
    from hloscope.cost import price_module
    from hloscope.hlo import parse_module
    from hloscope.why import explained

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
    found = explained(found, module, captured)
    found = price_module(found, module, chosen, device_ids=captured.device_ids, kernel_costs=captured.kernel_costs)
    return finished(
        replace(
            found,
            slice=slice_fact(chosen, captured.slice_chosen_by, captured.used_devices),
            arguments=_arrays(captured.arguments, found.arguments),
            outputs=_arrays(captured.outputs, found.outputs),
            memory=_memory(captured),
            notes=(*captured.notes, *_refusal(captured), *_other_diagnostics(captured, found), *found.notes),
            versions={**captured.versions, **found.versions},
        ),
        replace(judging.of_target(captured.allow, captured.rule_options), sources=CAPTURED),
    )


def finished(found: Analysis, judging: RuleSelection) -> Analysis:
    """The analysis with the version that made it and with what the rules find."""
    return judged(replace(found, versions={"hloscope": __version__, **found.versions}), judging)


def slice_fact(chosen: Slice, chosen_by: str, used_devices: int) -> SliceFact:
    """What the report says of a slice."""
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
    donated = array.donated or (printed is not None and printed.donated)
    return ArrayFact(
        name=array.name,
        dtype=array.dtype,
        global_shape=array.global_shape,
        local_shape=local,
        sharding=array.sharding or (printed.sharding if printed is not None else None),
        chosen_by=None if not array.used else "user" if array.asked else "compiler",
        bytes_per_device=count * array.itemsize_bytes if known is None else known,
        donated=donated,
        used=array.used and (printed is None or printed.used),  # the compiler drops reads that JAX does not
        reused=_is_reused(array, printed),
    )


def _is_reused(array: CapturedArray, printed: ArrayFact | None) -> bool | None:
    """Whether an output takes the memory of a donated argument; None of outputs themselves."""
    if printed is None:
        return None
    return printed.reused is True if array.donated else printed.reused


def _refusal(captured: Capture) -> tuple[str, ...]:
    """The compiler's words on a program that it has no room for, and what was done about it."""
    if captured.too_large is None:
        return ()
    return (f"the compiler refuses the program: {captured.too_large}. It was compiled once more without that limit",)


def _other_diagnostics(captured: Capture, found: Analysis) -> tuple[str, ...]:
    """What the compiler said, without the warnings that are rematerializations of the analysis already."""
    told = {one.text for one in found.rematerializations}
    return tuple(text for text in captured.diagnostics if text not in told)


def _memory(captured: Capture) -> Memory:
    figures = captured.memory_bytes
    names = ("argument", "output", "temp", "alias", "generated_code")
    parts: dict[str, int | None] = {f"{name}_bytes": figures.get(f"{name}_size_in_bytes") for name in names}
    chip = captured.slice.chip
    peak = None
    if all(value is not None for value in parts.values()):
        signs = {"alias_bytes": -1}
        peak = sum(signs.get(name, 1) * (value or 0) for name, value in parts.items())
    return Memory(
        **parts,
        peak_bytes=peak,
        hbm_bytes=chip.hbm_bytes_per_device if chip else None,
        fits=captured.too_large is None if chip else None,
    )
