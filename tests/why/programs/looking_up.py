"""Programs that read and write rows at positions that the data decides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"X": 2, "Y": 4}


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[131072@Y,2048]", "s32[16@X,1024]"), out="P('X', None, None)")
def embedded(table, tokens):
    """Looks tokens up in a table whose vocabulary is sharded."""
    return jnp.take(table, tokens, axis=0, mode="clip")


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[32768@Y,2048]", "s32[4096@X]"), out="P('X', None)")
def one_hot_lookup(table, tokens):
    """The same as a product with one-hot rows."""
    rows = jax.nn.one_hot(tokens, 32768, dtype=jnp.bfloat16)
    return rows @ table


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[16@X,16384@Y,8,128]", "bf16[16@X,1,8,128]", "bf16[16@X,8,128]", "s32[]"),
    out=("P('X', 'Y', None, None)", "P('X', None, None)"),
    donate=(0,),
)
def decode_step(cache, fresh, query, position):
    """Writes one position into a cache that is sharded along the sequence, and attends to all of it."""
    cache = jax.lax.dynamic_update_slice(cache, fresh, (0, position, 0, 0))
    scores = jnp.einsum("bhk,bshk->bhs", query, cache).astype(jnp.float32)
    weights = jax.nn.softmax(scores, axis=-1).astype(jnp.bfloat16)
    return cache, jnp.einsum("bhs,bshk->bhk", weights, cache)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[65536@Y,1024]", "s32[16384@X]", "bf16[16384@X,1024]"),
    out="P('Y', None)",
)
def scattered_gradients(table, tokens, updates):
    """Adds gradients of tokens, sharded over the batch, to the rows of a sharded table."""
    return table.at[tokens].add(updates)


@hloscope.target(
    mesh={"data": 2, "expert": 4},
    slice="v5e:2x4",
    args=("bf16[8192@(data,expert),1024]", "s32[8192@(data,expert)]", "bf16[8@expert,1024,4096]"),
)
def dispatched(tokens, expert, weights):
    """Sends tokens to their experts by an einsum with one-hot rows, groups of tokens as GShard has them."""
    groups = tokens.reshape(8, 1024, 1024)
    chosen = jax.nn.one_hot(expert.reshape(8, 1024), 8, dtype=jnp.bfloat16)
    place = (jnp.cumsum(chosen, axis=1) * chosen).astype(jnp.int32) - 1
    mask = chosen[..., None] * jax.nn.one_hot(place, 256, dtype=jnp.bfloat16)
    sent = jnp.einsum("gsec,gsm->egcm", mask, groups)
    sent = jax.lax.with_sharding_constraint(sent, P("expert", "data", None, None))
    return jnp.einsum("egcm,emf->egcf", sent, weights)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[32@X,8192@Y,1024]", "s32[32@X,512]"), out="P('X', None, None)")
def picked_tokens(hidden, positions):
    """Picks some tokens of each sequence, which is sharded."""
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[32768@Y,2048]", "s32[8192@X]", "bf16[2048,2048]"),
    out="P('Y', None)",
)
def table_gradient(table, tokens, weights):
    """The gradient of a sharded table that tokens were looked up in."""

    def loss(table):
        hidden = table[tokens]
        return jnp.mean(jnp.square((hidden @ weights).astype(jnp.float32)))

    return jax.grad(loss)(table)


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("bf16[16384@X,1024]", "s32[16384@X]"), out="P(None, 'X', None)")
def numbered_slots(tokens, expert):
    """Numbers the tokens of each expert along a sharded sequence, and adds each to the slot of its number."""
    chosen = jax.nn.one_hot(expert, 8, dtype=jnp.int32)
    numbers = jnp.cumsum(chosen, axis=0)
    slot = jnp.sum(numbers * chosen, axis=1) - 1
    slots = jnp.zeros((8, 2048, 1024), jnp.bfloat16)
    return slots.at[expert, slot].add(tokens, mode="drop")
