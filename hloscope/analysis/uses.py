"""What becomes of a collective's result: only the device's own part of it is read, or only a narrower form."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.groups import Groups, device_groups
from hloscope.analysis.model import Mesh
from hloscope.analysis.moved import narrower
from hloscope.analysis.opcodes import KIND_OF_OPCODE, base_opcode
from hloscope.analysis.readers import Reading, own_slice, readings_of
from hloscope.analysis.spellings.collectives import REDUCE_SCATTER_FUSION
from hloscope.analysis.vocabulary import Kind
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

_ELEMENTWISE = frozenset({"convert", "negate", "transpose", "abs", "exponential", "tanh", "logistic", "rsqrt", "sqrt"})
"""Opcodes of one operand after which each device still needs only its own part."""


def result_slices(graph: HloGraph, results: Iterable[Value]) -> tuple[str, ...]:
    """Shapes of the device's own slices, where nothing else is ever read of some values; else nothing."""
    shapes: list[str] = []
    for value in results:
        before = len(shapes)
        for reading in readings_of(graph, value):
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
        for reading in readings_of(graph, value):
            if reading is None or reading.reader.opcode != "convert":
                return None
            types.add(narrower(reading.reader.shape.element_type, reading.value.instruction.shape.element_type))
    return types.pop() if len(types) == 1 else None


def undone_by(graph: HloGraph, results: Iterable[Value], groups: Groups | None, mesh: Mesh | None) -> str | None:
    """The instruction that gives each device back its own part of what was gathered, where nothing else reads it.

    Args:
        graph: The module.
        results: What an all-gather yields.
        groups: Between which devices.
        mesh: The user's mesh.

    Returns:
        The slice at the device's own offset, or the collective that scatters over the same groups, or the outermost
        fusion around it; the first one where there are several. None when anything reads more.
    """
    found: list[HloInstruction] = []
    for value in results:
        for reading in readings_of(graph, value, also=_ELEMENTWISE):
            if reading is None or not _gives_back(graph, reading, groups, mesh):
                return None
            found.append(reading.outermost)
    return min(found, key=lambda one: one.line).name if found else None


def _gives_back(graph: HloGraph, reading: Reading, groups: Groups | None, mesh: Mesh | None) -> bool:
    if own_slice(graph, reading) is not None:
        return True
    kind = KIND_OF_OPCODE.get(base_opcode(reading.reader.opcode))
    if kind is Kind.ALL_REDUCE and reading.reader.computation.name.startswith(REDUCE_SCATTER_FUSION):
        kind = Kind.REDUCE_SCATTER
    if kind not in (Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL) or groups is None:
        return False
    others = device_groups(reading.reader, kind, mesh)
    return others is not None and set(map(frozenset, others)) == set(map(frozenset, groups))
