"""Normalisations that are left out or taken of a part: what they do must show in the numbers that are drawn."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import hloscope

DIMS = {"B": 16, "D": 8192, "F": 64}


def target(*args, out="P(None, 'X')"):
    return hloscope.target(mesh={"X": 8}, args=args, out=out, dims=DIMS)


def by_device(*specs, out):
    return lambda function: jax.shard_map(function, in_specs=specs, out_specs=out, check_vma=False)


def rms(x, mean):
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(mean(jnp.square(wide)) + 1e-6)).astype(x.dtype)


def layer(x, mean, centred=True):
    wide = x.astype(jnp.float32)
    wide = wide - mean(wide) if centred else wide
    return (wide * lax.rsqrt(mean(jnp.square(wide)) + 1e-6)).astype(x.dtype)


def of_all(x):
    return lax.pmean(x.mean(-1, keepdims=True), "X")


def of_a_part(x):
    return x.mean(-1, keepdims=True)


_norm = target("bf16[B,D@X]")
_columns = P(None, "X")
_parts = by_device(_columns, out=_columns)
_mlp = target("bf16[B,D@X]", "bf16[D@X,F]", out="P(None, None)")
_both = by_device(_columns, P("X", None), out=P(None, None))

rms_norm = _norm(lambda x: rms(x, of_a_part))
rms_norm_twin = _norm(_parts(lambda x: rms(x, of_all)))
rms_norm_of_a_part = _norm(_parts(lambda x: rms(x, of_a_part)))
no_rms_norm = _norm(_parts(lambda x: x))
layer_norm = _norm(lambda x: layer(x, of_a_part))
layer_norm_twin = _norm(_parts(lambda x: layer(x, of_all)))
layer_norm_of_a_part = _norm(_parts(lambda x: layer(x, of_a_part)))
layer_norm_off_centre = _norm(_parts(lambda x: layer(x, of_all, centred=False)))
normed = _mlp(lambda x, w: rms(x, of_a_part) @ w)
normed_twin = _mlp(_both(lambda x, w: lax.psum(rms(x, of_all) @ w, "X")))
normed_of_a_part = _mlp(_both(lambda x, w: lax.psum(rms(x, of_a_part) @ w, "X")))
not_normed = _mlp(_both(lambda x, w: lax.psum(x @ w, "X")))
centred = _mlp(lambda x, w: layer(x, of_a_part) @ w)
centred_twin = _mlp(_both(lambda x, w: lax.psum(layer(x, of_all) @ w, "X")))
not_centred = _mlp(_both(lambda x, w: lax.psum(layer(x, of_all, centred=False) @ w, "X")))

RIGHT = ("rms_norm", "layer_norm", "normed", "centred")
WRONG = {
    "rms_norm_of_a_part": "rms_norm",
    "no_rms_norm": "rms_norm",
    "layer_norm_of_a_part": "layer_norm",
    "layer_norm_off_centre": "layer_norm",
    "normed_of_a_part": "normed",
    "not_normed": "normed",
    "not_centred": "centred",
}
