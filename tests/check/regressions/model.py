"""A small language model's training step, and one by hand, as a reviewer accepted them."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

VOCABULARY = 4096
ACTIVATIONS = jnp.bfloat16


def embedded(params, tokens):
    hot = jax.nn.one_hot(tokens, VOCABULARY, dtype=ACTIVATIONS)
    return jnp.einsum("bsv,vd->bsd", hot, params["embed"].astype(ACTIVATIONS))


def mixed(x, mix):
    for _ in range(1):
        x = x + jnp.tanh(x @ mix.astype(ACTIVATIONS))
    return x


def adapted(x, params):
    return x + (x @ params["narrow"].astype(ACTIVATIONS)) @ params["wide"].astype(ACTIVATIONS)


def gated(x, gate):
    gates = x @ gate.astype(ACTIVATIONS)
    gates = jax.lax.with_sharding_constraint(gates, P("data", None, "model"))
    return jnp.mean(jax.nn.sigmoid(gates), -1, keepdims=True) * x


def block(x, up, down):
    hidden = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, up.astype(ACTIVATIONS)))
    out = jnp.einsum("bsf,fd->bsd", hidden, down.astype(ACTIVATIONS))
    return jax.lax.with_sharding_constraint(x + out, P("data", None, None))


def loss_of(params, tokens):
    x = gated(adapted(mixed(embedded(params, tokens), params["mix"]), params), params["gate"])
    x = block(x, params["up"], params["down"])
    logits = jnp.einsum("bsd,dv->bsv", x, params["head"].astype(ACTIVATIONS)).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def step(params, tokens):
    half = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), params)
    loss, grads = jax.value_and_grad(loss_of)(half, tokens)
    params = jax.tree.map(lambda weight, grad: weight - 1e-3 * grad.astype(jnp.float32), params, grads)
    return params, loss


def local_step(weight, x):
    def on_device(weight, x):
        loss, grad = jax.value_and_grad(lambda weight: jnp.mean((x @ weight) ** 2).astype(jnp.float32))(weight)
        mean = jax.lax.pmean(grad, "data")
        return weight - jnp.bfloat16(0.1) * mean.astype(jnp.bfloat16), jax.lax.pmean(loss, "data")

    return jax.shard_map(on_device, in_specs=(P(), P("data")), out_specs=(P(), P()), check_vma=False)(weight, x)
