"""Tokens gathered to every expert, where each expert needs only its own.

What it does: reports an all-gather of the leading dimension of one operand of a matmul whose other operand, an argument
of three dimensions or more, is sharded over the same axis on its own leading dimension. That is the dimension of
experts: the first operand does not have it, and the matmul does not sum over it.

Why it matters: with n devices every expert multiplies all tokens, n times what is routed to it, and n - 1 of every n
gathered bytes are wasted.

Example: `einsum("sd,edf->esf", tokens, W)` with tokens sharded over `X` by sequence and `W` over `X` by expert,
masked afterwards.

Use instead: send each token to its expert: sort tokens by expert and exchange them with `jax.lax.all_to_all` under
`shard_map`, or `ragged_all_to_all`.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.judge.rule import BuiltinRule, Facts, finding_at, over_axes
from hloscope.model.finding import Finding, Severity
from hloscope.model.reason import Reason, Tensor
from hloscope.model.vocabulary import Kind


class UnfusedAllToAllAsAllGather(BuiltinRule, name="unfused-all-to-all-as-all-gather", severity=Severity.WARNING):
    """Tokens gathered to every expert, where each expert needs only its own."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each gather of tokens in front of experts."""
        for collective, reason in facts.explained:
            if collective.kind is not Kind.ALL_GATHER or reason.moved is None:
                continue
            experts = _find_experts(reason, reason.moved)
            if experts is not None:
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} gathers all of {reason.moved.name} for every expert of {experts.name}",
                    fix="route tokens to their experts with jax.lax.all_to_all under shard_map",
                )


def _find_experts(reason: Reason, moved: Tensor) -> Tensor | None:
    """The other operand of the matmul, where the axes of the gather shard its leading dimension, one of experts.

    Experts are an argument, and tokens lie along a leading dimension that the matmul does not sum over. Weights that
    are gathered because the same axis shards the batch (fully sharded data parallelism) are the other way round.
    """
    if reason.dimensions != (0,) or not moved.letters or moved.letters[0] in reason.summed:
        return None
    for other in reason.operands:
        if other == moved or other.argument is None or not other.sharding or len(other.shape) < 3:
            continue
        letter, axes = other.letters[0], other.sharding[0]
        own = letter not in moved.letters and letter not in reason.summed and not letter.isdigit()
        if own and set(axes) & set(reason.axes) and len(moved.shape) < len(other.shape):
            return other
    return None


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[512@X,256]", "f32[8@X,256,1024]"), out="P('X', None, None)")
def tokens_to_every_expert(tokens, W):
    return jnp.einsum("sd,edf->esf", tokens, W)
"""
    },
)
VALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[16,256]", "f32[256,512@X]"), out="P(None, 'X')")
def ten_heads_on_eight_devices(table, w):
    rows = constrained(jnp.sin(table)[:10], P("X", None))
    return rows @ w
"""
    },
)
