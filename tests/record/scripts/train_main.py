"""A main with flags and a config: abstract initialisation, a jitted step compiled ahead of time, metrics and a log.

python train_main.py --config.layers=2 --workdir=/tmp/run
"""

import dataclasses
import functools
import json
import os
import pickle
import time

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

FLAGS = flags.FLAGS
flags.DEFINE_integer("layers", 4, "How many layers.")
flags.DEFINE_integer("steps", 100, "How many steps.")
flags.DEFINE_string("workdir", None, "Where metrics and checkpoints go.")


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int
    width: int = 512
    hidden: int = 2048
    heads: int = 8
    vocabulary: int = 4096
    batch: int = 16
    length: int = 64


def shapes(config):
    d, f = config.width, config.hidden
    layer = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, f), "down": (f, d), "scale": (d,)}
    stacked = {name: (config.layers, *shape) for name, shape in layer.items()}
    return {"embed": (config.vocabulary, d), "layers": stacked}


RULES = {
    "embed": P("model", "data"),
    "qkv": P(None, "data", "model"),
    "out": P(None, "model", "data"),
    "up": P(None, "data", "model"),
    "down": P(None, "model", "data"),
    "scale": P(),
}


def init(config, key):
    def leaf(path, shape):
        name = path[-1].key
        if name == "scale":
            return jnp.ones(shape, jnp.bfloat16)
        return jax.random.normal(jax.random.fold_in(key, hash(name) % 1000), shape, jnp.bfloat16) * 0.02

    params = jax.tree_util.tree_map_with_path(leaf, shapes(config), is_leaf=lambda x: isinstance(x, tuple))
    return {"params": params, "opt": optimizer.init(params), "step": jnp.zeros((), jnp.int32)}


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def forward(config, params, tokens):
    x = params["embed"][tokens]

    @jax.checkpoint
    def layer(x, weights):
        y = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * weights["scale"]
        q, k, v = jnp.split(y @ weights["qkv"], 3, -1)
        split = lambda a: a.reshape(*a.shape[:2], config.heads, -1)  # noqa: E731
        with jax.named_scope("attention"):
            mixed = jax.nn.dot_product_attention(split(q), split(k), split(v), is_causal=True)
        x = x + mixed.reshape(x.shape) @ weights["out"]
        return x + jax.nn.gelu(y @ weights["up"]) @ weights["down"], None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    return x @ params["embed"].T


def train_step(config, state, tokens):
    def loss_of(params):
        logits = forward(config, params, tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_of)(state["params"])
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    metrics = {"loss": loss, "norm": optax.tree.norm(grads)}
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "step": state["step"] + 1}, metrics


def sharding_of(mesh, path):
    names = [getattr(key, "key", None) for key in path]
    return NamedSharding(mesh, next((RULES[name] for name in reversed(names) if name in RULES), P()))


def main(_):
    config = Config(layers=FLAGS.layers)
    mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    abstract = jax.eval_shape(functools.partial(init, config), jax.random.key(0))
    placed = jax.tree_util.tree_map_with_path(lambda path, _: sharding_of(mesh, path), abstract)
    state = jax.jit(functools.partial(init, config), out_shardings=placed)(jax.random.key(0))
    batch_at = NamedSharding(mesh, P("data"))
    tokens = jax.ShapeDtypeStruct((config.batch, config.length + 1), jnp.int32, sharding=batch_at)
    step = jax.jit(
        functools.partial(train_step, config),
        in_shardings=(placed, batch_at),
        out_shardings=(placed, None),
        donate_argnums=0,
    )
    compiled = step.lower(abstract, tokens).compile()
    print(f"temporaries: {compiled.memory_analysis().temp_size_in_bytes / 1e9:.2f} GB")
    begun = time.time()
    for number in range(FLAGS.steps):
        batch = jax.device_put(jax.random.randint(jax.random.key(number), tokens.shape, 0, config.vocabulary), batch_at)
        state, metrics = compiled(state, batch)
        if FLAGS.workdir:
            with open(os.path.join(FLAGS.workdir, "metrics.jsonl"), "a") as log:
                log.write(json.dumps({"step": number, "loss": float(metrics["loss"])}) + "\n")
    print(f"{FLAGS.steps / (time.time() - begun):.1f} steps per second")
    if FLAGS.workdir:
        with open(os.path.join(FLAGS.workdir, "state.pkl"), "wb") as file:
            pickle.dump(jax.device_get(state), file)


if __name__ == "__main__":
    app.run(main)
