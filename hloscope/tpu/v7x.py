"""TPU 7x (Ironwood): two devices per chip, a 3D torus of cubes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hloscope.tpu.generation import (
    BELOW_A_CUBE,
    GIB,
    MIB,
    VECTOR_MEMORY,
    Chip,
    Mark,
    Measured,
    Shape,
    order_cores_by_eights,
)


def order_devices(shape: Shape, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """The devices by eights in rings, one block of 2x2 chips after the other, up to four of them."""
    count = prod(mesh_shape)
    is_column = count % 8 == 0 and count <= 32 and shape[0] <= 2 and shape[1] <= 2
    return order_cores_by_eights(count) if is_column else None


V7X = Chip(
    name="v7x",
    aliases=("tpu7x", "7x", "v7", "tpu7", "ironwood", "tpu-v7x", "tpu-7x"),
    topology_prefix="tpu7x",
    device_kind="TPU7x",
    name_in_dumps="6acc60406",
    devices_per_chip=2,
    # GCP sells by topology; Google's xpk and GKE name the machines by TensorCores: tpu7x-8 is 2x2x1, 4 chips.
    cores_per_chip=2,
    hbm_bytes=192 * GIB,
    usable_hbm_bytes_per_device=int(94.74 * GIB),  # libtpu of JAX 0.12; 94.75 with JAX 0.10
    hbm_bytes_per_s=7380e9,  # GCP; JAX 7400e9
    bf16_flops_per_s=2307e12,  # GCP; JAX 2310e12
    int8_ops_per_s=None,  # disputed: nothing official, and JAX lists it as not available
    f8_flops_per_s=4600e12,  # JAX; GCP 4614e12
    narrow_matmul_types=("f8e5m2", "f8e4m3fn"),  # JAX, `is_matmul_supported`; libtpu's estimated cycles say the same
    vmem_bytes=64 * MIB,  # JAX
    ici_links=6,
    ici_bytes_per_s=90e9,  # SB, usable; GCP's 1200 GB/s per chip both ways over 6 links is 100e9 raw
    wraparound_size=4,  # as v5p
    slice_shapes=BELOW_A_CUBE,
    max_slice_chips=9216,  # GCP: chips of a pod
    dcn_bytes_per_s=12.5e9,  # SB
    core_link_bytes_per_s=540e9,  # GCP: the die-to-die interface is "six times faster than a 1D ICI link"
    clock_hz=1.90e9,  # fitted to profiles; 2307e12 / (2 cores x 4 units x 256 x 256 x 2) = 2.2e9 does not fit them
    has_sparse_cores=True,  # GCP
    has_bf16_arithmetic=True,
    hlo_marks=(Mark(text="T(16,128)(2,1)", meaning="it has tiles of 16 rows, which only 7x has"), VECTOR_MEMORY),
    order_devices=order_devices,
    measured=Measured(
        # The clock is not one number, so that cycles may be off by 10% at least.
        rule_errors=(("cycles", 0.102), ("ring in both directions", 0.072)),
        rows=4,
        median=1.052,
        worst=1.069,
    ),
)
