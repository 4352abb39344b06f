"""Loops that move data: in every iteration, or once although it looks like every time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"X": 2, "Y": 4}


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("bf16[4096@X,4096]", "bf16[16,4096]"), out="P('X', None)")
def carry_that_changes(state, rows):
    """Enters with its rows sharded, and leaves every iteration with its columns sharded."""

    def step(state, row):
        state = jnp.tanh(state + row)
        return jax.lax.with_sharding_constraint(state, P(None, "X")), None

    return jax.lax.scan(step, state, rows)[0]


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[8192@(X,Y),2048]", {"up": "bf16[6,2048@Y,4096]", "down": "bf16[6,4096@Y,2048]"}),
    out="P(('X', 'Y'), None)",
)
def stacked_layers(x, layers):
    """Runs a stack of layers whose weights are sharded over one axis of the batch."""

    def layer(h, weights):
        hidden = jax.nn.relu(h @ weights["up"])
        return h + hidden @ weights["down"], None

    return jax.lax.scan(layer, x, layers)[0]


@hloscope.target(
    mesh={"X": 8}, slice="v5e:2x4", args=("s32[32,512]", "bf16[65536@X,512]", "bf16[512,512]"), out="P(None, None)"
)
def vocabulary_in_loop(batches, table, weight):
    """Looks rows of a table up whose rows are sharded, in every iteration of a loop."""

    def step(total, tokens):
        rows = jnp.take(table, tokens, axis=0)
        return total + jnp.tanh(rows @ weight), None

    return jax.lax.scan(step, jnp.zeros((512, 512), jnp.bfloat16), batches)[0]


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("s32[16,8192@X]", "bf16[8192@X,512]"), out="P('X', None)")
def same_table(batches, table):
    """Looks tokens up in a table that is sharded over the axis of the tokens, in every iteration of a loop."""

    def step(total, tokens):
        rows = table.at[tokens].get(mode="promise_in_bounds")
        return total + jnp.tanh(rows), None

    return jax.lax.scan(step, jnp.zeros((8192, 512), jnp.bfloat16), batches)[0]


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("bf16[8192@X,2048]", "bf16[2048@X,2048]"), out="P('X', None)")
def same_weight(x, weight):
    """Applies one sharded matrix over and over."""
    return jax.lax.fori_loop(0, 8, lambda _, h: jnp.sin(h @ weight), x)


@hloscope.target(
    mesh={"data": 8}, slice="v5e:2x4", args=("bf16[2048,4096]", "bf16[8,4096@data,2048]"), out="P(None, None)"
)
def accumulated(weight, batches):
    """Adds gradients of a whole weight up over the parts of a batch, and then over devices."""

    def loss(weight, x):
        return jnp.sum(jnp.square((x @ weight).astype(jnp.float32)))

    def micro(total, x):
        return total + jax.grad(loss)(weight, x).astype(jnp.float32), None

    total, _ = jax.lax.scan(micro, jnp.zeros((2048, 4096)), batches)
    return weight - (0.01 * total).astype(jnp.bfloat16)


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[8192@X,8192]", "f32[8192,32]"), out="P(None, None)")
def power_iteration(matrix, start):
    """Multiplies a matrix whose rows are sharded by a block of vectors, until they change no more."""

    def unfinished(state):
        step, change, _ = state
        return (step < 20) & (change > 1e-3)

    def turn(state):
        step, _, vectors = state
        product = jnp.matmul(matrix, vectors)
        new = product / jnp.linalg.norm(product, axis=0)
        return step + 1, jnp.max(jnp.abs(new - vectors)), new

    return jax.lax.while_loop(unfinished, turn, (0, jnp.float32(1), start))[2]
