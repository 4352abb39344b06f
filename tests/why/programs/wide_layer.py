"""A layer that makes a large array on the way."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope


@hloscope.target(mesh={"X": 4, "Y": 2}, args=("bf16[2048@X,1024]", "bf16[1024,8192@Y]", "bf16[8192@Y,1024]"))
def layer(x, into, back):
    hidden = jnp.exp(x @ into)
    return hidden @ back, hidden.max(axis=1)


@hloscope.target(mesh={"X": 8}, args=("f32[64@X]",), slice="cpu:8")
def asks_the_host(x):
    return jax.pure_callback(lambda a: a * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@hloscope.target(mesh={"X": 4, "Y": 2}, axis_types="explicit", args=("f32[64@X,128@Y]", "f32[128@Y,256]"))
def sums_late(a, w):
    partial = jnp.einsum("ij,jk->ik", a, w, out_sharding=P("X", None, unreduced={"Y"}))
    return jax.sharding.reshard(partial, P("X", None))


@hloscope.target(mesh={"X": 4, "Y": 2}, args=("f32[2048@X,1024]",))
def masks(x):
    return jnp.where(x.max(axis=1) > 0, jnp.sin(x).sum(axis=1), 0)


@hloscope.target(mesh={"X": 4, "Y": 2}, axis_types="explicit", args=("f32[64@X,256]{U:Y}",))
def takes_a_sum_in_parts(partial):
    return jnp.sin(jax.sharding.reshard(partial, P("X", None)))
