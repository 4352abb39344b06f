"""Text that was read but not understood, so that a total may miss something.

What it does: turns every entry of `unmodelled` into a finding: an unknown opcode, replica groups that cannot be
expanded, a loop whose trip count cannot be read.

Why it matters: silence would make a total look exact when it is not.

Example: a `while` whose bound is computed at run time. Its collectives are counted for one iteration, and marked as
neither a lower nor an upper bound.

Use instead: a static bound (`lax.scan`, `lax.fori_loop`). If the bound really is decided at run time, leave it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.judge.facts import Facts
from hloscope.judge.rule import BuiltinRule, finding_of
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Kind


class UnmodelledText(BuiltinRule, name="unmodelled-text", severity=Severity.WARNING):
    """Text that was read but not understood."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each thing that was not understood, opaque collectives aside."""
        opaque = {(known.computation, known.name) for known in facts.collectives if known.kind is Kind.OPAQUE}
        for item in facts.analysis.unmodelled:
            if (item.computation, item.instruction) in opaque:
                continue  # opaque-communication reports it
            yield finding_of(
                self,
                f"{item.what}: {item.effect}",
                computation=item.computation,
                instruction=item.instruction,
                line=item.line,
            )
