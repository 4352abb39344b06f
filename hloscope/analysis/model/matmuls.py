"""How much is multiplied on a line of the user's code."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.model.reason import Stack
from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Matmuls(Brief):
    """The matmuls and convolutions of one line of the user's code and one type, per step on one device.

    Attributes:
        dtype: XLA's short name of the type that is multiplied; of two types the wider one.
        executions: How many run; what the compiler splits, joins or computes again counts as it is compiled.
        flops: Their multiply-adds, two operations each; None where the text does not tell.
        bound: How `executions` and `flops` relate to the truth.
        source: Where they are written, innermost frame first, as the first of them is; empty when not known.
    """

    dtype: str
    executions: int
    flops: int | None
    bound: Bound = Bound.EXACT
    source: Stack = ()
