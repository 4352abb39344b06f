"""The matrix multiplication that each exposed collective could overlap with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from hloscope.analysis.model import Collective
from hloscope.analysis.model.collective import Overlap, Relation
from hloscope.analysis.provenance import provenance_of
from hloscope.cost.operations import Operations
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import HloGraph, reached

SHARE_OF_STEP = 0.05
"""A collective that is exposed for less of the step is not worth the search, which reads its whole computation."""

_RUNS_ITS_OWN_SCHEDULE = frozenset({"while", "conditional", "call"})
_ASYNCHRONOUS = ("-start", "-update", "-done")

_Neighbors = Callable[[HloInstruction], Sequence[HloInstruction]]


def with_overlaps(
    collectives: Sequence[Collective], graph: HloGraph, operations: Operations, step_us: float
) -> tuple[Collective, ...]:
    """Tells of the collectives that the step waits for long what they could be hidden behind.

    Asynchronous collectives run beside what neither makes their operands nor uses their results; a collective matmul
    runs beside its own matrix multiplication, of which it moves one part while another is multiplied.

    Args:
        collectives: With their times.
        graph: Of the module.
        operations: Prices what computes.
        step_us: How long the step takes, in microseconds.

    Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
        Models" (ASPLOS 2023), for the second.
    """
    return tuple(
        replace(collective, overlap=_overlap(collective, graph, operations))
        if (collective.exposed_us or 0.0) * collective.executions > SHARE_OF_STEP * step_us
        else collective
        for collective in collectives
    )


def _overlap(collective: Collective, graph: HloGraph, operations: Operations) -> Overlap | None:
    start = _scheduled(graph.module.computation(collective.computation).instruction(collective.name), graph)
    before, after = attrgetter("operands"), attrgetter("users")
    related = {*reached([start], before), *reached([start], after)}
    candidates: tuple[tuple[Relation, Iterable[HloInstruction]], ...] = (
        (Relation.INDEPENDENT, (other for other in start.computation.instructions if other not in related)),
        (Relation.CONSUMER, _nearest(start, after, operations)),
        (Relation.PRODUCER, _nearest(start, before, operations)),
    )
    for relation, instructions in candidates:
        timed = [(time_us, other) for other in instructions if (time_us := _matmul_us(other, operations)) is not None]
        if timed:
            time_us, found = max(timed, key=lambda pair: pair[0])
            source = provenance_of(graph, [found]).source
            return Overlap(name=found.name, relation=relation, time_us=time_us, source=source)
    return None


def _scheduled(instruction: HloInstruction, graph: HloGraph) -> HloInstruction:
    """The instruction of the schedule that a collective is part of: itself, or the fusion or wrapper around it."""
    caller = graph.only_caller(instruction.computation.name)
    while caller is not None and caller.opcode not in _RUNS_ITS_OWN_SCHEDULE:
        instruction = caller
        caller = graph.only_caller(instruction.computation.name)
    return instruction


def _nearest(start: HloInstruction, neighbors: _Neighbors, operations: Operations) -> list[HloInstruction]:
    """The first matrix multiplications on each way from an instruction."""
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
    """The time of an instruction that multiplies matrices; None of all others."""
    opcode = instruction.opcode
    if opcode in _RUNS_ITS_OWN_SCHEDULE or opcode.endswith(_ASYNCHRONOUS):
        return None
    cost = operations.time_of(instruction)
    return cost.time_us if cost.flops > 0 else None
