"""The programs behind published TPU timings, written afresh from their descriptions; each takes and returns arrays."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def matmul(x, w):
    """`[B, D] @ [D, F]`, sharded as the arguments are."""
    return x @ w


def matmul_f32_out(x, w):
    """A bf16 matmul that keeps its f32 sums."""
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


def up_projection(x, w):
    """`bsd,fd->bsf`."""
    return jnp.einsum("bsd,fd->bsf", x, w)


def dense(x, w):
    """`bsd,df->bsf`."""
    return jnp.einsum("bsd,df->bsf", x, w)


def copy(x):
    """The same array in another buffer."""
    return jnp.copy(x)


@jax.shard_map(in_specs=(P("X", "Y"), P(None, "Y")), out_specs=P("X", "Y"))
def collective_matmul(x, w):
    """All-gather and matmul as a ring: multiply the chunk at hand while the next one travels."""
    ring = jax.lax.axis_size("Y")
    here = jax.lax.axis_index("Y")
    width = x.shape[1]
    out = None
    for step in range(ring):
        rows = jax.lax.dynamic_slice_in_dim(w, (here + step) % ring * width, width)
        update = x @ rows
        if step < ring - 1:
            x = jax.lax.ppermute(x, "Y", [(j, (j - 1) % ring) for j in range(ring)])
        out = update if out is None else out + update
    return out


def gather_rows(axis, dimension=0):
    """An all-gather over a mesh axis along one dimension, and nothing else."""
    names = axis if isinstance(axis, tuple) else (axis,)

    def gather(x):
        return jax.lax.all_gather(x, axis, axis=dimension, tiled=True)

    return jax.shard_map(gather, in_specs=P(*[None] * dimension, names), out_specs=P(), check_vma=False)


@jax.shard_map(in_specs=P("dp", None, "mp"), out_specs=P("dp"), check_vma=False)
def gather_last(x):
    """An all-gather of the last dimension over mp, with the batch over dp."""
    return jax.lax.all_gather(x, "mp", axis=2, tiled=True)


@jax.shard_map(in_specs=P("dp"), out_specs=P("dp", None, "mp"), check_vma=False)
def scatter_last(x):
    """A reduce-scatter of the last dimension over mp, with the batch over dp."""
    return jax.lax.psum_scatter(x, "mp", scatter_dimension=2, tiled=True)


@jax.shard_map(in_specs=P("dp"), out_specs=P("dp"), check_vma=False)
def sum_over_mp(x):
    """An all-reduce over mp, with the batch over dp."""
    return jax.lax.psum(x, "mp")


@jax.shard_map(in_specs=P(), out_specs=P(), check_vma=False)
def sum_over_all(x):
    """An all-reduce over every chip."""
    return jax.lax.psum(x, ("x", "y"))


@jax.shard_map(in_specs=P("dcn"), out_specs=P(), check_vma=False)
def sum_over_slices(x):
    """An all-reduce of each chip with its twins in the other slices."""
    return jax.lax.psum(x, "dcn")


def transformer_layer(x, wq, wk, wv, wo, w1, w2):
    """Attention over heads without scale or mask, and two projections without a non-linearity."""
    x = jax.lax.with_sharding_constraint(x, P("dp", None, None))
    q, k, v = (jnp.einsum("bsd,dnh->bsnh", x, w) for w in (wq, wk, wv))
    weights = jax.nn.softmax(jnp.einsum("bsnh,btnh->bnst", q, k), axis=-1)
    mixed = jnp.einsum("bnst,btnh->bsnh", weights, v)
    x = jax.lax.with_sharding_constraint(jnp.einsum("bsnh,dnh->bsd", mixed, wo), P("dp", None, None))
    hidden = jnp.einsum("bsd,fd->bsf", x, w1)
    return jnp.einsum("bsf,df->bsd", hidden, w2)


def experts_scanned(w, a, b):
    """Every token through every expert, one expert at a time, with a mask."""

    def one_expert(out, e):
        mine = (b == e)[:, None]
        return out + (a @ w[e]) * mine, None

    start = jnp.zeros((a.shape[0], w.shape[2]), a.dtype)
    return jax.lax.scan(one_expert, start, jnp.arange(w.shape[0]))[0]


CAPACITY = 32
ROUNDS = 2


@jax.shard_map(in_specs=(P("x"), P("x"), P("x")), out_specs=P("x"))
def experts_exchanged(w, a, b):
    """Tokens travel to their experts and back, `CAPACITY` per expert and round; the next fetch follows the compute."""
    experts = jax.lax.axis_size("x")
    order = jnp.argsort(b)
    tokens = a[order]
    counts = jnp.bincount(b, length=experts)
    starts = jnp.cumsum(counts) - counts

    def fetch(round_number):
        queue = round_number * CAPACITY + jnp.arange(CAPACITY)[None, :]
        valid = queue < counts[:, None]
        index = jnp.where(valid, starts[:, None] + queue, 0)
        sent = jnp.where(valid[:, :, None], tokens[index], 0.0)
        return jax.lax.all_to_all(sent, "x", split_axis=0, concat_axis=1), valid, index

    def compute(out, received, valid, index):
        features = jnp.einsum("edf,ecd->ecf", w, received.reshape(1, -1, received.shape[-1]))
        back = jax.lax.all_to_all(features.reshape(1, experts, CAPACITY, -1), "x", split_axis=1, concat_axis=0).reshape(
            experts, CAPACITY, -1
        )
        return out.at[index].add(jnp.where(valid[:, :, None], back, 0.0))

    out = jax.lax.pcast(jnp.zeros((a.shape[0], w.shape[2]), a.dtype), "x", to="varying")
    fetched = fetch(0)
    for round_number in range(1, ROUNDS):
        out = compute(out, *fetched)
        fetched = fetch(round_number)
    return compute(out, *fetched)[jnp.argsort(order)]


def mlp(x, w_in, w_out):
    """Two matmuls without a non-linearity, left to the partitioner."""
    return jax.lax.with_sharding_constraint(x @ w_in @ w_out, P("x", "y"))


@jax.shard_map(in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", "y"))
def scatter_by_xla(a, w):
    """A matmul and XLA's own reduce-scatter."""
    return jax.lax.psum_scatter(a @ w, "y", scatter_dimension=1, tiled=True)


