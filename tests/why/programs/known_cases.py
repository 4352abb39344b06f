"""Programs in which users meet communication that they did not expect, each as small as it can be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"X": 2, "Y": 4}


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("c64[64,512@X]",), out="P(None, 'X')")
def sharded_fft(signal):
    """Transforms along the sharded dimension."""
    return jnp.fft.fft(signal, axis=1)


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[4096@X,256]",), out="P('X', None)")
def sharded_cumsum(values):
    """Adds up along the sharded dimension."""
    return jnp.cumsum(values, axis=0)


GROUPED = ("f32[N,H,W,C@X]", "f32[3,3,64,O@X]")


@hloscope.target(
    mesh={"X": 8}, slice="v5e:2x4", args=GROUPED, dims={"N": 16, "H": 64, "W": 64, "C": 256, "O": 256},
    out="P(None, None, None, 'X')",
)  # fmt: skip
def grouped_convolution(images, kernels):
    """Convolves four groups of channels that are sharded in eight."""
    return jax.lax.conv_general_dilated(
        images,
        kernels,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=4,
    )


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[64,4096@X]", "u32[64,2]"), out="P(None, 'X')")
def vmapped_shuffle(rows, seeds):
    """Shuffles every row, each of which is spread over the devices."""
    keys = jax.vmap(jax.random.wrap_key_data)(seeds)
    return jax.vmap(jax.random.permutation)(keys, rows)


@hloscope.target(mesh={"X": 8}, slice="cpu:8", args=("f32[16@X,64,64]",), axis_types="explicit")
def foreign_call(matrices):
    """Hands a sharded array to a foreign function, of which the partitioner knows nothing."""
    like = jax.ShapeDtypeStruct
    results = (like((16, 64, 64), "float32"), like((16, 64), "int32"), like((16,), "int32"))
    factors, _, _ = jax.ffi.ffi_call("lapack_sgetrf_ffi", results)(jnp.sin(matrices))
    return jnp.tanh(factors)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64@X,32@Y,16]",), out="P(None, 'X', 'Y')")
def conflicting_shardings(activations):
    """Asks for one sharding and then for another that the partitioner knows no way to."""
    held = jax.lax.with_sharding_constraint(jnp.sin(activations), P(("Y", "X"), None, None))
    return jnp.cos(held)


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[512@X,1024]", "f32[12,1024@X,1024]"), out="P('X', None)")
def gather_in_scan(x, layers):
    """Runs layers whose weights are sharded, one layer per iteration."""

    def layer(x, weights):
        return jnp.tanh(x @ weights), None

    return jax.lax.scan(layer, x, layers)[0]


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[512@X,1024]", "f32[1024@X,1024]"), out="P('X', None)")
def invariant_gather_in_scan(x, weights):
    """Applies one sharded matrix over and over."""
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ weights), None), x, None, length=10)[0]


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64,32@X,16@Y]", "f32[64,32@X,16@Y]"))
def argument_in_two_orders(other, held):
    """Asks for an argument in an order that the partitioner knows no way to; the other one looks the same."""
    return other * 2, jnp.cos(jax.lax.with_sharding_constraint(held, P(("Y", "X"), None, None)))


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64,32@X,16@Y]",), out="P(('Y', 'X'), None, None)")
def handed_out_in_another_order(held):
    """Hands its argument out in such an order."""
    return held
