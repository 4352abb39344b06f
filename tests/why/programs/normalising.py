"""Programs that divide by what they find along a sharded dimension: norms, softmax, losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import hloscope

MESH = {"X": 2, "Y": 4}
HEAD = ("bf16[4096@X,2048]", "bf16[2048,32768@Y]", "s32[4096@X]")


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8192@X,16384@Y]",), out="P('X', 'Y')")
def softmax_of_rows(scores):
    """Normalises rows, each of which is spread over four devices."""
    wide = scores.astype(jnp.float32)
    shifted = jnp.exp(wide - wide.max(axis=1, keepdims=True))
    return (shifted / shifted.sum(axis=1, keepdims=True)).astype(jnp.bfloat16)


@hloscope.target(
    mesh=MESH, slice="v5e:2x4", args=("bf16[16384@X,4096@Y]", "bf16[4096@Y]", "bf16[4096@Y]"), out="P('X', 'Y')"
)
def layer_norm(x, scale, shift):
    """Normalises features that are sharded: their mean first, then their variance."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(axis=-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-6)).astype(jnp.bfloat16) * scale + shift


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[8192@X,4096@Y]", "bf16[4096@Y]", "bf16[4096@Y,8192]"),
    out="P('X', None)",
)
def rms_norm_and_projection(x, scale, weights):
    """Normalises sharded features and contracts them right after."""
    power = jnp.square(x.astype(jnp.float32)).mean(axis=-1, keepdims=True)
    normal = (x * jax.lax.rsqrt(power + 1e-6)).astype(jnp.bfloat16) * scale
    return normal @ weights


@hloscope.target(
    mesh={"data": 4, "space": 2},
    slice="v5e:2x4",
    args=("bf16[64@data,64@space,64,256]", "f32[256]"),
    out="P('data', 'space', None, None)",
)
def batch_norm(images, scale):
    """Normalises channels over a sharded batch and a sharded height."""
    wide = images.astype(jnp.float32)
    mean = wide.mean(axis=(0, 1, 2))
    variance = jnp.square(wide).mean(axis=(0, 1, 2)) - jnp.square(mean)
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5) * scale).astype(jnp.bfloat16)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=HEAD, out="P()")
def cross_entropy(hidden, unembedding, labels):
    """The loss of a language model whose vocabulary is sharded."""
    logits = (hidden @ unembedding).astype(jnp.float32)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.sum(logits * jax.nn.one_hot(labels, 32768), axis=-1)
    return jnp.mean(normaliser - chosen)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=HEAD, out=("P()", "P(None, 'Y')"))
def cross_entropy_gradient(hidden, unembedding, labels):
    """The loss and the gradient of its sharded vocabulary, whose rows every replica has."""

    def loss(unembedding):
        scores = jnp.einsum("td,dv->tv", hidden, unembedding).astype(jnp.float32)
        log_total = jax.nn.logsumexp(scores, axis=-1)
        right = jnp.take_along_axis(scores, labels[:, None], axis=-1)[:, 0]
        return (log_total - right).mean()

    return jax.value_and_grad(loss)(unembedding)


def squared_outputs(weights, x):
    """A loss after two layers."""
    hidden = jax.nn.relu(x @ weights["up"])
    return jnp.mean(jnp.square((hidden @ weights["down"]).astype(jnp.float32)))


def clipped(weights, gradients):
    """Gradient descent with gradients that are clipped by their global norm."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(gradients)))
    factor = jnp.minimum(1.0, 1.0 / norm)
    return jax.tree.map(lambda w, g: (w - 0.01 * factor * g).astype(w.dtype), weights, gradients)


FSDP = {"up": "bf16[2048@data,8192]", "down": "bf16[8192@data,2048]"}
ROWS = ("P('data', None)", "P('data', None)")


@hloscope.target(mesh={"data": 8}, slice="v5e:2x4", args=(FSDP, "bf16[8192@data,2048]"), out=ROWS)
def clipped_step(weights, x):
    """A step of FSDP, its gradients clipped: every product goes around a ring."""
    return clipped(weights, jax.grad(squared_outputs)(weights, x))


@hloscope.target(mesh={"data": 8}, slice="v5e:2x4", args=(FSDP, "bf16[4096@data,2048]"), out=ROWS)
def small_clipped_step(weights, x):
    """The same with half the batch, for which the compiler goes other ways, one of them padded."""
    return clipped(weights, jax.grad(squared_outputs)(weights, x))


@hloscope.target(
    mesh=MESH, slice="v5e:2x4", args=("bf16[16@X,2048,2048]", "bf16[16,2048@X,2048]"), out="P('X', None, None)"
)
def masked_scores(scores, mask):
    """Adds a mask that is sharded along another dimension than the scores."""
    return jax.nn.relu(scores + mask)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8@X,8192@Y,1024]", "bf16[8,8192]"), out="P('X', None)")
def pooled_attention(values, scores):
    """Averages a sharded sequence with weights that come in whole."""
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(jnp.bfloat16)
    return jnp.einsum("bs,bsd->bd", weights, values)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=HEAD, out="P('X', 'Y')")
def head_gradient(hidden, unembedding, labels):
    """The gradient of a vocabulary, handed out to the replicas in parts that the compiler pads."""

    def loss(unembedding):
        predicted = hidden @ unembedding
        errors = predicted.astype(jnp.float32) - jax.nn.one_hot(labels, 32768)
        return jnp.mean(jnp.square(errors))

    return jax.grad(loss)(unembedding)
