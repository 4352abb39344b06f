"""Programs whose inputs may reach only a part of what they hold, and means whose counts rounding hides."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"X": 8}
TABLE = {"mesh": MESH, "args": ("f32[V@X,D]", "s32[T]"), "dims": {"V": 4096, "D": 4, "T": 256}, "out": "P(None, None)"}
MASKED = {"mesh": MESH, "args": ("f32[N@X]", "s32[N@X]"), "dims": {"N": 64}, "out": "P('X')"}
BUFFER = {"mesh": MESH, "args": ("f32[N@X]", "f32[N@X]"), "dims": {"N": 64}, "out": "P('X')"}
LONG = {"mesh": MESH, "args": ("bf16[S@X,D]",), "dims": {"S": 4096, "D": 64}}


@hloscope.target(**TABLE)
def embedding(table, index):
    return table[index]


@hloscope.target(**TABLE)
def by_one_hot(table, index):
    return jax.nn.one_hot(index, table.shape[0], dtype=table.dtype) @ table


@hloscope.target(mesh=MESH, args=TABLE["args"], dims=TABLE["dims"])
@jax.shard_map(in_specs=(P("X", None), P(None)), out_specs=P(None, None))
def of_each_device(table, index):
    first = lax.axis_index("X") * table.shape[0]
    inside = (index >= first) & (index < first + table.shape[0])
    return lax.psum(jnp.where(inside[:, None], table[jnp.where(inside, index - first, 0)], 0), "X")


@hloscope.target(**MASKED)
def masked(x, mask):
    return x * mask + mask + 1


@hloscope.target(**BUFFER, donate=(0,))
def overwritten(buffer, x):
    return lax.dynamic_update_slice(buffer, x, (0,))


@hloscope.target(**BUFFER)
def overwritten_in_vain(buffer, x):
    return lax.dynamic_update_slice(buffer, x, (0,))


@hloscope.target(**LONG, out="P(None)")
def mean(x):
    return x.mean(0)


@hloscope.target(**LONG)
@jax.shard_map(in_specs=P("X", None), out_specs=P(None))
def mean_over_one_less(x):
    return lax.psum(x.astype(jnp.float32).sum(0), "X").astype(x.dtype) / (x.shape[0] * 8 - 1)


@hloscope.target(mesh={"X": 8}, args=("f32[256@X,256]", "f32[256,256@X]"))
def product(a, b):
    return jnp.dot(a, b)


@hloscope.target(mesh={"X": 8}, args=("f32[256,256@X]", "f32[256@X,256]"))
def product_too_large(a, b):
    return 1.05 * jnp.dot(a, b)


CHAOTIC = {"mesh": MESH, "args": ("bf16[64@X,128]", ["bf16[128,128]"] * 6), "out": "P('X', None)"}


@hloscope.target(**CHAOTIC)
def chaotic(x, weights):
    for weight in weights:
        x = x + jnp.sin(x @ weight)
    return x


@hloscope.target(**CHAOTIC)
def chaotic_of_other_weights(x, weights):
    return chaotic(x, [1.1 * weights[0], *weights[1:]])


@hloscope.target(mesh=MESH, args=("f32[64@X,32]",))
def ranked(x):
    return jnp.argsort(jnp.tanh(x) @ jnp.ones((32, 64)), axis=1), x  # ties, which rounding breaks in any way


@hloscope.target(mesh=MESH, args=("f32[64@X,32]",))
def ranked_backwards(x):
    return jnp.argsort(-(jnp.tanh(x) @ jnp.ones((32, 64))), axis=1), x


@hloscope.target(mesh=MESH, args=("f32[64@X,32]",))
def ranks(x):
    return ranked(x)[0]
