"""Ten kernels that overflow VMEM or SMEM, which no stage before the machine code says: their checks fail."""

from __future__ import annotations

import textwrap

import pytest

from hloscope.app.checking import check_project
from hloscope.app.config import read_project

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.long]

HEAD = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LIKE = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)

def copied(x_ref, o_ref, *_):
    o_ref[...] = x_ref[...]

def on_each_device(function):
    here = jax.sharding.get_abstract_mesh()
    return jax.shard_map(function, mesh=here, in_specs=jax.P("X"), out_specs=jax.P("X"), check_vma=False)
"""
IN_STEP = """
def step(w, x):
    moved = jax.lax.with_sharding_constraint(on_each_device(kernel)(w), jax.P())
    return moved[:256, :128] @ x
"""
KERNELS = {
    "VMEM scratch": """
    def kernel(x):
        block = pl.BlockSpec((8, 512), lambda i: (i, 0))
        scratch = [pltpu.VMEM((131072, 1024), jnp.bfloat16)]
        def body(x_ref, o_ref, big):
            big[0:8, 0:512] = x_ref[...].astype(jnp.bfloat16)
            o_ref[...] = big[0:8, 0:512].astype(x_ref.dtype)
        return pl.pallas_call(body, grid=(16,), in_specs=[block], out_specs=block, out_shape=LIKE(x),
                              scratch_shapes=scratch)(x)
    """,
    "two kinds of VMEM scratch": """
    def kernel(x):
        scratch = [pltpu.VMEM((49152, 1024), jnp.float32), pltpu.VMEM((49152, 1024), jnp.float32)]
        def body(x_ref, o_ref, one, other):
            one[0:8, 0:512] = x_ref[0:8, :]
            other[0:8, 0:512] = one[0:8, 0:512]
            o_ref[0:8, :] = other[0:8, 0:512]
        return pl.pallas_call(body, out_shape=LIKE(x), scratch_shapes=scratch)(x)
    """,
    "a whole array as a block": """
    def kernel(x):
        tall = jnp.tile(x, (1024, 1))
        return pl.pallas_call(copied, out_shape=LIKE(tall))(tall)[: x.shape[0]]
    """,
    "blocks of several arguments": """
    def kernel(x):
        tall = jnp.tile(x, (256, 1))
        def body(a, b, c, o):
            o[...] = a[...] + b[...] + c[...]
        return pl.pallas_call(body, out_shape=LIKE(tall))(tall, tall + 1, tall + 2)[: x.shape[0]]
    """,
    "SMEM scratch": """
    def kernel(x):
        scratch = [pltpu.SMEM((8, 1 << 20), jnp.int32)]
        def body(x_ref, o_ref, small):
            small[0, 0] = 1
            o_ref[...] = x_ref[...] + small[0, 0].astype(x_ref.dtype)
        return pl.pallas_call(body, out_shape=LIKE(x), scratch_shapes=scratch)(x)
    """,
    "an argument in SMEM": """
    def kernel(x):
        table = jnp.arange(1 << 20, dtype=jnp.int32)
        def body(t, x_ref, o_ref):
            o_ref[...] = x_ref[...] + t[5].astype(x_ref.dtype)
        specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
        return pl.pallas_call(body, in_specs=specs, out_shape=LIKE(x))(table, x)
    """,
    "prefetched scalars": """
    def kernel(x):
        table = jnp.arange(1 << 20, dtype=jnp.int32)
        block = pl.BlockSpec((8, 512), lambda i, t: (t[i] % 16, 0))
        grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(16,), in_specs=[block], out_specs=block)
        def body(t, x_ref, o_ref):
            o_ref[...] = x_ref[...]
        return pl.pallas_call(body, grid_spec=grid, out_shape=LIKE(x))(table, x)
    """,
    "in a loop": """
    def kernel(x):
        def each(carry, _):
            scratch = [pltpu.VMEM((131072, 1024), jnp.float32)]
            def body(x_ref, o_ref, big):
                big[0:8, 0:512] = x_ref[0:8, :]
                o_ref[0:8, :] = big[0:8, 0:512] + 1
            return pl.pallas_call(body, out_shape=LIKE(x), scratch_shapes=scratch)(carry), None
        return jax.lax.scan(each, x, None, length=4)[0]
    """,
    "in a branch": """
    def kernel(x):
        def large(x):
            scratch = [pltpu.VMEM((131072, 1024), jnp.float32)]
            def body(x_ref, o_ref, big):
                big[0:8, 0:512] = x_ref[0:8, :]
                o_ref[0:8, :] = big[0:8, 0:512] + 1
            return pl.pallas_call(body, out_shape=LIKE(x), scratch_shapes=scratch)(x)
        return jax.lax.cond(x[0, 0] > 0, large, lambda x: x, x)
    """,
    "blocks of a grid": """
    def kernel(x):
        tall = jnp.tile(x, (2048, 1))
        block = pl.BlockSpec((131072, 512), lambda i: (i, 0))
        out = pl.pallas_call(copied, grid=(2,), in_specs=[block], out_specs=block, out_shape=LIKE(tall))(tall)
        return out[: x.shape[0]]
    """,
}
TARGET = """
[targets.step]
function = "m.py:step"
mesh = { X = 8 }
slice = "v5e:2x4"
args = ["f32[1024@X,512]", "f32[128,1024]"]
contract = "all-gather@X"
"""


@pytest.mark.parametrize("where", KERNELS)
def test_a_kernel_that_overflows_fails_its_check(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(HEAD + textwrap.dedent(KERNELS[where]) + IN_STEP)
    (tmp_path / "hloscope.toml").write_text(TARGET)
    [one] = check_project(read_project(tmp_path / "hloscope.toml"))
    said = str(one.error or one.analysis.notes).lower()
    assert not one.passed
    assert "vmem" in said or "smem" in said
