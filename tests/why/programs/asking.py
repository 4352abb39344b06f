"""Requests for shardings: explicit ones, constraints and outputs, alone and against each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"X": 2, "Y": 4}


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8192@X,8192@Y]", "bf16[8192,4096]"), axis_types="explicit")
def resharded_before(x, weight):
    """Asks for whole rows before multiplying, in explicit mode."""
    rows = jax.sharding.reshard(jnp.tanh(x), P(("X", "Y"), None))
    return rows @ weight


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8192@X,8192@Y]", "bf16[8192@Y,4096]"), axis_types="explicit")
def einsum_asked(x, weight):
    """Says how the result of a sum over a sharded dimension is to be sharded, in explicit mode."""
    made = jnp.einsum("bd,df->bf", x, weight, out_sharding=P("X", "Y"))
    return jax.nn.relu(made)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8192@X,4096]", "bf16[4096,4096]"))
def two_constraints(x, weight):
    """Asks for one array in one way, and for what is made of it element by element in another."""
    rows = jax.lax.with_sharding_constraint(x @ weight, P("X", "Y"))
    scaled = jnp.tanh(rows) * 2
    return jax.lax.with_sharding_constraint(scaled, P("Y", "X"))


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[16384@X,4096@Y]", "bf16[4096@Y]"), out="P('X', 'Y')")
def against_the_argument(x, bias):
    """Constrains an argument to another sharding than it comes with."""
    columns = jax.lax.with_sharding_constraint(x, P(None, ("X", "Y")))
    return jax.nn.silu(columns + bias)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8192@X,4096]", "bf16[4096,8192@Y]"), out="P(('X', 'Y'), None)")
def output_otherwise(x, weight):
    """Hands out rows where the product is made in columns."""
    made = jnp.einsum("bd,df->bf", x, weight)
    return jnp.tanh(made)


@hloscope.target(
    mesh=MESH, slice="v5e:2x4", args=("bf16[8192@(X,Y),4096]",), out=("P(('X', 'Y'), None)", "P(None, ('X', 'Y'))")
)
def in_two_ways(x):
    """Hands one array out twice, by its rows and by its columns."""
    wave = jnp.sin(x)
    raised = wave + 1
    return wave, raised


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8192@X,4096@Y]", "bf16[8192@Y,4096@X]"), out="P('X', 'Y')")
def added_from_two_sides(left, right):
    """Adds two arrays element by element that come with different shardings."""
    return jnp.tanh(left) + jnp.sin(right)
