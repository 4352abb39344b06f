"""TPU v4: two cores in one device (megacore), a 3D torus of cubes."""

from __future__ import annotations

from hloscope.tpu.generation import BELOW_A_CUBE, GIB, MEGACORE, MIB, Chip, Mark

V4 = Chip(
    name="v4",
    aliases=("tpu-v4", "tpu v4", "tpu-v4-podslice"),
    topology_prefix="v4",
    device_kind="TPU v4",
    name_in_dumps="PUFFERFISH",
    # Cloud TPU starts v4 in megacore mode, one device per chip, and jax.make_mesh refuses anything else; libtpu's own
    # default is one device per TensorCore.
    devices_per_chip=1,
    chip_config_name="megacore",
    cores_per_chip=2,  # v4-8 is one host of 4 chips
    hbm_bytes=32 * GIB,
    usable_hbm_bytes_per_device=int(30.75 * GIB),  # libtpu, megacore
    hbm_bytes_per_s=1200e9,  # GCP, SB; JAX 1230e9
    bf16_flops_per_s=275e12,  # all
    int8_ops_per_s=275e12,  # GCP: "bf16 or int8"
    vmem_bytes=16 * MIB,  # JAX; XLA no longer uses the 128 MiB of CMEM by default
    ici_links=6,
    ici_bytes_per_s=45e9,  # SB, usable; raw is 50e9
    wraparound_size=4,  # GCP: optical wraparound between cubes of 4x4x4
    slice_shapes=BELOW_A_CUBE,
    max_slice_chips=3072,  # GCP: 12x16x16
    dcn_bytes_per_s=6.25e9,  # SB
    pcie_bytes_per_s=16e9,  # SB
    clock_hz=1.05e9,  # arithmetic only: 275e12 / (2 cores x 4 units x 128 x 128 x 2)
    has_sparse_cores=True,  # GCP
    hlo_marks=(Mark(text="S(3)", meaning="it uses the common memory (CMEM) that only v4 has"), MEGACORE),
)
