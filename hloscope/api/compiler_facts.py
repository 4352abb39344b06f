"""What JAX and the compiler know of a program beside its text, joined to the facts in the text."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from hloscope.analysis.memory import memory_of
from hloscope.analysis.model import Analysis, ArrayFact, SliceFact
from hloscope.program.capture import Capture, CapturedArray
from hloscope.units import array_bytes
from hloscope.version import __version__


def with_compiler_facts(found: Analysis, program: Capture) -> Analysis:
    """The analysis with its slice, memory, names, shardings, notes and versions; of HLO text what is known of them."""
    refused = "the compiler refuses the program: {}. It was compiled once more without that limit"
    explained = {warning.text for warning in found.rematerializations}
    return replace(
        found,
        slice=_slice_fact(program),
        arguments=found.arguments if program.arguments is None else _arrays(program.arguments, found.arguments),
        outputs=found.outputs if program.outputs is None else _arrays(program.outputs, found.outputs),
        memory=memory_of(program),
        notes=(
            *program.notes,
            *([] if program.too_large is None else [refused.format(program.too_large)]),
            *(text for text in program.diagnostics if text not in explained),
            *found.notes,
        ),
        versions={"hloscope": __version__, **program.versions, **found.versions},
    )


def _slice_fact(program: Capture) -> SliceFact | None:
    """What the report says of the slice."""
    chosen = program.slice
    if chosen is None:
        return None
    return SliceFact(
        name=chosen.name,
        chip=chosen.chip.name if chosen.chip else chosen.name.partition(":")[0],
        chips=chosen.chip_count if chosen.chip else program.used_devices,
        devices=chosen.device_count if not chosen.is_attached else program.used_devices,
        slices=chosen.slice_count,
        used_devices=program.used_devices,
        chosen_by=program.slice_chosen_by,
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
    count = prod(local)
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
