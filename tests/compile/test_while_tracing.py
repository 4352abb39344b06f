"""Called by a function that JAX is tracing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.base.errors import HloscopeError


def double(x):
    return x * 2


CALLS = {
    "analyze": lambda: hloscope.analyze(double, ("f32[8]",), slice="cpu:1"),
    "verify": lambda: hloscope.verify(double, jnp.sin, ("f32[8]",), slice="cpu:1"),
    "recording": lambda: hloscope.recording("v5e:1x1").__enter__(),
}


def over_one_device(function):
    mesh = jax.make_mesh((1,), ("X",), devices=jax.devices()[:1])
    return jax.shard_map(function, mesh=mesh, in_specs=P(), out_specs=P())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("transform", [jax.jit, jax.grad, over_one_device], ids=["jit", "grad", "shard_map"])
def test_is_refused_in_one_sentence(says, call, transform):
    def traced(x):
        with pytest.raises(HloscopeError) as caught:
            CALLS[call]()
        assert "outside of tracing" in caught.value.fix
        if (call, transform) == ("analyze", jax.jit):
            says(caught)
        return x.sum()

    transform(traced)(jnp.ones(8))
    assert hloscope.analyze(double, ("f32[8]",), slice="cpu:1").collectives == ()
