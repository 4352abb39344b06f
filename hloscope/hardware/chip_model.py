"""What is known about one TPU generation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One TPU generation. Figures are per chip unless the name says otherwise; None is "not published".

    Attributes:
        name: The generation as this project prints it, such as `v5e`.
        aliases: Other spellings people write, lower case.
        topology_prefix: What libtpu calls the generation in a topology name, such as `tpu7x` in `tpu7x:2x2x1`.
        device_kind: What `jax.Device.device_kind` says, such as `TPU v5 lite`.
        devices_per_chip: JAX devices that one chip shows in that configuration.
        cores_per_chip: TensorCores.
        name_counts_cores: Whether the number in names like `v4-8` counts TensorCores rather than chips.
        hbm_bytes: Physical HBM.
        usable_hbm_bytes_per_device: What libtpu lets one program occupy; the rest is reserved by the system.
        hbm_bytes_per_s: HBM bandwidth.
        bf16_flops_per_s: Peak dense bf16 multiply-adds, two operations each.
        int8_ops_per_s: Peak dense int8 operations.
        f8_flops_per_s: Peak dense multiply-adds of 8-bit floats, two operations each.
        narrow_matmul_types: Types narrower than bf16 whose matmuls run at the pace of the 8-bit figures; all others are
            widened to bf16.
        vmem_bytes: Vector memory of one TensorCore.
        ici_links: Inter-chip links that leave the chip.
        ici_bytes_per_s: Usable bandwidth of one link in one direction.
        torus_dimensions: 2 or 3 physical axes.
        wraparound_size: In 2D an axis is closed to a ring when it is exactly this long; in 3D all axes are closed
            when all are multiples of it.
        slice_shapes: The blocks one slice may have, smallest first; in 3D those below a full cube.
        max_slice_chips: Chips of the largest single slice.
        dcn_bytes_per_s: Data-centre network bandwidth.
        pcie_bytes_per_s: Bandwidth between host and chip, one way.
        clock_hz: The clock that turns a schedule's `estimated_cycles` into seconds.
        core_link_bytes_per_s: Bandwidth between the devices of one chip, in one direction.
        chip_config_name: The libtpu configuration that Cloud TPU starts the chip in; None for libtpu's default.
    """

    name: str
    aliases: tuple[str, ...]
    topology_prefix: str
    device_kind: str
    devices_per_chip: int
    cores_per_chip: int
    name_counts_cores: bool
    hbm_bytes: int
    usable_hbm_bytes_per_device: int
    hbm_bytes_per_s: float
    bf16_flops_per_s: float
    int8_ops_per_s: float | None
    vmem_bytes: int
    ici_links: int
    ici_bytes_per_s: float
    torus_dimensions: int
    wraparound_size: int
    slice_shapes: tuple[tuple[int, ...], ...]
    max_slice_chips: int
    dcn_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    clock_hz: float
    core_link_bytes_per_s: float | None = None
    f8_flops_per_s: float | None = None
    narrow_matmul_types: tuple[str, ...] = ()
    chip_config_name: str | None = None

    @property
    def hbm_bytes_per_device(self) -> int:
        """Physical HBM behind one JAX device, in bytes."""
        return self.hbm_bytes // self.devices_per_chip
