"""Matmuls and convolutions by line of user code."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.model.reason import Stack
from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Matmuls(Brief):
    """The matmuls and convolutions of one type on one line of user code, per device and per step.

    Attributes:
        dtype: XLA's short name of the operand type; the wider one of two.
        executions: Number of executions as compiled, including what the compiler split, merged or recomputed.
        flops: FLOPs, counting a multiply-add as two; None if the text does not determine them.
        bound: Whether `executions` and `flops` are exact or bounds.
        source: Source frames of the first of them, innermost first; empty if unknown.
    """

    dtype: str
    executions: int
    flops: int | None
    bound: Bound = Bound.EXACT
    source: Stack = ()
