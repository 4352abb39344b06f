"""Twins that are wrong in ways that a loose tolerance hides: `PAIRS` has for each what its finding must name."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from right_pairs import cross_entropy

import hloscope

N = 8
X = P("X")
PAIRS = {}
WRONG, COPIES = ("wrong-result", ["result"]), ("copies-differ", ["result"])


def pair(found, args, specs, out, *, dims, grad=False, mesh=None, **options):
    """Registers a reference and its wrong twin, which `jax.shard_map` writes for each device, and what is found.

    What is found is the rule of a finding, and what one of its clauses must show, in this order.
    """
    facts = {"mesh": mesh or {"X": N}, "args": args, "dims": dims}

    def register(reference, twin):
        mapped = jax.shard_map(twin, in_specs=specs, out_specs=out, check_vma=False)
        spec = [str(one).replace("PartitionSpec", "P") for one in (out if isinstance(out, list) else [out])]
        mine = hloscope.target(**facts, out=spec if isinstance(out, list) else spec[0])(reference)
        globals()[f"{reference.__name__}_twin"] = hloscope.target(**facts)(mapped)
        PAIRS[reference.__name__] = {"found": found, "grad": grad, **options}
        return mine

    return lambda twin: lambda reference: register(reference, twin)


ROWS = {"B": 64, "D": 64, "V": 96}


@pair(COPIES, ("bf16[B@X,D]", "bf16[D,V]", "s32[B@X]"), (P("X", None), P(None, None), X), P(), dims=ROWS)(
    lambda x, w, labels: cross_entropy(x @ w / 8, labels).mean()
)
def loss_without_pmean(x, w, labels):
    return cross_entropy(x @ w / 8, labels).mean()


def without_last(x):
    kept = jnp.where(lax.axis_index("X") == N - 1, 0, x.astype(jnp.float32).sum())
    return lax.psum(kept, "X") / (x.size * N)


@pair(WRONG, ("bf16[B@X,D]",), (P("X", None),), P(), dims={"B": 64, "D": 64})(lambda x: without_last(jnp.abs(x)))
def dropped_last_shard(x):
    return jnp.abs(x).astype(jnp.float32).mean()


@pair(
    ("wrong-result", ["0.984", "63 / 64"]),
    ("bf16[S@X,D]",),
    (P("X", None),),
    P(None),
    dims={"S": 64, "D": 32},
)(lambda x: lax.psum(jnp.square(x.astype(jnp.float32)).sum(0), "X") / (x.shape[0] * N))
def mean_over_one_more(x):
    return jnp.square(x.astype(jnp.float32)).sum(0) / (x.shape[0] - 1)


@pair(WRONG, ("f32[S@X]",), (X,), P(), dims={"S": 4096})(
    lambda x: lax.psum(jnp.square(x).sum(), "X") / (x.shape[0] * N)
)
def scalar_mean_over_one_more(x):
    return jnp.square(x).sum() / (x.shape[0] - 1)


@jax.custom_vjp
def steeper(x):
    return x


steeper.defvjp(lambda x: (x, None), lambda _, g: (g * 1.03,))
LAYER = {"B": 32, "D": 64, "F": 64}


@pair(
    ("wrong-result", ["1.031"]),
    ("bf16[B@X,D]", "bf16[D,F]"),
    (P("X", None), P(None, None)),
    P("X", None),
    dims=LAYER,
    grad=True,
)(lambda x, w: steeper(jax.nn.silu(x @ w / 8)))
def gradients_times_1_03(x, w):
    return jax.nn.silu(x @ w / 8)


@pair(
    ("wrong-result", ["1.020"]),
    ("bf16[B,D@X]", "bf16[D@X,F]"),
    (P(None, "X"), P("X", None)),
    P(None, None),
    dims=LAYER,
)(lambda x, w: (lax.psum((x @ w).astype(jnp.float32), "X") * 1.02).astype(x.dtype))
def matmul_times_1_02(x, w):
    return x @ w


@pair(
    ("wrong-result", ["1.023"]), ("bf16[B@X,D]", "bf16[D,F]"), (P("X", None), P(None, None)), P("X", None), dims=LAYER
)(lambda x, w: x @ w * jnp.where(lax.axis_index("X") == 3, 1.02, 1.0).astype(x.dtype))
def one_shard_times_1_02(x, w):
    return x @ w


@pair(
    ("wrong-result", ["8.000", "size of X"]),
    ("bf16[B,D@X]", "bf16[D@X,F]"),
    (P(None, "X"), P("X", None)),
    P(None, None),
    dims=LAYER,
)(lambda x, w: lax.psum(lax.psum(x @ w, "X"), "X"))
def summed_twice(x, w):
    return x @ w


@pair(
    ("wrong-result", ["0.125", "1 / ", "size of X"]),
    ("f32[B@X,D]",),
    (P("X", None),),
    P(None),
    dims={"B": 64, "D": 64},
)(lambda x: lax.psum(x.mean(0), "X") / N / N)
def divided_twice(x):
    return x.mean(0)


def ring(x, w, steps, first=0):
    here, chunk, out = lax.axis_index("X"), x.shape[1], 0
    for step in range(steps):
        out = out + x @ lax.dynamic_slice_in_dim(w, (here + step + first) % N * chunk, chunk)
        x = lax.ppermute(x, "X", [(j, (j - 1) % N) for j in range(N)])
    return out


RING = ("bf16[B,D@X]", "bf16[D,F@X]"), (P(None, "X"), P(None, "X")), P(None, "X")


@pair(WRONG, *RING, dims=LAYER)(lambda x, w: ring(x, w, N - 1))
def ring_without_its_last_step(x, w):
    return x @ w


@pair(WRONG, *RING, dims=LAYER)(lambda x, w: ring(x, w, N, first=1))
def ring_of_the_wrong_chunks(x, w):
    return x @ w


@pair(("wrong-result", ["X=2", "X=5"]), ("bf16[B@X,D]",), (P("X", None),), P("X", None), dims=LAYER)(
    lambda x: jnp.tanh(lax.ppermute(x, "X", [(2, 5), (5, 2), *[(i, i) for i in (0, 1, 3, 4, 6, 7)]]))
)
def swapped_shards(x):
    return jnp.tanh(x)


def narrow_carry(x, w, chunks):
    parts = x.reshape(x.shape[0], chunks, -1).swapaxes(0, 1), w.reshape(chunks, -1, w.shape[1])
    return lax.scan(lambda total, both: (total + both[0] @ both[1], None), jnp.zeros_like(x @ w), parts)[0]


LONG = ("bf16[B@X,K]", "bf16[K,F]"), (P("X", None), P(None, None)), P("X", None)


@pair(("rounds-more", ["4,096 steps", "bfloat16"]), *LONG, dims={"B": 32, "K": 4096, "F": 32})(
    lambda x, w: narrow_carry(x, w, 4096)
)
def bf16_carry_over_all(x, w):
    return x @ w


@pair(("rounds-more", ["32 steps", "bfloat16"]), *LONG, dims={"B": 32, "K": 4096, "F": 32})(
    lambda x, w: narrow_carry(x, w, 32)
)
def bf16_carry_over_chunks(x, w):
    return x @ w


@pair(("rounds-more", ["1,024 steps", "bfloat16"]), ("bf16[B@X,K]",), (P("X", None),), X, dims={"B": 64, "K": 1024})(
    lambda x: lax.scan(lambda total, one: (total + one, None), jnp.zeros_like(x[:, 0]), jnp.abs(x).T)[0]
)
def bf16_sum_of_positive_terms(x):
    return jnp.abs(x).sum(1)


@pair(
    ("wrong-result", ["result[1]"]),
    ("bf16[B@X,D]", "key<fry>[]"),
    (P("X", None), P()),
    [P("X", None)] * 2,
    dims={"B": 16, "D": 16},
)(lambda x, key: [masked(x, jax.random.split(key)[0]), masked(x, jax.random.split(key)[0])])
def reused_key(x, key):
    return [
        jnp.where(jax.random.bernoulli(one, 0.5, (N, x.shape[0] // N, x.shape[1])).reshape(x.shape), x, 0)
        for one in jax.random.split(key)
    ]


def masked(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, (N, *x.shape))[lax.axis_index("X")], x, 0)


@pair(WRONG, ("f32[S@X,D]",), (P("X", None),), P(None, "X"), dims={"S": 64, "D": 64})(
    lambda x: lax.all_to_all(x.reshape(8, 8, 8), "X", split_axis=2, concat_axis=0).swapaxes(0, 1).reshape(64, 8)
)
def transposed_all_to_all(x):
    return x * 1


def table_without_its_middle(table, index):
    own, first = table.shape[0], lax.axis_index("X") * table.shape[0]
    inside = (index >= first) & (index < first + own) & (lax.axis_index("X") != 4)
    return lax.psum(jnp.where(inside[:, None], table[jnp.where(inside, index - first, 0)], 0), "X")


TABLE = ("bf16[V@X,D]", "s32[T]"), (P("X", None), P(None)), P(None, None)


@pair(WRONG, *TABLE, dims={"V": 4096, "D": 8, "T": 512})(table_without_its_middle)
def table_with_a_hole(table, index):
    return table[index]


@pair(
    ("untested", ["reference", "table"]),
    *TABLE,
    dims={"V": 4096, "D": 8, "T": 512},
    ranges={"index": (0, 256)},
)(table_without_its_middle)
def hole_that_no_index_reaches(table, index):
    return table[index]


@pair(WRONG, ("bf16[B,D@X]", "bf16[D@X,F]"), (P(None, "X"), P("X", None)), P(None, None), dims=LAYER)(
    lambda x, w: x @ w
)
def without_psum(x, w):
    return x @ w


@pair(WRONG, ("bf16[B,D@X]", "bf16[D@X,F]", "bf16[F]"), (P(None, "X"), P("X", None), P(None)),
      P(None, None), dims=LAYER)(lambda x, w, bias: lax.psum(x @ w + bias / 16, "X"))  # fmt: skip
def bias_on_every_device(x, w, bias):
    return x @ w + bias / 16


@pair(WRONG, ("bf16[B,D@X]",), (P(None, "X"),), P(None, "X"), dims={"B": 16, "D": 256})(
    lambda x: jax.nn.softmax(x, -1) / N
)
def softmax_of_each_device(x):
    return jax.nn.softmax(x, -1)


@pair(WRONG, ("bf16[B,D@X]",), (P(None, "X"),), P(None, "X"), dims={"B": 16, "D": 4096})(
    lambda x: x * lax.rsqrt(jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)).astype(x.dtype)
)
def norm_of_each_device(x):
    return x * lax.rsqrt(jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)).astype(x.dtype)


def attention(q, k, v, mask, scale):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * scale
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e30), -1).astype(q.dtype), v)


HEADS = ("bf16[B,T,H@X,D]",) * 3, (P(None, None, "X", None),) * 3, P(None, None, "X", None)


@pair(WRONG, *HEADS, dims={"B": 2, "T": 32, "H": 8, "D": 16})(
    lambda q, k, v: attention(q, k, v, jnp.tri(32, k=-1, dtype=bool) | (jnp.arange(32) == 0), 1 / 4)
)
def mask_off_by_one(q, k, v):
    return attention(q, k, v, jnp.tri(32, dtype=bool), 1 / 4)


@pair(WRONG, *HEADS, dims={"B": 2, "T": 32, "H": 8, "D": 16})(
    lambda q, k, v: attention(q, k, v, jnp.tri(32, dtype=bool), 1 / 15**0.5)
)
def scores_of_another_scale(q, k, v):
    return attention(q, k, v, jnp.tri(32, dtype=bool), 1 / 4)


@pair(("copies-differ", ["times", "first copy"]), ("bf16[D@X,F]",), (P("X", None),), P(None), dims={"D": 64, "F": 256})(
    lambda x: (
        lax.psum(x.astype(jnp.float32).sum(0), "X").astype(x.dtype)
        * jnp.where(lax.axis_index("X") == 5, 1.02, 1).astype(x.dtype)
    )
)
def one_copy_drifts(x):
    return x.astype(jnp.float32).sum(0).astype(x.dtype)


@pair(("wrong-result", ["1.000010"]), ("f32[D@X,F]",) * 2, (P("X", None),) * 2, P("X", None), dims={"D": 64, "F": 64})(
    lambda w, g: w - 1e-3 * g
)
def without_weight_decay(w, g):
    return w - 1e-3 * (g + 0.01 * w)


@pair(WRONG, ("bf16[D@X,F]",), (P("X", None),), P("X", None), dims={"D": 64, "F": 128})(
    lambda g: g / jnp.sqrt(jnp.sum(jnp.square(g.astype(jnp.float32)))).astype(g.dtype)
)
def clipped_by_a_local_norm(g):
    return g / jnp.sqrt(jnp.sum(jnp.square(g.astype(jnp.float32)))).astype(g.dtype)


@pair(WRONG, ("f32[S@X,D]",), (P("X", None),), P("X", None), dims={"S": 128, "D": 8})(
    lambda x: jnp.cumsum(x, 0) + jnp.where(lax.axis_index("X") > 0, lax.ppermute(
        x.sum(0), "X", [(i, i + 1) for i in range(N - 1)]), 0))  # fmt: skip
def sums_that_carry_one_device_on(x):
    return jnp.cumsum(x, 0)


@pair(
    ("rounds-more", ["bfloat16", "float32"]),
    ("f32[B@X,D]", "f32[D,F]"),
    (P("X", None), P(None, None)),
    P("X", None),
    dims=LAYER,
)(lambda x, w: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32))
def f32_through_bf16(x, w):
    return x @ w


@pair(WRONG, ("bf16[B@X,S,D]", "bf16[B@X,D]", "s32[]"), (P("X"), P("X"), P()), P("X"),
      dims={"B": 8, "S": 32, "D": 8})(
    lambda cache, new, slot: lax.dynamic_update_slice(cache, new[:, None], (0, slot + 1, 0))
)  # fmt: skip
def slot_one_late(cache, new, slot):
    return lax.dynamic_update_slice(cache, new[:, None], (0, slot, 0))


@pair(WRONG, ("bf16[T@X,D]", "bf16[D,V]"), (P("X", None), P(None, None)), X,
      dims={"T": 256, "D": 32, "V": 512})(lambda x, w: jnp.argmax((x @ w)[:, :-16], -1))  # fmt: skip
def tokens_without_the_last_sixteen(x, w):
    return jnp.argmax(x @ w, -1)
