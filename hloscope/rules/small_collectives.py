"""Many small collectives that could be one.

What it does: reports collectives of one kind over the same axes, of the same element types and from the same HLO
computation that each move so little that their time is latency, when there are several of them.

Why it matters: a collective takes some microseconds however little it moves, so ten of a kilobyte cost as
much as ten of a hundred kilobytes.

Example: a `psum` for each of a model's scalar metrics, or for the gradient of each bias, that the compiler could not
combine because each waits for the one before.

Use instead: one collective over a tuple or a stacked array, `jax.lax.psum((a, b, c), "X")`, of what does not need the
result of another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.vocabulary import Kind
from hloscope.findings import Finding, Severity
from hloscope.rules.rule import finding_at, moves_at_least, over_axes
from hloscope.units import format_bytes, plural

_COMBINED = {
    Kind.ALL_GATHER: "jax.lax.all_gather of one stacked array",
    Kind.ALL_REDUCE: "jax.lax.psum of a tuple or of one stacked array",
    Kind.REDUCE_SCATTER: "jax.lax.psum_scatter of one stacked array",
    Kind.ALL_TO_ALL: "jax.lax.all_to_all of one stacked array",
}
_REDUCING = {"maximum": "pmax", "minimum": "pmin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallCollectives:
    """Many small collectives that could be one.

    Attributes:
        max_payload_bytes: A collective that moves more is not small.
        min_collectives: Fewer of one kind in one place are not worth a word.
    """

    name: ClassVar[str] = "small-collectives"
    severity: ClassVar[Severity] = Severity.WARNING
    max_payload_bytes: int = 65_536
    min_collectives: int = 4

    def check(self, analysis: Analysis) -> Iterator[Finding]:
        """Yields one warning for each group of small collectives, at the first of them."""
        alike: dict[tuple[object, ...], list[Collective]] = defaultdict(list)
        for one in analysis.collectives:
            if one.kind in _COMBINED and one.wire_bytes and not moves_at_least(one, self.max_payload_bytes + 1):
                alike[_what_combines(one)].append(one)
        for group in alike.values():
            if len(group) < self.min_collectives:
                continue
            group.sort(key=lambda one: one.line)
            first, total = group[0], sum(one.payload_bytes or 0 for one in group)
            found = finding_at(
                self,
                first,
                f"{plural(len(group), first.kind)}{over_axes(first).removeprefix(first.kind)} "
                f"move {format_bytes(total)} together: their time is latency",
                fix=f"combine those that do not need each other's results: {_combined(first)}",
            )
            yield replace(found, cost=None)


def _combined(one: Collective) -> str:
    return _COMBINED[one.kind].replace("psum ", f"{_REDUCING.get(one.reduction or '', 'psum')} ")


def _what_combines(one: Collective) -> tuple[object, ...]:
    """Collectives of which this is equal could be one."""
    types = {shape.partition("[")[0] for shape in one.operand_shapes}
    return one.computation, one.loops, one.kind, one.groups, one.reduction, frozenset(types)
