"""The matrix multiplication that each exposed collective could overlap with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from hloscope.analysis.model import Collective
from hloscope.analysis.model.collective import Overlap, Relation
from hloscope.analysis.provenance import find_provenance
from hloscope.cost.operations import Operations
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import HloGraph, reach_all

SHARE_OF_STEP = 0.05
"""Share of the step: a less exposed collective is not worth the search, which reads its whole computation."""

_RUNS_ITS_OWN_SCHEDULE = frozenset({"while", "conditional", "call"})
_ASYNCHRONOUS = ("-start", "-update", "-done")

_Neighbors = Callable[[HloInstruction], Sequence[HloInstruction]]


def attach_overlaps(
    collectives: Sequence[Collective], graph: HloGraph, operations: Operations, step_us: float
) -> tuple[Collective, ...]:
    """Adds to the collectives that the step waits for long the matmul that could hide them.

    Asynchronous collectives overlap with work that neither makes their operands nor uses their results; a collective
    matmul overlaps with its own matrix multiplication by moving one part while another is multiplied.

    Args:
        collectives: The collectives with their times.
        graph: The module.
        operations: Prices computing instructions.
        step_us: Time of the step in microseconds.

    Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
        Models" (ASPLOS 2023), for the second.
    """
    return tuple(
        replace(collective, overlap=_find_overlap(collective, graph, operations))
        if (collective.exposed_us or 0.0) * collective.executions > SHARE_OF_STEP * step_us
        else collective
        for collective in collectives
    )


def _find_overlap(collective: Collective, graph: HloGraph, operations: Operations) -> Overlap | None:
    start = _find_scheduled(graph.module.computation(collective.computation).instruction(collective.name), graph)
    before, after = attrgetter("operands"), attrgetter("users")
    related = {*reach_all([start], before), *reach_all([start], after)}
    candidates: tuple[tuple[Relation, Iterable[HloInstruction]], ...] = (
        (Relation.INDEPENDENT, (other for other in start.computation.instructions if other not in related)),
        (Relation.CONSUMER, _find_nearest_matmuls(start, after, operations)),
        (Relation.PRODUCER, _find_nearest_matmuls(start, before, operations)),
    )
    for relation, instructions in candidates:
        timed = [(time_us, other) for other in instructions if (time_us := _matmul_us(other, operations)) is not None]
        if timed:
            time_us, found = max(timed, key=lambda pair: pair[0])
            source = find_provenance(graph, [found]).source
            return Overlap(name=found.name, relation=relation, time_us=time_us, source=source)
    return None


def _find_scheduled(instruction: HloInstruction, graph: HloGraph) -> HloInstruction:
    """The scheduled instruction that contains a collective: itself, or the fusion or wrapper around it."""
    caller = graph.only_caller(instruction.computation.name)
    while caller is not None and caller.opcode not in _RUNS_ITS_OWN_SCHEDULE:
        instruction = caller
        caller = graph.only_caller(instruction.computation.name)
    return instruction


def _find_nearest_matmuls(start: HloInstruction, neighbors: _Neighbors, operations: Operations) -> list[HloInstruction]:
    """The first matrix multiplications on each path from an instruction."""
    found: list[HloInstruction] = []
    seen, pending = {start.name}, [start]
    while pending:
        for other in neighbors(pending.pop()):
            if other.name in seen:
                continue
            seen.add(other.name)
            (pending if _matmul_us(other, operations) is None else found).append(other)
    return found


def _matmul_us(instruction: HloInstruction, operations: Operations) -> float | None:
    """The time of an instruction that multiplies matrices; None for all others."""
    opcode = instruction.opcode
    if opcode in _RUNS_ITS_OWN_SCHEDULE or opcode.endswith(_ASYNCHRONOUS):
        return None
    cost = operations.time_of(instruction)
    return cost.time_us if cost.flops > 0 else None
