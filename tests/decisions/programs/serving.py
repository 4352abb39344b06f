"""Forward passes: decoding, attention with few heads, sampling, and single operations."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

ONE = {"mesh": {"data": 8}, "slice": "v5e:2x4"}
MODEL = {"mesh": {"model": 8}, "slice": "v5e:2x4"}
BOTH = {"mesh": {"data": 2, "model": 4}, "slice": "v5e:2x4"}
constrained = jax.lax.with_sharding_constraint

# Decoding with weights that are sharded as in training: a token's activations are far smaller than they are.

DECODING = {**ONE, "dims": {"B": 8, "D": 1024, "F": 4096}}
FEED = ("bf16[D@data,F]", "bf16[F,D@data]") * 2


@hloscope.target(**DECODING, args=("bf16[B@data,D]", *FEED), out="P('data', None)")
def decode(x, *weights):
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = x + jax.nn.gelu(x @ up) @ down
    return x


@hloscope.target(**DECODING, args=("bf16[B@data,D]", *FEED), out="P('data', None)")
def decode_cured(x, *weights):
    x = constrained(x, P(None, "data"))
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = x + jax.nn.gelu(constrained(x @ up, P())) @ down
    return x


CACHED = {**ONE, "dims": {"B": 8, "T": 1024, "D": 1024, "H": 16, "K": 64}}
CACHES = (
    "bf16[B@data,D]",
    "bf16[B@data,T,H,K]",
    "bf16[B@data,T,H,K]",
    "bf16[D@data,H,K]",
    "bf16[H,K,D@data]",
)


@hloscope.target(**CACHED, args=CACHES, out="P('data', None)")
def decode_cached(x, keys, values, wq, wo):
    q = jnp.einsum("bd,dhk->bhk", x, wq)
    weights = jax.nn.softmax(jnp.einsum("bhk,bthk->bht", q, keys).astype(jnp.float32), -1).astype(x.dtype)
    mixed = jnp.einsum("bht,bthk->bhk", weights, values)
    return x + jnp.einsum("bhk,hkd->bd", mixed, wo)


@hloscope.target(**CACHED, args=CACHES, out="P('data', None)")
def decode_cached_cured(x, keys, values, wq, wo):
    q = constrained(jnp.einsum("bd,dhk->bhk", constrained(x, P(None, "data")), wq), P())
    weights = jax.nn.softmax(jnp.einsum("bhk,bthk->bht", q, keys).astype(jnp.float32), -1).astype(x.dtype)
    mixed = constrained(jnp.einsum("bht,bthk->bhk", weights, values), P())
    return x + constrained(jnp.einsum("bhk,hkd->bd", mixed, wo), P(None, "data"))


# Heads that an axis does not divide.

FEW = {**MODEL, "dims": {"B": 8, "H": 32, "G": 4, "T": 2048, "K": 128}}
FEW_HEADS = ("bf16[B,H@model,K]", "bf16[B,T@model,G,K]", "bf16[B,T@model,G,K]")


def attend_repeated(q, k, v, spec):
    k, v = (jnp.repeat(each, 8, axis=2) for each in (k, v))
    if spec is not None:
        k, v = constrained(k, spec), constrained(v, spec)
    weights = jax.nn.softmax(jnp.einsum("bhk,bthk->bht", q, k).astype(jnp.float32), -1).astype(q.dtype)
    return jnp.einsum("bht,bthk->bhk", weights, v)


@hloscope.target(**FEW, args=FEW_HEADS, out="P(None, 'model', None)")
def repeated_heads(q, k, v):
    """A cache over `model` by time, because it has fewer heads than devices; the repeated heads are constrained."""
    return attend_repeated(q, k, v, P(None, None, "model", None))


@hloscope.target(**FEW, args=FEW_HEADS, out="P(None, 'model', None)")
def repeated_heads_cured(q, k, v):
    return attend_repeated(constrained(q, P()), k, v, P(None, "model", None, None))


SIX = {**BOTH, "dims": {"B": 4, "S": 1024, "D": 768, "H": 6, "K": 128}}
SIX_HEADS = ("bf16[B@data,S,D]", *("bf16[D,H,K@model]",) * 3, "bf16[H,K@model,D]")


def attend_six(x, wq, wk, wv, wo, spec):
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in (wq, wk, wv))
    if spec is not None:
        q, k, v = constrained(q, spec), constrained(k, P("data")), constrained(v, P("data"))
    weights = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32), -1).astype(x.dtype)
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", weights, v), wo)


@hloscope.target(**SIX, args=SIX_HEADS, out="P('data', None, None)")
def six_heads(x, wq, wk, wv, wo):
    """Six heads over four devices: the weights are sharded within the heads, and scores are partial sums."""
    return attend_six(x, wq, wk, wv, wo, None)


@hloscope.target(**SIX, args=SIX_HEADS, out="P('data', None, None)")
def six_heads_cured(x, wq, wk, wv, wo):
    return attend_six(x, wq, wk, wv, wo, P("data", "model"))


# Sampling from logits over `model` by the vocabulary.

SAMPLED = {**MODEL, "dims": {"B": 64, "V": 65536}}


@hloscope.target(**SAMPLED, args=("f32[B,V@model]",), out=("P()", "P()"))
def top_k(logits):
    return tuple(jax.lax.top_k(logits, 64))


@hloscope.target(**SAMPLED, args=("f32[B,V@model]",), out=("P()", "P()"))
def top_k_cured(logits):
    values, places = jax.lax.top_k(constrained(logits.reshape(64, 8, -1), P(None, "model")), 64)
    places = places + jnp.arange(8)[:, None] * (logits.shape[1] // 8)
    values, places = (constrained(each.reshape(64, -1), P()) for each in (values, places))
    values, chosen = jax.lax.top_k(values, 64)
    return values, jnp.take_along_axis(places, chosen, 1)


@hloscope.target(**SAMPLED, args=("f32[B,V@model]",), out="P()")
def sorted_vocabulary(logits):
    """Nucleus sampling's threshold: the least logit of the tokens that hold 90% of the mass."""
    ordered = -jnp.sort(-logits, axis=-1)
    mass = jnp.cumsum(jax.nn.softmax(ordered, -1), -1)
    return jnp.min(jnp.where(mass < 0.9, ordered, jnp.inf), -1)


