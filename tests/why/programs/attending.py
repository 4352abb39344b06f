"""Attention, in the ways in which models shard it over heads, positions and features."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import hloscope

MESH = {"data": 2, "model": 4}


def attend(query, key, value):
    """Softmax attention of every head for itself."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[4@data,1024,2048]", "bf16[2048,16@model,128]", "bf16[2048,256@model]", "bf16[2048,256@model]"),
    out="P('data', None, 'model', None)",
)
def grouped_queries(x, query_weight, key_weight, value_weight):
    """Shares two heads of keys and values between sixteen queries, over four devices (grouped-query attention)."""
    query = jnp.einsum("bsd,dhk->bshk", x, query_weight).reshape(4, 1024, 2, 8, 128)
    key = (x @ key_weight).reshape(4, 1024, 2, 128)
    value = (x @ value_weight).reshape(4, 1024, 2, 128)
    scores = jnp.einsum("bqgrk,bsgk->bgrqs", query, key)
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(jnp.bfloat16)
    mixed = jnp.einsum("bgrqs,bsgk->bqgrk", weights, value)
    return mixed.reshape(4, 1024, 16, 128)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[8@data,1024,2048]", "bf16[2048,768@model]", "bf16[2048,768@model]", "bf16[2048,768@model]"),
    out="P('data', None, 'model')",
)
def six_heads(x, query_weight, key_weight, value_weight):
    """Shares six heads between four devices, whose weights know of no heads."""
    query = (x @ query_weight).reshape(8, 1024, 6, 128)
    key = (x @ key_weight).reshape(8, 1024, 6, 128)
    value = (x @ value_weight).reshape(8, 1024, 6, 128)
    return attend(query, key, value).reshape(8, 1024, 768)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[4096@data,4096]", "bf16[4096,12288@model]"),
    out=("P('data', 'model')", "P('data', 'model')", "P('data', 'model')"),
)
def fused_projection(x, weight):
    """Makes queries, keys and values in one product, and takes them apart."""
    fused = jnp.einsum("bd,df->bf", x, weight)
    query, key, value = jnp.split(fused, 3, axis=-1)
    return jax.nn.elu(query), jax.nn.elu(key), value


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[8@data,2048,128]", "bf16[8@data,2048@model,128]", "bf16[8@data,2048@model,128]"),
    out="P('data', None, None)",
)
def flash_blocks(query, key, value):
    """Goes over blocks of keys whose positions are sharded, as flash attention does."""
    keys = key.reshape(8, 16, 128, 128).swapaxes(0, 1)
    values = value.reshape(8, 16, 128, 128).swapaxes(0, 1)

    def block(carry, pair):
        total, weight, top = carry
        scores = jnp.einsum("bqd,bkd->bqk", query, pair[0]).astype(jnp.float32)
        new_top = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
        part = jnp.exp(scores - new_top)
        keep = jnp.exp(top - new_top)
        total = total * keep + jnp.einsum("bqk,bkd->bqd", part.astype(jnp.bfloat16), pair[1])
        return (total, weight * keep + part.sum(axis=-1, keepdims=True), new_top), None

    start = (jnp.zeros((8, 2048, 128)), jnp.zeros((8, 2048, 1)), jnp.full((8, 2048, 1), -jnp.inf))
    (total, weight, _), _ = jax.lax.scan(block, start, (keys, values))
    return (total / weight).astype(jnp.bfloat16)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[8@data,1024,2048]", "bf16[3,2048,16@model,128]", "bf16[16@model,128,2048]"),
    out="P('data', None, None)",
)
def attention_layer(x, projections, output_weight):
    """Attends with four heads per device, and projects what they find back."""
    query, key, value = (jnp.einsum("bsd,dhk->bshk", x, projections[i]) for i in range(3))
    mixed = attend(query, key, value)
    return jnp.einsum("bqhd,hdm->bqm", mixed, output_weight)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[8@data,2048,16,128@model]", "f32[2048,64]"),
    out="P('data', None, None, 'model')",
)
def rotated_halves(query, angle):
    """Rotates the two halves of each head's features, which are sharded."""
    first, second = jnp.split(query, 2, axis=-1)
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    turned = jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return turned.astype(query.dtype)
