"""TPU v3: two devices per chip, a 2D torus of at most 1,024 chips."""

from __future__ import annotations

from hloscope.tpu.generation import GIB, MIB, PART_OF_A_HOST_2D, Chip, order_devices_by_eights

V3 = Chip(
    name="v3",
    aliases=("tpu-v3", "tpu v3", "tpu-v3-slice", "tpu-v3-device"),
    topology_prefix="v3",
    device_kind="TPU v3",
    name_in_dumps="DRAGONFISH",
    devices_per_chip=2,
    cores_per_chip=2,
    hbm_bytes=32 * GIB,
    usable_hbm_bytes_per_device=int(15.48 * GIB),  # libtpu
    hbm_bytes_per_s=900e9,  # GCP, SB; JAX 825e9
    bf16_flops_per_s=123e12,  # GCP; JAX and SB 140e12
    vmem_bytes=16 * MIB,  # JAX
    ici_links=4,
    ici_bytes_per_s=100e9,  # SB; looks high next to v4's 45e9 and no other source confirms it
    wraparound_size=32,  # the full pod's edge
    slice_shapes=(*PART_OF_A_HOST_2D, (2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32)),  # GCP
    max_slice_chips=1024,
    clock_hz=0.94e9,  # arithmetic only: 123e12 / (2 cores x 2 units x 128 x 128 x 2)
    has_sparse_cores=False,  # GCP
    has_wide_scalar_tiles=True,
    order_devices=order_devices_by_eights,  # JAX orders both in one function
)
