"""Programs that cannot be run on simulated devices, or that end the process that tries."""

import os
import time

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

FACTS = {"mesh": {"X": 8}, "args": ("f32[64@X]",)}


@hloscope.target(**FACTS)
def plain(x):
    return x * 2


@hloscope.target(**FACTS)
@jax.shard_map(in_specs=P("X"), out_specs=P("X"), check_vma=False)
def hangs(x):
    """Device i takes part in i sums: the others wait for it forever."""
    here = jax.lax.axis_index("X")
    return jax.lax.while_loop(lambda c: c[0] < here, lambda c: (c[0] + 1, c[1] + jax.lax.psum(c[1], "X")), (0, x))[1]


@hloscope.target(**FACTS)
def aborts(x):
    jax.debug.callback(lambda _: os.abort(), x)
    return x * 2


@hloscope.target(**FACTS)
def forks_and_aborts(x):
    if os.fork() == 0:
        time.sleep(40)
        os._exit(0)
    os.abort()


@hloscope.target(**FACTS)
def sleeps(x):
    jax.debug.callback(lambda _: time.sleep(600), x)
    return x * 2


@hloscope.target(**FACTS)
@jax.shard_map(in_specs=P("X"), out_specs=P("X"))
def not_on_cpu(x):
    devices = 8
    each, one = jnp.arange(devices, dtype=jnp.int32), jnp.ones(devices, jnp.int32)
    offsets = jnp.full(devices, jax.lax.axis_index("X"), jnp.int32)
    return jax.lax.ragged_all_to_all(x, jnp.zeros_like(x), each, one, offsets, one, axis_name="X")


@hloscope.target(mesh={"X": 8}, args=("f32[B@X,D]",), dims={"B": 524288, "D": 8192})
def huge(x):
    return x * 2


@hloscope.target(**FACTS)
def longer(x):
    return jnp.concatenate([x, x])


@hloscope.target(**FACTS)
def twice(x):
    return x, x


@hloscope.target(**FACTS, out="P(None)")
def replicated(x):
    return x * 2


@hloscope.target(**FACTS)
def nothing(x):
    return x * 0


@hloscope.target(**FACTS)
def not_a_number(x):
    return jnp.log(-jnp.abs(x) - 1)


@hloscope.target(mesh={"X": 8}, args=("f32[32@X]",))
def of_half_the_size(x):
    return x * 2


@hloscope.target(mesh={"X": 8}, args=("s32[64@X]",))
def integers(x):
    return x * 2


@hloscope.target(**FACTS)
def with_a_loop(x):
    return jax.lax.while_loop(lambda y: y.sum() > 0, lambda y: y - 1, x)
