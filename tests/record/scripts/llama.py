"""A Llama-like decoder of 8B parameters, layer by layer: prefill, decode, a mixture of experts, or a training step.

python llama.py prefill|decode|moe|train|train_unrolled [LAYERS]

Training scans over its layers, whose weights are stacked, unless they are to be written out as the others have them.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD, VOCABULARY, EXPERTS = 4096, 14336, 32, 8, 128, 128256, 16
SPECS = {
    "embed": P("model", "data"),
    "q": P("data", "model"),
    "k": P("data", "model"),
    "v": P("data", "model"),
    "o": P("model", "data"),
    "gate": P("data", "model"),
    "up": P("data", "model"),
    "down": P("model", "data"),
    "router": P(),
    "experts_up": P("data", None, "model"),
    "experts_down": P("data", "model", None),
    "norm": P(),
}


def shapes(layers, moe, stacked):
    layer = {"q": (WIDTH, HEADS * HEAD), "k": (WIDTH, KV_HEADS * HEAD), "v": (WIDTH, KV_HEADS * HEAD)}
    layer |= {"o": (HEADS * HEAD, WIDTH), "norm": (WIDTH,)}
    if moe:
        layer |= {
            "router": (WIDTH, EXPERTS),
            "experts_up": (EXPERTS, WIDTH, 2048),
            "experts_down": (EXPERTS, 2048, WIDTH),
        }
    else:
        layer |= {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    if stacked:
        return {"embed": (VOCABULARY, WIDTH), "layers": {name: (layers, *shape) for name, shape in layer.items()}}
    return {"embed": (VOCABULARY, WIDTH), "layers": [dict(layer) for _ in range(layers)]}


def init(layers, moe, stacked):
    make = functools.partial(jnp.full, fill_value=0.01, dtype=jnp.bfloat16)
    return jax.tree.map(make, shapes(layers, moe, stacked), is_leaf=lambda x: isinstance(x, tuple))


def spec_of(path):
    """The spec of a weight; that of a stacked one has its layers first, which no axis shards."""
    spec, is_stacked = SPECS[path[-1].key], len(path) == 2
    return P(None, *spec) if is_stacked else spec


def norm(x, scale):
    return (
        x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True) + 1e-6).astype(x.dtype) * scale
    )


def mixture(x, layer):
    """Every token goes through its two best experts, by capacity slots."""
    tokens = x.reshape(-1, WIDTH)
    scores = jax.nn.softmax((tokens @ layer["router"]).astype(jnp.float32))
    weight, chosen = jax.lax.top_k(scores, 2)
    route = (jax.nn.one_hot(chosen, EXPERTS, dtype=x.dtype) * weight[..., None].astype(x.dtype)).sum(1)
    capacity = max(1, 2 * tokens.shape[0] // EXPERTS)
    rank = jnp.cumsum(route > 0, 0) - 1
    slots = jax.nn.one_hot(jnp.where(route > 0, rank, -1), capacity, dtype=x.dtype)
    given = jnp.einsum("tec,td->ecd", slots, tokens)
    given = jax.lax.with_sharding_constraint(given, P("data", None, None))
    made = jnp.einsum(
        "ecf,efd->ecd", jax.nn.silu(jnp.einsum("ecd,edf->ecf", given, layer["experts_up"])), layer["experts_down"]
    )
    return jnp.einsum("tec,ecd,te->td", slots, made, route).reshape(x.shape)


def block(layer, x, mask, cache=None, position=0):
    y = norm(x, layer["norm"])
    q = (y @ layer["q"]).reshape(*x.shape[:2], HEADS, HEAD)
    k = (y @ layer["k"]).reshape(*x.shape[:2], KV_HEADS, HEAD)
    v = (y @ layer["v"]).reshape(*x.shape[:2], KV_HEADS, HEAD)
    if cache is not None:
        cache = tuple(jax.lax.dynamic_update_slice_in_dim(old, new, position, 1) for old, new in zip(cache, (k, v)))
        k, v = cache
    with jax.named_scope("attention"):
        mixed = jax.nn.dot_product_attention(q, k, v, mask=mask).reshape(*x.shape[:2], HEADS * HEAD)
    x = x + mixed @ layer["o"]
    y = norm(x, layer["norm"])
    if "router" in layer:
        return x + mixture(y, layer), cache
    return x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"], cache


def forward(params, tokens, *, remat=False):
    x = params["embed"][tokens]
    mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))[None, None]
    one = (
        jax.checkpoint(lambda layer, x: block(layer, x, mask)[0])
        if remat
        else lambda layer, x: block(layer, x, mask)[0]
    )
    if isinstance(params["layers"], dict):
        x, _ = jax.lax.scan(lambda x, layer: (one(layer, x), None), x, params["layers"])
        return x @ params["embed"].T
    for number, layer in enumerate(params["layers"]):
        with jax.named_scope(f"layer_{number}"):
            x = one(layer, x)
    return x @ params["embed"].T


@jax.jit
def prefill(params, tokens):
    return jnp.argmax(forward(params, tokens)[:, -1], -1)


@functools.partial(jax.jit, donate_argnames="cache")
def decode(params, token, cache, position):
    x = params["embed"][token][:, None]
    mask = (jnp.arange(cache[0][0].shape[1]) <= position)[None, None, None]
    filled = []
    for layer, old in zip(params["layers"], cache):
        x, new = block(layer, x, mask, old, position)
        filled.append(new)
    return jnp.argmax(x[:, 0] @ params["embed"].T, -1), filled


optimizer = optax.adamw(1e-4)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, tokens):
    def loss_of(params):
        logits = forward(params, tokens[:, :-1], remat=True).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def main(mode, layers):
    mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    jax.set_mesh(mesh)
    trains = mode.startswith("train")
    make = functools.partial(init, layers, mode == "moe", mode == "train")
    placed = jax.tree_util.tree_map_with_path(lambda path, _: NamedSharding(mesh, spec_of(path)), jax.eval_shape(make))
    params = jax.jit(make, out_shardings=placed)()
    rows = NamedSharding(mesh, P("data"))
    if mode == "decode":
        at = NamedSharding(mesh, P("data", None, "model"))
        cache = [
            tuple(jnp.zeros((16, 4096, KV_HEADS, HEAD), jnp.bfloat16, device=at) for _ in range(2))
            for _ in range(layers)
        ]
        token = jax.device_put(jnp.zeros(16, jnp.int32), rows)
        for position in range(64):
            token, cache = decode(params, token, cache, position)
        return
    tokens = jax.device_put(jnp.zeros((16, 1025 if trains else 1024), jnp.int32), rows)
    state = optimizer.init(params) if trains else None
    for _ in range(8):
        if trains:
            params, state, loss = train_step(params, state, tokens)
        else:
            loss = prefill(params, tokens)
    print(loss)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 32)
