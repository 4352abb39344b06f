"""An array that the partitioner replicates because it has no other way between two shardings.

What it does: turns the compiler's warning "Involuntary full rematerialization" into a finding with the operation, its
line and both shardings.

Why it matters: every device then holds and computes the full array, on top of the bytes that gather it.

Example: an array is sharded over two axes in one order, and a later constraint requests the other order.

Use instead: a `with_sharding_constraint` with an intermediate sharding, so that each step is one all-to-all or gather.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.provenance import render_users_line, short_source
from hloscope.judge.rule import BuiltinRule, Facts, finding_of
from hloscope.model.finding import Finding, Severity


class InvoluntaryRematerialization(BuiltinRule, name="involuntary-rematerialization", severity=Severity.WARNING):
    """An array that the partitioner replicates because it has no other way between two shardings."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each warning of the compiler's."""
        for replicated in facts.analysis.rematerializations:
            place = short_source(replicated.source) or replicated.op_name or replicated.opcode
            yield finding_of(
                self,
                f"{replicated.shape} at {place} is replicated "
                f"while it is resharded from {replicated.before} to {replicated.after}",
                source=render_users_line(replicated.source),
                why="the partitioner cannot go from one sharding to the other in one step",
                fix="add a with_sharding_constraint in between that moves one axis at a time",
            )


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 2, "Y": 4}, args=("f32[64,32@X,16@Y]",))
def between_two_orders(x):
    y = constrained(jnp.sin(x), P(None, "X", "Y"))
    return constrained(jnp.cos(y), P(("Y", "X"), None, None))
"""
    },
)
VALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[4096@X,512]",))
def there_and_back(x):
    whole = constrained(jnp.sin(x), P(None, None))
    return constrained(whole * 2, P("X", None))
"""
    },
)
