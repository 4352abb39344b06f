"""The TPU generations: devices, memory, bandwidths and peak rates, with their sources.

Sources, by the short names used in the comments below:

* GCP: Google Cloud's page of each TPU version (docs.cloud.google.com/tpu/docs/v5e and its siblings).
* SB: "How to Scale Your Model", the scaling book (jax-ml.github.io/scaling-book), chapter on TPUs.
* JAX: `jax/_src/tpu_info.py`; its figures are per TensorCore and are given per chip here.
* libtpu: what the ahead-of-time compiler itself answers (JAX 0.10.2 and 0.12.0.1).

Where they disagree the comment has both and the table takes the one named first. Two conventions hold throughout:

* Capacities are powers of two. GCP writes "16 GB" on one page and "16 GiB" on the next for the same HBM; JAX's
  17.2e9 bytes and the limit libtpu enforces (15.75 of 16 GiB on v5e) both say GiB, so GiB it is.
* Rates are powers of ten: 819 GB/s is 819e9 bytes per second.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from hloscope.errors import SliceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Figures measured on one machine, used in place of those of its generation.

    Attributes:
        file: The file it was read from.
        profile: The profile that it was fitted to.
        figures: The chip's figures that it replaces.
        constants: Constants of the cost model, by their names there.
    """

    file: str
    profile: str
    figures: tuple[str, ...]
    constants: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One TPU generation. Figures are per chip unless the name says otherwise; None is "not published".

    Attributes:
        name: The generation as this project prints it, such as `v5e`.
        aliases: Other spellings people write, lower case.
        topology_prefix: What libtpu calls the generation in a topology name, such as `tpu7x` in `tpu7x:2x2x1`.
        device_kind: What `jax.Device.device_kind` says, such as `TPU v5 lite`.
        devices_per_chip: JAX devices that one chip shows in that configuration.
        cores_per_chip: TensorCores, which the number in names like `v4-8` counts.
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
        wraparound_size: In 2D an axis is closed to a ring when it is exactly this long; in 3D all axes are closed
            when all are multiples of it.
        slice_shapes: The blocks one slice may have, smallest first; in 3D those below a full cube.
        max_slice_chips: Chips of the largest single slice.
        dcn_bytes_per_s: Data-center network bandwidth.
        pcie_bytes_per_s: Bandwidth between host and chip, one way.
        clock_hz: The clock that turns a schedule's `estimated_cycles` into seconds.
        core_link_bytes_per_s: Bandwidth between the devices of one chip, in one direction.
        chip_config_name: The libtpu configuration that Cloud TPU starts the chip in; None for libtpu's default.
        calibration: What a profile of the user's own has settled; None where nothing did.
    """

    name: str
    aliases: tuple[str, ...]
    topology_prefix: str
    device_kind: str
    devices_per_chip: int
    cores_per_chip: int
    hbm_bytes: int
    usable_hbm_bytes_per_device: int
    hbm_bytes_per_s: float
    bf16_flops_per_s: float
    int8_ops_per_s: float | None = None
    vmem_bytes: int
    ici_links: int
    ici_bytes_per_s: float
    wraparound_size: int
    slice_shapes: tuple[tuple[int, ...], ...]
    max_slice_chips: int
    dcn_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    clock_hz: float
    core_link_bytes_per_s: float | None = None
    f8_flops_per_s: float | None = None
    narrow_matmul_types: tuple[str, ...] = ()
    chip_config_name: str | None = None
    calibration: Calibration | None = None

    @property
    def hbm_bytes_per_device(self) -> int:
        """Physical HBM behind one JAX device, in bytes."""
        return self.hbm_bytes // self.devices_per_chip

    @property
    def torus_dimensions(self) -> int:
        """2 or 3 physical axes."""
        return len(self.slice_shapes[0])


__all__ = ["CHIPS", "Calibration", "Chip", "chip", "nearest_chips"]

_MIB = 2**20
_GIB = 2**30

# A process may be bound to one or two chips of a host (`TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1` or `1,2,1`), so these
# blocks exist on every generation, whether or not a machine of that size can be rented.
_PART_OF_A_HOST_2D = ((1, 1), (1, 2))
_PART_OF_A_HOST_3D = ((1, 1, 1), (1, 2, 1))

# GCP, v4 page: A x B x C with A <= B <= C, all at most 4 or all multiples of 4. These are the ones below a cube.
_BELOW_A_CUBE = (*_PART_OF_A_HOST_3D, (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

# GCP, v5e and v6e pages: "supported configurations".
_LITE_POD = (*_PART_OF_A_HOST_2D, (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))


# JAX, `is_matmul_supported`; libtpu's estimated cycles say the same of v5e, v6e and 7x.
_NARROW_TYPES_OF_V5_AND_V6 = ("s8", "u8", "s4", "u4", "f8e5m2", "f8e4m3b11fnuz")
_NARROW_TYPES_OF_7X = ("f8e5m2", "f8e4m3fn")


def _usable(gib: float) -> int:
    """Bytes from the GiB figure, two decimals, that libtpu prints when a program does not fit."""
    return int(gib * _GIB)


V2 = Chip(
    name="v2",
    aliases=("tpu-v2", "tpu v2"),
    topology_prefix="v2",
    device_kind="TPU v2",
    devices_per_chip=2,
    cores_per_chip=2,  # v2-8 is one host of 4 chips
    hbm_bytes=16 * _GIB,
    usable_hbm_bytes_per_device=_usable(7.48),  # libtpu
    hbm_bytes_per_s=700e9,  # GCP; JAX 716e9
    bf16_flops_per_s=46e12,  # GCP, JAX
    vmem_bytes=16 * _MIB,  # JAX
    ici_links=4,
    ici_bytes_per_s=60e9,  # SB
    wraparound_size=16,  # the full pod's edge
    slice_shapes=(*_PART_OF_A_HOST_2D, (2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)),  # GCP, v2 page; 4x8: libtpu
    max_slice_chips=256,
    clock_hz=0.70e9,  # 46e12 / (2 cores x 1 unit x 128 x 128 x 2); agrees with a published v2 profile
)

V3 = Chip(
    name="v3",
    aliases=("tpu-v3", "tpu v3", "tpu-v3-slice", "tpu-v3-device"),
    topology_prefix="v3",
    device_kind="TPU v3",
    devices_per_chip=2,
    cores_per_chip=2,
    hbm_bytes=32 * _GIB,
    usable_hbm_bytes_per_device=_usable(15.48),  # libtpu
    hbm_bytes_per_s=900e9,  # GCP, SB; JAX 825e9
    bf16_flops_per_s=123e12,  # GCP; JAX and SB 140e12
    vmem_bytes=16 * _MIB,  # JAX
    ici_links=4,
    ici_bytes_per_s=100e9,  # SB; looks high beside v4's 45e9 and no other source confirms it
    wraparound_size=32,  # the full pod's edge
    slice_shapes=(*_PART_OF_A_HOST_2D, (2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32)),  # GCP
    max_slice_chips=1024,
    clock_hz=0.94e9,  # arithmetic only: 123e12 / (2 cores x 2 units x 128 x 128 x 2)
)

V4 = Chip(
    name="v4",
    aliases=("tpu-v4", "tpu v4", "tpu-v4-podslice"),
    topology_prefix="v4",
    device_kind="TPU v4",
    # Cloud TPU starts v4 in megacore mode, one device per chip, and jax.make_mesh refuses anything else; libtpu's own
    # default is one device per TensorCore.
    devices_per_chip=1,
    chip_config_name="megacore",
    cores_per_chip=2,  # v4-8 is one host of 4 chips
    hbm_bytes=32 * _GIB,
    usable_hbm_bytes_per_device=_usable(30.75),  # libtpu, megacore
    hbm_bytes_per_s=1200e9,  # GCP, SB; JAX 1230e9
    bf16_flops_per_s=275e12,  # all
    int8_ops_per_s=275e12,  # GCP: "bf16 or int8"
    vmem_bytes=16 * _MIB,  # JAX; beside it 128 MiB of CMEM that XLA no longer uses by default
    ici_links=6,
    ici_bytes_per_s=45e9,  # SB, usable; raw is 50e9
    wraparound_size=4,  # GCP: optical wraparound between cubes of 4x4x4
    slice_shapes=_BELOW_A_CUBE,
    max_slice_chips=3072,  # GCP: 12x16x16
    dcn_bytes_per_s=6.25e9,  # SB
    pcie_bytes_per_s=16e9,  # SB
    clock_hz=1.05e9,  # arithmetic only: 275e12 / (2 cores x 4 units x 128 x 128 x 2)
)

V5E = Chip(
    name="v5e",
    aliases=("v5litepod", "v5lite", "v5-lite", "tpu-v5e", "tpu v5 lite", "tpu-v5-lite-podslice", "tpu-v5-lite-device"),
    topology_prefix="v5e",
    device_kind="TPU v5 lite",
    devices_per_chip=1,
    cores_per_chip=1,
    hbm_bytes=16 * _GIB,
    usable_hbm_bytes_per_device=_usable(15.75),  # libtpu
    hbm_bytes_per_s=819e9,  # GCP; another GCP table says 800 GiB/s (859e9), JAX 820e9
    bf16_flops_per_s=197e12,  # all
    int8_ops_per_s=394e12,  # SB, JAX; GCP 393e12
    narrow_matmul_types=_NARROW_TYPES_OF_V5_AND_V6,
    vmem_bytes=128 * _MIB,  # JAX
    ici_links=4,
    ici_bytes_per_s=45e9,  # SB, usable; GCP's 400 GB/s per chip both ways over 4 links is 50e9 raw
    wraparound_size=16,  # SB: only an axis as long as the pod's edge is closed
    slice_shapes=_LITE_POD,
    max_slice_chips=256,
    dcn_bytes_per_s=3.125e9,  # SB; GCP's 6.4 Tbit/s per pod of 256 chips is the same
    pcie_bytes_per_s=16e9,  # SB
    clock_hz=1.50e9,  # measured: 334109 estimated cycles took 222.8 us in the scaling book's profile
)

V5P = Chip(
    name="v5p",
    aliases=("tpu-v5p", "tpu-v5p-slice", "tpu v5", "tpu v5p"),
    topology_prefix="v5p",
    device_kind="TPU v5",
    devices_per_chip=1,  # megacore: both TensorCores are one device
    cores_per_chip=2,  # v5p-8 is one host of 4 chips
    # GCP lists 95 GiB and says why: 96 GiB are there and a part is reserved. libtpu lets a program have 95.73.
    hbm_bytes=96 * _GIB,
    usable_hbm_bytes_per_device=_usable(95.73),  # libtpu of JAX 0.12; 95.74 with JAX 0.10
    hbm_bytes_per_s=2765e9,  # GCP; SB 2800e9, JAX 2460e9
    bf16_flops_per_s=459e12,  # all
    int8_ops_per_s=918e12,  # SB, JAX
    narrow_matmul_types=_NARROW_TYPES_OF_V5_AND_V6,
    vmem_bytes=64 * _MIB,  # JAX
    ici_links=6,
    ici_bytes_per_s=90e9,  # SB, usable; GCP's 1200 GB/s per chip both ways over 6 links is 100e9 raw
    wraparound_size=4,  # GCP: "4x4x4 and larger slices have full 3D torus"
    slice_shapes=_BELOW_A_CUBE,
    max_slice_chips=6144,  # GCP: 16x16x24
    dcn_bytes_per_s=6.25e9,  # SB; GCP 50 Gbit/s
    pcie_bytes_per_s=16e9,  # SB
    clock_hz=1.75e9,  # 459e12 / (2 cores x 4 units x 128 x 128 x 2); published traces also fit 1.5e9: not settled
)

V6E = Chip(
    name="v6e",
    aliases=("v6", "trillium", "tpu-v6e", "tpu v6 lite", "tpu v6e", "tpu-v6e-slice"),
    topology_prefix="v6e",
    device_kind="TPU v6 lite",
    devices_per_chip=1,
    cores_per_chip=1,
    hbm_bytes=32 * _GIB,
    usable_hbm_bytes_per_device=_usable(31.24),  # libtpu of JAX 0.12; 31.25 with JAX 0.10
    hbm_bytes_per_s=1638e9,  # GCP, the newest table; others of its tables say 1640e9 and 1600e9
    bf16_flops_per_s=918e12,  # GCP, SB; JAX 920e12
    int8_ops_per_s=1836e12,  # GCP; JAX 1840e12
    narrow_matmul_types=_NARROW_TYPES_OF_V5_AND_V6,
    vmem_bytes=128 * _MIB,  # JAX
    ici_links=4,
    ici_bytes_per_s=90e9,  # SB, usable; GCP's 800 GB/s per chip both ways over 4 links is 100e9 raw
    wraparound_size=16,  # SB
    slice_shapes=_LITE_POD,
    max_slice_chips=256,
    dcn_bytes_per_s=12.5e9,  # SB; GCP's 25.6 Tbit/s per pod of 256 chips is the same
    pcie_bytes_per_s=32e9,  # SB
    clock_hz=1.75e9,  # 918e12 / (4 units x 256 x 256 x 2); agrees with published kernel timings
)

V7X = Chip(
    name="v7x",
    aliases=("tpu7x", "7x", "v7", "tpu7", "ironwood", "tpu-v7x", "tpu-7x"),
    topology_prefix="tpu7x",
    device_kind="TPU7x",
    devices_per_chip=2,
    # GCP sells by topology; Google's xpk and GKE name the machines by TensorCores: tpu7x-8 is 2x2x1, 4 chips.
    cores_per_chip=2,
    hbm_bytes=192 * _GIB,
    usable_hbm_bytes_per_device=_usable(94.74),  # libtpu of JAX 0.12; 94.75 with JAX 0.10
    hbm_bytes_per_s=7380e9,  # GCP; JAX 7400e9
    bf16_flops_per_s=2307e12,  # GCP; JAX 2310e12
    int8_ops_per_s=None,  # disputed: nothing official, and JAX lists it as not available
    f8_flops_per_s=4600e12,  # JAX; GCP 4614e12
    narrow_matmul_types=_NARROW_TYPES_OF_7X,
    vmem_bytes=64 * _MIB,  # JAX
    ici_links=6,
    ici_bytes_per_s=90e9,  # SB, usable; GCP's 1200 GB/s per chip both ways over 6 links is 100e9 raw
    wraparound_size=4,  # as v5p
    slice_shapes=_BELOW_A_CUBE,
    max_slice_chips=9216,  # GCP: chips of a pod
    dcn_bytes_per_s=12.5e9,  # SB
    core_link_bytes_per_s=540e9,  # GCP: the die-to-die interface is "six times faster than a 1D ICI link"
    clock_hz=1.90e9,  # fitted to profiles; 2307e12 / (2 cores x 4 units x 256 x 256 x 2) = 2.2e9 does not fit them
)

CHIPS: tuple[Chip, ...] = (V2, V3, V4, V5E, V5P, V6E, V7X)
"""Every generation, oldest first."""

_SPELLINGS = {spelling: entry for entry in CHIPS for spelling in (entry.name, *entry.aliases)}


def chip(name: str) -> Chip:
    """The generation called `name`, in any of its spellings, whatever the case.

    Raises:
        SliceError: No generation has that name.
    """
    found = _SPELLINGS.get(name.strip().lower())
    if found is not None:
        return found
    guesses = nearest_chips(name)
    raise SliceError(
        f'unknown TPU generation "{name.strip()}"',
        why=f"the known ones are {', '.join(candidate.name for candidate in CHIPS)}",
        fix=f"did you mean {' or '.join(guess.name for guess in guesses)}?" if guesses else None,
    )


def nearest_chips(name: str) -> tuple[Chip, ...]:
    """At most three generations whose name or alias looks like `name`, the likest first; none when nothing does."""
    wanted = re.sub(r"^(?:google\W*)?tpu\W*(?=v?\d)", "", name.strip().lower())
    wanted = wanted if wanted.startswith("v") else f"v{wanted}" if wanted[:1].isdigit() else wanted
    exact = _SPELLINGS.get(wanted)
    if exact is not None:
        return (exact,)

    def likeness(entry: Chip) -> float:
        spellings = (entry.name, *entry.aliases)
        return max(difflib.SequenceMatcher(None, wanted, spelling).ratio() for spelling in spellings)

    close = [entry for entry in CHIPS if likeness(entry) >= 0.6]
    return tuple(sorted(close, key=likeness, reverse=True)[:3])
