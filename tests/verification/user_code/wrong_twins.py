"""Programs that are right, and twins of them that are each wrong in one of the ways that happen."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"X": 2, "Y": 4}
MATMUL = {"mesh": MESH, "args": ("f32[B@X,D@Y]", "f32[D@Y,F]"), "dims": {"B": 16, "D": 32, "F": 24}}
GATHER = {"mesh": MESH, "args": ("f32[B@X,D@Y]", "f32[D,F@Y]"), "dims": {"B": 16, "D": 32, "F": 24}}
LINEAR = {"mesh": MESH, "args": ("f32[N@X,D]", "f32[D,F@Y]", "f32[F@Y]"), "dims": {"N": 16, "D": 32, "F": 16}}
MATMUL_SPECS = (P("X", "Y"), P("Y", None))
GATHER_SPECS = (P("X", "Y"), P(None, "Y"))
LINEAR_SPECS = (P("X", None), P(None, "Y"), P("Y"))


@hloscope.target(**MATMUL, out="P('X', None)")
def matmul(x, w):
    return x @ w


@hloscope.target(**MATMUL)
@jax.shard_map(in_specs=MATMUL_SPECS, out_specs=P("X", None), check_vma=False)
def missing_psum(x, w):
    return x @ w


@hloscope.target(**MATMUL)
@jax.shard_map(in_specs=MATMUL_SPECS, out_specs=P("X", None), check_vma=False)
def wrong_axis(x, w):
    return jax.lax.psum(x @ w, "X")


@hloscope.target(**GATHER, out="P('X', 'Y')")
def gathered(x, w):
    return x @ w


def ring(x, w, *, direction=-1, first=0, stale=None):
    devices, here, chunk = jax.lax.axis_size("Y"), jax.lax.axis_index("Y"), x.shape[1]
    out = jnp.zeros((), x.dtype)
    for step in range(devices):
        before = x
        if step:
            x = jax.lax.ppermute(x, "Y", perm=[(j, (j + direction) % devices) for j in range(devices)])
        used = x if stale is None else jnp.where(here == stale, before, x)
        out = out + used @ jax.lax.dynamic_slice_in_dim(w, (here + step + first) % devices * chunk, chunk)
    return out


@hloscope.target(**GATHER)
@jax.shard_map(in_specs=GATHER_SPECS, out_specs=P("X", "Y"))
def right_ring(x, w):
    return ring(x, w)


@hloscope.target(**GATHER)
@jax.shard_map(in_specs=GATHER_SPECS, out_specs=P("X", "Y"))
def wrong_direction(x, w):
    return ring(x, w, direction=1)


@hloscope.target(**GATHER)
@jax.shard_map(in_specs=GATHER_SPECS, out_specs=P("X", "Y"))
def off_by_one_chunk(x, w):
    return ring(x, w, first=1)


@hloscope.target(**GATHER)
@jax.shard_map(in_specs=GATHER_SPECS, out_specs=P("X", "Y"))
def stale_shard(x, w):
    return ring(x, w, stale=3)


@hloscope.target(**LINEAR, out="P('X', 'Y')")
def linear(x, kernel, bias):
    return x @ kernel + bias


@hloscope.target(**LINEAR)
@jax.shard_map(in_specs=(P("X", None), P(None, "Y"), P(None)), out_specs=P("X", "Y"))
def bias_not_split(x, kernel, bias):
    return x @ kernel + bias[: kernel.shape[1]]


@hloscope.target(**LINEAR)
@jax.shard_map(in_specs=LINEAR_SPECS, out_specs=P(("X", "Y"), None))
def concatenated_along_rows(x, kernel, bias):
    return x @ kernel + bias


@hloscope.target(**LINEAR, out="P('X', 'Y')")
def concatenated_along_the_wrong_axis(x, kernel, bias):
    return concatenated_along_rows(x, kernel, bias).reshape(x.shape[0], kernel.shape[1])


@hloscope.target(**MATMUL)
@jax.shard_map(in_specs=MATMUL_SPECS, out_specs=P("X", None), check_vma=False)
def copies_that_differ(x, w):
    out = jax.lax.psum(x @ w, "Y")
    return jnp.where(jax.lax.axis_index("Y") == 2, out + 1, out)
