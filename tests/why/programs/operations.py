"""One program for each way in which an operation makes data move."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"X": 2, "Y": 4}


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@X,256]",), out="P('X', None)")
def rolled(rows):
    """Moves every row by one."""
    return jnp.roll(rows, 1, axis=0)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512,256@Y]",), out="P(None, 'Y')")
def sorted_along(rows):
    """Sorts along the sharded dimension."""
    return jnp.sort(rows, axis=1)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[8,64@Y,32]",), out="P(None, None)")
def merged_dimensions(blocks):
    """Merges two dimensions, of which the minor one is sharded."""
    return jnp.sin(blocks).reshape(512, 32)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@X,256@Y]",), out="P('X', None)")
def row_sums(table):
    """Sums over a sharded dimension, and hands the rows out whole."""
    return jnp.sin(table) / table.sum(axis=1, keepdims=True)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[50000@Y,256]", "s32[128@X]"), out="P('X', None)")
def embedding(table, tokens):
    """Looks rows up in a table whose rows are sharded."""
    return table[tokens]


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[1024@X,512@Y]", "f32[512,256@Y]"), out="P('X', 'Y')")
def operands_disagree(x, w):
    """Multiplies by a matrix that is sharded over the same axis in another dimension."""
    return x @ w


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@X,1024]",), out="P(None, 'X')")
def another_output(x):
    """Hands its result out with the other dimension sharded."""
    return jnp.tanh(x)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@X,1024@Y]",), out="P('X', None)")
def constrained(x):
    """Asks in the middle for what the argument is not."""
    whole = jax.lax.with_sharding_constraint(jnp.sin(x), P("X", None))
    return whole * 2


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@X,256@Y]", "f32[256@Y,1024]"), axis_types="explicit")
def asked_in_explicit_mode(x, w):
    """Contracts a sharded dimension under explicit axes."""
    return jnp.einsum("bd,df->bf", x, w, out_sharding=P("X", None))


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@X,256@Y]",))
@jax.shard_map(in_specs=P("X", "Y"), out_specs=P("X", None), check_vma=False)
def authored(x):
    """Writes its gather out, in a loop."""

    def step(_, total):
        return total + jax.lax.all_gather(jnp.sin(x) + total[:, :64], "Y", axis=1, tiled=True)

    return jax.lax.fori_loop(0, 3, step, jnp.zeros((256, 256), x.dtype))
