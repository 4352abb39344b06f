"""TPU v6e (Trillium): one core per chip, a 2D torus of at most 256 chips."""

from __future__ import annotations

from hloscope.tpu.generation import (
    GIB,
    LITE_POD,
    MIB,
    NARROW_TYPES_OF_V5_AND_V6,
    VECTOR_MEMORY,
    Chip,
    Constants,
    Measured,
    order_devices_in_rings,
)

V6E = Chip(
    name="v6e",
    aliases=("v6", "trillium", "tpu-v6e", "tpu v6 lite", "tpu v6e", "tpu-v6e-slice"),
    topology_prefix="v6e",
    device_kind="TPU v6 lite",
    name_in_dumps="GHOSTLITE",
    devices_per_chip=1,
    cores_per_chip=1,
    hbm_bytes=32 * GIB,
    usable_hbm_bytes_per_device=int(31.24 * GIB),  # libtpu of JAX 0.12; 31.25 with JAX 0.10
    hbm_bytes_per_s=1638e9,  # GCP, the newest table; others of its tables say 1640e9 and 1600e9
    bf16_flops_per_s=918e12,  # GCP, SB; JAX 920e12
    int8_ops_per_s=1836e12,  # GCP; JAX 1840e12
    narrow_matmul_types=NARROW_TYPES_OF_V5_AND_V6,
    vmem_bytes=128 * MIB,  # JAX
    ici_links=4,
    ici_bytes_per_s=90e9,  # SB, usable; GCP's 800 GB/s per chip both ways over 4 links is 100e9 raw
    wraparound_size=16,  # SB
    slice_shapes=LITE_POD,
    max_slice_chips=256,
    dcn_bytes_per_s=12.5e9,  # SB; GCP's 25.6 Tbit/s per pod of 256 chips is the same
    pcie_bytes_per_s=32e9,  # SB
    clock_hz=1.75e9,  # 918e12 / (4 units x 256 x 256 x 2); agrees with published kernel timings
    has_sparse_cores=True,  # GCP
    hlo_marks=(VECTOR_MEMORY,),
    order_devices=order_devices_in_rings,  # JAX orders both in one function
    measured=Measured(
        # Set by one whole step (Qwen3-8B on v6e-8): 96 GB/s of the raw 100 GB/s of a link, where v5e reaches 0.83.
        constants=Constants(one_way_ring_share=1.067),
        rule_errors=(
            ("cycles", 0.116),
            ("memory", 0.064),
            ("rings along several axes", 0.17),
            ("pair", 0.04),
            ("8-bit matmul", 0.17),
        ),
        rules_measured_once=("ring in one direction", "ring round a closed axis"),
        rows=12,
        median=1.047,
        worst=1.19,
    ),
)
