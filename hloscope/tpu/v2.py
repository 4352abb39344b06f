"""TPU v2: two devices per chip, a 2D torus of at most 256 chips."""

from __future__ import annotations

from hloscope.tpu.generation import (
    GIB,
    MIB,
    PART_OF_A_HOST_2D,
    Chip,
    Measured,
    order_devices_by_eights,
)

V2 = Chip(
    name="v2",
    aliases=("tpu-v2", "tpu v2"),
    topology_prefix="v2",
    device_kind="TPU v2",
    name_in_dumps="JELLYFISH",
    devices_per_chip=2,
    cores_per_chip=2,  # v2-8 is one host of 4 chips
    hbm_bytes=16 * GIB,
    usable_hbm_bytes_per_device=int(7.48 * GIB),  # libtpu
    hbm_bytes_per_s=700e9,  # GCP; JAX 716e9
    bf16_flops_per_s=46e12,  # GCP, JAX
    vmem_bytes=16 * MIB,  # JAX
    ici_links=4,
    ici_bytes_per_s=60e9,  # SB
    wraparound_size=16,  # the full pod's edge
    slice_shapes=(*PART_OF_A_HOST_2D, (2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)),  # GCP, v2 page; 4x8: libtpu
    max_slice_chips=256,
    clock_hz=0.70e9,  # 46e12 / (2 cores x 1 unit x 128 x 128 x 2); agrees with a published v2 profile
    has_sparse_cores=False,  # GCP
    has_wide_scalar_tiles=True,
    order_devices=order_devices_by_eights,
    measured=Measured(rule_errors=(("cycles", 0.04),), rows=1, median=1.01, worst=1.01),
)
