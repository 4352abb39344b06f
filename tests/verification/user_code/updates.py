"""Training steps whose new parameters hardly differ from the old ones: a wrong gradient hides in their rounding."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import hloscope

RATE = 1e-3
DIMS = {"B": 64, "D": 256, "F": 128}
N = 8


def predicted(params, x):
    return jax.nn.gelu(x @ params["up"] + params["bias"]) @ params["down"]


def loss_of(params, x, y):
    return jnp.mean(jnp.square(predicted(params, x) - y).astype(jnp.float32))


def params_of(dtype):
    return {"bias": f"{dtype}[F]", "down": f"{dtype}[F,D]", "up": f"{dtype}[D,F]"}


def registered(dtype="bf16", **options):
    args = (params_of(dtype), f"{dtype}[B@X,D]", f"{dtype}[B@X,D]")
    return hloscope.target(mesh={"X": N}, args=args, dims=DIMS, **options)


def sgd(params, grads, rate=RATE):
    return jax.tree.map(lambda p, g: p - (rate * g).astype(p.dtype), params, grads)


def step_with(update=sgd, mean=None):
    def step(params, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        if mean is not None:
            loss, grads = mean(loss, grads)
        return update(params, grads), loss

    return step


def mapped(step, check_vma=False):
    return jax.shard_map(step, in_specs=(P(), P("X", None), P("X", None)), out_specs=(P(), P()), check_vma=check_vma)


def averaged(loss, grads):
    return lax.pmean(loss, "X"), lax.pmean(grads, "X")


def optimised(params, grads):
    """A step with momentum of zero, clipped, and left out where the gradient is not finite, as libraries write it."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1, 1 / norm).astype(g.dtype), grads)
    new = jax.tree.map(lambda p, g: (p.astype(jnp.float32) + (-RATE) * (g + 0.1 * p)).astype(p.dtype), params, grads)
    return jax.tree.map(lambda p, old: jnp.where(jnp.isfinite(norm), p, old), new, params)


step = registered()(step_with())
step_twin = registered()(mapped(step_with(mean=averaged)))
checked = registered()(step_with())
checked_twin = registered()(
    mapped(step_with(mean=lambda loss, g: (lax.pmean(loss, "X"), jax.tree.map(lambda g: g / N, g))), check_vma=True)
)
checked_sums = registered()(mapped(step_with(mean=lambda loss, g: (lax.pmean(loss, "X"), g)), check_vma=True))
clipped = registered()(step_with(optimised))
clipped_twin = registered()(mapped(step_with(optimised, averaged)))
step_f32 = registered("f32")(step_with())
step_f32_twin = registered("f32")(mapped(step_with(mean=averaged)))
sums_gradients = registered()(mapped(step_with(mean=lambda loss, grads: (lax.pmean(loss, "X"), lax.psum(grads, "X")))))
leaves_gradients = registered()(
    mapped(
        step_with(
            mean=lambda loss, grads: (lax.pmean(loss, "X"), jax.tree.map(lambda g: lax.all_gather(g, "X")[0], grads))
        )
    )
)
at_half_the_rate = registered()(mapped(step_with(lambda p, g: sgd(p, g, RATE / 2), averaged)))
in_the_other_direction = registered()(mapped(step_with(lambda p, g: sgd(p, g, -RATE), averaged)))
without_update = registered()(mapped(step_with(lambda p, g: p, averaged)))
without_bias_gradient = registered()(mapped(step_with(lambda p, g: {**sgd(p, g), "bias": p["bias"]}, averaged)))

RIGHT = ("step", "step_f32", "checked", "clipped")
WRONG = {
    **dict.fromkeys(
        (
            *("sums_gradients", "leaves_gradients", "at_half_the_rate", "in_the_other_direction", "without_update"),
            "without_bias_gradient",
        ),
        "step",
    ),
    "checked_sums": "checked",
}


def three_steps(step):
    def run(params, x, y):
        return jax.lax.scan(lambda params, _: step(params, x, y), params, None, length=3)

    return run


steps = registered()(three_steps(step_with()))
steps_twin = registered()(mapped(three_steps(step_with(mean=averaged))))
steps_without_bias_gradient = registered()(
    mapped(three_steps(step_with(lambda p, g: {**sgd(p, g), "bias": p["bias"]}, averaged)))
)
steps_with_frozen_bias = registered()(three_steps(step_with(lambda p, g: {**sgd(p, g), "bias": p["bias"]})))
UNTOLD = {"steps": ("steps_twin", "steps"), "without bias": ("steps_without_bias_gradient", "steps")}
