"""Numbers on operations change nothing that the compiler makes, and nobody sees them."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp

from hloscope.program.target import make_facts

SMALL = Path(__file__).parent / "programs" / "numbered.py"
SMALL_NAMES = (
    "mapped",
    "scanned",
    "remembered",
    "own_gradient",
    "explicit",
    "kernel",
    "two_slices",
    "on_cpus",
)
FACTS = make_facts(mesh={"X": 4, "Y": 2}, slice="v5e:2x4", args=("bf16[64@X,64@Y]", "bf16[64,64@Y]"), out="P('X')")


def step_in(scope):
    """A program with an inserted gather under a scope of that name."""

    def step(x, w):
        with jax.named_scope(scope):
            return jnp.sin(x) @ w

    return step
