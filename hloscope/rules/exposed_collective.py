"""A collective that the step waits for.

What it does: reports collectives whose exposed time, which nothing hides, is a large share of the predicted step, with
the longest matmul that each could be hidden behind.

Why it matters: communication beside computation is free; communication that the matrix units wait for is not.

Example: an all-gather of all experts' weights in each iteration of a scan: 73 of 76 ms on a v5e.

Use instead: less movement (another sharding), or overlap: a collective matmul that multiplies one chunk while the next
travels, weights of the next layer fetched during this one, or gradients of one layer summed during the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.model import Collective, Relation
from hloscope.analysis.places import short_source
from hloscope.analysis.vocabulary import Kind
from hloscope.rules import Facts, Finding, Severity, finding_at, over_axes
from hloscope.rules.rule import BuiltinRule
from hloscope.units import format_time

_RELATIONS = {
    Relation.INDEPENDENT: "which neither needs it nor feeds it",
    Relation.CONSUMER: "which uses it (a collective matmul moves one part while another is multiplied)",
    Relation.PRODUCER: "which makes what it moves (a collective matmul moves one part while another is multiplied)",
}
_AHEAD = {
    Kind.ALL_GATHER: "fetch one layer ahead",
    Kind.ALL_REDUCE: "sum one layer's values while the next is computed",
    Kind.REDUCE_SCATTER: "sum one layer's values while the next is computed",
}


class ExposedCollective(BuiltinRule, name="exposed-collective", severity=Severity.WARNING):
    """A collective that the step waits for.

    Attributes:
        share: The share of the step's time from which on it is reported.
        min_exposed_us: Less time per step is not reported, whatever its share.
    """

    share: float = 0.25
    min_exposed_us: float = 100.0

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each collective that is exposed for long."""
        step_us = facts.step_us
        for collective in facts.collectives:
            if collective.exposed_us is None or not step_us:
                continue
            exposed_us = collective.exposed_us * collective.executions
            if exposed_us >= max(self.min_exposed_us, self.share * step_us):
                yield finding_at(
                    self,
                    collective,
                    f"the step waits {format_time(exposed_us)} of {format_time(step_us)} "
                    f"({100 * exposed_us / step_us:.0f}%) for {over_axes(collective)}",
                    fix=what_to_do(collective),
                )


_LITTLE = 0.1
"""Of what is exposed: a matmul that hides no more is not worth a rewrite."""


def what_to_do(collective: Collective, ahead: str | None = None) -> str:
    """Other shardings, which `hloscope explain` tries, and what could run meanwhile; none of it was tried.

    Args:
        collective: One that the step waits for.
        ahead: What another layer could do meanwhile, where that is known better than by its kind.
    """
    try_others = "try other shardings against it (hloscope explain)"
    overlap, exposed_us = collective.overlap, collective.exposed_us
    if overlap is None:
        no_matmul = "" if ahead else "hide it: there is no matmul near it, so "
        return f"{try_others}, or {no_matmul}{ahead or _AHEAD.get(collective.kind, 'start it earlier')}"
    if exposed_us is not None and overlap.time_us < _LITTLE * exposed_us:
        return f"{try_others}: no matmul near it could hide a tenth of it"
    return f"{try_others}, or {_how_to_hide(collective)}"


def _how_to_hide(collective: Collective) -> str:
    """The matmul beside it."""
    overlap = collective.overlap
    assert overlap is not None
    place = short_source(overlap.source) or f"%{overlap.name}"
    matmul = f"overlap it with the matmul of {place}, {_RELATIONS[overlap.relation]}"
    if collective.exposed_us is None or overlap.time_us >= collective.exposed_us:
        return matmul
    return f"{matmul}; that hides at most {format_time(overlap.time_us)} of {format_time(collective.exposed_us)}"
