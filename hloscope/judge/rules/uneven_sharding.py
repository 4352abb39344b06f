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
from math import prod
from typing import NamedTuple

from hloscope.analysis.provenance import render_users_line
from hloscope.base.results import group_by
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
        """Yields a warning for each line with such arrays among those that explain collectives: the worst dimension."""
        for source, found in group_by(self._find_uneven(facts), lambda each: each.source or each.name).items():
            worst = max(found, key=lambda each: each.padded)
            more = pluralize(len(found) - 1, "more dimension")
            others = f" (and {more} of this line)" if found[1:] else ""
            yield finding_of(
                self,
                f"dimension {worst.position} of {worst.name} has {pluralize(worst.size, 'element')} over {worst.parts} "
                f"devices: {worst.each} on each, {100 * worst.padding:.0f}% of them padding{others}",
                source=worst.source and source,
                fix=_suggest_fix(worst.size, worst.parts),
            )

    def _find_uneven(self, facts: Facts) -> Iterator[_Uneven]:
        known = [(reason.moved, *reason.operands, reason.result) for _, reason in facts.explained]
        for tensor in dict.fromkeys(filter(None, chain.from_iterable(known))):
            for position, axes in enumerate(tensor.sharding or ()):
                size, parts = tensor.shape[position], multiply_axis_sizes(axes, facts.axis_sizes)
                each = -(-size // parts)
                source = render_users_line(tensor.source[:1])
                found = _Uneven(source, tensor.name, position, size, parts, each, prod(tensor.shape))
                if found.padding >= self.min_padding:
                    yield found


class _Uneven(NamedTuple):
    """A dimension of `size` over `parts` devices, `each` on every one, of an array with some number of elements."""

    source: str | None
    name: str
    position: int
    size: int
    parts: int
    each: int
    elements: int

    @property
    def padding(self) -> float:
        """The share of padding, over all devices together."""
        return 1 - self.size / (self.each * self.parts)

    @property
    def padded(self) -> float:
        """The number of elements of padding."""
        return self.elements / self.size * (self.each * self.parts - self.size) if self.size else 0.0


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
