"""The schedule as a timeline: what a step adds up to, each computation being walked once however often it runs."""

from __future__ import annotations

from hloscope.cost.operations import Operations
from hloscope.cost.records import Priced, Sums
from hloscope.cost.walk import Walk
from hloscope.graph import HloGraph

_RUNS = frozenset({"while", "conditional", "call"})


class Timeline:
    """Walks the computations of a module from ENTRY.

    Args:
        graph: The module.
        operations: Prices what computes.
        priced: Prices what communicates.
    """

    def __init__(self, graph: HloGraph, operations: Operations, priced: Priced) -> None:
        self.graph = graph
        self.operations = operations
        self.priced = priced
        self._walked: dict[str, Sums] = {}

    def step(self) -> Sums:
        """One step of the program.

        What runs other computations is walked after them, so that no nesting is too deep.
        """
        for computation in reversed(self.graph.reachable):
            callers = (site.caller.opcode for site in self.graph.callers(computation.name))
            if any(opcode in _RUNS or opcode.endswith("-start") for opcode in callers):
                self.sums_of(computation.name)
        total = Sums()
        for computation in self.graph.module.outermost:
            total.add(self.sums_of(computation.name))
        return total

    def sums_of(self, name: str) -> Sums:
        """One execution of a computation."""
        if name not in self._walked:
            self._walked[name] = Sums()  # for text in which a computation runs itself
            self._walked[name] = Walk(self, self.graph.module.computation(name)).run()
        return self._walked[name]
