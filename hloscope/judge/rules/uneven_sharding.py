"""A dimension that its mesh axes do not divide.

What it does: reports arrays with a sharded dimension whose size is not a multiple of the number of devices that it is
sharded over.

Why it matters: every shard is padded to the largest one, and each device computes and moves the padding.

Example: a vocabulary of 50,257 words over 8 devices: 6,283 rows each, with 7 rows of padding in total; 10 heads over 8
devices: 2 each, of which 6 of 16 are padding.

Use instead: a size that divides: pad the vocabulary to 50,304, choose 8 or 16 heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from itertools import chain

from hloscope.analysis.provenance import render_users_line
from hloscope.base.units import pluralize
from hloscope.judge.rule import SHARE, BuiltinRule, Facts, finding_of
from hloscope.model.capture import multiply_axis_sizes
from hloscope.model.finding import Finding, Severity


class UnevenSharding(BuiltinRule, name="uneven-sharding", severity=Severity.WARNING):
    """A dimension that its mesh axes do not divide.

    Attributes:
        min_padding: The smallest share of padding, over all devices together, that is reported.
    """

    min_padding: float = field(default=0.05, metadata=SHARE)

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each unevenly sharded dimension of an array that explains a collective."""
        known = [(reason.moved, *reason.operands, reason.result) for _, reason in facts.explained]
        for tensor in dict.fromkeys(filter(None, chain.from_iterable(known))):
            for position, axes in enumerate(tensor.sharding or ()):
                size, parts = tensor.shape[position], multiply_axis_sizes(axes, facts.axis_sizes)
                each = -(-size // parts)
                padding = 1 - size / (each * parts)
                if padding >= self.min_padding:
                    yield finding_of(
                        self,
                        f"dimension {position} of {tensor.name} has {pluralize(size, 'element')} over {parts} "
                        f"devices: {each} on each, {100 * padding:.0f}% of them padding",
                        source=render_users_line(tensor.source[:1]),
                        fix=_suggest_fix(size, parts),
                    )


def _suggest_fix(size: int, parts: int) -> str:
    if size < parts:
        return "leave this dimension unsharded with jax.lax.with_sharding_constraint, or shard another one"
    return f"choose a multiple of {parts}, such as {-(-size // parts) * parts}"


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[16,256]", "f32[256,512@X]"), out="P(None, 'X')")
def ten_heads_on_eight_devices(table, w):
    rows = constrained(jnp.sin(table)[:10], P("X", None))
    return rows @ w
"""
    },
)
VALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[512@X,256]", "f32[8@X,256,1024]"), out="P('X', None, None)")
def tokens_to_every_expert(tokens, W):
    return jnp.einsum("sd,edf->esf", tokens, W)
"""
    },
)
