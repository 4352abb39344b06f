"""Programs that put elements into another order, or into arrays of another shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import hloscope

MESH = {"X": 2, "Y": 4}


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[4096@X,8192@Y]",), out="P('X', 'Y')")
def sorted_rows(rows):
    """Sorts rows, each of which is spread over four devices, and hands them out as they came."""
    return jnp.sort(rows, axis=1)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[256@X,4096]", "bf16[4096,65536@Y]"), out="P('X', None)")
def likeliest_tokens(hidden, unembedding):
    """The eight largest of the logits, whose vocabulary is sharded."""
    logits = (hidden @ unembedding).astype(jnp.float32)
    return jax.lax.top_k(logits, 8)[0]


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[256@X,4096]", "bf16[4096,65536@Y]"), out="P('X')")
def greedy_token(hidden, unembedding):
    """The largest of the logits, whose vocabulary is sharded."""
    scores = jnp.einsum("td,dv->tv", hidden, unembedding)
    return jnp.argmax(scores.astype(jnp.float32), axis=-1)


@hloscope.target(
    mesh=MESH, slice="v5e:2x4", args=("bf16[16384@Y,2048]", "bf16[2048,2048]", "bf16[2048,1024]"), out="P('Y', None)"
)
def running_mean(x, into, out):
    """Averages all tokens up to each one, between two projections of a sharded sequence."""
    hidden = jnp.tanh(x @ into)
    total = jnp.cumsum(hidden.astype(jnp.float32), axis=0)
    mean = total / jnp.arange(1, 16385, dtype=jnp.float32)[:, None]
    return mean.astype(jnp.bfloat16) @ out


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8@X,1024@Y,2048]", "bf16[8@X,3072@Y,2048]"))
def with_prefix(prefix, tokens):
    """Puts a prefix before a sequence; both are sharded along the sequence, and nobody asks for the result to be."""
    return jnp.concatenate([prefix, tokens], axis=1)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8@X,4096@Y,2048]",), out="P('X', 'Y', None)")
def delayed(tokens):
    """Moves a sequence by one place, a zero before its first."""
    later = jnp.pad(tokens, ((0, 0), (1, 0), (0, 0)))
    return tokens - later[:, :-1]


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[8@X,2048@Y,2048]", "bf16[2048]", "bf16[2048,4096]"),
    out="P('X', 'Y', None)",
)
def token_shift(x, mix, weights):
    """Mixes each token with the one before it, as RWKV does, along a sharded sequence."""
    before = jnp.roll(x, 1, axis=1)
    mixed = x * mix + before * (1 - mix)
    return jax.nn.relu(mixed @ weights)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8@X,2048,1536@Y]", "bf16[8@X,2048,6,256]"))
def six_heads(x, keys):
    """Splits features that are sharded in four into six heads."""
    queries = x.reshape(8, 2048, 6, 256)
    return jax.nn.relu(queries) * keys


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8@X,2048,16,128@Y]", "bf16[2048,2048@Y]"))
def merged_heads(heads, projection):
    """Merges heads whose own features are sharded, and projects them."""
    flat = heads.reshape(8, 2048, 2048)
    return flat @ projection


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[4096@X,2048]", "bf16[2048,16384@Y]", "bf16[8192@Y,2048]"),
    out="P('X', None)",
)
def gated_halves(x, fused, down):
    """Takes the halves of one fused projection as gate and value."""
    both = x @ fused
    gate = both[:, :8192]
    value = both[:, 8192:]
    return (jax.nn.silu(gate) * value) @ down


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8@X,4096@Y,1024]", "bf16[1024,1024]"), out="P('X', 'Y', None)")
def both_directions(x, weights):
    """Projects a sharded sequence and the same read backwards."""
    backwards = jnp.flip(x, axis=1)
    return x + jnp.tanh(backwards @ weights)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[8@X,1024,2048]", "bf16[2048,6144@Y]", "bf16[2048@Y,2048]"),
    out="P('X', None, None)",
)
def fused_queries_keys_values(x, fused, out):
    """Takes queries, keys and values out of one projection that is sharded in four."""
    queries, keys, values = jnp.split(x @ fused, 3, axis=-1)
    queries = queries.reshape(8, 1024, 16, 128)
    keys = keys.reshape(8, 1024, 16, 128)
    values = values.reshape(8, 1024, 16, 128)
    scores = jnp.einsum("bqhk,bshk->bhqs", queries, keys).astype(jnp.float32)
    weights = jax.nn.softmax(scores / 11.3, axis=-1).astype(jnp.bfloat16)
    mixed = jnp.einsum("bhqs,bshk->bqhk", weights, values)
    return mixed.reshape(8, 1024, 2048) @ out
