"""A step that several tests run."""

import jax
import jax.numpy as jnp

import hloscope


def step(x, w):
    return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w), x).sum()


@hloscope.target(mesh={"data": 2, "model": 4}, slice="v5e:2x4", args=("f32[64@data,128@model]", "f32[128@model,128]"))
def decorated(x, w):
    return jnp.tanh(x @ w)


def fails(x):
    return x @ x
