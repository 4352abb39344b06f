"""Training steps as they are written for FSDP, data parallelism, ZeRO, sequence parallelism and experts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

FSDP_WEIGHTS = {"up": "bf16[2048@fsdp,8192]", "down": "bf16[8192@fsdp,2048]"}
FSDP_SPECS = ("P('fsdp', None)", "P('fsdp', None)")


def feed_forward(weights, x):
    """Two matrices with a nonlinearity between them."""
    hidden = jax.nn.gelu(jnp.einsum("bd,df->bf", x, weights["up"]))
    return jnp.einsum("bf,fd->bd", hidden, weights["down"])


@hloscope.target(mesh={"fsdp": 8}, slice="v5e:2x4", args=(FSDP_WEIGHTS, "bf16[8192@fsdp,2048]"), out="P('fsdp', None)")
def fsdp_layer(weights, x):
    """Runs a layer whose weights are sharded over the axis of the batch."""
    return feed_forward(weights, x)


@hloscope.target(
    mesh={"fsdp": 8},
    slice="v5e:2x4",
    args=(FSDP_WEIGHTS, "bf16[8192@fsdp,2048]", "bf16[8192@fsdp,2048]"),
    out=("P()", *FSDP_SPECS),
    donate=(0,),
)
def fsdp_step(weights, x, target):
    """Takes one step of gradient descent with weights that are sharded over the axis of the batch."""

    def loss(weights):
        error = feed_forward(weights, x) - target
        return jnp.mean(jnp.square(error.astype(jnp.float32)))

    value, gradients = jax.value_and_grad(loss)(weights)
    new = jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)
    return value, new["up"], new["down"]


@hloscope.target(
    mesh={"data": 8},
    slice="v5e:2x4",
    args=("bf16[2048,2048]", "bf16[8192@data,2048]", "bf16[8192@data,2048]"),
    out="P(None, None)",
)
def data_parallel_step(weight, x, target):
    """Updates a weight that every device holds whole, each from its own part of the batch."""

    def loss(weight):
        predicted = jnp.tanh(x @ weight)
        return jnp.sum(jnp.square((predicted - target).astype(jnp.float32)))

    gradient = jax.grad(loss)(weight)
    return weight - 0.1 * gradient


@hloscope.target(
    mesh={"data": 8},
    slice="v5e:2x4",
    args=("bf16[4096,4096]", "f32[4096@data,4096]", "bf16[8192@data,4096]"),
    out=("P(None, None)", "P('data', None)"),
    donate=(0, 1),
)
def zero_one_step(weight, momentum, x):
    """Keeps the optimizer's state in parts, and the weight whole (ZeRO-1)."""

    def loss(weight):
        predicted = x @ weight
        return jnp.sum(jnp.square(predicted.astype(jnp.float32)))

    gradient = jax.grad(loss)(weight)
    velocity = 0.9 * momentum + gradient.astype(jnp.float32)
    new_weight = weight - (0.1 * velocity).astype(jnp.bfloat16)
    return new_weight, velocity


@hloscope.target(
    mesh={"X": 2, "Y": 4},
    slice="v5e:2x4",
    args=("bf16[4096@X,8192@Y]", "bf16[4096@X,8192@Y]", "f32[4096@X,8192@Y]"),
    out=("P('X', 'Y')", "P('Y', 'X')"),
    donate=(0, 2),
)
def momentum_turned(weight, gradient, momentum):
    """Hands its momentum out with its axes the other way round than it came in."""
    velocity = 0.95 * momentum + gradient.astype(jnp.float32)
    return weight - (0.1 * velocity).astype(jnp.bfloat16), velocity


@hloscope.target(
    mesh={"data": 2, "model": 4},
    slice="v5e:2x4",
    args=("bf16[4@data,2048@model,4096]", "bf16[4096,16384@model]", "bf16[16384@model,4096]"),
    out="P('data', 'model', None)",
)
def sequence_parallel(x, up, down):
    """Megatron's layer: normalized in parts of the sequence, multiplied in parts of the features."""
    wide = x.astype(jnp.float32)
    normal = (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)
    inner = jax.nn.gelu(jnp.einsum("bsd,df->bsf", normal, up))
    inner = jax.lax.with_sharding_constraint(inner, P("data", None, "model"))
    outer = jnp.einsum("bsf,fd->bsd", inner, down)
    return x + outer


@hloscope.target(
    mesh={"expert": 8},
    slice="v5e:2x4",
    args=("bf16[64@expert,8,128,2048]", "bf16[8@expert,2048,4096]", "bf16[8@expert,4096,2048]"),
    out="P('expert', None, None, None)",
)
def experts(slots, up, down):
    """Hands each group's slots to the experts and back, by a constraint."""
    sent = jax.lax.with_sharding_constraint(slots, P(None, "expert", None, None))
    hidden = jax.nn.relu(jnp.einsum("gecd,edf->gecf", sent, up))
    made = jnp.einsum("gecf,efd->gecd", hidden, down)
    return jax.lax.with_sharding_constraint(made, P("expert", None, None, None))


@jax.custom_vjp
def scaled_product(x, weight):
    """A product whose backward pass is written by hand."""
    return jnp.einsum("bd,df->bf", x, weight)


def _scaled_product_forward(x, weight):
    kept = jax.lax.with_sharding_constraint(x, P("data", "model"))
    return scaled_product(x, weight), (kept, weight)


def _scaled_product_backward(residuals, cotangent):
    kept, weight = residuals
    to_x = jnp.einsum("bf,df->bd", cotangent, weight)
    to_weight = jnp.einsum("bd,bf->df", kept, cotangent)
    return to_x, to_weight


scaled_product.defvjp(_scaled_product_forward, _scaled_product_backward)


@hloscope.target(
    mesh={"data": 2, "model": 4},
    slice="v5e:2x4",
    args=("bf16[4096@data,4096]", "bf16[4096,8192@model]"),
    out=("P('data', None)", "P(None, 'model')"),
)
def kept_in_parts(x, weight):
    """Keeps a residual in parts between the passes of a derivative written by hand."""

    def loss(x, weight):
        return jnp.sum(jnp.tanh(scaled_product(jnp.sin(x), weight)).astype(jnp.float32))

    return jax.grad(loss, argnums=(0, 1))(x, weight)


@hloscope.target(
    mesh={"replica": 2, "fsdp": 8},
    slice="2*v5e:2x4",
    dcn={"replica": 2},
    args=("bf16[4096@fsdp,4096]", "bf16[16384@(replica,fsdp),4096]"),
    out="P('fsdp', None)",
    donate=(0,),
)
def step_on_two_slices(weight, x):
    """Shards a weight within each of two slices, and adds its gradient up over both."""

    def loss(weight):
        predicted = jnp.einsum("bd,df->bf", x, weight)
        return jnp.sum(jnp.square(predicted.astype(jnp.float32)))

    gradient = jax.grad(loss)(weight)
    return weight - 0.01 * gradient


@hloscope.target(
    mesh={"data": 2, "model": 4},
    slice="v5p:2x2x2",
    args=("bf16[8192@data,8192]", "bf16[8192,16384@model]", "bf16[16384@model,8192]"),
    out="P('data', None)",
)
def megatron_on_v5p(x, up, down):
    """Megatron's layer with whole activations between its layers."""
    hidden = jax.nn.silu(jnp.einsum("bd,df->bf", x, up))
    outer = jnp.einsum("bf,fd->bd", hidden, down)
    return x + outer
