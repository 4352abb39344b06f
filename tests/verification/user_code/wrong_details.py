"""Twins of one block that are each wrong in one detail: a shape that still fits, a factor, a shard, an index."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

BLOCK = {"mesh": {"X": 2, "Y": 4}, "args": ("f32[N@X,N@Y]", "s32[N@X]"), "dims": {"N": 16}}
SPECS = {"in_specs": (P("X", "Y"), P("X")), "out_specs": (P("X", "Y"), P("X"), P("X"))}
OUT = ["P('X', 'Y')", "P('X')", "P('X')"]


def parts(x, n):
    return jnp.tanh(x), jnp.square(n), n + 1


@hloscope.target(**BLOCK, out=OUT)
def block(x, n):
    return parts(x, n)


@hloscope.target(**BLOCK, out=OUT)
def transposed(x, n):
    return jnp.tanh(x).T, jnp.square(n), n + 1


@hloscope.target(**BLOCK, out=OUT)
def scaled_by_two(x, n):
    return 2 * jnp.tanh(x), jnp.square(n), n + 1


@hloscope.target(**BLOCK, out=OUT)
def one_percent_off(x, n):
    return 1.01 * jnp.tanh(x), jnp.square(n), n + 1


@hloscope.target(**BLOCK, out=OUT)
def swapped_outputs(x, n):
    one, two, three = parts(x, n)
    return one, three, two


@hloscope.target(**BLOCK, out=OUT)
def all_zero(x, n):
    return jnp.zeros_like(x), jnp.square(n), n + 1


@hloscope.target(**BLOCK, out=OUT)
def integer_off_by_one(x, n):
    return jnp.tanh(x), jnp.square(n), n + jnp.where(jnp.arange(16) == 9, 2, 1)


@hloscope.target(**BLOCK)
@jax.shard_map(**SPECS)
def not_a_number_on_one_shard(x, n):
    one, two, three = parts(x, n)
    here = (jax.lax.axis_index("X") == 1) & (jax.lax.axis_index("Y") == 2)
    return jnp.where(here, jnp.nan, one), two, three


@hloscope.target(**BLOCK)
@jax.shard_map(**SPECS)
def wrong_at_one_index(x, n):
    one, two, three = parts(x, n)
    here = (jax.lax.axis_index("X") == 0) & (jax.lax.axis_index("Y") == 1)
    return jnp.where(here, one.at[3, 2].add(0.01), one), two, three


@jax.custom_vjp
def tanh_of_another_slope(x):
    return jnp.tanh(x)


tanh_of_another_slope.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * (1 - jnp.tanh(x)),))


@hloscope.target(**BLOCK, out=OUT)
def wrong_gradient(x, n):
    return tanh_of_another_slope(x), jnp.square(n), n + 1


@hloscope.target(**BLOCK, out=OUT)
def other_type(x, n):
    return jnp.tanh(x).astype(jnp.bfloat16), jnp.square(n), n + 1


@hloscope.target(**BLOCK, donate=(0,), out=OUT)
def donated(x, n):
    return parts(x, n)


@hloscope.target(**BLOCK)
def returns_nothing(x, n):
    parts(x, n)


@hloscope.target(**BLOCK, out=OUT)
def other_shape_at_other_sizes(x, n):
    return jnp.tanh(x), jnp.square(n), jnp.resize(n, (16,)) + 1


@hloscope.target(mesh={"X": 8}, args=("f32[N@X,N]",), dims={"N": 16}, out="P('X', None)")
def of_two_sizes(x):
    """Rows of the first device a milliard times as large as those of the others."""
    return x * jnp.where(jnp.arange(16) < 2, 1e9, 1.0)[:, None]


@hloscope.target(mesh={"X": 8}, args=("f32[N@X,N]",), dims={"N": 16}, out="P('X', None)")
def of_two_sizes_and_zero_elsewhere(x):
    return x * jnp.where(jnp.arange(16) < 2, 1e9, 0.0)[:, None]
