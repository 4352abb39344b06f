"""A collective that moves the same values in every iteration of a loop.

What it does: reports a collective in a loop when what it moves does not change from one iteration to the next. Of loops
in loops it is the innermost one that counts.

Why it matters: the same bytes cross the network again and again, and the loop waits each time.

Example: a scan over experts that takes `W[e]` of weights sharded over their expert dimension: all of `W` is gathered
for each expert.

Use instead: move once, before the loop (`with_sharding_constraint` on the operand outside it), if there is memory for
the result; or shard a dimension that the loop does not index; or let the data travel to the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hloscope.analysis.model import Analysis, Collective, ReasonKind
from hloscope.analysis.vocabulary import Kind, Origin
from hloscope.findings import Finding, Severity
from hloscope.rules.rule import finding_at, moves_at_least, over_axes
from hloscope.units import format_bytes, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveInLoop:
    """A collective that moves the same values in every iteration of a loop.

    Attributes:
        min_payload_bytes: Smaller transfers are not reported.
    """

    name: ClassVar[str] = "collective-in-loop"
    severity: ClassVar[Severity] = Severity.WARNING
    min_payload_bytes: int = 65_536

    def check(self, analysis: Analysis) -> Iterator[Finding]:
        """Yields a warning for each collective of loop-invariant values in a loop of more than one trip."""
        for one in analysis.collectives:
            if not one.loop_invariant or one.loop_trips[-1:] in ((), (0,), (1,)) or one.kind is Kind.OPAQUE:
                continue
            if _starts_a_sum(one):
                continue
            if moves_at_least(one, self.min_payload_bytes):
                yield finding_at(
                    self,
                    one,
                    f"{over_axes(one)} moves the same {_amount(one)} in {_iterations(one)}",
                    fix="move it once before the loop, shard a dimension that the loop does not index, "
                    "or let the other operand travel instead",
                )


def _starts_a_sum(one: Collective) -> bool:
    """Whether it hands on the zeros that a sum which goes from device to device starts from: no array of the user's."""
    if one.kind is not Kind.COLLECTIVE_PERMUTE:
        return False
    of_a_sum = one.reason is not None and one.reason.kind is ReasonKind.PARTIAL_SUM
    return of_a_sum or (one.moves_zeros and one.origin is not Origin.AUTHORED)


def _amount(one: Collective) -> str:
    return "values" if one.payload_bytes is None else format_bytes(one.payload_bytes)


def _iterations(one: Collective) -> str:
    trips = one.loop_trips[-1]
    return f"every iteration of %{one.loops[-1]}" if trips is None else f"each of {format_count(trips)} iterations"
