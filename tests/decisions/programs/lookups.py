"""Training steps of networks that begin with lookups, and lose their batch there."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

ONE = {"mesh": {"data": 8}, "slice": "v5e:2x4"}
BATCH = P("data", None, None)
constrained = jax.lax.with_sharding_constraint
LAYERS = {"up": "bf16[L,D@data,F]", "down": "bf16[L,F,D@data]"}
DIMS = {"B": 64, "S": 256, "V": 8192, "D": 1024, "F": 4096, "L": 4}


def descend(loss, p, *data):
    gradient = jax.grad(loss)(p, *data)
    return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), p, gradient)


def mix(x, w):
    """A layer of a mixer: no attention, so that a compile is short."""
    hidden = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, w["up"]))
    return x + jnp.einsum("bsf,fd->bsd", hidden, w["down"]), None


# A recurrence whose states are larger than its weights.

CELLS = ({"emb": "bf16[V,D@data]", "hidden": "bf16[D,D@data]"}, "s32[B@data,T]")
RECURRENT = {**ONE, "dims": {"B": 8192, "T": 16, "V": 4096, "D": 512}}


def recurrent_loss(p, tokens, cured):
    x = p["emb"][tokens]
    if cured:
        x = constrained(x, BATCH)

    def advance(h, x):
        h = jnp.tanh(x + h @ p["hidden"])
        return h, h

    _, states = jax.lax.scan(advance, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))
    return (states.astype(jnp.float32) ** 2).mean()


@hloscope.target(**RECURRENT, args=CELLS, donate=(0,))
def wide_recurrent(p, tokens):
    return descend(partial(recurrent_loss, cured=False), p, tokens)


@hloscope.target(**RECURRENT, args=CELLS, donate=(0,))
def wide_recurrent_cured(p, tokens):
    return descend(partial(recurrent_loss, cured=True), p, tokens)


# Images as codes, of which a vision transformer looks each one up.

CODES = ({"codes": "bf16[V,D@data]", "pos": "bf16[16,16,D@data]", "layers": LAYERS}, "s32[B@data,16,16]")


def codes_loss(p, images, cured):
    x = p["codes"][images] + p["pos"]
    x = x.reshape(x.shape[0], -1, x.shape[-1])
    if cured:
        x = constrained(x, BATCH)
    x, _ = jax.lax.scan(mix, x, p["layers"])
    return (x.astype(jnp.float32) ** 2).mean()


@hloscope.target(**ONE, dims=DIMS, args=CODES, donate=(0,))
def image_codes(p, images):
    return descend(partial(codes_loss, cured=False), p, images)


@hloscope.target(**ONE, dims=DIMS, args=CODES, donate=(0,))
def image_codes_cured(p, images):
    return descend(partial(codes_loss, cured=True), p, images)


# Tokens and their segments, each looked up.

SEGMENTS = (
    {"emb": "bf16[V,D@data]", "segments": "bf16[16,D@data]", "layers": LAYERS},
    "s32[B@data,S]",
    "s32[B@data,S]",
)


def segments_loss(p, tokens, segments, cured):
    x = p["emb"][tokens] + p["segments"][segments]
    if cured:
        x = constrained(x, BATCH)
    x, _ = jax.lax.scan(mix, x, p["layers"])
    return (x.astype(jnp.float32) ** 2).mean()


@hloscope.target(**ONE, dims=DIMS, args=SEGMENTS, donate=(0,))
def segments(p, tokens, segments):
    return descend(partial(segments_loss, cured=False), p, tokens, segments)


@hloscope.target(**ONE, dims=DIMS, args=SEGMENTS, donate=(0,))
def segments_cured(p, tokens, segments):
    return descend(partial(segments_loss, cured=True), p, tokens, segments)


# Two towers: one of images, which keeps its batch if it is alone, and one of text, which takes it from both.

TOWERS = (
    {"patch": "bf16[768,D@data]", "images": LAYERS, "emb": "bf16[V,D@data]", "text": LAYERS},
    "bf16[B@data,256,768]",
    "s32[B@data,S]",
)


def towers_loss(p, patches, tokens, cured):
    x, y = jnp.einsum("bsc,cd->bsd", patches, p["patch"]), p["emb"][tokens]
    if cured:
        x, y = constrained(x, BATCH), constrained(y, BATCH)
    x, _ = jax.lax.scan(mix, x, p["images"])
    y, _ = jax.lax.scan(mix, y, p["text"])
    logits = jnp.einsum("bd,ad->ba", x.mean(1), y.mean(1)).astype(jnp.float32)
    return -jnp.trace(jax.nn.log_softmax(logits)) / logits.shape[0]


@hloscope.target(**ONE, dims=DIMS, args=TOWERS, donate=(0,))
def two_towers(p, patches, tokens):
    return descend(partial(towers_loss, cured=False), p, patches, tokens)


@hloscope.target(**ONE, dims=DIMS, args=TOWERS, donate=(0,))
def two_towers_cured(p, patches, tokens):
    return descend(partial(towers_loss, cured=True), p, patches, tokens)
