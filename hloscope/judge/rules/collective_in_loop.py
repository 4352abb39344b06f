"""A collective that moves the same values in every iteration of a loop.

What it does: reports a collective in a loop when what it moves does not change from one iteration to the next. In
nested loops only the innermost one counts.

Why it matters: the same bytes cross the network in every iteration, and the loop waits for them each time.

Example: a scan over experts that takes `W[e]` of weights sharded over their expert dimension: all of `W` is gathered
for each expert.

Use instead: move it once, before the loop (`with_sharding_constraint` on the operand outside it), if there is memory
for the result. Otherwise shard a dimension that the loop does not index, or move the data to the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.base.units import format_bytes, format_count
from hloscope.judge.rule import BuiltinRule, Facts, finding_at, over_axes
from hloscope.model import Collective, ReasonKind
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Kind, Origin


class CollectiveInLoop(BuiltinRule, name="collective-in-loop", severity=Severity.WARNING):
    """A collective that moves the same values in every iteration of a loop.

    Attributes:
        min_payload_bytes: Smaller transfers are not reported.
    """

    min_payload_bytes: int = 65_536

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each collective of loop-invariant values in a loop of more than one trip."""
        for collective in facts.moving(self.min_payload_bytes):
            amount = "values" if collective.payload_bytes is None else format_bytes(collective.payload_bytes)
            repeated = collective.loop_invariant and collective.loop_trips[-1:] not in ((), (0,), (1,))
            if repeated and not _starts_a_sum(collective):
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} moves the same {amount} in {_format_iterations(collective)}",
                    fix="move it once before the loop, shard a dimension that the loop does not index, "
                    "or move the other operand instead",
                )


def _starts_a_sum(collective: Collective) -> bool:
    """Returns whether it moves the initial zeros of a sum that goes from device to device, not a user's array."""
    if collective.kind is not Kind.COLLECTIVE_PERMUTE:
        return False
    of_a_sum = collective.reason is not None and collective.reason.kind is ReasonKind.PARTIAL_SUM
    return of_a_sum or (collective.moves_zeros and collective.origin is not Origin.AUTHORED)


def _format_iterations(collective: Collective) -> str:
    loop, trips = collective.loops[-1], collective.loop_trips[-1]
    return f"every iteration of %{loop}" if trips is None else f"each of {format_count(trips)} iterations"


INVALID = ({"captured": "mixture_of_experts.mixture_of_experts", "mesh": {"X": 8}},)
VALID = ({"captured": "mixture_of_experts.mixture_of_experts_shard_map", "mesh": {"X": 8}},)
