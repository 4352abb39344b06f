"""Collectives that the user wrote under shard_map, and what differentiation makes of them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"data": 2, "model": 4}
LAYER = ("bf16[8192@data,4096]", "bf16[4096,8192@model]", "bf16[8192@model,4096]")
LAYER_SPECS = (P("data", None), P(None, "model"), P("model", None))


def summed_layer(x, up, down):
    """A layer on one device of each row of the mesh, whose parts are added up by hand."""
    hidden = jnp.tanh(x @ up)
    partial_sum = hidden @ down
    return jax.lax.psum(partial_sum, "model")


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=LAYER, out="P('data', None)")
def layer_by_hand(x, up, down):
    """Adds the parts of a layer up by hand."""
    return jax.shard_map(summed_layer, in_specs=LAYER_SPECS, out_specs=P("data", None))(x, up, down)


@hloscope.target(
    mesh=MESH, slice="v5e:2x4", args=LAYER, out=("P('data', None)", "P(None, 'model')", "P('model', None)")
)
def gradient_of_layer_by_hand(x, up, down):
    """Differentiates it by everything, the activations too."""
    layer = jax.shard_map(summed_layer, in_specs=LAYER_SPECS, out_specs=P("data", None))

    def loss(x, up, down):
        return jnp.sum(jnp.square(layer(x, up, down).astype(jnp.float32)))

    return jax.grad(loss, argnums=(0, 1, 2))(x, up, down)


@hloscope.target(
    mesh={"data": 2, "model": 4},
    slice="v5e:2x4",
    args=("bf16[8192@data,4096@model]", "bf16[4096@model,4096]"),
    out="P('model', None)",
)
def unchecked_sum(x, weight):
    """Differentiates a sum over model, without shard_map's check of what is replicated."""

    @partial(jax.shard_map, in_specs=(P("data", "model"), P("model", None)), out_specs=P("data", None), check_vma=False)
    def product(x, weight):
        part = x @ weight
        return jax.lax.psum(part, "model")

    def loss(weight):
        return jnp.sum(jnp.sin(product(x, weight)).astype(jnp.float32))

    return jax.grad(loss)(weight)


@hloscope.target(
    mesh={"fsdp": 8}, slice="v5e:2x4", args=("bf16[8192@fsdp,4096]", "bf16[4096@fsdp,4096]"), out="P('fsdp', None)"
)
def gathered_by_hand(x, weight):
    """Gathers a weight by hand, whose gradient goes back in parts."""

    @partial(jax.shard_map, in_specs=(P("fsdp", None), P("fsdp", None)), out_specs=P("fsdp", None))
    def layer(x, weight):
        whole = jax.lax.all_gather(weight, "fsdp", axis=0, tiled=True)
        return jnp.tanh(x @ whole)

    def loss(weight):
        return jnp.sum(jnp.square(layer(x, weight).astype(jnp.float32)))

    return jax.grad(loss)(weight)


@hloscope.target(
    mesh={"ring": 8}, slice="v5e:2x4", args=("bf16[8192@ring,4096]", "bf16[4096@ring,4096]"), out="P('ring', None)"
)
def ring_product(x, weight):
    """Hands parts of a weight around a ring and multiplies by each."""

    @partial(jax.shard_map, in_specs=(P("ring", None), P("ring", None)), out_specs=P("ring", None))
    def turn(x, weight):
        place = jax.lax.axis_index("ring")
        total = jnp.zeros_like(x)
        for step in range(8):
            columns = jax.lax.dynamic_slice_in_dim(x, (place + step) % 8 * 512, 512, axis=1)
            total = total + columns @ weight
            if step < 7:
                weight = jax.lax.ppermute(weight, "ring", [(i, (i - 1) % 8) for i in range(8)])
        return total

    return turn(x, weight)


@hloscope.target(
    mesh={"data": 2, "model": 4},
    slice="v5e:2x4",
    args=("bf16[4096@data,2048]", "bf16[6,2048,2048@model]"),
    out="P('data', None)",
)
def layers_by_hand(x, layers):
    """Runs a stack of layers, each of which gathers its result by hand."""

    @partial(jax.shard_map, in_specs=(P("data", None), P(None, "model")), out_specs=P("data", None), check_vma=False)
    def layer(h, weight):
        part = jnp.tanh(h @ weight)
        return jax.lax.all_gather(part, "model", axis=1, tiled=True)

    return jax.lax.scan(lambda h, weight: (layer(h, weight), None), x, layers)[0]


@hloscope.target(
    mesh={"data": 2, "model": 4},
    slice="v5e:2x4",
    args=("bf16[4096@data,4096@model]", "bf16[4096@model,8192]", "bf16[8192,4096@model]"),
    out="P('data', 'model')",
)
def half_by_hand(x, up, down):
    """Adds one product up by hand, and leaves the other to the partitioner."""

    @partial(jax.shard_map, in_specs=(P("data", "model"), P("model", None)), out_specs=P("data", "model"))
    def first(x, up):
        part = x @ up
        return jax.lax.psum_scatter(part, "model", scatter_dimension=1, tiled=True)

    hidden = jax.nn.gelu(first(x, up))
    return jnp.einsum("bf,fd->bd", hidden, down)
