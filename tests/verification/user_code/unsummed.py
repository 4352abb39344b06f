"""A block whose twin leaves out the sum over devices, so that their copies of the result differ."""

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

import hloscope

BLOCK = {
    "mesh": {"fsdp": 4, "tp": 2},
    "args": ("f32[B@fsdp,D]", "f32[D@fsdp,F@tp]", "f32[F@tp,D@fsdp]"),
    "dims": {"B": 64, "D": 32, "F": 64},
}


def shares(x, up, down):
    up, down = lax.all_gather(up, "fsdp", axis=0, tiled=True), lax.all_gather(down, "fsdp", axis=1, tiled=True)
    return jax.nn.relu(x @ up) @ down


def on_each_device(function):
    specs = P("fsdp", None), P("fsdp", "tp"), P("tp", "fsdp")
    return jax.shard_map(function, in_specs=specs, out_specs=P("fsdp", None), check_vma=False)


@hloscope.target(**BLOCK)
@on_each_device
def summed(x, up, down):
    return lax.psum(shares(x, up, down), "tp")


@hloscope.target(**BLOCK)
@on_each_device
def unsummed(x, up, down):
    return shares(x, up, down)
