"""A mesh axis that shards features where it was given to the batch, and costs several times what the batch would.

What it does: reports a decision of the propagation: at a value where two dimensions claim one mesh axis, the axis went
to the one with which the operations that follow send more than twice the bytes that they would with the other one, and
the step waits at least 5% of its time for the difference.

Why it matters: everything behind that value inherits the choice, often through a loop of layers. Each device then
works on the whole batch, and every matmul ends in a sum over the axis.

Example: an embedding lookup `emb[tokens]` with `tokens` sharded over `data` by its batch and `emb` over `data` by its
features, as FSDP does: the result can have only one of them.

Use instead: `jax.lax.with_sharding_constraint` on that value, with the axis on the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.provenance import render_users_line
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.judge.rule import BuiltinRule, Facts, finding_of
from hloscope.model.finding import Finding, Severity


class LostBatch(BuiltinRule, name="lost-batch", severity=Severity.WARNING):
    """A mesh axis that shards another dimension than the one with which far less would be sent.

    Attributes:
        min_wire_bytes: Decisions that cause fewer bytes per step are not reported.
    """

    min_wire_bytes: int = 65_536

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each axis that is where it costs most."""
        for decision in facts.analysis.decisions:
            sent, other = decision.wire_bytes or 0, decision.other_bytes
            is_cheaper = decision.is_lost and decision.winner is not None and other is not None and other < sent
            if not is_cheaper or sent < self.min_wire_bytes:
                continue
            place = decision.first_place
            cost = f"{format_bytes(decision.wire_bytes)} sent per step"
            if decision.exposed_us is not None:
                cost += f", {format_time(decision.exposed_us)} exposed"
            yield finding_of(
                self,
                f"{decision.summary}, in {pluralize(len(decision.collectives), 'collective')}",
                source=None if place is None else render_users_line(place.source),
                cost=f"{cost}; about {format_bytes(decision.other_bytes)} the other way round, judging by shapes alone",
                fix=None if place is None else f"constrain `{place.array}` to {place.spec}, which was not tried",
            )


INVALID = (
    {
        "program": """\
@hloscope.target(
    mesh={"data": 4},
    args=({"emb": "bf16[256,512@data]", "layers": "bf16[2,512@data,512]"}, "s32[64@data,256]"),
)
def features_where_the_batch_was_meant(weights, tokens):
    def loss(weights):
        x = weights["emb"][tokens]
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights["layers"])
        return (x.astype(jnp.float32) ** 2).mean()
    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))
"""
    },
)
VALID = (
    {
        "program": """\
@hloscope.target(
    mesh={"data": 4},
    args=({"emb": "bf16[256,512@data]", "layers": "bf16[2,512@data,512]"}, "s32[64@data,256]"),
)
def the_batch_by_a_constraint(weights, tokens):
    def loss(weights):
        x = constrained(weights["emb"][tokens], P("data", None, None))
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights["layers"])
        return (x.astype(jnp.float32) ** 2).mean()
    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))
"""
    },
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("bf16[256,512@X]", "bf16[512@X,512]"))
def a_contracted_dimension_that_nothing_else_claims(x, w):
    return x @ w
"""
    },
)
