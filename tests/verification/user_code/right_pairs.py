"""Programs and twins that are right: they add up in another order, on other devices, and round otherwise.

`PAIRS` has for each name its two functions; shared scalars, narrow types and long sums are what makes them differ.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import hloscope

N = 8
X = P("X")
PAIRS = {}


def pair(args, specs, out, *, dims, grad=False, seeds=5, mesh=None):
    """Registers a reference and its twin, which `jax.shard_map` writes for each device, under the reference's name."""
    facts = {"mesh": mesh or {"X": N}, "args": args, "dims": dims}

    def register(reference, twin):
        mapped = jax.shard_map(twin, in_specs=specs, out_specs=out, check_vma=False)
        spec = [str(one).replace("PartitionSpec", "P") for one in (out if isinstance(out, list) else [out])]
        mine = hloscope.target(**facts, out=spec if isinstance(out, list) else spec[0])(reference)
        globals()[f"{reference.__name__}_twin"] = hloscope.target(**facts)(mapped)
        PAIRS[reference.__name__] = grad
        return mine

    return lambda twin: lambda reference: register(reference, twin)


def ring_sum(part):
    """The sum over devices in the type of its parts, one neighbor after the other; each device starts elsewhere."""
    devices = lax.axis_size("X")
    right = [(i, (i + 1) % devices) for i in range(devices)]
    total, moving = part, part
    for _ in range(devices - 1):
        moving = lax.ppermute(moving, "X", right)
        total = total + moving
    return total


def matmul_parts(x, w):
    return lax.psum(x @ w, "X")


@pair(("bf16[B,D@X]", "bf16[D@X,F]"), (P(None, "X"), P("X", None)), P(None, None), dims={"B": 32, "D": 512, "F": 64})(
    matmul_parts
)
def matmul(x, w):
    return x @ w


@pair(("bf16[B,D@X]", "bf16[D@X,F]"), (P(None, "X"), P("X", None)), P(None, None), dims={"B": 32, "D": 512, "F": 64})(
    lambda x, w: ring_sum(x @ w)
)
def matmul_by_ring(x, w):
    return x @ w


@pair(("f32[B,D@X]", "f32[D@X,F]"), (P(None, "X"), P("X", None)), P(None, None), dims={"B": 32, "D": 4096, "F": 32})(
    lambda x, w: ring_sum(x @ w)
)
def long_f32_matmul(x, w):
    return x @ w


@pair(("bf16[B,D@X]", "bf16[D@X,F]"), (P(None, "X"), P("X", None)), P("X", None), dims={"B": 32, "D": 512, "F": 64})(
    lambda x, w: lax.psum_scatter(x @ w, "X", scatter_dimension=0, tiled=True)
)
def reduce_scatter_matmul(x, w):
    return x @ w


def collective_matmul(x, w):
    here, chunk, out = lax.axis_index("X"), x.shape[1], 0
    for step in range(N):
        out = out + x @ lax.dynamic_slice_in_dim(w, (here + step) % N * chunk, chunk)
        x = lax.ppermute(x, "X", [(j, (j - 1) % N) for j in range(N)])
    return out


@pair(("bf16[B,D@X]", "bf16[D,F@X]"), (P(None, "X"), P(None, "X")), P(None, "X"), dims={"B": 16, "D": 256, "F": 64})(
    collective_matmul
)
def gathered_matmul(x, w):
    return x @ w


def cross_entropy(logits, labels):
    logits = logits.astype(jnp.float32)
    here = jnp.take_along_axis(logits, labels[:, None] % logits.shape[-1], -1)[:, 0]
    return jax.nn.logsumexp(logits, -1) - here


@pair(
    ("bf16[B@X,D]", "bf16[D,V]", "s32[B@X]"),
    (P("X", None), P(None, None), X),
    P(),
    dims={"B": 64, "D": 64, "V": 96},
)(lambda x, w, labels: lax.pmean(cross_entropy(x @ w / 8, labels).mean(), "X"))
def loss(x, w, labels):
    return cross_entropy(x @ w / 8, labels).mean()


