"""What is added beside a large branch, or to a large parameter, is seen where it is lost or wrong."""

from __future__ import annotations

import re
import sys

import jax
import jax.numpy as jnp
import pytest
from sampled import first
from verify_helpers import USER_CODE, findings, job

from hloscope.model.finding import Severity
from hloscope.verification.job import Draw, draw_values, find_largest_fan_in
from hloscope.verification.judging import judge_numerics
from hloscope.verification.running import find_fan_in, run_verification

sys.path.insert(0, str(USER_CODE))
import norms
import scales
import updates


@pytest.mark.parametrize("name", first(5, scales.RIGHT))
def test_a_right_block_passes(name):
    assert findings("scales", f"{name}_twin", name) == []


@pytest.mark.parametrize("name", first(6, scales.WRONG))
def test_a_block_that_lost_or_changed_a_part_is_wrong(name):
    assert {found.rule for found in findings("scales", name, scales.WRONG[name])} == {"wrong-result"}


@pytest.mark.parametrize("name", norms.RIGHT)
def test_a_right_norm_passes(name):
    assert findings("norms", f"{name}_twin", name) == []


@pytest.mark.parametrize("name", first(3, norms.WRONG))
def test_a_norm_that_is_left_out_or_taken_of_a_part_is_wrong(name):
    assert {found.rule for found in findings("norms", name, norms.WRONG[name])} == {"wrong-result"}


@pytest.mark.parametrize("name", first(2, updates.RIGHT))
def test_a_right_training_step_passes(name):
    assert findings("updates", f"{name}_twin", name) == []


@pytest.mark.parametrize("name", first(1, updates.WRONG))
def test_a_wrong_gradient_is_seen_in_what_it_changes(name):
    found = findings("updates", name, updates.WRONG[name])
    assert {one.rule for one in found} == {"wrong-result"}
    assert "change of result[0]['bias']" in {one.message.partition(" differs")[0] for one in found}


@pytest.mark.parametrize("name", updates.UNTOLD)
def test_a_change_that_cannot_be_told_is_untested(says, name):
    found = list(judge_numerics(run_verification(job("updates", *updates.UNTOLD[name]))))
    assert {(one.rule, one.severity) for one in found} == {("untested", Severity.WARNING)}
    hidden = [one for one in found if "['bias']" in one.message]
    assert re.findall(r"result\S+|params\S+", hidden[0].message) == ["result[0]['bias']", "params['bias']"]
    says([hidden[0].message, hidden[0].why, hidden[0].fix])


def test_parameters_that_stay_as_they_are_have_no_change():
    found = run_verification(job("updates", "steps_without_bias_gradient", "steps_with_frozen_bias")).untested
    assert [part.argument for part in found] == ["params['down']", "params['up']"]


def divisors(function, *shapes):
    """For each argument what its variance is divided by."""
    traced = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes))
    found = find_fan_in(traced)
    return [round(found.get(place, 1)) for place in range(len(traced.jaxpr.invars))]


def test_the_second_of_two_arguments_is_the_weight():
    assert divisors(jnp.matmul, (4, 64), (64, 32)) == [1, 64]


def test_an_argument_that_is_used_otherwise_first_is_none():
    assert divisors(lambda w, x: w @ jnp.tanh(x) + x.sum(), (32, 64), (64, 4)) == [64, 1]
    assert divisors(lambda w, x: (x + 1) + w @ x, (64, 64), (64, 64)) == [64, 1]


def test_weights_are_known_however_they_are_moved_about():
    def moved(x, w):
        wide = w.astype("bfloat16").astype("float32")
        return x @ wide.reshape(8, 8, 32).transpose(1, 0, 2).reshape(64, 32)

    assert divisors(moved, (4, 64), (32, 64)) == [1, 64]
    assert divisors(lambda x, q, k: x @ jnp.concatenate([q, k], 1), (4, 64), (64, 8), (64, 8)) == [1, 64, 64]
    assert divisors(jax.vmap(lambda x, w: w.T @ jnp.sin(x), (0, None)), (4, 64), (64, 8)) == [1, 64]
    assert divisors(jax.checkpoint(lambda x, w: jnp.sin(x) @ w), (4, 64), (64, 8)) == [1, 64]


def test_a_function_of_a_weight_is_one():
    def rounded(w):
        step = jnp.abs(w).max() / 127
        return jnp.round(w / step) * step

    assert divisors(lambda x, w, v: jnp.tanh(x @ w) @ rounded(v), (4, 64), (64, 32), (32, 8)) == [1, 64, 32]
    assert divisors(lambda x, w: (x / jnp.std(x)) @ w, (4, 64), (64, 32)) == [1, 64]
    assert divisors(lambda x: x @ x.T, (64, 64)) == [1]


def test_weights_are_known_in_loops_and_behind_gradients():
    def loss(ws, x):
        return jnp.square(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]).sum()

    assert divisors(loss, (3, 64, 64), (4, 64)) == [64, 1]
    assert divisors(jax.value_and_grad(loss), (3, 64, 64), (4, 64)) == [64, 1]
    assert divisors(lambda w, x: jax.lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h) @ w, x), (64, 64), (4, 64)) == [64, 1]


def test_a_factor_of_the_programs_own_counts():
    assert divisors(lambda x, w: x @ w / 8, (4, 64), (64, 8)) == [1, 1]
    assert divisors(lambda x, w: jnp.sin(x) @ w * 0.25, (4, 64), (64, 8)) == [1, 4]
    attention = divisors(jax.nn.dot_product_attention, (1, 32, 2, 64), (1, 32, 2, 64), (1, 32, 2, 64))
    assert attention == [1, 1, 1]


def test_narrow_types_keep_numbers_that_are_not_zero():
    for dtype in ("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "bfloat16"):
        drawn = Draw(fan_in=min(2.0**16, find_largest_fan_in(dtype)))
        values = draw_values(jnp.dtype(dtype), (1000,), drawn, seed=0, position=0).astype(float)
        assert (values != 0).mean() > 0.6
    assert find_largest_fan_in("float4_e2m1fn") == 1
