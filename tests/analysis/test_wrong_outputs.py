"""Outputs of the compiled text that are not what the program requests and computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import hloscope
from hloscope.analysis.arrays import find_constant_outputs
from hloscope.hlo import parse_module

TEXT = """
HloModule m

%zeros () -> f32[4] {
  %zero = f32[] constant(0)
  ROOT %filled = f32[4] broadcast(%zero), dimensions={}
}

ENTRY %e (x: f32[4]) -> (f32[4], f32[4], f32[4], s32[4]) {
  %x = f32[4] parameter(0)
  %one = f32[] constant(1)
  %ones = f32[4] broadcast(%one), dimensions={}
  %made = f32[4] fusion(), kind=kLoop, calls=%zeros
  %counted = s32[4] iota(), iota_dimension=0
  ROOT %all = (f32[4], f32[4], f32[4], s32[4]) tuple(%x, %ones, %made, %counted)
}
"""
MESH = {"data": 2, "model": 4}


def largest(x):
    return tuple(jax.lax.top_k(x, 64))


def folded(x):
    return x - x, (x >= 0).astype("int32")


def test_constant_outputs_are_those_that_no_argument_reaches():
    assert find_constant_outputs(parse_module(TEXT)) == {1, 2}


@pytest.mark.tpu_compiler
@pytest.mark.skipif(not jax.__version__.startswith("0.10."), reason="only the XLA of JAX 0.10 has this mistake")
def test_a_mistake_of_the_compiler_is_an_error_and_its_shape_is_the_one_it_has():
    out = ("P('data', None)", "P('data', None)")
    found = hloscope.analyze(largest, ("f32[64@data,131072@model]",), mesh=MESH, slice="v5e:2x4", out=out)
    values, indices = found.outputs
    assert values.wrong is None
    assert (indices.local_shape, indices.bytes_per_device) == ((64, 64), 4 * 64 * 64)
    (finding,) = [each for each in found.findings if each.rule == "wrong-output"]
    assert finding.message == (
        "the compiler gets result[1] wrong: each device has s32[64,64] where its shard is s32[32,64] and it is a "
        "constant, although the program selects it with top_k"
    )


def of_one(x):
    return tuple(jax.lax.top_k(x[:, :1], 1))


def of_constants(x):
    return jnp.sort(jnp.zeros((64, 16))), tuple(jax.lax.top_k(jnp.ones((64, 16)), 2))[1]


def constrained(x):
    return largest(jax.lax.with_sharding_constraint(x, jax.P("data", None)))


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(("function", "argument"), [
    (largest, "f32[64@data,131072]"), (constrained, "f32[64@data,131072@model]"), (folded, "u32[64@data,128@model]"),
    (of_one, "f32[64@data,128@model]"), (of_constants, "f32[64@data,128@model]"),
], ids=["whole rows", "as the rule advises", "arithmetic", "one value", "constants"])  # fmt: skip
def test_a_right_output_is_not_called_wrong(function, argument):
    out = ("P('data', None)", "P('data', None)")
    found = hloscope.analyze(function, (argument,), mesh=MESH, slice="v5e:2x4", out=out)
    assert [output.wrong for output in found.outputs] == [None, None]
