"""A kernel in a TPU's own language, the user's or XLA's: what the text tells of it."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.model.collective import ArrayShape
from hloscope.analysis.model.reason import Stack
from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Kernel(Brief):
    """A Pallas or Mosaic kernel, or several calls of one that differ only in their place in the text.

    Attributes:
        name: As its author called it, by which its cost can be given.
        by_compiler: Whether XLA wrote it, as it does for some attention; then the name and the estimate are XLA's too.
        line: 1-based line of the first call in the HLO text.
        calls: Places that call it.
        executions: Runs per step of all of them together.
        executions_bound: How `executions` relates to the truth.
        operand_shapes: On one device.
        result_shapes: On one device.
        flops: Of one run, as its author estimates (`cost_estimate`); None where he does not.
        accessed_bytes: Bytes of one run, by the same estimate; None where there is none.
        remote_dma: Whether it sends to other chips by itself, which no total counts; None where it does not say.
        fingerprint: A digest of what it does, wherever it is written; None for one that does not send by itself.
        op_name: XLA's `op_name`; None when not known.
        source: Where it was called, innermost frame first; empty when not known.
    """

    name: str
    by_compiler: bool
    line: int
    calls: int
    executions: int
    executions_bound: Bound
    operand_shapes: tuple[ArrayShape, ...]
    result_shapes: tuple[ArrayShape, ...]
    flops: int | None
    accessed_bytes: int | None
    remote_dma: bool | None
    fingerprint: str | None = None
    op_name: str | None
    source: Stack
