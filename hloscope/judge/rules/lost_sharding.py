"""A dimension that loses its sharding because an operation cannot work on shards of it.

What it does: reports an all-gather (or an all-reduce that XLA uses as one) or an all-to-all of a dimension that was
sharded before an operation and is replicated for it, although the program did not request that: the operation needs
the full dimension, merges it with another, or has no sharding rule.

Why it matters: the full array moves, and often everything after it runs replicated.

Example: `jnp.sort` or an FFT along a sharded dimension; a reshape that merges a sharded dimension into another one.

Use instead: shard a different dimension there; or `shard_map` with an algorithm that works on shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from hloscope.judge.rule import BuiltinRule, Facts, finding_at, over_axes
from hloscope.model.collectives import Collective
from hloscope.model.finding import Finding, Severity
from hloscope.model.reason import Reason, ReasonKind
from hloscope.model.vocabulary import Kind

_MOVES = (Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.ALL_REDUCE)
"""An all-reduce gathers too if devices add zeros for missing parts: XLA writes small gathers this way."""

_MUCH_LARGER = 4
"""The ratio of an array to what a step of an operation moves from which the array itself keeps its sharding."""

_LOSING = (ReasonKind.NEEDS_WHOLE_DIMENSION, ReasonKind.MERGED_DIMENSIONS, ReasonKind.NO_RULE)


class LostSharding(BuiltinRule, name="lost-sharding", severity=Severity.WARNING):
    """A dimension that loses its sharding because an operation cannot work on shards of it.

    Attributes:
        min_payload_bytes: Smaller transfers are not reported.
    """

    min_payload_bytes: int = 65_536

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each move that an operation's needs explain."""
        for collective in facts.moving(self.min_payload_bytes):
            reason = collective.reason
            if reason is None or reason.kind not in _LOSING or collective.kind not in _MOVES:
                continue
            if reason.of_part and _is_small(collective, reason):
                continue
            operation = reason.consumer or reason.producer
            yield finding_at(
                self,
                collective,
                f"{reason.moved.name if reason.moved else 'an array'} loses its sharding at "
                f"{operation.name if operation else 'an operation'}: {over_axes(collective)}",
                fix="shard a different dimension there, or work on the shards under shard_map",
            )


def _is_small(collective: Collective, reason: Reason) -> bool:
    """Returns whether a step of an operation surely moves far less than the array that it works on."""
    sizes = [shape.dimensions for shape in collective.result_shapes]
    if reason.moved is None or None in sizes:
        return False
    return sum(map(prod, filter(None, sizes))) < prod(reason.moved.shape) / _MUCH_LARGER


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[512@X,4096]",))
def sorted_along_the_sharded_dimension(x):
    return jnp.sort(x, axis=0)
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
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[512@X,256]", "f32[8@X,256,1024]"), out="P('X', None, None)")
def tokens_to_every_expert(tokens, W):
    return jnp.einsum("sd,edf->esf", tokens, W)
"""
    },
)
