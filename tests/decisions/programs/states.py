"""Training steps whose states or outputs are sharded otherwise than they should be."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

DIMS = {"B": 512, "D": 1024, "F": 4096, "L": 4, "S": 128}
ONE = {"mesh": {"data": 8}, "slice": "v5e:2x4", "dims": DIMS}
TWO = {"mesh": {"data": 4, "model": 2}, "slice": "v5e:2x4", "dims": DIMS}
constrained = jax.lax.with_sharding_constraint


def loss(p, x):
    return (jnp.tanh(constrained(x, P("data", None)) @ p).astype(jnp.float32) ** 2).mean()


def momentum(p, m, x):
    m = 0.9 * m + jax.grad(loss)(p, x)
    return p - 1e-3 * m, m


SHARDED = ("f32[D@data,F]", "f32[D@data,F]", "f32[B@data,D]")
WHOLE, ROWS, COLUMNS = "P()", "P('data', None)", "P(None, 'data')"


@hloscope.target(**ONE, args=SHARDED, out=(WHOLE, ROWS))
def weights_replicated(p, m, x):
    """The new weights are requested whole, where the old ones are sharded."""
    return momentum(p, m, x)


@hloscope.target(**ONE, args=SHARDED, out=(ROWS, ROWS))
def weights_replicated_cured(p, m, x):
    return momentum(p, m, x)


@hloscope.target(**ONE, args=("f32[D@data,F]", "f32[D,F]", "f32[B@data,D]"), out=(ROWS, WHOLE), donate=(0, 1))
def state_replicated(p, m, x):
    """The momentum is left whole, where the weights are sharded."""
    return momentum(p, m, x)


@hloscope.target(**ONE, args=SHARDED, out=(ROWS, ROWS), donate=(0, 1))
def state_replicated_cured(p, m, x):
    return momentum(p, m, x)


@hloscope.target(**ONE, args=SHARDED, out=(ROWS, COLUMNS))
def state_transposed(p, m, x):
    """The momentum comes back sharded along another dimension than it came in."""
    return momentum(p, m, x)


@hloscope.target(**ONE, args=SHARDED, out=(ROWS, ROWS))
def state_transposed_cured(p, m, x):
    return momentum(p, m, x)


def scanned_gradients(up, down, x):
    def layer(h, w):
        y = h + jax.nn.gelu(h @ w[0]) @ w[1]
        return constrained(y, P("data", None, None)), None

    def scanned(w):
        h, _ = jax.lax.scan(jax.checkpoint(layer), x, w)
        return (h.astype(jnp.float32) ** 2).mean()

    return jax.grad(scanned)((up, down))


SCANNED = {**TWO, "dims": {**DIMS, "B": 32}}
STACK = ("bf16[L,D@data,F@model]", "bf16[L,F@model,D@data]", "bf16[B@data,S,D]")


@hloscope.target(**SCANNED, args=STACK)
def output_open(up, down, x):
    """The gradients' shardings are left open, and end whole over `data`."""
    return scanned_gradients(up, down, x)


@hloscope.target(**SCANNED, args=STACK, out=("P(None, 'data', 'model')", "P(None, 'model', 'data')"))
def output_open_cured(up, down, x):
    return scanned_gradients(up, down, x)


@hloscope.target(**ONE, args=("f32[D,F]", "f32[D@data,F]", "f32[B@data,D]"), out=(WHOLE, ROWS), donate=(0, 1))
def zero_one(p, m, x):
    """ZeRO-1: the momentum is sharded, the weights are whole."""
    return momentum(p, m, x)
