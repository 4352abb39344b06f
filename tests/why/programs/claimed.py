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


TOKENS = "s32[B@data,S]"
WEIGHTS = {"emb": "f32[V,D@data]", "up": "f32[D@data,F]", "down": "f32[F,D@data]"}


@hloscope.target(
    mesh={"dcn": 2, "data": 4}, slice="cpu:8", dims=DIMS, args=(WEIGHTS, "s32[B@(dcn,data),S]"), donate=(0,)
)
def two_axes_of_the_batch(p, tokens):
    """The batch keeps `dcn`, and loses `data`, which is the minor one."""
    return step(p, tokens)


@hloscope.target(mesh={"data": 4}, slice="cpu:4", dims=DIMS, args=(WEIGHTS, TOKENS), donate=(0,))
def microbatches(p, tokens):
    """The axis is on the microbatches, one after another, so that no value has their batch over it."""
    return jax.lax.scan(lambda p, tokens: (step(p, tokens), None), p, tokens.reshape(4, 8, -1))[0]


@hloscope.target(mesh={"data": 4}, slice="cpu:4", dims=DIMS, args=(WEIGHTS, TOKENS), donate=(0,))
def entered_loop(p, tokens):
    """The batch has the axis until a loop of layers begins."""

    def loss(p):
        x = jnp.einsum("bsv,vd->bsd", jax.nn.one_hot(tokens, p["emb"].shape[0]), p["emb"])
        h, _ = jax.lax.scan(lambda h, _: (h + jax.nn.gelu(h @ p["up"]) @ p["down"], None), x, length=4)
        return (h**2).mean()

    return jax.tree.map(jnp.subtract, p, jax.grad(loss)(p))


@hloscope.target(mesh={"data": 4}, slice="cpu:4", dims=DIMS, args=(WEIGHTS, TOKENS), donate=(0,))
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


TOWER = {"up": "f32[L,D@data,F]", "down": "f32[L,F,D@data]"}


@hloscope.target(
    mesh={"data": 4},
    slice="v5e:2x2",
    dims={**DIMS, "C": 128, "L": 2},
    args=({"emb": "f32[V,D@data]", "patch": "f32[C,D@data]", "one": TOWER, "other": TOWER}, "f32[B@data,S,C]", TOKENS),
    donate=(0,),
)
def two_towers(p, patches, tokens):
    """A tower whose batch is lost by a lookup, and with it that of the other tower, at the loop that it enters."""

    def mix(x, w):
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def loss(p):
        x, _ = jax.lax.scan(mix, jnp.einsum("bsc,cd->bsd", patches, p["patch"]), p["one"])
        y, _ = jax.lax.scan(mix, p["emb"][tokens], p["other"])
        return jnp.einsum("bd,ad->ba", x.mean(1), y.mean(1)).std()

    return jax.tree.map(jnp.subtract, p, jax.grad(loss)(p))


@hloscope.target(mesh={"model": 4}, slice="v5e:2x2", args=("f32[64,V@model]",), dims={"V": 8192}, out=("P()", "P()"))
def best(logits):
    """An operation for which Shardy has no rule."""
    return tuple(jax.lax.top_k(logits, 8))
