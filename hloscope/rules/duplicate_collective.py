"""The same values moved twice in the same way.

What it does: reports collectives of one kind over the same groups that move the same values as another one before them.

Why it matters: the second could have used what the first one brought, if there was memory to keep it.

Example: weights gathered in the forward pass and again in the rematerialized backward pass; fully sharded data
parallelism does that on purpose, which is why this is a note.

Use instead: bind the gathered array to a name and use it twice; under `jax.checkpoint`, a policy that saves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.vocabulary import Kind
from hloscope.findings import Finding, Severity
from hloscope.rules.rule import finding_at, over_axes, place_of


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
        """Yields a note for each collective that repeats an earlier one."""
        seen: dict[tuple[object, ...], Collective] = {}
        for one in sorted(analysis.collectives, key=lambda one: one.line):
            if one.kind in (Kind.OPAQUE, Kind.COLLECTIVE_PERMUTE) or (one.payload_bytes or 0) < self.min_payload_bytes:
                continue
            if not one.moved_values or any(value.endswith(" slice") for value in one.moved_values):
                continue
            first = seen.setdefault((one.kind, one.groups, one.moved_values), one)
            if first is not one:
                yield finding_at(
                    self,
                    one,
                    f"{over_axes(one)} moves the same values as %{first.name} at {place_of(first)}",
                    fix="keep what the first one brought: bind it to a name, or save it under jax.checkpoint",
                )
