"""TPU v5p: two cores in one device (megacore), a 3D torus of cubes."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.tpu.generation import (
    BELOW_A_CUBE,
    GIB,
    MEGACORE,
    MIB,
    NARROW_TYPES_OF_V5_AND_V6,
    VECTOR_MEMORY,
    Chip,
    Constants,
    Measured,
    Shape,
)

_RING_OF_2X2X2 = (0, 1, 3, 2, 6, 7, 5, 4)


def order_devices(shape: Shape, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """A ring through the smallest cube; JAX 0.10 knows v5p by another name and lays this block out along the axes."""
    return _RING_OF_2X2X2 if shape == (2, 2, 2) else None


V5P = Chip(
    name="v5p",
    aliases=("tpu-v5p", "tpu-v5p-slice", "tpu v5", "tpu v5p"),
    topology_prefix="v5p",
    device_kind="TPU v5",
    name_in_dumps="VIPERFISH",
    devices_per_chip=1,  # megacore: both TensorCores are one device
    cores_per_chip=2,  # v5p-8 is one host of 4 chips
    # GCP lists 95 GiB and says why: 96 GiB are there and a part is reserved. libtpu lets a program have 95.73.
    hbm_bytes=96 * GIB,
    usable_hbm_bytes_per_device=int(95.73 * GIB),  # libtpu of JAX 0.12; 95.74 with JAX 0.10
    hbm_bytes_per_s=2765e9,  # GCP; SB 2800e9, JAX 2460e9
    bf16_flops_per_s=459e12,  # all
    int8_ops_per_s=918e12,  # SB, JAX
    narrow_matmul_types=NARROW_TYPES_OF_V5_AND_V6,
    vmem_bytes=64 * MIB,  # JAX
    ici_links=6,
    ici_bytes_per_s=90e9,  # SB, usable; GCP's 1200 GB/s per chip both ways over 6 links is 100e9 raw
    wraparound_size=4,  # GCP: "4x4x4 and larger slices have full 3D torus"
    slice_shapes=BELOW_A_CUBE,
    max_slice_chips=6144,  # GCP: 16x16x24
    dcn_bytes_per_s=6.25e9,  # SB; GCP 50 Gbit/s
    pcie_bytes_per_s=16e9,  # SB
    clock_hz=1.75e9,  # 459e12 / (2 cores x 4 units x 128 x 128 x 2); published traces also fit 1.5e9: not settled
    has_sparse_cores=True,  # GCP
    hlo_marks=(VECTOR_MEMORY, MEGACORE),
    order_devices=order_devices,
    measured=Measured(
        constants=Constants(
            one_way_ring_share=1.067,  # assumed: its links are as fast as those of v6e, where a step has set it
            start_us=5.41,  # the rows of v5p say so
        ),
        rule_errors=(
            ("rings along several axes", 0.17),
            ("cycles", 0.059),
            ("memory", 0.04),
            ("permute", 0.054),
        ),
        rules_measured_once=("ring in one direction", "ring round a closed axis"),
        rows=15,
        median=1.045,
        worst=1.191,
    ),
)
