"""Small programs of many kinds, to be compiled with and without numbers on their operations."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

import hloscope

target = partial(hloscope.target, mesh={"X": 4, "Y": 2}, slice="v5e:2x4")
matmul = partial(target, args=("bf16[1024@X,1024@Y]", "bf16[1024,1024@Y]"))


@target(args=("f32[1024@X,1024]",), out="P(None, 'X')")
def mapped(x):
    """Two collectives of the user's in one `shard_map`."""
    part = jax.shard_map(
        lambda x: jax.lax.ppermute(jax.lax.all_to_all(x, "X", 1, 0, tiled=True), "Y", [(0, 1), (1, 0)]),
        in_specs=P("X", None),
        out_specs=P(None, "X"),
        check_vma=False,
    )
    return part(x)


@matmul(out="P('X', None)")
def scanned(x, w):
    """A loop whose body gathers a weight."""
    return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), carry.sum()), x, length=4)[0]


@matmul()
def remembered(x, w):
    """The gradient of layers that are computed twice, one function called three times."""

    @jax.checkpoint
    def layer(x):
        return jax.nn.relu(x @ w)

    return jax.grad(lambda x: layer(layer(layer(x))).astype(jnp.float32).sum())(x)


@jax.custom_vjp
def clipped(x):
    """A sine whose gradient is clipped."""
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * jnp.cos(x), -1, 1),))


@matmul()
def own_gradient(x, w):
    """A rule of the user's for a gradient, in a scope."""
    with jax.named_scope("layer"):
        return jax.grad(lambda w: clipped(x @ w).astype(jnp.float32).sum())(w)


@target(axis_types="explicit", args=("bf16[1024@X,1024@Y]", "bf16[1024@Y,1024]"))
def explicit(x, w):
    """A contraction whose sharding the user names."""
    return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("X", "Y"))


def twice(x):
    """A kernel that doubles."""

    def body(x_ref, y_ref):
        y_ref[...] = x_ref[...] * 2

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@target(args=("f32[1024@X,1024]",), out="P('X', None)")
def kernels(x):
    """Pallas kernels, after whose names libtpu names instructions: in a scope, in a function, in a loop."""

    def part(x):
        with jax.named_scope("scope"):
            x = twice(x)
        return jax.lax.scan(lambda carry, _: (twice(carry), None), jax.jit(twice)(x), length=4)[0]

    mapped_part = jax.shard_map(part, in_specs=P("X", None), out_specs=P("X", None), check_vma=False)
    return mapped_part(x) / jnp.sum(x)


@target(mesh={"R": 2, "X": 8}, slice="2*v5e:2x4", dcn={"R": 2}, args=("bf16[1024@R,512]", "bf16[512,512@X]"))
def two_slices(x, w):
    """A gradient that is summed over two slices."""
    return jax.grad(lambda w: jnp.sin(x @ w).astype(jnp.float32).mean())(w)


@target(slice="cpu:8", args=("f32[64@X,64@Y]", "f32[64,64@Y]"), out="P('X', None)")
def on_cpus(x, w):
    """A contraction on simulated devices."""
    return jnp.sort(x @ w, axis=1)


@target(args=("bf16[1024@X,1024@Y]",), out="P('X', None)")
def nested(x):
    """Functions in functions with random numbers, and a condition on a sum of booleans, which libtpu packs away."""

    @jax.jit
    def noisy(x):
        noise = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
        return jax.lax.cond(jnp.all(x > 0, axis=0)[0], lambda x: x @ x, lambda x: x, x + noise)

    return jax.jit(noisy)(noisy(x))
