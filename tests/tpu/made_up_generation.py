"""A generation that does not exist, written as one file of `hloscope/tpu/` is."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hloscope.tpu.generation import BELOW_A_CUBE, GIB, MIB, Chip, Constants, Mark, Measured, Shape


def order_devices(shape: Shape, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """The devices of the smallest cube backwards."""
    return tuple(reversed(range(prod(mesh_shape)))) if shape == (2, 2, 2) else None


V9Z = Chip(
    name="v9z",
    aliases=("9z", "tpu-v9z", "tpu v9 zero"),
    topology_prefix="v9z",
    device_kind="TPU v9 zero",
    name_in_dumps="MUDFISH zero",
    devices_per_chip=1,
    cores_per_chip=1,
    hbm_bytes=64 * GIB,
    usable_hbm_bytes_per_device=int(63.5 * GIB),
    hbm_bytes_per_s=4000e9,
    bf16_flops_per_s=400e12,
    vmem_bytes=64 * MIB,
    ici_links=6,
    ici_bytes_per_s=45e9,
    wraparound_size=4,
    slice_shapes=BELOW_A_CUBE,
    max_slice_chips=512,
    max_chips_used_in_part=8,
    host_bounds=(1, 2, 2),
    clock_hz=2e9,
    has_sparse_cores=False,
    hlo_marks=(Mark(text="S(9)", meaning="it uses a memory that only v9z has"),),
    order_devices=order_devices,
    measured=Measured(
        constants=Constants(start_us=700.0),
        rule_errors=(("cycles", 0.123),),
        rules_measured_once=("cycles",),
        rows=3,
        median=1.1,
        worst=1.2,
    ),
)