@jax.shard_map(in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", "y"))
def scatter_by_ring(a, w):
    """A matmul and a reduce-scatter of permutes to the next neighbor."""
    ring = jax.lax.axis_size("y")
    here = jax.lax.axis_index("y")
    state = a @ w
    width = state.shape[1] // ring
    for step in range(ring - 1):
        sent = jax.lax.dynamic_slice_in_dim(state, (here - step - 1) % ring * width, width, 1)
        received = jax.lax.ppermute(sent, "y", [(j, (j + 1) % ring) for j in range(ring)])
        start = (here - step - 2) % ring * width
        added = jax.lax.dynamic_slice_in_dim(state, start, width, 1) + received
        state = jax.lax.dynamic_update_slice_in_dim(state, added, start, 1)
    return jax.lax.dynamic_slice_in_dim(state, here * width, width, 1)


def _halved(state):
    """A reduce-scatter over y: exchange half with the partner whose id differs in one bit, the highest bit first."""
    ring = jax.lax.axis_size("y")
    here = jax.lax.axis_index("y")
    for bit in reversed(range(int(math.log2(ring)))):
        half = state.shape[1] // 2
        is_upper = (here >> bit) & 1
        sent = jax.lax.dynamic_slice_in_dim(state, (1 - is_upper) * half, half, 1)
        received = jax.lax.ppermute(sent, "y", [(j, j ^ (1 << bit)) for j in range(ring)])
        state = jax.lax.dynamic_slice_in_dim(state, is_upper * half, half, 1) + received
    return state


@jax.shard_map(in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", "y"))
def scatter_by_halving(a, w):
    """A matmul and a reduce-scatter by recursive halving."""
    return _halved(a @ w)


@jax.shard_map(in_specs=(P("x", "y"), P(None, "y"), P("y", None)), out_specs=P("x", "y"))
def mlp_overlapped(x, w_in, w_out):
    """Gather, up, gelu, down, reduce-scatter by halving."""
    gathered = jax.lax.all_gather(x, "y", axis=1, tiled=True)
    return _halved(jax.nn.gelu(gathered @ w_in) @ w_out)


def gather_over_fsdp(dimension):
    """An all-gather over fsdp along one dimension, of an array that is sharded along it."""

    def gather(x):
        return jax.lax.all_gather(x, "fsdp", axis=dimension, tiled=True)

    return jax.shard_map(gather, in_specs=P(*[None] * dimension, "fsdp"), out_specs=P(), check_vma=False)


@jax.shard_map(in_specs=P(), out_specs=P("fsdp"), check_vma=False)
def scatter_rows(x):
    """A reduce-scatter of the rows over fsdp."""
    return jax.lax.psum_scatter(x, "fsdp", scatter_dimension=0, tiled=True)


@jax.shard_map(in_specs=P(), out_specs=P(), check_vma=False)
def sum_over_fsdp(*values):
    """An all-reduce over fsdp, of several arrays at once."""
    return jax.lax.psum(values, "fsdp")


@jax.shard_map(in_specs=P("fsdp"), out_specs=P("fsdp"))
def pass_on(x):
    """Each chip sends all it has to the next one."""
    ring = jax.lax.axis_size("fsdp")
    return jax.lax.ppermute(x, "fsdp", [(j, (j + 1) % ring) for j in range(ring)])


@jax.shard_map(in_specs=P(), out_specs=P(), check_vma=False)
def sum_over_pairs(x):
    """An all-reduce of each chip with its partner in the other half."""
    return jax.lax.psum(x, "half")


def adamw(parameter, mean, square, gradient):
    """One update: four arrays are read, three written."""
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.95 * square + 0.05 * gradient * gradient
    update = mean / (jnp.sqrt(square) + 1e-8) + 0.1 * parameter
    return parameter - 1e-3 * update, mean, square


def sum_all(x):
    """One number of a whole array."""
    return jnp.sum(x * x)


def fill(value):
    """One number spread over an array of 5.4 GB."""
    return jnp.broadcast_to(value, (5, 1024, 1024, 256))


def update_layers(kept, x):
    """A loop that writes one layer at a time, along the second-minor dimension of an array that is handed back."""

    def write(layer, carried):
        kept, x = carried
        return jax.lax.dynamic_update_index_in_dim(kept, x, layer, 1), x * 1.5

    return jax.lax.fori_loop(0, kept.shape[1], write, (kept, x))[0]


def matmul_s32_out(x, w):
    """An int8 matmul that keeps its sums."""
    return jnp.matmul(x, w, preferred_element_type=jnp.int32)
