"""Programs that choose by the platform, in each of the ways in which user code does."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import hloscope

SPREAD = {"mesh": {"X": 8}, "slice": "v5e:2x4", "args": ("f32[64@X,256]",), "out": "P('X', None)"}


def twice_ref(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2


def twice_in_a_kernel(x):
    return pl.pallas_call(twice_ref, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@hloscope.target(**SPREAD)
def twice(x):
    return x * 2


@hloscope.target(**SPREAD)
def by_device(x):
    return x * (2 if jax.devices()[0].platform == "tpu" else 3)


@hloscope.target(**SPREAD)
def by_lowering(x):
    return jax.lax.platform_dependent(x, tpu=lambda v: v * 2, default=lambda v: v * 2.0)


@hloscope.target(**SPREAD)
def everywhere_alike(x):
    return jax.lax.platform_dependent(x, cuda=lambda v: v * 3, default=lambda v: v * 2)


@hloscope.target(**SPREAD)
def by_kernel(x):
    if jax.default_backend() == "tpu":
        inside = jax.shard_map(twice_in_a_kernel, in_specs=jax.P("X"), out_specs=jax.P("X"), check_vma=False)
        return inside(x)
    return jnp.add(x, x)
