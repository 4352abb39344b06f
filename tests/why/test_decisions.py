"""Which dimension an axis was given to, which one does without, and what follows: small programs on simulated CPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.model.decision import DecisionKind
from hloscope.model.reason import DimensionRole

constrained = jax.lax.with_sharding_constraint
WEIGHTS = {"emb": "f32[256,512@data]", "up": "f32[512@data,1024@model]", "down": "f32[1024@model,512@data]"}
TOKENS = "s32[32@data,512]"


def layers(weights, x):
    return x + jax.nn.relu(x @ weights["up"]) @ weights["down"]


def train(loss):
    def step(weights, tokens):
        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights, tokens))

    return step


def lost(weights, tokens):
    return (layers(weights, weights["emb"][tokens]) ** 2).mean()


def right(weights, tokens):
    x = constrained(weights["emb"][tokens], P("data", None, None))
    return (layers(weights, x) ** 2).mean()


def accumulated(weights, tokens):
    def add(total, some):
        return total + lost(weights, some), None

    return jax.lax.scan(add, 0.0, tokens.reshape(4, 8, 512))[0]


def analyze(function, *args, **options):
    return hloscope.analyze(function, args, **{"mesh": {"data": 4, "model": 2}, "slice": "cpu:8", **options})


def lost_of(found):
    return [decision for decision in found.decisions if decision.is_lost]


@pytest.mark.parametrize("loss", [lost, right, accumulated])
def test_bytes_of_decisions_add_up(loss):
    found = analyze(train(loss), WEIGHTS, TOKENS)
    explained = {name for decision in found.decisions for name in decision.collectives}
    left = sum(each.wire_bytes_per_step for each in found.collectives if each.name not in explained)
    assert sum(decision.wire_bytes for decision in found.decisions) + left == pytest.approx(
        found.totals.wire_bytes, abs=len(found.decisions)
    )
    assert left <= (0.2 if loss is right else 0.1) * found.totals.wire_bytes  # the partitioner's own gather for CPUs


@pytest.mark.parametrize("loss", [lost, accumulated])
def test_a_batch_that_is_lost_to_features(loss):
    (decision,) = lost_of(analyze(train(loss), WEIGHTS, TOKENS))
    assert (decision.kind, decision.axis) == (DecisionKind.CONTENDED, "data")
    assert (decision.winner.role, decision.winner.size) == (DimensionRole.FEATURES, 512)
    assert decision.loser.role is DimensionRole.BATCH
    assert [asker.name for asker in decision.lost_by] == ["tokens"]
    assert "weights['emb']" in [asker.name for asker in decision.held_by]
    first = decision.places[0]
    assert (first.source[0].function, first.spec) == ("lost", "P('data', None, None)")
    assert decision.wire_bytes > 2 * decision.other_bytes


def test_claims_alone_are_no_fault():
    found = analyze(train(right), WEIGHTS, TOKENS)
    assert lost_of(found) == []
    assert "data: 32, not 512" in [decision.name for decision in found.decisions]


def test_a_dimension_that_is_only_summed_over():
    found = analyze(lambda x, w: x @ w, "f32[64,512@data]", "f32[512@data,64]")
    (decision,) = found.decisions
    assert (decision.kind, decision.loser) == (DecisionKind.SHARDED, None)
    assert decision.summary == "data shards dimension 512, which is summed over"


def test_weights_that_are_gathered_although_activations_are_smaller():
    def decode(x, up, down):
        return x + jnp.tanh(x @ up) @ down

    (decision,) = lost_of(analyze(decode, "f32[8@data,512]", "f32[512@data,4096]", "f32[4096,512@data]"))
    assert (decision.winner.size, decision.loser.size) == (8, 512)


def test_collectives_that_the_program_contains():
    def mean(x):
        return jax.shard_map(lambda x: jax.lax.pmean(x, "data"), in_specs=P("data"), out_specs=P())(x)

    (decision,) = analyze(mean, "f32[64@data,512]").decisions
    assert (decision.kind, decision.name) == (DecisionKind.AUTHORED, "data: written by the program")


def test_text_alone_has_no_decisions(tmp_path):
    found = analyze(train(lost), WEIGHTS, TOKENS, save_hlo=tmp_path / "step.hlo")
    assert found.decisions
    assert hloscope.analyze(tmp_path / "step.hlo", mesh={"data": 4, "model": 2}).decisions == ()