@hloscope.target(**SAMPLED, args=("f32[B,V@model]",), out="P()")
def sorted_vocabulary_cured(logits):
    ordered = -jnp.sort(-constrained(logits, P("model", None)), axis=-1)
    mass = jnp.cumsum(jax.nn.softmax(ordered, -1), -1)
    return jnp.min(jnp.where(mass < 0.9, ordered, jnp.inf), -1)


# Batch and sequence merged, where the sequence is sharded.

MERGED = {**ONE, "dims": {"B": 4, "S": 4096, "D": 1024, "F": 1024}}


@hloscope.target(**MERGED, args=("bf16[B,S@data,D]", "bf16[D,F]"), out="P(None, 'data', None)")
def merged(x, w):
    y = jnp.tanh(x.reshape(-1, x.shape[-1]) @ w)
    return y.reshape(*x.shape[:2], -1)


@hloscope.target(**MERGED, args=("bf16[B,S@data,D]", "bf16[D,F]"), out="P(None, 'data', None)")
def merged_cured(x, w):
    return jnp.tanh(jnp.einsum("bsd,df->bsf", x, w))


# An axis that nothing uses: its devices repeat each other's work.

IDLE = {**BOTH, "dims": {"B": 4096, "D": 4096, "F": 4096}}


@hloscope.target(**IDLE, args=("bf16[B@data,D]", "bf16[D,F]"), out="P('data', None)")
def idle(x, w):
    return x @ w


@hloscope.target(**IDLE, args=("bf16[B@(data,model),D]", "bf16[D,F]"), out="P(('data', 'model'), None)")
def idle_cured(x, w):
    return x @ w


# Right as they are.


@hloscope.target(
    **MODEL,
    dims={"B": 16, "T": 1024, "D": 2048, "H": 16, "K": 128, "F": 4096},
    args=(
        "bf16[B,D]",
        "bf16[B,T,H@model,K]",
        "bf16[B,T,H@model,K]",
        "bf16[D,H@model,K]",
        "bf16[H@model,K,D]",
        "bf16[D,F@model]",
        "bf16[F@model,D]",
    ),
    out="P()",
)
def decode_tensor_parallel(x, keys, values, wq, wo, up, down):
    q = jnp.einsum("bd,dhk->bhk", x, wq)
    weights = jax.nn.softmax(jnp.einsum("bhk,bthk->bht", q, keys).astype(jnp.float32), -1).astype(x.dtype)
    x = x + jnp.einsum("bhk,hkd->bd", jnp.einsum("bht,bthk->bhk", weights, values), wo)
    return x + jax.nn.gelu(x @ up) @ down


@hloscope.target(
    **MODEL, dims={"B": 1024, "D": 8192, "F": 1024}, args=("bf16[B,D@model]", "bf16[D@model,F]"), out="P()"
)
def contracted(x, w):
    """A product whose sum is over the axis."""
    return x @ w


@hloscope.target(
    **ONE,
    dims={"B": 2, "S": 4096, "H": 8, "K": 128},
    args=("bf16[B,S@data,H,K]",) * 3,
    out="P(None, 'data', None, None)",
)
def context_parallel(q, k, v):
    """Attention over a sequence on many devices: keys and values are gathered, which are the smallest."""
    weights = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32), -1).astype(q.dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, v)
