"""Programs with one wrong sharding each, and beside each the program as a person would put it right."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

ONE = {"mesh": {"X": 8}, "slice": "v5e:2x4"}
TWO = {"mesh": {"X": 2, "Y": 4}, "slice": "v5e:2x4"}


def _rolled(x, constrained):
    def body(carry, _):
        carry = carry * 0.5 + jnp.roll(carry, 1, axis=1)
        if constrained:
            carry = jax.lax.with_sharding_constraint(carry, P(None, "X"))
        return carry, carry.sum(axis=1)

    return jax.lax.scan(body, x, None, length=4)


@hloscope.target(**ONE, args=("f32[8192@X,4096]",))
def carry_against_constraint(x):
    """The carry enters cut along dimension 0, and the constraint leaves it cut along dimension 1."""
    return _rolled(x, constrained=True)


@hloscope.target(**ONE, args=("f32[8192@X,4096]",))
def carry_without_constraint(x):
    """The constraint dropped."""
    return _rolled(x, constrained=False)


@hloscope.target(**ONE, args=("f32[8192,4096@X]",))
def carry_aligned(x):
    """The carry enters as the constraint leaves it."""
    return _rolled(x, constrained=True)


@hloscope.target(**ONE, args=("f32[8192@X,4096]", "f32[8192,4096@X]"), out="P('X', None)")
def masked(x, mask):
    """The mask is cut along another dimension than what it masks."""
    return x * mask


@hloscope.target(**ONE, args=("f32[8192@X,4096]", "f32[8192@X,4096]"), out="P('X', None)")
def masked_alike(x, mask):
    """The mask as what it masks."""
    return x * mask


def _descended(w, m, g):
    m = 0.9 * m + g
    return w - 0.1 * m, m


_STATE = ("f32[8192@X,4096]",) * 3


@hloscope.target(**ONE, args=_STATE, donate=(0, 1), out=("P('X', None)", "P(None, 'X')"))
def momentum(w, m, g):
    """The momentum comes back cut along another dimension than it came in."""
    return _descended(w, m, g)


@hloscope.target(**ONE, args=_STATE, donate=(0, 1), out=("P('X', None)", "P('X', None)"))
def momentum_alike(w, m, g):
    """The momentum comes back as it came in."""
    return _descended(w, m, g)


def _attended(q, k, v):
    q, k, v = (jax.lax.with_sharding_constraint(a, P("X", None, "Y", None)) for a in (q, k, v))
    scores = jnp.einsum("bshk,bthk->bhst", q, k)
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(q.dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, v)


_HEADS = ("bf16[B@X,S,H,K]",) * 3


@hloscope.target(**TWO, args=_HEADS, dims={"B": 4, "S": 1024, "H": 6, "K": 128})
def six_heads(q, k, v):
    """Six heads over an axis of four."""
    return _attended(q, k, v)


@hloscope.target(**TWO, args=_HEADS, dims={"B": 4, "S": 1024, "H": 8, "K": 128})
def eight_heads(q, k, v):
    """Eight of them."""
    return _attended(q, k, v)


@hloscope.target(**ONE, args=("bf16[8192@X,2048]", "bf16[2048,2048]"))
def scalar_loss(x, w):
    """One number is summed, and all else is where it should be."""
    return jnp.sum(jnp.tanh(x @ w).astype(jnp.float32))


@hloscope.target(**ONE, axis_types="explicit", args=("bf16[2048,4096@X]", "bf16[4096@X,2048]"), out="P(None, None)")
def explicit_sum(x, w):
    """A sum over a cut dimension, where types say how arrays are cut."""
    return jnp.einsum("bd,df->bf", x, w, out_sharding=P(None, None))
