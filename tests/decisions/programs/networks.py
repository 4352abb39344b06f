"""Training steps of other networks: vision, mixtures of experts, recurrences, convolutions, and a Flax NNX module."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

import hloscope

ONE = {"mesh": {"data": 8}, "slice": "v5e:2x4"}
TWO = {"mesh": {"data": 4, "model": 4}, "slice": "v5e:4x4"}
BATCH = P("data", None, None)
constrained = jax.lax.with_sharding_constraint


def descend(loss, p, *data):
    gradient = jax.grad(loss)(p, *data)
    return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), p, gradient)


def mix(x, w):
    """A layer of a mixer: no attention, so that a compile is short."""
    hidden = jax.nn.gelu(jnp.einsum("bnd,df->bnf", x, w["up"]))
    return x + jnp.einsum("bnf,fd->bnd", hidden, w["down"]), None


LAYERS = {"up": "bf16[L,D@data,F]", "down": "bf16[L,F,D@data]"}

# Vision transformers: one large image for each device, so that the patches' weights are larger than the images.

IMAGES = "bf16[B@data,128,128,3]"
VISION = {**ONE, "dims": {"B": 8, "N": 64, "D": 1024, "F": 4096, "C": 768, "L": 4}}


def patches_loss(p, images, cured):
    patches = images.reshape(-1, 8, 16, 8, 16, 3).swapaxes(2, 3).reshape(-1, 64, 768)
    x = jnp.einsum("bnc,cd->bnd", patches, p["patch"]) + p["pos"]
    if cured:
        x = constrained(x, BATCH)
    x, _ = jax.lax.scan(mix, x, p["layers"])
    return (x.astype(jnp.float32) ** 2).mean()


PATCHES = ({"patch": "bf16[C,D@data]", "pos": "bf16[N,D@data]", "layers": LAYERS}, IMAGES)


@hloscope.target(**VISION, args=PATCHES, donate=(0,))
def patches(p, images):
    return descend(partial(patches_loss, cured=False), p, images)


@hloscope.target(**VISION, args=PATCHES, donate=(0,))
def patches_cured(p, images):
    return descend(partial(patches_loss, cured=True), p, images)


def convolved_loss(p, images, cured):
    x = jax.lax.conv_general_dilated(
        images, p["patch"], window_strides=(16, 16), padding="VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = x.reshape(x.shape[0], -1, x.shape[-1])
    if cured:
        x = constrained(x, BATCH)
    x, _ = jax.lax.scan(mix, x, p["layers"])
    return (x.astype(jnp.float32) ** 2).mean()


CONVOLVED = ({"patch": "bf16[16,16,3,D@data]", "layers": LAYERS}, IMAGES)


@hloscope.target(**VISION, args=CONVOLVED, donate=(0,))
def convolved(p, images):
    return descend(partial(convolved_loss, cured=False), p, images)


@hloscope.target(**VISION, args=CONVOLVED, donate=(0,))
def convolved_cured(p, images):
    return descend(partial(convolved_loss, cured=True), p, images)


# A mixture of experts with dense dispatch, behind an embedding.

MIXTURE = {**TWO, "dims": {"B": 16, "S": 256, "V": 8192, "D": 1024, "E": 8, "C": 128, "F": 2048}}


def experts_loss(p, tokens, cured):
    x = p["emb"][tokens]
    if cured:
        x = constrained(x, BATCH)
    gates = jax.nn.softmax(jnp.einsum("bsd,de->bse", x, p["gate"]).astype(jnp.float32), -1)
    chosen = jax.nn.one_hot(gates.argmax(-1), gates.shape[-1])
    position = jnp.cumsum(chosen, axis=1) * chosen - 1
    dispatch = (jax.nn.one_hot(position, 128) * chosen[..., None]).astype(x.dtype)
    inside = jnp.einsum("bsec,bsd->ebcd", dispatch, x)
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", inside, p["up"]))
    outside = jnp.einsum("ebcf,efd->ebcd", hidden, p["down"])
    y = jnp.einsum("bsec,ebcd->bsd", dispatch * gates[..., None].astype(x.dtype), outside)
    return ((x + y).astype(jnp.float32) ** 2).mean()


EXPERTS = (
    {
        "emb": "bf16[V,D@data]",
        "gate": "bf16[D@data,E]",
        "up": "bf16[E@model,D@data,F]",
        "down": "bf16[E@model,F,D@data]",
    },
    "s32[B@data,S]",
)


@hloscope.target(**MIXTURE, args=EXPERTS, donate=(0,))
def experts(p, tokens):
    return descend(partial(experts_loss, cured=False), p, tokens)


@hloscope.target(**MIXTURE, args=EXPERTS, donate=(0,))
def experts_cured(p, tokens):
    return descend(partial(experts_loss, cured=True), p, tokens)


# A recurrence over time, behind an embedding.

RECURRENT = {**ONE, "dims": {"B": 64, "T": 64, "V": 8192, "D": 1024}}


def recurrent_loss(p, tokens, cured):
    x = p["emb"][tokens]
    if cured:
        x = constrained(x, BATCH)

    def advance(h, x):
        h = jnp.tanh(x + h @ p["hidden"])
        return h, h

    _, states = jax.lax.scan(advance, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))
    return (states.astype(jnp.float32) ** 2).mean()


CELLS = ({"emb": "bf16[V,D@data]", "hidden": "bf16[D,D@data]"}, "s32[B@data,T]")


@hloscope.target(**RECURRENT, args=CELLS, donate=(0,))
def recurrent(p, tokens):
    return descend(partial(recurrent_loss, cured=False), p, tokens)


@hloscope.target(**RECURRENT, args=CELLS, donate=(0,))
def recurrent_cured(p, tokens):
    return descend(partial(recurrent_loss, cured=True), p, tokens)


# Flax NNX.

MODULE = {**ONE, "dims": {"B": 64, "S": 128, "V": 8192, "D": 1024, "F": 4096}}


class Block(nnx.Module):
    def __init__(self, width, hidden, rngs):
        self.up = nnx.Linear(width, hidden, use_bias=False, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16, rngs=rngs)
        self.down = nnx.Linear(hidden, width, use_bias=False, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(x)))


class Model(nnx.Module):
    def __init__(self, rngs, cured):
        self.embed = nnx.Embed(8192, 1024, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16, rngs=rngs)
        self.first, self.second = Block(1024, 4096, rngs), Block(1024, 4096, rngs)
        self.cured = cured

    def __call__(self, tokens):
        x = self.embed(tokens)
        if self.cured:
            x = constrained(x, BATCH)
        return self.second(self.first(x))


def module_loss(p, tokens, cured):
    model = nnx.eval_shape(lambda: Model(nnx.Rngs(0), cured))
    nnx.update(model, p)
    return (model(tokens).astype(jnp.float32) ** 2).mean()


BLOCK = {"up": {"kernel": "bf16[D@data,F]"}, "down": {"kernel": "bf16[F,D@data]"}}
MODULES = ({"embed": {"embedding": "bf16[V,D@data]"}, "first": BLOCK, "second": BLOCK}, "s32[B@data,S]")


@hloscope.target(**MODULE, args=MODULES, donate=(0,))
def module(p, tokens):
    return descend(partial(module_loss, cured=False), p, tokens)


@hloscope.target(**MODULE, args=MODULES, donate=(0,))
def module_cured(p, tokens):
    return descend(partial(module_loss, cured=True), p, tokens)


# Microbatches whose batch is not known to the compiler any more: the axis is split over both new dimensions.

MICRO = {**TWO, "dims": {"B": 8, "S": 1024, "D": 1024, "F": 4096}}
MICROBATCHES = ({"up": "bf16[D,F@model]", "down": "bf16[F@model,D]"}, "bf16[B@data,S,D]")


def sum_microbatches(p, batches):
    def loss(p, x):
        return (jnp.einsum("bsf,fd->bsd", jax.nn.relu(jnp.einsum("bsd,df->bsf", x, p["up"])), p["down"]) ** 2).mean()

    def add(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(p, x)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), batches)
    return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), p, total)


@hloscope.target(**MICRO, args=MICROBATCHES, donate=(0,))
def microbatches(p, x):
    return sum_microbatches(p, x.reshape(2, 4, *x.shape[1:]))


@hloscope.target(**MICRO, args=MICROBATCHES, donate=(0,))
def microbatches_cured(p, x):
    return sum_microbatches(p, constrained(x.reshape(4, 2, *x.shape[1:]).swapaxes(0, 1), P(None, "data")))


# Gradients that are summed over the devices in each iteration, where once after the loop is enough.

EACH = {**ONE, "dims": {"N": 8, "B": 32, "S": 64, "D": 1024, "F": 4096}}
SUMMED_IN_LOOP = ({"up": "f32[D,F]", "down": "f32[F,D]"}, "f32[N,B@data,S,D]")


@hloscope.target(**EACH, args=SUMMED_IN_LOOP, donate=(0,))
def summed_in_loop(p, batches):
    return sum_microbatches(p, batches)


@hloscope.target(**EACH, args=SUMMED_IN_LOOP, donate=(0,))
def summed_in_loop_cured(p, batches):
    def step(p, batches):
        own = jax.tree.map(lambda w: jax.lax.pcast(w, "data", to="varying"), p)
        moved = sum_microbatches(own, batches)
        return jax.lax.pmean(moved, "data")

    return jax.shard_map(step, in_specs=(P(), P(None, "data")), out_specs=P())(p, batches)


# Right as they are.

LARGE = {**VISION, "dims": {**VISION["dims"], "B": 128}}


@hloscope.target(**LARGE, args=PATCHES, donate=(0,))
def large_images(p, images):
    """FSDP of a vision transformer whose images are larger than a weight."""
    return descend(partial(patches_loss, cured=False), p, images)


@hloscope.target(**LARGE, args=PATCHES, donate=(0,))
def many_images(p, images):
    return descend(partial(patches_loss, cured=False), p, images)


@hloscope.target(**LARGE, args=PATCHES, donate=(0,))
def many_images_cured(p, images):
    return descend(partial(patches_loss, cured=True), p, images)


CONVOLUTIONS = {**ONE, "dims": {"B": 64, "C": 128}}


@hloscope.target(
    **CONVOLUTIONS, args=({"a": "bf16[3,3,C,C]", "b": "bf16[3,3,C,C]"}, "bf16[B@data,32,32,C]"), donate=(0,)
)
def convolutional(p, images):
    """Data parallelism over a network of convolutions with batch normalization."""

    def loss(p, x):
        for name in "ab":
            x = jax.lax.conv_general_dilated(x, p[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x32 = x.astype(jnp.float32)
            mean, var = x32.mean((0, 1, 2)), x32.var((0, 1, 2))
            x = jax.nn.relu((x32 - mean) * jax.lax.rsqrt(var + 1e-5)).astype(x.dtype)
        return (x.astype(jnp.float32) ** 2).mean()

    return descend(loss, p, images)


ACTIVATED = {**ONE, "dims": {"B": 64, "N": 256, "D": 1024, "F": 4096, "L": 4}}


@hloscope.target(**ACTIVATED, args=(LAYERS, "bf16[B@data,N,D]"), donate=(0,))
def larger_activations(p, x):
    """FSDP without a constraint, of a network whose input is larger than a weight and has no features over `data`."""
    return descend(lambda p, x: (jax.lax.scan(mix, x, p)[0].astype(jnp.float32) ** 2).mean(), p, x)


PARALLEL_EXPERTS = {"mesh": {"expert": 8}, "slice": "v5e:2x4", "dims": {"B": 4096, "D": 1024, "E": 8, "F": 2048}}


@hloscope.target(
    **PARALLEL_EXPERTS,
    args=({"up": "bf16[E@expert,D,F]", "down": "bf16[E@expert,F,D]"}, "bf16[B@expert,D]"),
    donate=(0,),
)
def expert_parallel(p, x):
    """An expert on each device, with tokens exchanged by the program itself."""

    def exchange(p, x):
        sent = jax.lax.all_to_all(x.reshape(8, -1, x.shape[-1]), "expert", 0, 0)
        hidden = jax.nn.gelu(jnp.einsum("ntd,edf->ntf", sent, p["up"]))
        done = jnp.einsum("ntf,efd->ntd", hidden, p["down"])
        return jax.lax.all_to_all(done, "expert", 0, 0).reshape(x.shape)

    specs = {"up": P("expert"), "down": P("expert")}
    apply = jax.shard_map(exchange, in_specs=(specs, P("expert")), out_specs=P("expert"))
    return descend(lambda p, x: (apply(p, x).astype(jnp.float32) ** 2).mean(), p, x)


STAGES = {"mesh": {"stage": 8}, "slice": "v5e:2x4", "dims": {"L": 8, "M": 16, "B": 64, "D": 1024}}


@hloscope.target(**STAGES, args=("bf16[L@stage,D,D]", "bf16[M,B,D]"))
def pipeline(w, x):
    """A pipeline of eight stages, with activations passed on by the program itself."""

    def run(w, x):
        def tick(carry, number):
            own = jnp.where(jax.lax.axis_index("stage") == 0, x[number % x.shape[0]], carry)
            y = jnp.tanh(own @ w[0])
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % 8) for i in range(8)]), y

        start = jax.lax.pcast(jnp.zeros_like(x[0]), "stage", to="varying")
        _, ys = jax.lax.scan(tick, start, jnp.arange(x.shape[0] + 7))
        return ys[None, -x.shape[0] :]

    return jax.shard_map(run, in_specs=(P("stage"), P()), out_specs=P("stage"))(w, x)


STATE = {**ONE, "dims": {"B": 64, "T": 64, "D": 256, "K": 64}}


@hloscope.target(**STATE, args=("bf16[T,B@data,D]", "bf16[D,K]", "bf16[D,K]"))
def zero_carry(x, wk, wv):
    """A loop whose carry begins as zeros without a sharding, which its body gives the batch's."""

    def advance(state, x):
        k, v = x @ wk, x @ wv
        state = 0.9 * state + jnp.einsum("bk,bv->bkv", k, v)
        return state, jnp.einsum("bk,bkv->bv", k, state)

    zeros = jnp.zeros((x.shape[1], wk.shape[1], wv.shape[1]), x.dtype)
    return jax.lax.scan(advance, zeros, x)[1]