def rms_norm_parts(x, scale):
    total = lax.psum(jnp.sum(jnp.square(x), -1, keepdims=True), "X")
    return x * lax.rsqrt(total / (x.shape[-1] * N) + 1e-6).astype(x.dtype) * scale


def rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6).astype(x.dtype) * scale


@pair(("bf16[B,D@X]", "bf16[D@X]"), (P(None, "X"), X), P(None, "X"), dims={"B": 1, "D": 1024})(rms_norm_parts)
def rms_norm_of_one_row(x, scale):
    return rms_norm(x, scale)


@pair(("bf16[B,D@X]", "bf16[D@X]"), (P(None, "X"), X), P(None, "X"), dims={"B": 48, "D": 256})(rms_norm_parts)
def rms_norm_of_rows(x, scale):
    return rms_norm(x, scale)


def layer_norm_parts(x):
    size = x.shape[-1] * N
    mean = lax.psum(x.sum(-1, keepdims=True), "X") / size
    return (x - mean) * lax.rsqrt(lax.psum(jnp.square(x - mean).sum(-1, keepdims=True), "X") / size + 1e-5)


@pair(("f32[B,D@X]",), (P(None, "X"),), P(None, "X"), dims={"B": 1, "D": 4096})(layer_norm_parts)
def layer_norm_of_one_row(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


@pair(("bf16[B,D@X]",), (P(None, "X"),), P(None, "X"), dims={"B": 2, "D": 1024})(layer_norm_parts)
def layer_norm_of_two_narrow_rows(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def clipped(grads, norm):
    return [grad * jnp.minimum(1, 1 / norm) for grad in grads]


@pair(("bf16[D@X,F]", "bf16[F@X]"), (P("X", None), X), [P("X", None), X], dims={"D": 64, "F": 128})(
    lambda g, h: clipped((g, h), jnp.sqrt(lax.psum(jnp.sum(g * g) + jnp.sum(h * h), "X")))
)
def clipped_by_a_narrow_norm(g, h):
    return clipped((g, h), jnp.sqrt(jnp.sum(g * g) + jnp.sum(h * h)))


@pair(("bf16[K@X,F]",), (P("X", None),), P(None), dims={"K": 64, "F": 512})(lambda x: ring_sum(jnp.sum(jnp.abs(x), 0)))
def positive_parts_by_ring(x):
    return jnp.sum(jnp.abs(x), 0)


@pair(("bf16[K@X,F]",), (P("X", None),), P(None), dims={"K": 64, "F": 512}, mesh={"X": 16})(
    lambda x: lax.psum(jnp.sum(jnp.abs(x), 0), "X")
)
def positive_parts_of_sixteen(x):
    return jnp.sum(jnp.abs(x), 0)


VECTOR = ("bf16[D@X]",), (X,), X


@pair(*VECTOR, dims={"D": 2048})(lambda x: x / jnp.sqrt(lax.psum(jnp.sum(x * x), "X")))
def divided_by_its_norm(x):
    return x / jnp.sqrt(jnp.sum(x * x))


@pair(*VECTOR, dims={"D": 2048})(lambda x: x * (1 / (lax.psum(jnp.sum(jnp.abs(x)), "X") / 2048)))
def divided_by_its_mean(x):
    return x / jnp.mean(jnp.abs(x))


@pair(*VECTOR, dims={"D": 2048})(lambda x: x - lax.pmean(jnp.mean(jnp.abs(x)), "X"))
def less_its_mean(x):
    return x - jnp.mean(jnp.abs(x))


@pair(("bf16[D@X]",), (X,), X, dims={"D": 4096}, mesh={"X": 16})(
    lambda x: x * lax.rsqrt(lax.psum(jnp.sum(x * x), "X") / 4096)
)
def normalised_on_sixteen(x):
    return x * lax.rsqrt(jnp.mean(x * x))


@pair(("bf16[K@X,F]",), (P("X", None),), P(None), dims={"K": 64, "F": 256}, mesh={"X": 64})(
    lambda x: ring_sum(jnp.sum(jnp.abs(x), 0))
)
def positive_parts_of_sixty_four(x):
    return jnp.sum(jnp.abs(x), 0)


ON_SIXTY_FOUR = "positive_parts_of_sixty_four"
"""A pair that needs more devices than a test has: it runs in a process of its own."""
del PAIRS[ON_SIXTY_FOUR]


def softmax_parts(x):
    top = lax.pmax(x.max(-1, keepdims=True), "X")
    weights = jnp.exp(x - top)
    return weights / lax.psum(weights.sum(-1, keepdims=True), "X")


@pair(("bf16[B,D@X]",), (P(None, "X"),), P(None, "X"), dims={"B": 16, "D": 256})(softmax_parts)
def softmax(x):
    return jax.nn.softmax(x, -1)


def accumulated(x, w):
    chunks = x.reshape(x.shape[0], 32, -1).swapaxes(0, 1), w.reshape(32, -1, w.shape[1])
    step = lambda total, both: (total + jnp.dot(*both, preferred_element_type=jnp.float32), None)  # noqa: E731
    return lax.scan(step, jnp.zeros((x.shape[0], w.shape[1]), jnp.float32), chunks)[0].astype(x.dtype)


@pair(("bf16[B@X,K]", "bf16[K,F]"), (P("X", None), P(None, None)), P("X", None), dims={"B": 32, "K": 4096, "F": 32})(
    accumulated
)
def accumulated_in_a_wide_carry(x, w):
    return x @ w


def vocabulary_parallel(table, index):
    own, first = table.shape[0], lax.axis_index("X") * table.shape[0]
    inside = (index >= first) & (index < first + own)
    return lax.psum(jnp.where(inside[:, None], table[jnp.where(inside, index - first, 0)], 0), "X")


@pair(("bf16[V@X,D]", "s32[T]"), (P("X", None), P(None)), P(None, None), dims={"V": 128, "D": 16, "T": 512})(
    vocabulary_parallel
)
def embedding(table, index):
    return table[index]


@pair(
    ("bf16[B@X,D]", "bf16[D,F]", "bf16[F,D]"),
    (P("X", None), P(None, None), P(None, None)),
    P("X", None),
    dims={"B": 32, "D": 64, "F": 256},
    grad=True,
)(lambda x, up, down: jax.nn.gelu(x @ up / 8) @ down / 16)
def feed_forward(x, up, down):
    return jax.nn.gelu(x @ up / 8) @ down / 16


@pair(
    ("bf16[B,D]", "bf16[D,F@X]", "bf16[F@X,D]"),
    (P(None, None), P(None, "X"), P("X", None)),
    P(None, None),
    dims={"B": 32, "D": 64, "F": 256},
)(lambda x, up, down: lax.psum(jax.nn.silu(x @ up / 8) @ down / 16, "X"))
def tensor_parallel(x, up, down):
    return jax.nn.silu(x @ up / 8) @ down / 16


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tri(q.shape[1], dtype=bool), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(q.dtype), v)


@pair(("bf16[B,T,H@X,D]",) * 3, (P(None, None, "X", None),) * 3, P(None, None, "X", None),
      dims={"B": 2, "T": 32, "H": 8, "D": 16})(attention)  # fmt: skip
def attention_by_heads(q, k, v):
    return attention(q, k, v)


def ring_attention(q, k, v):
    """Scores of one block of keys after another, with the weights' sums and the largest score carried along."""
    top = jnp.full((*q.shape[:1], q.shape[1], 1), -jnp.inf, jnp.float32)
    below, above = jnp.zeros_like(top), jnp.zeros(q.shape, jnp.float32)
    for _ in range(N):
        scores = jnp.einsum("bqd,bkd->bqk", q, k, preferred_element_type=jnp.float32) / q.shape[-1] ** 0.5
        higher = jnp.maximum(top, scores.max(-1, keepdims=True))
        weights, kept = jnp.exp(scores - higher), jnp.exp(top - higher)
        below = below * kept + weights.sum(-1, keepdims=True)
        above = above * kept + jnp.einsum("bqk,bkd->bqd", weights, v.astype(jnp.float32))
        top = higher
        k, v = (lax.ppermute(one, "X", [(i, (i + 1) % N) for i in range(N)]) for one in (k, v))
    return (above / below).astype(q.dtype)


@pair(("bf16[B,T@X,D]",) * 3, (P(None, "X", None),) * 3, P(None, "X", None), dims={"B": 2, "T": 64, "D": 16})(
    ring_attention
)
def attention_by_ring(q, k, v):
    scores = jnp.einsum("bqd,bkd->bqk", q, k, preferred_element_type=jnp.float32) / q.shape[-1] ** 0.5
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, -1), v.astype(jnp.float32)).astype(q.dtype)


