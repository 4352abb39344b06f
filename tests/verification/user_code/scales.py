"""Blocks of models whose parts would drown one another if weights were drawn as large as activations.

Each reference has a twin that is right, and twins that lost or changed a part of it.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import hloscope

HEADS, STEPS = 8, 3
DIMS = {"B": 32, "D": 512, "F": 2048, "V": 256, "S": 64, "E": 4, "L": 4}


def target(*args, out="P('X', None)"):
    return hloscope.target(mesh={"X": 8}, args=args, out=out, dims=DIMS)


def by_device(*specs, out):
    return lambda function: jax.shard_map(function, in_specs=specs, out_specs=out, check_vma=False)


def rms_norm(x):
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-6)).astype(x.dtype)


def mlp(x, up, down):
    return jax.nn.gelu(x @ up) @ down


_mlp = target("bf16[B@X,D]", "bf16[D,F]", "bf16[F,D]")
_mlp_f32 = target("f32[B@X,D]", "f32[D,F]", "f32[F,D]")
_ROWS = P("X", None)
_EVERYWHERE = P(None, None)
_rows = by_device(_ROWS, _EVERYWHERE, _EVERYWHERE, out=_ROWS)


@_mlp
def block(x, up, down):
    return x + mlp(x, up, down)


@_mlp
def block_pre_norm(x, up, down):
    return x + mlp(rms_norm(x), up, down)


@_mlp_f32
def block_f32(x, up, down):
    return x + mlp(x, up, down)


block_twin = _mlp(_rows(block))
block_pre_norm_twin = _mlp(_rows(block_pre_norm))
block_f32_twin = _mlp_f32(_rows(block_f32))


@_mlp
@_rows
def block_without_residual(x, up, down):
    return mlp(x, up, down)


@_mlp
@_rows
def block_pre_norm_without_residual(x, up, down):
    return mlp(rms_norm(x), up, down)


@_mlp
@_rows
def block_with_twice_the_residual(x, up, down):
    return 2 * x + mlp(x, up, down)


@_mlp
@_rows
def block_with_twice_the_branch(x, up, down):
    return x + 2 * mlp(x, up, down)


@_mlp
@_rows
def block_without_branch(x, up, down):
    return x


_split = by_device(_EVERYWHERE, P(None, "X"), P("X", None), out=_EVERYWHERE)
_all = target("bf16[B,D]", "bf16[D,F@X]", "bf16[F@X,D]", out="P(None, None)")
block_in_columns = _all(block)
block_in_columns_twin = _all(_split(lambda x, up, down: x + lax.psum(mlp(x, up, down), "X")))
block_in_columns_adds_the_residual_on_each_device = _all(
    _split(lambda x, up, down: lax.psum(x + mlp(x, up, down), "X"))
)

_three = target("bf16[B@X,D]", "bf16[L,D,F]", "bf16[L,F,D]")
_layers = by_device(_ROWS, P(None, None, None), P(None, None, None), out=_ROWS)


def deep(x, ups, downs, keep=True):
    def layer(h, weights):
        branch = mlp(rms_norm(h), *weights)
        return (h + branch if keep else branch), None

    return lax.scan(layer, x, (ups, downs))[0]


layers = _three(deep)
layers_twin = _three(_layers(lambda *args: deep(*args)))  # noqa: PLW0108
layers_without_residuals = _three(_layers(lambda x, ups, downs: deep(x, ups, downs, keep=False)))


def attend(x, q, k, v, o, mask=True):
    heads = lambda y: y.reshape(*y.shape[:-1], HEADS, -1)  # noqa: E731
    queries, keys, values = heads(x @ q), heads(x @ k), heads(x @ v)
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) * (x.shape[-1] // HEADS) ** -0.5
    if mask:
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -1e9)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values).reshape(x.shape) @ o


_attention = hloscope.target(
    mesh={"X": 4}, args=("bf16[E@X,S,D]", *["bf16[D,D]"] * 4), out="P('X', None, None)", dims=DIMS
)
_sequences = by_device(P("X", None, None), *[_EVERYWHERE] * 4, out=P("X", None, None))


@_attention
def attention(x, q, k, v, o):
    return x + attend(x, q, k, v, o)


attention_twin = _attention(_sequences(attention))
attention_without_residual = _attention(_sequences(attend))
attention_without_mask = _attention(_sequences(lambda x, q, k, v, o: x + attend(x, q, k, v, o, mask=False)))
attention_without_branch = _attention(_sequences(lambda x, q, k, v, o: x))

_decode = hloscope.target(
    mesh={"X": 4}, args=("bf16[E@X,D]", "bf16[E@X,V,D]", "bf16[E@X,V,D]", "bf16[D,D]"), out="P('X', None)", dims=DIMS
)
_cached = by_device(_ROWS, P("X", None, None), P("X", None, None), _EVERYWHERE, out=_ROWS)


def look_up(x, keys, values, q):
    scores = jnp.einsum("bd,bkd->bk", rms_norm(x) @ q, keys) * x.shape[-1] ** -0.5
    return jnp.einsum("bk,bkd->bd", jax.nn.softmax(scores), values)


@_decode
def decode(x, keys, values, q):
    return x + look_up(x, keys, values, q)


decode_twin = _decode(_cached(decode))
decode_without_branch = _decode(_cached(lambda x, keys, values, q: x))

_linear = target("bf16[B@X,D]", "bf16[D,F]", "bf16[F]")
_biased = by_device(_ROWS, _EVERYWHERE, P(None), out=_ROWS)


@_linear
def linear(x, w, bias):
    return x @ w + bias


linear_twin = _linear(_biased(linear))
linear_without_bias = _linear(_biased(lambda x, w, bias: x @ w))
linear_with_half_the_bias = _linear(_biased(lambda x, w, bias: x @ w + bias / 2))

_embed = target("s32[B@X]", "bf16[V,D]", "bf16[D,D]")
_embedded = by_device(P("X"), _EVERYWHERE, _EVERYWHERE, out=_ROWS)


@_embed
def tied(tokens, table, w):
    x = table[tokens]
    return (x + rms_norm(x) @ w) @ table.T


tied_twin = _embed(_embedded(tied))
tied_without_residual = _embed(_embedded(lambda tokens, table, w: rms_norm(table[tokens]) @ w @ table.T))

_conv = hloscope.target(
    mesh={"X": 4}, args=("bf16[E@X,16,16,S]", "bf16[3,3,S,S]"), out="P('X', None, None, None)", dims=DIMS
)
_images = by_device(P("X", None, None, None), P(None, None, None, None), out=P("X", None, None, None))


def convolved(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


convolution = _conv(lambda x, kernel: x + convolved(x, kernel))
convolution_twin = _conv(_images(lambda x, kernel: x + convolved(x, kernel)))
convolution_without_residual = _conv(_images(convolved))

_moe = target("bf16[B@X,D]", "bf16[D,E]", "bf16[E,D,F]", "bf16[E,F,D]")
_routed = by_device(_ROWS, _EVERYWHERE, P(None, None, None), P(None, None, None), out=_ROWS)


def experts(x, router, up, down):
    gates = jax.nn.softmax(x @ router)
    hidden = jax.nn.silu(jnp.einsum("bd,edf->ebf", x, up))
    return jnp.einsum("ebd,be->bd", jnp.einsum("ebf,efd->ebd", hidden, down), gates)


mixture = _moe(lambda x, router, up, down: x + experts(x, router, up, down))
mixture_twin = _moe(_routed(lambda x, router, up, down: x + experts(x, router, up, down)))
mixture_without_residual = _moe(_routed(experts))

_int8 = target("bf16[B@X,D]", "s8[D,D]", "bf16[D]")
_quantised = by_device(_ROWS, _EVERYWHERE, P(None), out=_ROWS)


def dequantised_before(x, w, scale):
    return x @ (w.astype(x.dtype) * scale)


def dequantised_after(x, w, scale):
    return (x @ w.astype(x.dtype)) * scale


int8_before = _int8(lambda x, w, scale: x + dequantised_before(x, w, scale))
int8_before_twin = _int8(_quantised(lambda x, w, scale: x + dequantised_before(x, w, scale)))
int8_before_without_residual = _int8(_quantised(dequantised_before))
int8_after = _int8(lambda x, w, scale: x + dequantised_after(x, w, scale))
int8_after_twin = _int8(_quantised(lambda x, w, scale: x + dequantised_after(x, w, scale)))
int8_after_without_residual = _int8(_quantised(dequantised_after))

RIGHT = (
    *("block", "block_pre_norm", "block_f32", "block_in_columns", "layers", "attention", "decode", "linear", "tied"),
    *("convolution", "mixture", "int8_before", "int8_after"),
)
"""References whose `_twin` is right."""

WRONG = {
    "block_without_residual": "block",
    "block_pre_norm_without_residual": "block_pre_norm",
    "block_with_twice_the_residual": "block",
    "block_with_twice_the_branch": "block",
    "block_without_branch": "block",
    "block_in_columns_adds_the_residual_on_each_device": "block_in_columns",
    "layers_without_residuals": "layers",
    "attention_without_residual": "attention",
    "attention_without_mask": "attention",
    "attention_without_branch": "attention",
    "decode_without_branch": "decode",
    "linear_without_bias": "linear",
    "linear_with_half_the_bias": "linear",
    "tied_without_residual": "tied",
    "convolution_without_residual": "convolution",
    "mixture_without_residual": "mixture",
    "int8_before_without_residual": "int8_before",
    "int8_after_without_residual": "int8_after",
}
"""Each wrong twin with its reference."""
