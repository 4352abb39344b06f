"""Cures that change what a program requests of its caller: the shardings of its arguments and results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.search import cures

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.usefixtures("cached")]


def two_layers(weights, x):
    """A training step that gathers both weights, forward and backward."""

    def loss(weights):
        y = jnp.tanh(x @ weights["up"]) @ weights["down"]
        return (y.astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def test_weights_are_kept_within_slices_so_that_only_gradients_cross_them():
    call = {"mesh": {"dcn": 2, "fsdp": 4}, "slice": "2*v5e:2x2", "dcn": {"dcn": 2}, "donate": 0}
    over_both = {"up": "bf16[2048@(dcn,fsdp),2048]", "down": "bf16[2048@(dcn,fsdp),2048]"}
    out = dict.fromkeys(over_both, "P(('dcn', 'fsdp'), None)")
    x = "bf16[2048@(dcn,fsdp),2048]"
    found = hloscope.analyze(two_layers, (over_both, x), out=out, **call, try_s=200)
    (best, *_) = [each.trials.helping[0] for each in found.decisions if each.trials is not None]
    said = "argument weights['down']: P(('dcn', 'fsdp'), None) -> P('fsdp', None)"
    assert best.change[0] == said
    assert all("-> P('fsdp', None)" in change for change in best.change)
    within = dict.fromkeys(over_both, "bf16[2048@fsdp,2048]")
    out = dict.fromkeys(within, "P('fsdp', None)")
    cured = hloscope.analyze(two_layers, (within, x), out=out, **call, trials=False)
    assert best.after.step_us == pytest.approx(cured.time.step_us, rel=1e-6)
    assert best.after.step_us < 0.8 * found.time.step_us


def clipped(weights, x):
    """A training step that asks for whole gradients before it clips them."""

    def loss(weights):
        y = jnp.tanh(x @ weights["up"]) @ weights["down"]
        return (y.astype(jnp.float32) ** 2).mean()

    whole = jax.tree.map(lambda g: jax.lax.with_sharding_constraint(g, P()), jax.grad(loss)(weights))
    scale = 1 / (1 + jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in whole.values())))
    return jax.tree.map(lambda w, g: (w - scale * g).astype(w.dtype), weights, whole)


def test_a_constraint_that_requests_whole_gradients_is_named_and_dropped():
    weights = {"up": "f32[2048@X,4096]", "down": "f32[4096@X,2048]"}
    call = {"mesh": {"X": 8}, "slice": "v5e:2x4", "out": dict.fromkeys(weights, "P('X', None)")}
    found = hloscope.analyze(clipped, (weights, "f32[4096@X,2048]"), **call, try_s=200)
    assert any("the sharding constraint P(None, None) (" in each.why for each in found.collectives)
    (trials,) = [each.trials for each in found.decisions if each.trials is not None]
    assert trials.helping[0].change[-1].endswith(": dropped")
    assert trials.helping[0].after.step_us < 0.6 * found.time.step_us


def adapted(lora, velocity, w, x):
    """A training step of adapters, which are sharded over their rank, beside a frozen weight."""

    def loss(lora):
        y = jnp.tanh(x @ w + (x @ lora["a"]) @ lora["b"])
        return (y.astype(jnp.float32) ** 2).mean()

    velocity = jax.tree.map(lambda v, g: (0.9 * v + g).astype(v.dtype), velocity, jax.grad(loss)(lora))
    return jax.tree.map(lambda p, v: (p - 0.1 * v).astype(p.dtype), lora, velocity), velocity


def test_a_lost_axis_is_turned_in_weights_and_momenta_alike(monkeypatch):
    monkeypatch.setattr(cures._CureSearch, "_rank", lambda *_: [])  # as if no line of the function could be written
    lora = {"a": "bf16[1024,64@X]", "b": "bf16[64@X,8192]"}
    call = {"mesh": {"X": 4}, "slice": "v5e:2x2", "donate": (0, 1)}
    out = ("P(None, 'X')", "P('X', None)") * 2
    found = hloscope.analyze(adapted, (lora, lora, "bf16[1024,8192@X]", "bf16[4096,1024]"), out=out, **call, try_s=200)
    (best, *_) = [each.trials.helping[0] for each in found.decisions if each.trials is not None and each.trials.helping]
    said = " ".join(best.change)
    assert all(f"{name}['b']: P('X', None) -> P(None, 'X')" in said for name in ("lora", "velocity", "result[0]"))
    assert best.after.step_us < 0.6 * found.time.step_us
