"""A collective on the longest chain of dependent operations.

What it does: finds the step's critical path, the longest chain of operations in which each depends on the one before,
and reports the collectives on it. Iterations of a loop count one after the other. Most programs have such a collective,
and the rule cannot say how to avoid it. It is therefore silent until it is selected
(`--select collective-on-critical-path`) or made active in the targets file.

Why it matters: however the same instructions are ordered, the predicted step is never shorter than that chain. Other
work may overlap with a collective on it, but only another sharding, or an algorithm that moves the data in chunks,
shortens the chain. Operations whose time is unknown count as zero, so the chain is a lower bound.

Example: weights that are gathered right before the matmul that uses them, when that matmul depends on the result of
the previous layer.

Use instead: a sharding of the operands that needs no communication there; a collective matmul, which multiplies one
chunk while the next one moves; or a value that does not depend on the latest result, such as the next layer's weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from hloscope.base.errors import Option
from hloscope.base.units import format_time
from hloscope.judge.rule import SHARE, BuiltinRule, Facts, finding_at, over_axes
from hloscope.model.finding import Finding, Severity


class CollectiveOnCriticalPath(BuiltinRule, name="collective-on-critical-path", severity=Severity.NOTE):
    """A collective on the longest chain of dependent operations.

    Attributes:
        active: Whether the rule runs at all.
        share: The smallest share of the critical path's time that is reported.
    """

    named_options = (Option("select", ["collective-on-critical-path"]),)

    active: bool = False
    share: float = field(default=0.05, metadata=SHARE)

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a note for each collective that takes much of the path's time."""
        path = facts.critical_path
        if path is None:
            return
        left = Counter(path.executions)  # a computation that is called at two places has two of each of its collectives
        for collective in facts.collectives:
            key = (collective.computation, collective.name)
            executions = min(left[key], collective.executions)
            left[key] -= executions
            time_us = (collective.time_us or 0.0) * executions
            if time_us > 0 and time_us >= self.share * path.time_us:
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} takes {format_time(time_us)} of a critical path of at least "
                    f"{format_time(path.time_us)}, which no reordering of the same instructions shortens",
                    fix="move it off the critical path: another sharding, a collective matmul, or data that is ready "
                    "earlier",
                )


INVALID = ({"captured": "collective_matmul.naive", "mesh": {"X": 8}, "slice": "v5e:2x4"},)
VALID = ({"captured": "collective_matmul.collective", "mesh": {"X": 8}, "slice": "v5e:2x4"},)