@pair(("f32[S@X,D]",), (P("X", None),), P(None), dims={"S": 64, "D": 32})(
    lambda x: lax.psum(jnp.square(x - lax.pmean(x.mean(0), "X")).sum(0), "X") / (x.shape[0] * N - 1)
)
def variance(x):
    return x.var(0, ddof=1)


@pair(("bf16[S@X,D]",), (P("X", None),), P(None), dims={"S": 96, "D": 64})(
    lambda x: (lax.psum(x.astype(jnp.float32).sum(0), "X") * (1 / (x.shape[0] * N))).astype(x.dtype)
)
def mean_by_a_reciprocal(x):
    return x.mean(0)


@pair(("f32[T@X,E]", "f32[T@X,D]", "f32[E,D]"), (P("X", None), P("X", None), P(None, None)), P("X", None),
      dims={"T": 64, "E": 8, "D": 16})(
    lambda gates, x, w: x * jnp.einsum("te,ed->td", jax.nn.one_hot(jnp.argmax(gates, -1), 8), w)
)  # fmt: skip
def routed(gates, x, w):
    return x * w[jnp.argmax(gates, -1)]


def prefix_sums(x):
    own = jnp.cumsum(x, 0)
    before = lax.all_gather(own[-1], "X")
    return own + jnp.where((jnp.arange(N) < lax.axis_index("X"))[:, None], before, 0).sum(0)


