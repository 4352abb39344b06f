"""Prefill and decode with a cache, an attention kernel where there is a TPU, and greedy sampling to the end token."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, DIMENSION, HEADS, HEAD, HIDDEN, VOCABULARY = 2, 1024, 8, 128, 4096, 8192
BATCH, PROMPT, LONGEST, END = 8, 1024, 2048, 1

jax.distributed.initialize()

on_tpu = jax.devices()[0].platform == "tpu"
mesh = jax.make_mesh((2, jax.device_count() // 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def sharded(*axes):
    return NamedSharding(mesh, P(*axes))


def init(key):
    keys = jax.random.split(key, 2 + 6 * LAYERS)

    def weight(number, *shape):
        return jax.random.normal(keys[number], shape, jnp.bfloat16) * 0.02

    return {
        "embed": weight(0, VOCABULARY, DIMENSION),
        "layers": [
            {
                "q": weight(6 * n + 2, DIMENSION, HEADS * HEAD),
                "k": weight(6 * n + 3, DIMENSION, HEADS * HEAD),
                "v": weight(6 * n + 4, DIMENSION, HEADS * HEAD),
                "o": weight(6 * n + 5, HEADS * HEAD, DIMENSION),
                "up": weight(6 * n + 6, DIMENSION, HIDDEN),
                "down": weight(6 * n + 7, HIDDEN, DIMENSION),
            }
            for n in range(LAYERS)
        ],
    }


layout = {
    "embed": sharded(None, "model"),
    "layers": [
        {"q": sharded(None, "model"), "k": sharded(None, "model"), "v": sharded(None, "model")}
        | {"o": sharded("model", None), "up": sharded(None, "model"), "down": sharded("model", None)}
    ]
    * LAYERS,
}


def attention(q, k, v):
    if on_tpu:
        from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

        spec = P("data", "model")
        kernel = partial(flash_attention, causal=True)
        return jax.shard_map(kernel, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)(q, k, v)
    raise NotImplementedError("attention needs a TPU")


def heads(x, w):
    return (x @ w).reshape(*x.shape[:-1], HEADS, HEAD).swapaxes(1, 2)


@partial(jax.jit, donate_argnames="cache")
def prefill(params, tokens, cache):
    x = params["embed"][tokens]
    filled = []
    for layer, (keys, values) in zip(params["layers"], cache):
        q, k, v = heads(x, layer["q"]), heads(x, layer["k"]), heads(x, layer["v"])
        filled.append((keys.at[:, :, :PROMPT].set(k), values.at[:, :, :PROMPT].set(v)))
        x = x + attention(q, k, v).swapaxes(1, 2).reshape(x.shape) @ layer["o"]
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    return jnp.argmax(x[:, -1] @ params["embed"].T, -1), filled


@partial(jax.jit, donate_argnames="cache")
def decode(params, token, cache, position):
    x = params["embed"][token][:, None]
    filled = []
    for layer, (keys, values) in zip(params["layers"], cache):
        q, k, v = heads(x, layer["q"]), heads(x, layer["k"]), heads(x, layer["v"])
        keys = jax.lax.dynamic_update_slice_in_dim(keys, k, position, 2)
        values = jax.lax.dynamic_update_slice_in_dim(values, v, position, 2)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, keys, preferred_element_type=jnp.float32)
        scores = jnp.where(jnp.arange(LONGEST) <= position, scores, -jnp.inf)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores).astype(x.dtype), values)
        x = x + mixed.swapaxes(1, 2).reshape(x.shape) @ layer["o"]
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        filled.append((keys, values))
    return jnp.argmax(x[:, -1] @ params["embed"].T, -1), filled


def main():
    params = jax.jit(init, out_shardings=layout)(jax.random.key(0))
    cache_at = sharded("data", "model")
    cache = [
        tuple(jnp.zeros((BATCH, HEADS, LONGEST, HEAD), jnp.bfloat16, device=cache_at) for _ in "kv")
        for _ in range(LAYERS)
    ]
    prompt = jax.device_put(jnp.ones((BATCH, PROMPT), jnp.int32), sharded("data"))
    token, cache = prefill(params, prompt, cache)
    position = PROMPT
    while position < LONGEST and not bool((token == END).all()):
        token, cache = decode(params, token, cache, position)
        position += 1
    print("generated", position - PROMPT, "tokens on", jax.devices()[0].device_kind)


main()
