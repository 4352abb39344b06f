"""A train step of two layers with its parameters sharded for FSDP and tensor parallelism."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

LAYER = {"wi": "bf16[1024@fsdp,4096@tensor]", "wo": "bf16[4096@tensor,1024@fsdp]"}
PARAMETERS = {"embedding": "bf16[8192@tensor,1024@fsdp]", "layers": [LAYER, LAYER]}


def loss(parameters, tokens):
    """Mean of a linear readout of two feed-forward layers."""
    x = parameters["embedding"][tokens]
    x = jax.lax.with_sharding_constraint(x, P("fsdp", None, None))
    for layer in parameters["layers"]:
        hidden = jax.nn.relu(jnp.einsum("bsd,df->bsf", x, layer["wi"]))
        x = x + jnp.einsum("bsf,fd->bsd", hidden, layer["wo"])
    logits = jnp.einsum("bsd,vd->bsv", x, parameters["embedding"])
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1).mean()


@hloscope.target(mesh={"fsdp": 4, "tensor": 2}, slice="v5e:2x4", args=(PARAMETERS, "s32[16@fsdp,512]"), donate=(0,))
def train_step(parameters, tokens):
    """One step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(parameters, tokens)
    return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients), value
