"""The same values moved twice in the same way.

What it does: reports collectives of one kind over the same groups that move the same values as another one before them,
in arrays of the same shapes and, where they reduce, with the same reduction. Those in different branches are not
reported, since only one of them runs.

Why it matters: the second could have used what the first one brought, if there was memory to keep it.

Example: weights gathered in the forward pass and again in the rematerialized backward pass; fully sharded data
parallelism does that on purpose, which is why this is a note.

Use instead: bind the gathered array to a name and use it twice; under `jax.checkpoint`, a policy that saves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.findings import Finding, Severity
from hloscope.rules.rule import finding_at, moves_at_least, over_axes, place_of

_MAY_NOT_RUN = (Bound.AT_MOST, Bound.UNKNOWN)
_RUN_TIME_SLICE = re.compile(r" slice(?: |$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateCollective:
    """The same values moved twice in the same way.

    Attributes:
        min_payload_bytes: Smaller transfers are not reported.
    """

    name: ClassVar[str] = "duplicate-collective"
    severity: ClassVar[Severity] = Severity.NOTE
    min_payload_bytes: int = 1_000_000

    def check(self, analysis: Analysis) -> Iterator[Finding]:
        """Yields a note for each collective that repeats another one that surely runs, or that stands before it."""
        seen: dict[tuple[object, ...], Collective] = {}
        for one in sorted(analysis.collectives, key=lambda one: (one.executions_bound in _MAY_NOT_RUN, one.line)):
            if one.kind in (Kind.OPAQUE, Kind.COLLECTIVE_PERMUTE) or not moves_at_least(one, self.min_payload_bytes):
                continue
            if not one.moved_values or any(_RUN_TIME_SLICE.search(value) for value in one.moved_values):
                continue
            first = seen.setdefault(_what_it_does(one), one)
            if first is not one and not _are_apart(first, one):
                yield finding_at(
                    self,
                    one,
                    f"{over_axes(one)} moves the same values as %{first.name} at {place_of(first)}",
                    fix="keep what the first one brought: bind it to a name, or save it under jax.checkpoint",
                )


def _what_it_does(one: Collective) -> tuple[object, ...]:
    """Collectives of which this is equal bring the same arrays."""
    return one.kind, one.groups, one.moved_values, one.reduction, one.operand_shapes, one.result_shapes


def _are_apart(first: Collective, other: Collective) -> bool:
    """Whether one cannot use what the other brings: two runs of one instruction, or two that may be branches."""
    if first.computation == other.computation:
        return first.name == other.name
    return first.executions_bound in _MAY_NOT_RUN and other.executions_bound in _MAY_NOT_RUN
