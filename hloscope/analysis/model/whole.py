"""Everything known about one compiled program."""

from __future__ import annotations

from dataclasses import dataclass, field

from hloscope.analysis.model.collective import Collective, Mesh
from hloscope.analysis.model.program import ArrayFact, IntermediateFact, Memory, SliceFact, Unmodelled
from hloscope.analysis.model.reason import Rematerialization
from hloscope.analysis.model.step_time import StepTime
from hloscope.analysis.model.totals import Totals
from hloscope.findings import Finding
from hloscope.units import plural


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Analysis:
    """Everything hloscope knows about one compiled program.

    Attributes:
        target: What the user named: `model.py:step`, `step.hlo`, `-`.
        module: The HLO module's name.
        slice: The slice; None for HLO text without `--slice`.
        mesh: The user's mesh; None when there is none.
        num_partitions: Partitions of the SPMD program, as the text says (of one slice, for multi-slice text).
        collectives: By wire bytes per step, largest first; unknown bytes before all others.
        totals: Sums per step on one device.
        arguments: The program's arguments, in order.
        outputs: The program's outputs, in order.
        intermediates: The largest arrays that it makes on the way, largest first.
        memory: Bytes on one device.
        time: Where the step's time goes; None when it was not priced.
        rematerializations: Arrays that the partitioner replicates because it knows no other way between two shardings.
        findings: What rules found.
        unmodelled: What was not understood.
        notes: Choices made for the user and compiler diagnostics, one sentence each.
        versions: `hloscope`, and `jax`, `jaxlib`, `libtpu` when they compiled the program.
    """

    target: str
    module: str
    slice: SliceFact | None
    mesh: Mesh | None
    num_partitions: int
    collectives: tuple[Collective, ...]
    totals: Totals
    arguments: tuple[ArrayFact, ...]
    outputs: tuple[ArrayFact, ...]
    memory: Memory
    intermediates: tuple[IntermediateFact, ...] = ()
    time: StepTime | None = None
    rematerializations: tuple[Rematerialization, ...] = ()
    findings: tuple[Finding, ...] = ()
    unmodelled: tuple[Unmodelled, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        place = f" on {self.slice.name}" if self.slice is not None else ""
        return (
            f"<Analysis of {self.target}{place}: {plural(self.totals.collectives, 'collective')}, "
            f"{self.totals.wire_bytes} wire bytes per step ({self.totals.bound})>"
        )

    def to_dict(self) -> dict[str, object]:
        """The analysis as plain data, as `--format json` prints it (see `hloscope/analysis/schema.json`)."""
        from hloscope.analysis.document import to_document

        return to_document(self)
