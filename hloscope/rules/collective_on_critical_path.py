"""A collective on the longest chain of operations that need each other.

What it does: finds the step's critical path, the longest chain of operations of which each needs the one before it, and
reports the collectives on it. Iterations of a loop count one after the other. It is silent until it is selected
(`--select collective-on-critical-path`) or made active in the targets file, because most programs have such a
collective, and it says nothing of how it could be less.

Why it matters: however the same instructions are ordered, the predicted step is never shorter than that chain. Other
work may run beside a collective on it, but only another sharding, or an algorithm that moves it in parts, shortens the
chain. Operations whose time is not known count as none, so the chain is a lower bound.

Example: weights that are gathered right before the matmul that multiplies them, which itself starts from the result of
the layer before.

Use instead: a sharding of the operands that needs no movement there; a collective matmul, which multiplies one part
while the next one moves; or a value that does not depend on what was just computed, such as the next layer's weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hloscope.rules import Facts, Finding, Severity, finding_at, over_axes
from hloscope.rules.rule import BuiltinRule
from hloscope.units import format_time


class CollectiveOnCriticalPath(BuiltinRule, name="collective-on-critical-path", severity=Severity.NOTE):
    """A collective on the longest chain of operations that need each other.

    Attributes:
        active: Whether it is looked for at all.
        share: The share of the critical path's time from which on it is reported.
    """

    active: bool = False
    share: float = 0.05

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
                    f"{format_time(path.time_us)}, which no order of the same instructions shortens",
                    fix="let it move something else: another sharding, a collective matmul, or what is known earlier",
                )
