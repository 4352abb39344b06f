"""A step that several tests run."""

import jax
import jax.numpy as jnp


def step(x, w):
    return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w), x).sum()


def fails(x):
    return x @ x
