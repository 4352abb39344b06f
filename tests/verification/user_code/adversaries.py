"""Programs beside others that they are easily taken for: swapped keys, near tolerances, outputs of other names."""

import jax
import jax.numpy as jnp

import hloscope

KEYS = {"mesh": {"X": 8}, "args": ("key<fry>[]", "key<fry>[]")}
MATMUL = {"mesh": {"X": 8}, "args": ("bf16[N@X,D]", "bf16[D,D]"), "dims": {"N": 64, "D": 32}}


@hloscope.target(**KEYS)
def first_key(key, other):
    return jax.random.normal(key, (16,))


@hloscope.target(**KEYS)
def second_key(key, other):
    return jax.random.normal(other, (16,))


@hloscope.target(**MATMUL)
def matmul(x, w):
    return x @ w


@hloscope.target(**MATMUL)
def four_percent_more(x, w):
    return (x @ w) * jnp.bfloat16(1.04)


@hloscope.target(**MATMUL, out="P('X', None)")
def summed_in_other_order(x, w):
    return (x[:, ::-1] @ w[::-1]).astype(jnp.bfloat16)


@hloscope.target(mesh={"X": 8}, args=("f32[N@X]",), dims={"N": 64})
def with_an_empty_output(x):
    return x, x[:0]


@hloscope.target(mesh={"X": 8}, args=("f32[N@X]",), dims={"N": 64})
def doubled(x):
    return x * 2


@hloscope.target(mesh={"X": 8}, args=("f32[N@X]",), dims={"N": 64})
def doubled_through_bf16(x):
    return (x.astype(jnp.bfloat16) * 2).astype(jnp.float32)
