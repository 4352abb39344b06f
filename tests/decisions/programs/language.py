"""Training steps of language models, most with their batch lost, and each put right by hand."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

DIMS = {"B": 32, "S": 256, "V": 8192, "D": 1024, "H": 8, "K": 128, "F": 4096, "L": 2}
TWO = {"mesh": {"data": 4, "model": 4}, "slice": "v5e:4x4", "dims": DIMS}
ONE = {"mesh": {"data": 8}, "slice": "v5e:2x4", "dims": DIMS}
TOKENS = "s32[B@data,S]"
BATCH = P("data", None, None)
constrained = jax.lax.with_sharding_constraint


def layer_types(cut_features="data", cut_heads="@model", stacked="L,"):
    """The weights of a layer, or of all of them stacked, over an axis or two."""
    data = f"@{cut_features}" if cut_features else ""
    return {
        "q": f"bf16[{stacked}D{data},H{cut_heads},K]",
        "k": f"bf16[{stacked}D{data},H{cut_heads},K]",
        "v": f"bf16[{stacked}D{data},H{cut_heads},K]",
        "o": f"bf16[{stacked}H{cut_heads},K,D{data}]",
        "up": f"bf16[{stacked}D{data},F{cut_heads}]",
        "down": f"bf16[{stacked}F{cut_heads},D{data}]",
    }


EMBEDDING = {"emb": "bf16[V@model,D@data]"}
HEAD = {"head": "bf16[D@data,V@model]"}
STACKED = {"layers": layer_types()}


def norm(x):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def attend(w, x, memory, causal=True):
    q = jnp.einsum("bsd,dhk->bshk", x, w["q"])
    k = jnp.einsum("btd,dhk->bthk", memory, w["k"])
    v = jnp.einsum("btd,dhk->bthk", memory, w["v"])
    scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores, -1).astype(x.dtype), v)
    return jnp.einsum("bshk,hkd->bsd", mixed, w["o"])


def feed_forward(w, x):
    hidden = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, w["up"]))
    return jnp.einsum("bsf,fd->bsd", hidden, w["down"])


def layer(x, w):
    h = norm(x)
    x = x + attend(w, h, h)
    return x + feed_forward(w, norm(x)), None


def compute_loss(logits, tokens):
    logs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logs[:, :-1], tokens[:, 1:, None], -1).mean()


def descend(loss, p, *data):
    value, gradient = jax.value_and_grad(loss)(p, *data)
    return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), p, gradient), value


# Tied embedding, layers scanned and rematerialized.


def tied_loss(p, tokens, cured):
    x = p["emb"][tokens]
    if cured:
        x = constrained(x, BATCH)
    x, _ = jax.lax.scan(jax.checkpoint(layer), x, p["layers"])
    return compute_loss(jnp.einsum("bsd,vd->bsv", norm(x), p["emb"]), tokens)


TIED = (EMBEDDING | STACKED, TOKENS)


@hloscope.target(**TWO, args=TIED, donate=(0,))
def tied(p, tokens):
    return descend(partial(tied_loss, cured=False), p, tokens)


@hloscope.target(**TWO, args=TIED, donate=(0,))
def tied_cured(p, tokens):
    return descend(partial(tied_loss, cured=True), p, tokens)


# An embedding and a head of its own.


def untied_loss(p, tokens, cured):
    x = p["emb"][tokens]
    if cured:
        x = constrained(x, BATCH)
    x, _ = jax.lax.scan(layer, x, p["layers"])
    return compute_loss(jnp.einsum("bsd,dv->bsv", norm(x), p["head"]), tokens)


UNTIED = (EMBEDDING | HEAD | STACKED, TOKENS)


@hloscope.target(**TWO, args=UNTIED, donate=(0,))
def untied(p, tokens):
    return descend(partial(untied_loss, cured=False), p, tokens)


@hloscope.target(**TWO, args=UNTIED, donate=(0,))
def untied_cured(p, tokens):
    return descend(partial(untied_loss, cured=True), p, tokens)


# Learned positions, and a scale.


def positional_loss(p, tokens, cured):
    x = jnp.take(p["emb"], tokens, axis=0) * jnp.bfloat16(32) + p["pos"][: tokens.shape[1]]
    if cured:
        x = constrained(x, BATCH)
    x, _ = jax.lax.scan(jax.checkpoint(layer), x, p["layers"])
    return compute_loss(jnp.einsum("bsd,vd->bsv", norm(x), p["emb"]), tokens)


POSITIONAL = (EMBEDDING | {"pos": "bf16[512,D@data]"} | STACKED, TOKENS)


@hloscope.target(**TWO, args=POSITIONAL, donate=(0,))
def positional(p, tokens):
    return descend(partial(positional_loss, cured=False), p, tokens)


@hloscope.target(**TWO, args=POSITIONAL, donate=(0,))
def positional_cured(p, tokens):
    return descend(partial(positional_loss, cured=True), p, tokens)


# Layers written out.


def written_out_loss(p, tokens, cured):
    x = p["emb"][tokens]
    if cured:
        x = constrained(x, BATCH)
    for w in p["layers"]:
        x = x + attend(w, norm(x), norm(x))
        x = x + feed_forward(w, norm(x))
    return compute_loss(jnp.einsum("bsd,dv->bsv", norm(x), p["head"]), tokens)


WRITTEN_OUT = (EMBEDDING | HEAD | {"layers": [layer_types(stacked="")] * 2}, TOKENS)


@hloscope.target(**TWO, args=WRITTEN_OUT, donate=(0,))
def written_out(p, tokens):
    return descend(partial(written_out_loss, cured=False), p, tokens)


@hloscope.target(**TWO, args=WRITTEN_OUT, donate=(0,))
def written_out_cured(p, tokens):
    return descend(partial(written_out_loss, cured=True), p, tokens)


# FSDP alone.

FSDP = ({"emb": "bf16[V,D@data]", "layers": layer_types(cut_heads="")}, TOKENS)


@hloscope.target(**ONE, args=FSDP, donate=(0,))
def fsdp(p, tokens):
    return descend(partial(tied_loss, cured=False), p, tokens)


@hloscope.target(**ONE, args=FSDP, donate=(0,))
def fsdp_cured(p, tokens):
    return descend(partial(tied_loss, cured=True), p, tokens)


# The embedding as a product with one-hot rows.


def one_hot_loss(p, tokens, cured):
    x = jnp.einsum("bsv,vd->bsd", jax.nn.one_hot(tokens, p["emb"].shape[0], dtype=jnp.bfloat16), p["emb"])
    if cured:
        x = constrained(x, BATCH)
    x, _ = jax.lax.scan(layer, x, p["layers"])
    return compute_loss(jnp.einsum("bsd,vd->bsv", norm(x), p["emb"]), tokens)


@hloscope.target(**ONE, args=FSDP, donate=(0,))
def one_hot(p, tokens):
    return descend(partial(one_hot_loss, cured=False), p, tokens)


@hloscope.target(**ONE, args=FSDP, donate=(0,))
def one_hot_cured(p, tokens):
    return descend(partial(one_hot_loss, cured=True), p, tokens)


# Gradients accumulated over microbatches.


def accumulate(loss, p, batches):
    def add(total, tokens):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(p, tokens)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), batches)
    return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), p, total)


@hloscope.target(**TWO, args=TIED, donate=(0,))
def accumulated(p, tokens):
    batches = tokens.reshape(4, 8, -1)
    return accumulate(partial(tied_loss, cured=False), p, batches)


@hloscope.target(**TWO, args=TIED, donate=(0,))
def accumulated_cured(p, tokens):
    batches = constrained(tokens.reshape(4, 8, -1), P(None, "data", None))
    return accumulate(partial(tied_loss, cured=True), p, batches)


@hloscope.target(**TWO, args=TIED, donate=(0,))
def accumulated_strided(p, tokens):
    batches = tokens.reshape(8, 4, -1).swapaxes(0, 1)
    return accumulate(partial(tied_loss, cured=False), p, batches)


@hloscope.target(**TWO, args=TIED, donate=(0,))
def accumulated_strided_cured(p, tokens):
    batches = tokens.reshape(8, 4, -1).swapaxes(0, 1)
    return accumulate(partial(tied_loss, cured=True), p, batches)


# Two slices: the batch over both, the weights within each.

SLICES = {"mesh": {"dcn": 2, "data": 4, "model": 2}, "slice": "2*v5e:2x4", "dcn": {"dcn": 2}, "dims": DIMS}
OF_SLICES = (EMBEDDING | STACKED, "s32[B@(dcn,data),S]")


def slices_loss(p, tokens, cured):
    x = p["emb"][tokens]
    if cured:
        x = constrained(x, P(("dcn", "data"), None, None))
    x, _ = jax.lax.scan(jax.checkpoint(layer), x, p["layers"])
    return compute_loss(jnp.einsum("bsd,vd->bsv", norm(x), p["emb"]), tokens)


@hloscope.target(**SLICES, args=OF_SLICES, donate=(0,))
def two_slices(p, tokens):
    return descend(partial(slices_loss, cured=False), p, tokens)


@hloscope.target(**SLICES, args=OF_SLICES, donate=(0,))
def two_slices_cured(p, tokens):
    return descend(partial(slices_loss, cured=True), p, tokens)


# An encoder and a decoder that attends to it.


def translate_loss(p, source, tokens, cured):
    memory = p["emb"][source]
    x = p["emb"][tokens]
    if cured:
        memory, x = constrained(memory, BATCH), constrained(x, BATCH)
    memory, _ = jax.lax.scan(layer, memory, p["encoder"])

    def decode(x, w):
        x = x + attend(w["own"], norm(x), norm(x))
        x = x + attend(w["cross"], norm(x), norm(memory), causal=False)
        return x + feed_forward(w["own"], norm(x)), None

    x, _ = jax.lax.scan(decode, x, p["decoder"])
    return compute_loss(jnp.einsum("bsd,vd->bsv", norm(x), p["emb"]), tokens)


CROSS = {name: layer_types()[name] for name in "qkvo"}
TRANSLATION = (
    EMBEDDING | {"encoder": layer_types(), "decoder": {"own": layer_types(), "cross": CROSS}},
    "s32[B@data,T]",
    TOKENS,
)
TRANSLATED = {**TWO, "dims": {**DIMS, "T": 128}}


@hloscope.target(**TRANSLATED, args=TRANSLATION, donate=(0,))
def encoder_decoder(p, source, tokens):
    return descend(partial(translate_loss, cured=False), p, source, tokens)


@hloscope.target(**TRANSLATED, args=TRANSLATION, donate=(0,))
def encoder_decoder_cured(p, source, tokens):
    return descend(partial(translate_loss, cured=True), p, source, tokens)


# Activations constrained by the user, to the wrong dimension.


def constrained_loss(p, tokens, spec):
    def constrained_layer(x, w):
        return constrained(layer(x, w)[0], spec), None

    x = constrained(p["emb"][tokens], spec)
    x, _ = jax.lax.scan(jax.checkpoint(constrained_layer), x, p["layers"])
    return compute_loss(jnp.einsum("bsd,vd->bsv", norm(x), p["emb"]), tokens)


@hloscope.target(**TWO, args=TIED, donate=(0,))
def features_by_constraint(p, tokens):
    return descend(partial(constrained_loss, spec=P(None, None, "data")), p, tokens)


@hloscope.target(**TWO, args=TIED, donate=(0,))
def features_by_constraint_cured(p, tokens):
    return descend(partial(constrained_loss, spec=BATCH), p, tokens)


def narrow_loss(p, tokens, spec):
    def narrow_layer(x, w):
        hidden = jax.nn.gelu(jnp.einsum("bsd,df->bsf", norm(x), w["up"]))
        hidden = constrained(hidden, spec)
        return x + jnp.einsum("bsf,fd->bsd", hidden, w["down"]), None

    x = constrained(p["emb"][tokens], BATCH)
    x, _ = jax.lax.scan(narrow_layer, x, p["layers"])
    return compute_loss(jnp.einsum("bsd,vd->bsv", norm(x), p["emb"]), tokens)


NARROW = (EMBEDDING | {"layers": {name: layer_types()[name] for name in ("up", "down")}}, TOKENS)


@hloscope.target(**TWO, args=NARROW, donate=(0,))
def whole_by_constraint(p, tokens):
    """The constraint takes the hidden features from `model`."""
    return descend(partial(narrow_loss, spec=BATCH), p, tokens)


@hloscope.target(**TWO, args=NARROW, donate=(0,))
def whole_by_constraint_cured(p, tokens):
    return descend(partial(narrow_loss, spec=P("data", None, "model")), p, tokens)


# Explicit axis types: each product says what it makes.

TYPED = {**TWO, "axis_types": "explicit"}
OF_TYPED = ({"emb": "bf16[V,D@data]", "up": "bf16[D@data,F@model]", "down": "bf16[F@model,D@data]"}, TOKENS)


@hloscope.target(**TYPED, args=OF_TYPED, donate=(0,))
def explicit(p, tokens):
    def loss(p):
        x = p["emb"].at[tokens].get(out_sharding=P(None, None, "data"))
        h = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, p["up"], out_sharding=P(None, None, "model")))
        x = x + jnp.einsum("bsf,fd->bsd", h, p["down"], out_sharding=P(None, None, "data"))
        return (x.astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), p, jax.grad(loss)(p))


@hloscope.target(**TYPED, args=OF_TYPED, donate=(0,))
def explicit_cured(p, tokens):
    def loss(p):
        up, down = jax.sharding.reshard(p["up"], P(None, "model")), jax.sharding.reshard(p["down"], P("model", None))
        x = p["emb"].at[tokens].get(out_sharding=BATCH)
        h = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, up, out_sharding=P("data", None, "model")))
        x = x + jnp.einsum("bsf,fd->bsd", h, down, out_sharding=BATCH)
        return (x.astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), p, jax.grad(loss)(p))


# Right as they are.


@hloscope.target(**TWO, args=TIED, donate=(0,))
def fsdp_constrained(p, tokens):
    """FSDP and tensor parallelism, with the activations of every layer constrained."""
    return descend(partial(constrained_loss, spec=BATCH), p, tokens)


MEGATRON = (
    {"emb": "bf16[V@model,D]", "layers": layer_types(cut_features="")},
    TOKENS,
)


@hloscope.target(**TWO, args=MEGATRON, donate=(0,))
def megatron(p, tokens):
    """Tensor parallelism within data parallelism, and labels looked up in a vocabulary over `model`."""
    return descend(partial(tied_loss, cured=False), p, tokens)


SEQUENCE = P("data", "model", None)


@hloscope.target(**TWO, args=MEGATRON, donate=(0,))
def sequence_parallel(p, tokens):
    """Tensor parallelism whose residual stream is over `model` by the sequence."""
    return descend(partial(constrained_loss, spec=SEQUENCE), p, tokens)


PLAIN = ({"emb": "bf16[V,D]", "layers": layer_types(cut_features="", cut_heads="")}, TOKENS)


@hloscope.target(**ONE, args=PLAIN, donate=(0,))
def data_parallel(p, tokens):
    return descend(partial(tied_loss, cured=False), p, tokens)


ROWS = ({"emb": "bf16[V@data,D]", "layers": layer_types(cut_heads="")}, TOKENS)


@hloscope.target(**ONE, args=ROWS, donate=(0,))
def rows_of_the_table(p, tokens):
    """FSDP that shards the table by its rows, so that the lookup has no features over `data`."""
    return descend(partial(tied_loss, cured=False), p, tokens)


@hloscope.target(**ONE, args=ROWS, donate=(0,))
def table_of_rows(p, tokens):
    return descend(partial(tied_loss, cured=False), p, tokens)


@hloscope.target(**ONE, args=ROWS, donate=(0,))
def table_of_rows_cured(p, tokens):
    return descend(partial(tied_loss, cured=True), p, tokens)
