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


def test_collectives_are_explained_by_decision_axis_argument_and_line():
    found = analyze(train(lost), WEIGHTS, TOKENS)
    (decision,) = lost_of(found)
    place = decision.places[0].source[0]
    over_data = [each.name for each in found.collectives if "data" in each.axes]

    def explained(named):
        return {each.collective.name for each in hloscope.explain(found, collective=named)}

    assert explained(decision.name) <= set(decision.collectives)
    assert explained("data") <= set(over_data)
    assert explained(f"test_decisions.py:{place.line}") >= explained(decision.name)
    assert explained("weights['up']")
    assert explained("weights") >= explained("weights['up']")
    assert explained(decision.name.replace(" ", "")) == explained(decision.name)


@pytest.mark.parametrize(
    ("named", "what", "why"),
    [
        ("tests", "no collective 'tests'", "decisions data: 512, not 32"),
        ("spare", "over axis 'spare'", "axes data, model"),
        ("scale", "about argument 'scale'", "arguments weights['down']"),
        ("data: Q, not Z", "no decision 'data: Q, not Z'", "decisions data: 512, not 32"),
        ("test_decisions.py:1", "at line 'test_decisions.py:1'", "lines test_decisions.py:"),
    ],
)
def test_a_name_of_no_collective_is_answered_by_what_it_is_and_what_has_some(named, what, why):
    step = train(lost)
    mesh = {"data": 4, "model": 2, "spare": 1}
    found = analyze(lambda weights, tokens, scale: step(weights, tokens), WEIGHTS, TOKENS, "f32[]", mesh=mesh)
    with pytest.raises(hloscope.TargetError, match=what) as caught:
        hloscope.explain(found, collective=named)
    assert why in caught.value.why


def test_an_axis_over_which_sums_are_larger_than_their_operands_is_lost():
    def scores(q, k):
        return jnp.einsum("sk,tk->st", q, k)

    (decision,) = lost_of(analyze(scores, "f32[2048,16@model]", "f32[2048,16@model]", mesh={"model": 8}))
    assert (decision.winner.size, decision.loser.size, decision.lost_by) == (16, 2048, ())
    assert lost_of(analyze(scores, "f32[16,2048@model]", "f32[16,2048@model]", mesh={"model": 8})) == []


def test_a_letter_has_the_size_of_the_arrays_that_have_it():
    def experts(x, w):
        return jnp.einsum("gtd,edf->egtf", jnp.sin(x).reshape(8, 64, 32), w)

    (decision,) = analyze(experts, "f32[512@ep,32]", "f32[8@ep,32,512]", mesh={"ep": 8}).decisions
    assert [(each.name, each.size) for each in (decision.winner, decision.loser)] == [("E", 8), ("G", 8)]


def test_a_dimension_that_an_operation_needs_whole_where_another_one_could_be_sharded():
    def sum_all(x, w):
        return jax.lax.scan(lambda total, each: (total + each @ w, None), jnp.zeros((64, 512)), x)[0]

    (decision,) = lost_of(analyze(sum_all, "f32[8@data,64,512]", "f32[512,512]", mesh={"data": 8}))
    assert (decision.winner, decision.loser.size, decision.operations) == (None, 8, ("dynamic_slice",))
    assert [(place.argument, place.spec) for place in decision.places] == [
        ("x", "P(None, None, 'data')"),
        ("x", "P(None, 'data', None)"),
    ]


def test_what_the_compiler_exchanges_by_itself_is_no_fault():
    found = analyze(jnp.sort, "f32[64,4096@model]", mesh={"model": 8})
    assert [each.is_lost for each in found.decisions] == [False]


def test_an_output_that_lacks_an_axis_of_the_state_that_it_replaces():
    def step(p, m, x):
        m = 0.9 * m + x.T @ (x @ p)
        return p - m, m

    rows, data = "f32[512@data,512]", "f32[64@data,512]"
    found = analyze(step, rows, rows, data, mesh={"data": 8}, out=("P()", "P('data', None)"))
    assert (None, 512) in [(each.winner, each.loser.size) for each in lost_of(found)]
    whole = "f32[512,512]"
    kept = analyze(step, whole, rows, data, mesh={"data": 8}, out=("P()", "P('data', None)"))
    # ZeRO-1: the weights are whole, and a sharded momentum updates them
    assert None not in [each.winner for each in lost_of(kept)]


def test_a_constraint_that_takes_an_axis_which_the_next_operation_gives_back():
    def step(x, up, down):
        hidden = constrained(jax.nn.relu(x @ up), spec)
        return hidden @ down

    args = ("f32[64,512]", "f32[512,2048@model]", "f32[2048@model,512]")
    spec = P(None, None)
    (decision,) = lost_of(analyze(step, *args, mesh={"model": 8}))
    assert (decision.winner, decision.loser.size) == (None, 2048)
    spec = P(None, "model")
    assert lost_of(analyze(step, *args, mesh={"model": 8})) == []
