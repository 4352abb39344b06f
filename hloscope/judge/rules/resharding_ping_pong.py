"""An array that is gathered and then sliced back into the shards it came from.

What it does: reports an all-gather all of whose consumers take only the device's own shard: a slice, or a scatter over
the same devices.

Why it matters: the bytes move for nothing, because the shardings before and after are the same.

Example: an operation without a sharding rule between two sharded ones: its operand is gathered, its result sliced.

Use instead: `shard_map` around the operation, if it works on shards, or a `with_sharding_constraint` on its result that
names the sharding of its operand.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.judge.rule import BuiltinRule, Facts, finding_at, over_axes
from hloscope.model.finding import Finding, Severity


class ReshardingPingPong(BuiltinRule, name="resharding-ping-pong", severity=Severity.WARNING):
    """An array that is gathered and then sliced back into the shards it came from."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each gather that is undone."""
        for collective in facts.sending:
            if collective.undone_by is not None:
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} is undone by %{collective.undone_by}, "
                    "in which each device takes its own shard again",
                    fix="keep the sharding in between: shard_map, or a with_sharding_constraint on the result",
                )


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[4096@X,512]",))
def there_and_back(x):
    whole = constrained(jnp.sin(x), P(None, None))
    return constrained(whole * 2, P("X", None))
"""
    },
)
VALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 2, "Y": 4}, args=("f32[64,32@X,16@Y]",))
def between_two_orders(x):
    y = constrained(jnp.sin(x), P(None, "X", "Y"))
    return constrained(jnp.cos(y), P(("Y", "X"), None, None))
"""
    },
    {"captured": "mixture_of_experts.mixture_of_experts", "mesh": {"X": 8}},
)
