"""A collective that the step waits for.

What it does: reports collectives whose exposed time is a large share of the predicted step, with the longest matmul
that each could be overlapped with.

Why it matters: communication that overlaps with computation is free. Communication that the matrix units wait for is
not.

Example: an all-gather of all experts' weights in each iteration of a scan: 73 of 76 ms on a v5e.

Use instead: less communication (another sharding), or overlap. Examples of overlap are a collective matmul that
multiplies one chunk while the next one moves, prefetching the weights of the next layer during this one, and summing
the gradients of one layer during the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from hloscope.analysis.provenance import short_source
from hloscope.base.errors import say
from hloscope.base.units import format_time
from hloscope.judge.rule import SHARE, BuiltinRule, Facts, finding_at, over_axes
from hloscope.model import Collective, Role
from hloscope.model.collectives import Relation
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Origin

_RELATIONS = {
    Relation.INDEPENDENT: "which is independent of it",
    Relation.CONSUMER: "which consumes it (a collective matmul moves one chunk while it multiplies another)",
    Relation.PRODUCER: "which produces what it moves (a collective matmul moves one chunk while it multiplies another)",
}
_MEANWHILE = {
    Role.WEIGHTS: "do it for the next layer during this one",
    Role.GRADIENT: "overlap the sum with the computation of the next layer's gradients",
    Role.ACTIVATIONS: "overlap it with the computation of another part of the batch",
}
"""The work that can run during a collective of a layer without a matmul near it.

An argument moves unchanged, and can do so for the next layer, which needs the activations of this one.
"""


_ELSE = "overlap it with computation that does not depend on it"


class ExposedCollective(BuiltinRule, name="exposed-collective", severity=Severity.WARNING):
    """A collective that the step waits for.

    Attributes:
        share: The smallest share of the step's time that is reported.
        min_exposed_us: Less time per step is not reported, whatever its share.
    """

    share: float = field(default=0.25, metadata=SHARE)
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
                    f"{over_axes(collective)} is exposed for {format_time(exposed_us)} of the "
                    f"{format_time(step_us)} step ({100 * exposed_us / step_us:.0f}%)",
                    fix=suggest_overlap(collective),
                )


_LITTLE = 0.1
"""The least share of the exposed time: a matmul that hides less is not worth a rewrite."""


def suggest_overlap(collective: Collective) -> str:
    """Suggests overlap, and to move less in a collective that the code calls by name; none of it was tried.

    Args:
        collective: A collective that the step waits for.
    """
    overlap, exposed_us = collective.overlap, collective.exposed_us
    first = "move less in this call, or " if collective.origin is Origin.AUTHORED else ""
    if overlap is None:
        return say(first, _suggest_meanwhile(collective))
    if exposed_us is not None and overlap.time_us < _LITTLE * exposed_us:
        return say(first.removesuffix(", or ") or "move less", ": no nearby matmul could overlap even a tenth of it")
    return say(first, _suggest_hiding(collective))


def _suggest_meanwhile(collective: Collective) -> str:
    part = collective.part
    is_of_a_layer = bool(collective.loops) or (part is not None and bool(part.layers))
    return _MEANWHILE[part.role] if part is not None and part.role is not None and is_of_a_layer else _ELSE


def _suggest_hiding(collective: Collective) -> str:
    """The matmul to overlap with."""
    overlap = collective.overlap
    assert overlap is not None
    place = short_source(overlap.source) or f"%{overlap.name}"
    matmul = f"overlap it with the matmul at {place}, {_RELATIONS[overlap.relation]}"
    if collective.exposed_us is None or overlap.time_us >= collective.exposed_us:
        return matmul
    return f"{matmul}; that overlaps at most {format_time(overlap.time_us)} of {format_time(collective.exposed_us)}"


INVALID = ({"captured": "mixture_of_experts.mixture_of_experts", "mesh": {"X": 8}, "slice": "v5e:2x4"},)
VALID = (
    {"captured": "mixture_of_experts.mixture_of_experts", "mesh": {"X": 8}},
    {"captured": "matmul.matmul", "mesh": {"X": 4, "Y": 2}, "slice": "v5e:4x2"},
)
