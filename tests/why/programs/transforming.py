"""Programs that transform along sharded dimensions: convolutions, FFTs, cumulative sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

LINE = {"X": 8}
MESH = {"X": 2, "Y": 4}


@hloscope.target(mesh=LINE, slice="v5e:2x4", args=("bf16[8,512@X,512,32]", "bf16[3,3,32,64]"), out="P(None, 'X')")
def spatial_convolution(images, kernel):
    """Convolves images whose rows are spread over the devices."""
    features = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(features)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[8@X,8192@Y,2048]", "bf16[4,1,2048]"), out="P('X', 'Y', None)")
def causal_depthwise(tokens, kernel):
    """Convolves each channel with the three tokens before, as Mamba does, along a sharded sequence."""
    convolved = jax.lax.conv_general_dilated(
        tokens, kernel, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2048
    )
    return jax.nn.silu(convolved)


@hloscope.target(
    mesh=LINE, slice="v5e:2x4", args=("bf16[16,64,64,512@X]", "bf16[3,3,128,512@X]"), out="P(None, None, None, 'X')"
)
def four_groups(images, kernels):
    """Convolves four groups of channels that are sharded in eight."""
    return jax.lax.conv_general_dilated(
        images, kernels, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
    )


@hloscope.target(mesh=LINE, slice="v5e:2x4", args=("c64[1024,4096@X]",), out="P(None, 'X')")
def spectrum(signal):
    """Transforms along the sharded dimension."""
    return jnp.fft.fft(signal, axis=1)


@hloscope.target(mesh=LINE, slice="v5e:2x4", args=("f32[1024,4096@X]",), out="P(None)")
def loudest(signal):
    """The largest magnitude at each frequency, over all signals, whose spectra are spread over the devices."""
    spectra = jnp.abs(jnp.fft.fft(signal.astype(jnp.complex64), axis=1))
    spread = jax.lax.with_sharding_constraint(spectra, P("X", None))
    return jnp.max(spread, axis=0)


@hloscope.target(mesh=LINE, slice="v5e:2x4", args=("f32[2048@X,4096]",), out="P(None)")
def loudest_of_all(signal):
    """The same, of signals that are whole on their device: the transform moves nothing."""
    magnitudes = jnp.abs(jnp.fft.fft(signal.astype(jnp.complex64), axis=1))
    return jnp.max(magnitudes, axis=0)


@hloscope.target(mesh=LINE, slice="v5e:2x4", args=("f32[32768@X,1024]",), out="P(None)")
def area_under_sums(values):
    """Cumulative sums along the sharded dimension, and what they add up to."""
    running = jnp.cumsum(values, axis=0)
    return jnp.sum(jnp.tanh(running), axis=0)


@hloscope.target(mesh=LINE, slice="v5e:2x4", args=("bf16[8,1024@X,512,64]",), out="P(None, 'X', None, None)")
def overlapping_pools(images):
    """The largest of windows of three rows, two apart, of images whose rows are sharded."""
    return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
