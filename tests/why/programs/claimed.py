"""Programs in which the batch loses its axis where a constraint for it is not obvious."""

import jax
import jax.numpy as jnp

import hloscope

DIMS = {"B": 32, "S": 128, "V": 512, "D": 256, "F": 1024}


def step(p, tokens):
    def loss(p):
        x = p["emb"][tokens]
        h = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, p["up"]))
        return (jnp.einsum("bsf,fd->bsd", h, p["down"]) ** 2).mean()

    return jax.tree.map(jnp.subtract, p, jax.grad(loss)(p))


WEIGHTS = {"emb": "f32[V,D@data]", "up": "f32[D@data,F]", "down": "f32[F,D@data]"}


@hloscope.target(
    mesh={"dcn": 2, "data": 4}, slice="cpu:8", dims=DIMS, args=(WEIGHTS, "s32[B@(dcn,data),S]"), donate=(0,)
)
def two_axes_of_the_batch(p, tokens):
    """The batch keeps `dcn`, and loses `data`, which is the minor one."""
    return step(p, tokens)


@hloscope.target(mesh={"data": 4}, slice="cpu:4", dims=DIMS, args=(WEIGHTS, "s32[B@data,S]"), donate=(0,))
def microbatches(p, tokens):
    """The axis is on the microbatches, one after another, so that no value has their batch over it."""
    return jax.lax.scan(lambda p, tokens: (step(p, tokens), None), p, tokens.reshape(4, 8, -1))[0]


@hloscope.target(mesh={"data": 4}, slice="cpu:4", dims=DIMS, args=(WEIGHTS, "s32[B@data,S]"), donate=(0,))
def entered_loop(p, tokens):
    """The batch has the axis until a loop of layers begins."""

    def loss(p):
        x = jnp.einsum("bsv,vd->bsd", jax.nn.one_hot(tokens, p["emb"].shape[0]), p["emb"])
        h, _ = jax.lax.scan(lambda h, _: (h + jax.nn.gelu(h @ p["up"]) @ p["down"], None), x, length=4)
        return (h**2).mean()

    return jax.tree.map(jnp.subtract, p, jax.grad(loss)(p))


@hloscope.target(mesh={"data": 4}, slice="cpu:4", dims=DIMS, args=(WEIGHTS, "s32[B@data,S]"), donate=(0,))
def taken(p, tokens):
    """The lookup of a function of JAX's own, which has several operations."""

    def loss(p):
        x = jnp.take(p["emb"], tokens, axis=0)
        return ((jax.nn.gelu(x @ p["up"]) @ p["down"]) ** 2).mean()

    return jax.tree.map(jnp.subtract, p, jax.grad(loss)(p))


@hloscope.target(mesh={"data": 4}, slice="cpu:4", dims=DIMS, args=("f32[B@data,D]", "f32[D@data,F]", "f32[F,D@data]"))
def decoding(x, up, down):
    """Activations that replace themselves, with weights larger than they are."""
    return x + jax.nn.gelu(x @ up) @ down
