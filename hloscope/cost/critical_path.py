"""The step's critical path: the longest chain of operations of which each needs the one before it.

However the same instructions are ordered, and whatever runs beside them, a predicted step is never faster than that. It
does not follow that a collective on the path is exposed: something else may be computed beside it. The algorithms are
networkx's, which an analysis does without: here and where graphs are written it is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from hloscope.analysis.model import Collective
from hloscope.analysis.trip_counts import trip_count
from hloscope.cost.computation_walk import LOCAL_STARTS, ends_chain
from hloscope.cost.operations import Operations
from hloscope.cost.records import Key
from hloscope.cost.walk import scheduled
from hloscope.hlo import HloComputation, HloInstruction

_END = ""
"""The node behind all others: no instruction has an empty name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The longest chain of operations that need each other.

    Attributes:
        time_us: How long the operations on it take together, in microseconds per step.
        executions: How often each instruction on it runs per step, by its computation and name, in the order in which
            they run; those of a loop's body stand in the place of the loop.
    """

    time_us: float = 0.0
    executions: Mapping[Key, int] = field(default_factory=dict)


_NOTHING = CriticalPath()


def dataflow(computation: HloComputation) -> Any:
    """What needs what in a computation, as a `networkx.DiGraph` of instructions' names that cannot be changed."""
    graph = nx.DiGraph()
    for instruction in computation.instructions:
        graph.add_node(instruction.name, instruction=instruction)
        graph.add_edges_from((operand.name, instruction.name) for operand in instruction.operands)
    return nx.freeze(graph)


def find_critical_path(
    operations: Operations, collectives: Sequence[Collective], flow_of: Callable[[str], Any]
) -> CriticalPath:
    """The critical path of one step.

    What nothing tells the time of takes none, and neither does a collective that the fusions around it drive or, in a
    loop, one that crosses slices, so that the path is rather too short than too long. A loop runs as often as it is
    priced, one iteration after the other.

    Args:
        operations: Prices what computes.
        collectives: With their times.
        flow_of: The dataflow of a computation by its name.
    """
    return _Search(operations, collectives, flow_of).whole()


class _Search:
    """Finds the path of each computation once, those that are called before those that call them."""

    def __init__(
        self, operations: Operations, collectives: Sequence[Collective], flow_of: Callable[[str], Any]
    ) -> None:
        self._operations = operations
        self._graph = operations.graph
        self._collectives = {(moved.computation, moved.name): moved for moved in collectives}
        self._flow_of = flow_of
        self._paths: dict[str, CriticalPath] = {}

    def whole(self) -> CriticalPath:
        """The path of ENTRY."""
        for computation in scheduled(self._graph):
            self._paths[computation.name] = self._path_of(computation)
        return _NOTHING if self._graph.entry is None else self._path_of(self._graph.entry)

    def _path_of(self, computation: HloComputation) -> CriticalPath:
        parts = {instruction.name: self._part(instruction) for instruction in computation.instructions}
        flow = nx.DiGraph()
        flow.add_weighted_edges_from(
            (name, user, parts[name].time_us) for name, user in self._flow_of(computation.name).edges
        )
        flow.add_weighted_edges_from((name, _END, part.time_us) for name, part in parts.items())
        return _chain((parts[name], 1) for name in nx.dag_longest_path(flow, weight="weight") if name != _END)

    def _part(self, instruction: HloInstruction) -> CriticalPath:
        """What one instruction adds to a path: itself, or the paths of what it calls."""
        opcode, key = instruction.opcode, (instruction.computation.name, instruction.name)
        callees = [(attribute, self._paths.get(name, _NOTHING)) for attribute, name in instruction.called]
        if key in self._collectives:
            return self._transfer(instruction, self._collectives[key])
        if opcode == "while":
            trips = trip_count(self._graph, instruction).count
            return _chain((callee, trips + (attribute == "condition")) for attribute, callee in callees)
        if opcode == "conditional":
            return max((callee for _, callee in callees), key=lambda callee: callee.time_us, default=_NOTHING)
        if opcode in LOCAL_STARTS:
            is_prefetch = "cross_program_prefetch_index" in instruction.attributes
            return _NOTHING if is_prefetch else _alone(key, self._operations.copy_time(instruction).time_us)
        if opcode == "call" or opcode.endswith("-start"):
            return _chain((callee, 1) for _, callee in callees)
        if (
            opcode.endswith(("-done", "-update"))
            or opcode in ("send", "recv")
            or (opcode == "fusion" and ends_chain(self._graph, instruction))
        ):
            return _NOTHING
        return _alone(key, self._operations.time_of(instruction).time_us)

    def _transfer(self, instruction: HloInstruction, moved: Collective) -> CriticalPath:
        """What a collective adds.

        One across slices is made of several transfers; in a loop each of them may belong to another iteration, so that
        they run side by side.
        """
        is_driven = moved.asynchronous and instruction.opcode == "fusion"
        is_spread = bool(moved.parts) and instruction.computation.name != getattr(self._graph.entry, "name", None)
        if is_driven or is_spread or not moved.time_us:
            return _NOTHING
        return _alone((moved.computation, moved.name), moved.time_us)


def _chain(parts: Iterable[tuple[CriticalPath, int]]) -> CriticalPath:
    """Several chains one after the other, each so many times."""
    time_us, executions = 0.0, Counter[Key]()
    for part, times in parts:
        time_us += part.time_us * times
        for key, count in part.executions.items():
            executions[key] += count * times
    return CriticalPath(time_us=time_us, executions=executions)


def _alone(key: Key, time_us: float) -> CriticalPath:
    return CriticalPath(time_us=time_us, executions={key: 1})
