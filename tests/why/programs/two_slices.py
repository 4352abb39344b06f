"""The user's own collectives across two slices, where libtpu's final module has no metadata."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

across = partial(
    hloscope.target,
    mesh={"replica": 2, "X": 8},
    slice="2*v5e:2x4",
    dcn={"replica": 2},
    args=("f32[1024@replica,2048@X]",),
)


@across(out="P(None, 'X')")
def psum(x):
    return jax.shard_map(lambda x: jax.lax.psum(x, "replica"), in_specs=P("replica", "X"), out_specs=P(None, "X"))(x)


@across(out="P(None, None)")
def two_gathers(x):
    def part(x):
        x = jax.lax.all_gather(x, "replica", axis=0, tiled=True)
        return jax.lax.all_gather(x, "X", axis=1, tiled=True)

    return jax.shard_map(part, in_specs=P("replica", "X"), out_specs=P(None, None), check_vma=False)(x)


@across(out="P('replica', 'X')")
def ppermute(x):
    def part(x):
        return jax.lax.ppermute(x, "replica", [(0, 1), (1, 0)])

    return jax.shard_map(part, in_specs=P("replica", "X"), out_specs=P("replica", "X"))(x)


@across(mesh={"stage": 16}, dcn={"stage": 2}, args=("f32[1024@stage,2048]",), out="P('stage', None)")
def ring(x):
    """A permute of which two pairs cross slices, used in a loop, after which neither part of it has metadata."""

    def part(x):
        def tick(_, y):
            passed = jax.lax.ppermute(y, "stage", [(stage, (stage + 1) % 16) for stage in range(16)])
            return jnp.where(jax.lax.axis_index("stage") == 0, x, passed)

        return jax.lax.fori_loop(0, 16, tick, x)

    return jax.shard_map(part, in_specs=P("stage"), out_specs=P("stage"))(x)


@across(out="P('replica', 'X')")
def psum_scatter(x):
    def part(x):
        return jax.lax.psum_scatter(x, "replica", tiled=True)

    return jax.shard_map(part, in_specs=P("replica", "X"), out_specs=P("replica", "X"))(x)


@across(out="P('replica', 'X')")
def one_of_each(x):
    """The partitioner adds a sum of its own to the user's, which takes on the line of what uses it."""
    summed = jax.shard_map(lambda x: jax.lax.psum(x, "replica"), in_specs=P("replica", "X"), out_specs=P(None, "X"))(x)
    return jnp.tanh(summed).sum() + x


@across(out="P(None, 'X')")
def two_sums(x):
    """Two sums of one size, at two lines: which is which nothing tells."""

    def part(x):
        first = jax.lax.psum(jnp.sin(x), "replica")
        return first * jax.lax.psum(x * first, "replica")

    return jax.shard_map(part, in_specs=P("replica", "X"), out_specs=P(None, "X"))(x)