@pair(("f32[S@X,D]",), (P("X", None),), P("X", None), dims={"S": 128, "D": 8})(prefix_sums)
def cumulative(x):
    return jnp.cumsum(x, 0)


@pair(("bf16[D@X,F]", "bf16[D@X,F]"), (P("X", None),) * 2, P("X", None), dims={"D": 64, "F": 64})(
    lambda w, g: w - jnp.bfloat16(0.01) * (g + jnp.bfloat16(0.1) * w)
)
def update(w, g):
    return w - 0.01 * g - 0.01 * 0.1 * w


@pair(("bf16[T@X,D]", "bf16[D,V]"), (P("X", None), P(None, None)), P("X"), dims={"T": 64, "D": 32, "V": 512})(
    lambda x, w: jnp.argmax(x @ w, -1)
)
def next_tokens(x, w):
    return jnp.argmax(x @ w, -1)


@pair(("f32[S@X,D]",), (P("X", None),), P(None, "X"), dims={"S": 64, "D": 64})(
    lambda x: lax.all_to_all(x, "X", split_axis=1, concat_axis=0, tiled=True)
)
def transposed_on_devices(x):
    return x * 1


@pair(("bf16[B@X,D]", "key<fry>[]"), (P("X", None), P()), P("X", None), dims={"B": 32, "D": 64})(
    lambda x, key: jnp.where(
        lax.dynamic_slice_in_dim(
            jax.random.bernoulli(key, 0.5, (x.shape[0] * N, x.shape[1])), lax.axis_index("X") * x.shape[0], x.shape[0]
        ),
        x * 2,
        0,
    )
)
def dropout(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2, 0)
