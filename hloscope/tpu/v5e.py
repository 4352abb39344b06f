"""TPU v5e: one core per chip, a 2D torus of at most 256 chips."""

from __future__ import annotations

from hloscope.tpu.generation import (
    GIB,
    LITE_POD,
    MIB,
    NARROW_TYPES_OF_V5_AND_V6,
    VECTOR_MEMORY,
    Chip,
    Measured,
    order_devices_in_rings,
)

V5E = Chip(
    name="v5e",
    aliases=("v5litepod", "v5lite", "v5-lite", "tpu-v5e", "tpu v5 lite", "tpu-v5-lite-podslice", "tpu-v5-lite-device"),
    topology_prefix="v5e",
    device_kind="TPU v5 lite",
    name_in_dumps="VIPERFISH lite",
    devices_per_chip=1,
    cores_per_chip=1,
    hbm_bytes=16 * GIB,
    usable_hbm_bytes_per_device=int(15.75 * GIB),  # libtpu
    hbm_bytes_per_s=819e9,  # GCP; another GCP table says 800 GiB/s (859e9), JAX 820e9
    bf16_flops_per_s=197e12,  # all
    int8_ops_per_s=394e12,  # SB, JAX; GCP 393e12
    narrow_matmul_types=NARROW_TYPES_OF_V5_AND_V6,
    vmem_bytes=128 * MIB,  # JAX
    ici_links=4,
    ici_bytes_per_s=45e9,  # SB, usable; GCP's 400 GB/s per chip both ways over 4 links is 50e9 raw
    wraparound_size=16,  # SB: only an axis as long as the pod's edge is closed
    slice_shapes=LITE_POD,
    max_slice_chips=256,
    # libtpu: "On platforms with limited ICI routing device assignment should include all slice devices", which it says
    # of v5e above 16 chips and of no other slice that was tried.
    max_chips_used_in_part=16,
    dcn_bytes_per_s=3.125e9,  # SB; GCP's 6.4 Tbit/s per pod of 256 chips is the same
    pcie_bytes_per_s=16e9,  # SB
    clock_hz=1.50e9,  # measured: 334109 estimated cycles took 222.8 us in the scaling book's profile
    has_sparse_cores=False,  # GCP
    hlo_marks=(VECTOR_MEMORY,),
    order_devices=order_devices_in_rings,
    measured=Measured(
        rule_errors=(
            ("cycles", 0.08),
            ("ring in one direction", 0.079),
            ("pair", 0.04),
            ("ring in both directions", 0.111),
            ("all-to-all", 0.17),
            ("permute", 0.126),
            ("vector unit", 0.17),
            ("memory", 0.042),
        ),
        rows=37,
        median=1.018,
        worst=1.146,
    ),
)
