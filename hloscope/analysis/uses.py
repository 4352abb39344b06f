"""What becomes of a collective's result: only the device's own part of it is read, or only a narrower form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hloscope.analysis.transfers import Transfer
from hloscope.analysis.values.offsets import value_on_device
from hloscope.analysis.values.readers import Reading, own_slice, readings_of
from hloscope.analysis.volume import narrower
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction, Shape

_SLICES = frozenset({"dynamic-slice"})
_CONVERSIONS = frozenset({"convert"})
_ELEMENTWISE = frozenset({"convert", "negate", "abs", "exponential", "tanh", "logistic", "rsqrt", "sqrt"})
"""Opcodes of one operand after which each device still needs only its own part."""


def result_slices(graph: HloGraph, results: Iterable[Value]) -> tuple[str, ...]:
    """Shapes of the device's own slices, where nothing else is ever read of some values; else nothing."""
    shapes: list[str] = []
    for value in results:
        before = len(shapes)
        for reading in readings_of(graph, value, wanted=_SLICES):
            part = own_slice(graph, reading)
            if part is None:
                return ()
            shapes.append(str(part))
        if len(shapes) == before:
            return ()
    return tuple(shapes)


def narrower_uses(graph: HloGraph, results: Iterable[Value]) -> str | None:
    """The narrower element type that every reader converts some values to; None when one does not."""
    types = set()
    for value in results:
        for reading in readings_of(graph, value, wanted=_CONVERSIONS):
            if reading is None or reading.reader.opcode != "convert":
                return None
            types.add(narrower(reading.reader.shape.element_type, reading.value.instruction.shape.element_type))
    return types.pop() if len(types) == 1 else None


def undone_by(graph: HloGraph, transfer: Transfer, results: Sequence[Value]) -> str | None:
    """The slice that gives each device back the very part that it put into an all-gather.

    Args:
        graph: The module.
        transfer: The all-gather.
        results: What it yields.

    Returns:
        The instruction that takes the slice, or the outermost fusion around it; the first one where there are several.
        None when anything reads more or another part, and where offsets cannot be told.
    """
    found: list[HloInstruction] = []
    parts = transfer.operands if len(transfer.operands) == len(results) else ()
    for value, part in zip(results, parts, strict=False):
        for reading in readings_of(graph, value, also=_ELEMENTWISE, wanted=_SLICES):
            if reading is None or not _is_own_part(graph, transfer, part, reading):
                return None
            found.append(reading.outermost)
    return min(found, key=lambda one: one.line).name if found else None


def _is_own_part(graph: HloGraph, transfer: Transfer, part: Shape, reading: Reading) -> bool:
    """Whether a reader takes, on each device, the part at the device's own position in its group."""
    taken, dimensions = own_slice(graph, reading), transfer.op.dimensions
    if taken is None or taken.dimensions != part.dimensions or not dimensions or transfer.groups is None:
        return False
    gathered, offsets = dimensions[0], reading.reader.operands[1:]
    if len(offsets) != len(part.dimensions) or transfer.op.computation.module.replica_count != 1:
        return False
    positions = [(device, position) for group in transfer.groups for position, device in enumerate(group)]
    return all(
        value_on_device(graph, Value(offset), device, reading.frames)
        == (position * part.dimensions[gathered] if dimension == gathered else 0)
        for device, position in positions
        for dimension, offset in enumerate(offsets)
    )
