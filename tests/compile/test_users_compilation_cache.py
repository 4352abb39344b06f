"""The user's own compilation cache of JAX: not asked for what must be compiled afresh, and left as it was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import hloscope

folder = Path(sys.argv[1])
jax.config.update("jax_compilation_cache_dir", str(folder))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def entries():
    return sum(path.name.endswith("-cache") for path in folder.iterdir())


def step(x):
    return jnp.sin(x) + 1


counts = [entries()]
if sys.argv[2] == "used before":
    jax.jit(step)(jnp.ones(8))
    counts.append(entries())
hloscope.analyze(step, ("f32[8]",), slice="cpu:1")
counts.append(entries())
jax.jit(lambda x: x * 3)(jnp.ones(8))
counts.append(entries())
print(*counts)
"""


@pytest.mark.parametrize("when", ["used before", "not yet used"])
def test_analyze_leaves_it_in_use(root, tmp_path, when):
    environment = {**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), when]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *earlier, analyzed, afterwards = map(int, done.stdout.split())
    assert analyzed == earlier[-1]
    assert afterwards > analyzed
