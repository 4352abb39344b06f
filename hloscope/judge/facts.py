"""The facts about a program that rules can query. A new fact is a query here rather than a field of `Analysis`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hloscope.hlo import HloModule
from hloscope.hlo.call_graph import HloGraph
from hloscope.model import Analysis, ArrayFact, Collective
from hloscope.model.reason import Reason
from hloscope.model.vocabulary import Kind
from hloscope.tpu.slices import Slice

if TYPE_CHECKING:
    from hloscope.cost.program_graph import CriticalPath


@dataclass(eq=False, repr=False)
class Facts:
    """A compiled program as rules see it; each query is computed on first use and cached.

    Attributes:
        analysis: The analysis that reports show.
        module: The parsed HLO; None if there is only an analysis.
        slice: The slice that the program runs on, with its chip; None if unknown.
        kernel_costs: FLOPs and bytes of kernels as given by the user, by kernel name.
    """

    analysis: Analysis
    module: HloModule | None = None
    slice: Slice | None = None
    kernel_costs: Mapping[str, tuple[float, float]] = field(default_factory=dict, kw_only=True)
    _dataflows: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives, most bytes per step first."""
        return self.analysis.collectives

    def moving(self, payload_bytes: int) -> tuple[Collective, ...]:
        """Returns the collectives that move at least so many bytes per execution, or unknown bytes, except opaque ones.

        Collectives in groups of one device send nothing and are excluded.
        """
        return tuple(
            collective
            for collective in self.collectives
            if collective.kind is not Kind.OPAQUE
            and collective.wire_bytes != 0
            and (collective.payload_bytes is None or collective.payload_bytes >= payload_bytes)
        )

    @cached_property
    def sending(self) -> tuple[Collective, ...]:
        """The collectives that are known to send bytes."""
        return tuple(collective for collective in self.collectives if collective.wire_bytes)

    @cached_property
    def explained(self) -> tuple[tuple[Collective, Reason], ...]:
        """The collectives whose reason is known, each with its reason."""
        return tuple(
            (collective, collective.reason) for collective in self.collectives if collective.reason is not None
        )

    @cached_property
    def used_arrays(self) -> tuple[tuple[str, ArrayFact], ...]:
        """The arguments and outputs that the program uses, each with its role: `argument` or `output`."""
        by_role = (("argument", self.analysis.arguments), ("output", self.analysis.outputs))
        return tuple((role, array) for role, arrays in by_role for array in arrays if array.used)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The number of devices along each mesh axis, major first; empty without a mesh."""
        mesh = self.analysis.mesh
        return {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))

    @property
    def step_us(self) -> float | None:
        """The predicted step time in microseconds; None if not priced."""
        return None if self.analysis.time is None else self.analysis.time.step_us

    @property
    def hbm_share(self) -> float | None:
        """The share of a device's HBM that the program uses, above 1 if it does not fit; None if unknown."""
        memory = self.analysis.memory
        return None if memory.peak_bytes is None or not memory.hbm_bytes else memory.peak_bytes / memory.hbm_bytes

    @cached_property
    def graph(self) -> HloGraph | None:
        """The call graph; None without the HLO."""
        return None if self.module is None else HloGraph(self.module)

    def dataflow(self, computation: str) -> Any:
        """Returns the dependencies of a computation's instructions as a `networkx.DiGraph`; None without the HLO.

        Nodes are instruction names, with the `HloInstruction` as `instruction`; edges lead from an operand to its user.
        `networkx.ancestors(facts.dataflow(c.computation), c.name)` is everything that has to run before `c`.
        """
        if self.module is None:
            return None
        if computation not in self._dataflows:
            from hloscope.cost.program_graph import build_dataflow

            self._dataflows[computation] = build_dataflow(self.module.computation(computation))
        return self._dataflows[computation]

    @cached_property
    def critical_path(self) -> CriticalPath | None:
        """The longest chain of dependent operations; None if not priced."""
        if self.graph is None or self.step_us is None or self.slice is None or self.slice.chip is None:
            return None
        from hloscope.cost.operations import Operations
        from hloscope.cost.program_graph import find_critical_path

        operations = Operations(graph=self.graph, chip=self.slice.chip, kernel_costs=self.kernel_costs)
        return find_critical_path(operations, self.collectives)
