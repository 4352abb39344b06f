"""TPU kernels in the compiled program, the user's or XLA's."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.model.collective import ArrayShape
from hloscope.analysis.model.reason import Stack
from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Kernel(Brief):
    """A Pallas or Mosaic kernel, or several calls of it that differ only in their place in the text.

    Attributes:
        name: The author's name for it, under which its cost can be given.
        by_compiler: Whether XLA generated it, as it does for some attention; the name and the estimate are then XLA's.
        line: 1-based line of the first call in the HLO text.
        calls: Number of places that call it.
        executions: Executions per step over all call sites.
        executions_bound: Whether `executions` is exact or a bound.
        operand_shapes: Operand shapes on one device.
        result_shapes: Result shapes on one device.
        flops: FLOPs per execution from the author's `cost_estimate`; None without one.
        accessed_bytes: Bytes accessed per execution from the same estimate; None without one.
        remote_dma: Whether it communicates with other chips by itself, which no total includes; None if unknown.
        fingerprint: Digest of the kernel, independent of source locations; None for one that does not communicate by
            itself.
        op_name: XLA's `op_name`; None if unknown.
        source: Source frames of the call, innermost first; empty if unknown.
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
