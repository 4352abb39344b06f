"""The step's critical path: the longest chain of operations in which each needs the previous one.

In whatever order the same instructions run, a predicted step is never faster than this. A collective on the path is not
necessarily exposed: something else may be computed meanwhile. The algorithms are networkx's, which is loaded only here
and where graphs are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from hloscope.analysis.model import Collective
from hloscope.analysis.trip_counts import find_trip_count
from hloscope.cost.computation_walk import LOCAL_START_OPCODES, ends_chain
from hloscope.cost.operations import Operations
from hloscope.cost.records import CollectiveKey
from hloscope.cost.walk import find_scheduled_computations
from hloscope.hlo import HloComputation, HloInstruction

_END = ""
"""The node after all others: no instruction has an empty name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The longest chain of operations that need each other.

    Attributes:
        time_us: Total time of the operations on it, in microseconds per step.
        executions: Executions per step of each instruction on it, by computation and name, in execution order; a loop
        is replaced by the instructions of its body.
    """

    time_us: float = 0.0
    executions: Mapping[CollectiveKey, int] = field(default_factory=dict)


_EMPTY_PATH = CriticalPath()


def build_dataflow(computation: HloComputation) -> Any:
    """The dependencies in a computation, as an immutable `networkx.DiGraph` of instruction names."""
    graph = nx.DiGraph()
    for instruction in computation.instructions:
        graph.add_node(instruction.name, instruction=instruction)
        graph.add_edges_from((operand.name, instruction.name) for operand in instruction.operands)
    return nx.freeze(graph)


def find_critical_path(
    operations: Operations, collectives: Sequence[Collective], flow_of: Callable[[str], Any]
) -> CriticalPath:
    """The critical path of one step.

    Instructions with unknown time count as zero, as do collectives driven by the fusions around them and, in loops,
    those that cross slices, so that the path is too short rather than too long. A loop runs as often as it is priced,
    one iteration after the other.

    Args:
        operations: Prices computing instructions.
        collectives: The collectives with their times.
        flow_of: A function that returns the dataflow of a computation by its name.
    """
    return _PathSearch(operations, collectives, flow_of).whole()


class _PathSearch:
    """Finds the path of each computation once, callees before callers."""

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
        for computation in find_scheduled_computations(self._graph):
            self._paths[computation.name] = self._path_of(computation)
        return _EMPTY_PATH if self._graph.entry is None else self._path_of(self._graph.entry)

    def _path_of(self, computation: HloComputation) -> CriticalPath:
        parts = {instruction.name: self._part(instruction) for instruction in computation.instructions}
        flow = nx.DiGraph()
        flow.add_weighted_edges_from(
            (name, user, parts[name].time_us) for name, user in self._flow_of(computation.name).edges
        )
        flow.add_weighted_edges_from((name, _END, part.time_us) for name, part in parts.items())
        return _join_paths((parts[name], 1) for name in nx.dag_longest_path(flow, weight="weight") if name != _END)

    def _part(self, instruction: HloInstruction) -> CriticalPath:
        """The contribution of one instruction to a path: itself, or the paths of its callees."""
        opcode, key = instruction.opcode, (instruction.computation.name, instruction.name)
        callees = [(attribute, self._paths.get(name, _EMPTY_PATH)) for attribute, name in instruction.called]
        if key in self._collectives:
            return self._transfer(instruction, self._collectives[key])
        if opcode == "while":
            trips = find_trip_count(self._graph, instruction).count
            return _join_paths((callee, trips + (attribute == "condition")) for attribute, callee in callees)
        if opcode == "conditional":
            return max((callee for _, callee in callees), key=lambda callee: callee.time_us, default=_EMPTY_PATH)
        if opcode in LOCAL_START_OPCODES:
            is_prefetch = "cross_program_prefetch_index" in instruction.attributes
            return _EMPTY_PATH if is_prefetch else _single_path(key, self._operations.copy_time(instruction).time_us)
        if opcode == "call" or opcode.endswith("-start"):
            return _join_paths((callee, 1) for _, callee in callees)
        if (
            opcode.endswith(("-done", "-update"))
            or opcode in ("send", "recv")
            or (opcode == "fusion" and ends_chain(self._graph, instruction))
        ):
            return _EMPTY_PATH
        return _single_path(key, self._operations.time_of(instruction).time_us)

    def _transfer(self, instruction: HloInstruction, moved: Collective) -> CriticalPath:
        """The contribution of a collective to a path.

        A collective across slices consists of several transfers; in a loop each may belong to a different iteration, so
        that they run concurrently.
        """
        is_driven = moved.asynchronous and instruction.opcode == "fusion"
        is_spread = bool(moved.parts) and instruction.computation.name != getattr(self._graph.entry, "name", None)
        if is_driven or is_spread or not moved.time_us:
            return _EMPTY_PATH
        return _single_path((moved.computation, moved.name), moved.time_us)


def _join_paths(parts: Iterable[tuple[CriticalPath, int]]) -> CriticalPath:
    """Several paths one after the other, each repeated a number of times."""
    time_us, executions = 0.0, Counter[CollectiveKey]()
    for part, times in parts:
        time_us += part.time_us * times
        for key, count in part.executions.items():
            executions[key] += count * times
    return CriticalPath(time_us=time_us, executions=executions)


def _single_path(key: CollectiveKey, time_us: float) -> CriticalPath:
    return CriticalPath(time_us=time_us, executions={key: 1})
