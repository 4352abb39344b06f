"""Programs as people write them first, whose best sharding somebody would look for."""

import jax
import jax.numpy as jnp

import hloscope

MESH = {"X": 2, "Y": 4}


def ffn(x, W1, W2):
    """A feed-forward block."""
    return jax.nn.gelu(x @ W1) @ W2


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[B@X,D]", "bf16[D,F@Y]", "bf16[F@Y,D]"),
    out="P('X', None)",
    dims={"B": 128, "D": 1024, "F": 4096},
)
def small_ffn(x, W1, W2):
    """The same, as practitioners shard it."""
    return ffn(x, W1, W2)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=("bf16[B@X,S,D]", "bf16[D,H,K]", "bf16[D,H,K]", "bf16[D,H,K]", "bf16[H,K,D]"),
    out="P('X', None, None)",
    dims={"B": 8, "S": 512, "D": 1024, "H": 16, "K": 64},
)
def attention(x, Wq, Wk, Wv, Wo):
    """Attention whose weights nobody has sharded yet."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, W) for W in (Wq, Wk, Wv))
    scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) / 8
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", weights, v), Wo)


LAYER = {
    "ln1": "f32[D]",
    "ln2": "f32[D]",
    "q": "bf16[D,H,K]",
    "k": "bf16[D,H,K]",
    "v": "bf16[D,H,K]",
    "o": "bf16[H,K,D]",
    "up": "bf16[D,F]",
    "down": "bf16[F,D]",
}
LAYER_DIMS = {"B": 8, "S": 512, "D": 1024, "H": 16, "K": 64, "F": 4096}


def norm(x, scale):
    """RMSNorm."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[B@X,S,D]", LAYER), out="P('X', None, None)", dims=LAYER_DIMS)
def layer(x, params):
    """A transformer layer."""
    x = x + attention(norm(x, params["ln1"]), *(params[name] for name in "qkvo"))
    return x + ffn(norm(x, params["ln2"]), params["up"], params["down"])


@hloscope.target(
    mesh={"X": 8},
    slice="v5e:2x4",
    args=("bf16[T@X,D]", "f32[D,E]", "bf16[E,D,F]", "bf16[E,F,D]"),
    out="P('X', None)",
    dims={"T": 1024, "D": 1024, "E": 8, "F": 4096},
)
def experts(x, gate, W1, W2):
    """A mixture of experts in einsums: expert parallelism exchanges tokens by all-to-all."""
    tokens, count = x.shape[0], gate.shape[1]
    groups = 8
    x = x.reshape(groups, tokens // groups, -1)
    capacity = 2 * tokens // groups // count
    chosen = jax.nn.one_hot(jnp.argmax(x.astype(jnp.float32) @ gate, -1), count, dtype=jnp.int32)
    place = jnp.cumsum(chosen, 1) * chosen - 1
    dispatch = jax.nn.one_hot(place, capacity, dtype=x.dtype)
    sent = jnp.einsum("gsec,gsd->egcd", dispatch, x)
    hidden = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", sent, W1))
    back = jnp.einsum("gsec,egcd->gsd", dispatch, jnp.einsum("egcf,efd->egcd", hidden, W2))
    return back.reshape(tokens, -1)


MODEL = {"embed": "f32[V,D]", "up": "f32[L,D,F]", "down": "f32[L,F,D]"}


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=(MODEL, MODEL, MODEL, "s32[B@X,S]"),
    donate=(0, 1, 2),
    dims={"L": 2, "B": 16, "S": 256, "D": 1024, "F": 4096, "V": 8192},
)
def train(params, mu, nu, tokens):
    """A training step with Adam's two states, all of it replicated."""

    def loss_of(params):
        x = params["embed"].astype(jnp.bfloat16)[tokens]

        def block(x, weights):
            up, down = (weight.astype(jnp.bfloat16) for weight in weights)
            return x + ffn(x, up, down), None

        x, _ = jax.lax.scan(block, x, (params["up"], params["down"]))
        logits = (x @ params["embed"].astype(jnp.bfloat16).T).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1))

    loss, grads = jax.value_and_grad(loss_of)(params)
    mu = jax.tree.map(lambda old, grad: 0.9 * old + 0.1 * grad, mu, grads)
    nu = jax.tree.map(lambda old, grad: 0.99 * old + 0.01 * grad**2, nu, grads)
    params = jax.tree.map(lambda old, m, n: old - 1e-3 * m / (jnp.sqrt(n) + 1e-8), params, mu, nu)
    return params, mu, nu, loss


STACKED = {
    "embed": "f32[V,D]",
    "ln1": "f32[L,D]",
    "ln2": "f32[L,D]",
    "q": "f32[L,D,H,K]",
    "k": "f32[L,D,H,K]",
    "v": "f32[L,D,H,K]",
    "o": "f32[L,H,K,D]",
    "up": "f32[L,D,F]",
    "down": "f32[L,F,D]",
}


@hloscope.target(
    mesh={"data": 8, "model": 8},
    slice="v5e:8x8",
    args=(STACKED, STACKED, STACKED, "s32[B@data,S]"),
    donate=(0, 1, 2),
    dims={"L": 32, "B": 64, "S": 1024, "D": 2048, "F": 8192, "H": 16, "K": 128, "V": 32768},
)
def scanned(params, mu, nu, tokens):
    """A training step of 32 layers, scanned, with nothing but the batch sharded."""

    def loss_of(params):
        half = {name: weight.astype(jnp.bfloat16) for name, weight in params.items()}
        x = half["embed"][tokens]

        @jax.checkpoint
        def block(x, weights):
            return layer(x, weights), None

        x, _ = jax.lax.scan(block, x, {name: weight for name, weight in half.items() if name != "embed"})
        logits = (x @ half["embed"].T).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1))

    loss, grads = jax.value_and_grad(loss_of)(params)
    mu = jax.tree.map(lambda old, grad: 0.9 * old + 0.1 * grad, mu, grads)
    nu = jax.tree.map(lambda old, grad: 0.99 * old + 0.01 * grad**2, nu, grads)
    params = jax.tree.map(lambda old, m, n: old - 1e-3 * m / (jnp.sqrt(n) + 1e-8), params, mu, nu)
    return params, mu, nu, loss
