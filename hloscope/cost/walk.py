"""The walk over a schedule: what runs when on which unit of the device, each computation once however often it runs.

The order of the text is the order of execution, as it is for a scheduled module.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import isfinite

from hloscope.analysis.model.timeline import Unit, WaitCause
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.computation_walk import ComputationWalk
from hloscope.cost.operations import Operations, OperationTime, TimeBasis
from hloscope.cost.records import InstructionSpan, PricedCollectives, Schedule, Stretch, Sums
from hloscope.hlo import HloComputation
from hloscope.hlo.call_graph import HloGraph

_RUNNING_OPCODES = frozenset({"while", "conditional", "call"})
_MICROSECONDS = 1e6


class Walk:
    """Walks the computations of a module from ENTRY.

    Args:
        graph: The module.
        operations: Prices computing instructions.
        priced: Times of collectives.

    Attributes:
        schedules: One execution of each computation that was walked, by name.
    """

    def __init__(self, graph: HloGraph, operations: Operations, priced: PricedCollectives) -> None:
        self.graph = graph
        self.operations = operations
        self.priced = priced
        self.schedules: dict[str, Schedule] = {}

    def step(self) -> Sums:
        """The sums of one step of the program.

        Callers are walked after their callees, so that no nesting is too deep.
        """
        for computation in find_scheduled_computations(self.graph):
            self.sums_of(computation.name)
        entry = self.graph.module.entry
        sums = self.sums_of(entry.name)
        if isfinite(sums.total_us):
            self._make_possible(self.schedules[entry.name])
        return sums

    def sums_of(self, name: str) -> Sums:
        """The sums of one execution of a computation."""
        if name not in self.schedules:
            self.schedules[name] = Schedule()  # in case a computation in the text runs itself
            self.schedules[name] = self._walked(name)
        return self.schedules[name].sums

    def executions(self) -> dict[str, Counter[Unit]]:
        """Executions of each computation in one step, by the core and other threads."""
        found = defaultdict[str, Counter[Unit]](Counter)
        found[self.graph.module.entry.name][Unit.CORE] = 1
        for computation in self.graph.reachable:
            here = found[computation.name]
            for stretch in self._stretches(computation.name) if here else ():
                for _, run in stretch.runs if stretch.cause is None else ():
                    for unit, times in here.items():
                        runner = unit if stretch.unit is Unit.CORE else Unit.THREAD
                        found[run.computation][runner] += times * run.times
        return found

    def execution_bounds(self) -> dict[str, Bound]:
        """The bound of the executions of each computation."""
        found = defaultdict[str, Bound](lambda: Bound.EXACT)
        for computation in self.graph.reachable:
            for stretch in self._stretches(computation.name):
                for _, run in stretch.runs if stretch.cause is None else ():
                    found[run.computation] += found[computation.name] + run.bound
        return found

    def _stretches(self, name: str) -> list[Stretch]:
        return self.schedules[name].stretches if name in self.schedules else []

    def spans_of(self, name: str) -> Iterator[InstructionSpan]:
        """The time of the core at each instruction of a computation, including those that take no time."""
        stretches = self._stretches(name)
        started = {one.instruction.name: one for one in stretches if one.is_started and one.instruction is not None}
        core = [
            (one.instruction.name, one) for one in stretches if one.unit is Unit.CORE and one.instruction is not None
        ]
        now_us, index = 0.0, 0
        for instruction in self.graph.module.computation(name).instructions if stretches else ():
            begin_us, runs = now_us, []
            while index < len(core) and core[index][0] == instruction.name:
                now_us = core[index][1].end_us
                runs += [run for _, run in core[index][1].runs]
                index += 1
            yield InstructionSpan(instruction, begin_us, now_us, started.get(instruction.name), tuple(runs))

    def _walked(self, name: str) -> Schedule:
        computation = self.graph.module.computation(name)
        return ComputationWalk(computation, self.operations, self.priced, self.sums_of).run()

    def _make_possible(self, step: Schedule) -> None:
        """Extends the step if its bytes through memory or its FLOPs through the matrix units take longer.

        Data prefetched for the next step crosses memory concurrently with something else, but crosses it in every step.
        """
        chip, sums = self.operations.chip, step.sums
        hbm_bytes_per_s = chip.hbm_bytes_per_s / chip.devices_per_chip
        peak = chip.bf16_flops_per_s / chip.devices_per_chip
        for basis, seconds in (
            (TimeBasis.MEMORY, sums.hbm_bytes / hbm_bytes_per_s),
            (TimeBasis.ROOFLINE, sums.least_bf16_flops / peak),
        ):
            begin_us, end_us = sums.total_us, seconds * _MICROSECONDS
            if end_us > begin_us:
                cost = OperationTime(time_us=end_us - begin_us, basis=basis)
                limit = Stretch(None, Unit.CORE, begin_us, end_us, cause=WaitCause.LIMIT, cost=cost)
                step.stretches.append(limit)
                sums.add_stretch(limit)


def find_scheduled_computations(graph: HloGraph) -> Iterator[HloComputation]:
    """The computations that have an order of their own and are run by others, each before its callers."""
    for computation in reversed(graph.reachable):
        callers = (site.caller.opcode for site in graph.callers(computation.name))
        if any(opcode in _RUNNING_OPCODES or opcode.endswith("-start") for opcode in callers):
            yield computation
