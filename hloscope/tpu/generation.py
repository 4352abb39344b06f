"""The record of a TPU generation, and what several generations share.

Each generation has a file of its own with everything that sets it apart (`v5e.py` and its siblings). Sources, by the
short names in the comments there:

* GCP: Google Cloud's page of each TPU version (docs.cloud.google.com/tpu/docs/v5e and its siblings).
* SB: "How to Scale Your Model", the scaling book (jax-ml.github.io/scaling-book), chapter on TPUs.
* JAX: `jax/_src/tpu_info.py`; its figures are per TensorCore and are given per chip here.
* libtpu: what the ahead-of-time compiler itself answers (JAX 0.10.2 and 0.12.0.1).

Where they disagree the comment has both and the file takes the one named first. Two conventions hold throughout:

* Capacities are powers of two. GCP writes "16 GB" on one page and "16 GiB" on the next for the same HBM; JAX's
  17.2e9 bytes and the limit libtpu enforces (15.75 of 16 GiB on v5e) both say GiB, so GiB it is.
* Rates are powers of ten: 819 GB/s is 819e9 bytes per second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

MIB = 2**20
GIB = 2**30

Shape = tuple[int, ...]
"""Chips along each physical axis."""

DeviceOrder = Callable[[Shape, Sequence[int]], tuple[int, ...] | None]
"""From the shape of a slice and that of a mesh with as many devices to device ids in row-major mesh order.

None where each mesh axis lies along whole physical axes.
"""

HOST_BOUNDS = (2, 2, 1)
"""libtpu's default block of chips per host; a slice must be divisible by it or bring its own bounds."""

# A process may be bound to one or two chips of a host (`TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1` or `1,2,1`), so these
# blocks exist on every generation, whether or not a machine of that size can be rented.
PART_OF_A_HOST_2D = ((1, 1), (1, 2))
PART_OF_A_HOST_3D = ((1, 1, 1), (1, 2, 1))

# GCP, v4 page: A x B x C with A <= B <= C, all at most 4 or all multiples of 4. These are the ones below a cube.
BELOW_A_CUBE = (*PART_OF_A_HOST_3D, (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

# GCP, v5e and v6e pages: "supported configurations".
LITE_POD = (*PART_OF_A_HOST_2D, (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))

# JAX, `is_matmul_supported`; libtpu's estimated cycles say the same of v5e and v6e.
NARROW_TYPES_OF_V5_AND_V6 = ("s8", "u8", "s4", "u4", "f8e5m2", "f8e4m3b11fnuz")

_RING_OF_EIGHT_CORES = (0, 1, 2, 3, 6, 7, 4, 5)
_ERROR_IF_NOT_MEASURED = 0.35
"""The error of a rule where nothing has measured it, as large as that of predictions of other generations' rows."""

_RULES_MEASURED_ONCE = frozenset({
    "vector unit", "asynchronous gather", "data-center network", "link to the host", "update of single rows",
    "transposed layouts",
})  # fmt: skip
"""Rules whose constant a single row, profile or step has set, for all generations."""


def order_cores_by_eights(count: int) -> tuple[int, ...]:
    """Blocks of eight cores (2x2 chips with two cores each) one after the other, each as a ring."""
    return tuple(block + core for block in range(0, count, 8) for core in _RING_OF_EIGHT_CORES)


def order_devices_by_eights(shape: Shape, mesh_shape: Sequence[int]) -> tuple[int, ...]:
    """The devices by eights in rings where the minor axis has eight, else as they are numbered."""
    count = prod(mesh_shape)
    return order_cores_by_eights(count) if count == 8 or mesh_shape[-1] == 8 else tuple(range(count))


_RING_OF_2X2 = (0, 1, 3, 2)
_RING_OF_EIGHT = (0, 1, 2, 3, 7, 6, 5, 4)
_RING_OF_4X4 = (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4)


def order_devices_in_rings(shape: Shape, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """A ring through a small block: through 16 chips only where one mesh axis has all of them."""
    count = prod(mesh_shape)
    if shape == (2, 2):
        return _RING_OF_2X2
    if count == 8:
        return _RING_OF_EIGHT
    return _RING_OF_4X4 if shape == (4, 4) and max(mesh_shape) == count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants of the cost model that were measured; the rest is arithmetic on the figures of a chip.

    The defaults are fitted to published timings of all generations and rounded to three digits. The timings, the fit
    and its residuals are in `tests/benchmarks/published`, and a test checks these values against them.

    Attributes:
        link_share: Of a link's usable bandwidth, what transfers between neighbors, rings in both directions, permutes
            and all-to-alls reach.
        one_way_ring_share: The same for a ring of three devices or more that runs in one direction only.
        grid_share: The same for what runs over several axes of the torus at once.
        dma_grid_share: The same for an asynchronous all-gather.
        start_us: Fixed time of a collective that the TensorCore runs.
        permute_start_us: Fixed time of a permute.
        offloaded_start_us: Fixed time of a collective that a SparseCore runs.
        hop_us: Time that each step of a ring, or each link of a route, adds.
        array_us: Time that each further array of a combined collective adds.
        hbm_read_share: Of the HBM bandwidth, what reading reaches.
        hbm_write_share: Of the HBM bandwidth, what writing reaches.
        single_rows_share: Of the HBM bandwidth, what updates reach that write single rows of tiles.
        transposed_share: Of the pace that memory sets, what an operation reaches that turns an array around.
        vector_share: Of the compiler's cycles that are not for memory, what an operation takes that streams its data
            through memory and multiplies no matrices.
        narrow_share: Of the peak for 8-bit types, what a matmul of them reaches at the least.
        dcn_share: Of the data-center network bandwidth, what transfers between slices reach.
        host_share: Of the bandwidth between host and chip, what copies in one direction reach.
        host_both_ways_share: The same while copies in both directions run.
    """

    link_share: float = 0.985
    one_way_ring_share: float = 0.831
    grid_share: float = 0.596
    dma_grid_share: float = 1.0
    start_us: float = 2.87
    permute_start_us: float = 3.29
    offloaded_start_us: float = 10.1
    hop_us: float = 0.885
    array_us: float = 0.057
    hbm_read_share: float = 0.919
    hbm_write_share: float = 0.75
    single_rows_share: float = 0.029
    transposed_share: float = 0.718
    vector_share: float = 0.446
    narrow_share: float = 0.787
    dcn_share: float = 0.335
    host_share: float = 0.903
    host_both_ways_share: float = 0.831


CONSTANTS = Constants()
"""The constants of a generation without any of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Published timings of a generation, and how well they are predicted.

    `tests/benchmarks/published_timings.py --fit` prints these records.

    Attributes:
        constants: The constants of the cost model. A generation has its own where its timings disagree with the others.
        rule_errors: How far each rule of the cost model may be off where it was measured, as a share of the time.
        rules_measured_once: Rules whose constant for this generation a single row, profile or step has set.
        rows: The number of timings.
        median: The median error factor of predictions of rows whose source was left out of the fit, 1 or more.
        worst: The largest of these factors.
    """

    constants: Constants = CONSTANTS
    rule_errors: tuple[tuple[str, float], ...] = ()
    rules_measured_once: tuple[str, ...] = ()
    rows: int = 0
    median: float = 1.0
    worst: float = 1.0

    def is_calibrated(self, rule: str) -> bool:
        """True if a rule was compared with a measurement of this generation."""
        return rule in dict(self.rule_errors)

    def is_measured_once(self, rule: str) -> bool:
        """True if a single measurement has set the constant that a rule rests on."""
        return rule in _RULES_MEASURED_ONCE or rule in self.rules_measured_once

    def error_of(self, rule: str) -> float:
        """The error of the times that a rule gives, as a share of them."""
        return dict(self.rule_errors).get(rule, _ERROR_IF_NOT_MEASURED)


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
class Mark:
    """Text in compiled HLO that only some generations print.

    Attributes:
        text: The text, as the HLO mentions it.
        meaning: The reason that a guess of the generation gives.
    """

    text: str
    meaning: str


VECTOR_MEMORY = Mark(text="S(1)", meaning="it keeps arrays in vector memory between operations")
MEGACORE = Mark(text="megacore_config", meaning="it splits operations over two cores (megacore)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One TPU generation. Figures are per chip unless the name says otherwise; None is "not published".

    Attributes:
        name: The generation as this project prints it, such as `v5e`.
        aliases: Other spellings people write, lower case.
        topology_prefix: The generation in libtpu's topology names, such as `tpu7x` in `tpu7x:2x2x1`.
        device_kind: The value of `jax.Device.device_kind`, such as `TPU v5 lite`.
        name_in_dumps: The version and variant in the `target_arguments.txt` of a dump, such as `VIPERFISH lite`.
        devices_per_chip: JAX devices that one chip shows in that configuration.
        cores_per_chip: TensorCores, which the number in names like `v4-8` counts.
        hbm_bytes: Physical HBM.
        usable_hbm_bytes_per_device: What libtpu lets one program occupy, from the GiB with two decimals that it prints
            when a program does not fit; the rest is reserved by the system.
        hbm_bytes_per_s: HBM bandwidth.
        bf16_flops_per_s: Peak dense bf16 multiply-adds, two operations each.
        int8_ops_per_s: Peak dense int8 operations.
        vmem_bytes: Vector memory of one TensorCore.
        ici_links: Inter-chip links that leave the chip.
        ici_bytes_per_s: Usable bandwidth of one link in one direction.
        wraparound_size: In 2D an axis is closed to a ring when it is exactly this long; in 3D it is the edge of the
            cubes that larger slices are made of, and all axes are closed when all are multiples of it.
        slice_shapes: The blocks one slice may have, smallest first; in 3D those below a full cube.
        max_slice_chips: Chips of the largest single slice.
        max_chips_used_in_part: Chips of the largest slice that a program for fewer devices can be compiled for; None
            for a slice of any size.
        host_bounds: The chips of one host along each axis.
        dcn_bytes_per_s: Data-center network bandwidth.
        pcie_bytes_per_s: Bandwidth between host and chip, one way.
        clock_hz: The clock that turns a schedule's `estimated_cycles` into seconds.
        core_link_bytes_per_s: Bandwidth between the devices of one chip, in one direction.
        f8_flops_per_s: Peak dense multiply-adds of 8-bit floats, two operations each.
        narrow_matmul_types: Types narrower than bf16 whose matmuls run at the pace of the 8-bit figures; all others are
            widened to bf16.
        chip_config_name: The libtpu configuration that Cloud TPU starts the chip in; None for libtpu's default.
        has_sparse_cores: Whether the chip has SparseCores, which run collectives while the TensorCore computes.
        has_wide_scalar_tiles: Whether HLO prints scalars with tiles twice as wide as those of later generations.
        has_bf16_arithmetic: Whether arithmetic in bf16 is done as such; without it, the compiler widens it to f32.
        hlo_marks: Texts that compiled HLO shows on this generation and not on all others.
        order_devices: The order that `jax.make_mesh` has written down by hand for small slices; None for no such order.
        measured: Published timings, and the constants and errors that follow from them.
        calibration: What a profile of the user's own has settled; None where nothing did.
    """

    name: str
    aliases: tuple[str, ...]
    topology_prefix: str
    device_kind: str
    name_in_dumps: str
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
    slice_shapes: tuple[Shape, ...]
    max_slice_chips: int
    max_chips_used_in_part: int | None = None
    host_bounds: tuple[int, int, int] = HOST_BOUNDS
    dcn_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    clock_hz: float
    core_link_bytes_per_s: float | None = None
    f8_flops_per_s: float | None = None
    narrow_matmul_types: tuple[str, ...] = ()
    chip_config_name: str | None = None
    has_sparse_cores: bool
    has_wide_scalar_tiles: bool = False
    has_bf16_arithmetic: bool = False
    hlo_marks: tuple[Mark, ...] = ()
    order_devices: DeviceOrder | None = field(default=None, repr=False)
    measured: Measured = Measured()
    calibration: Calibration | None = None

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names of the generation, its own first."""
        return self.name, *self.aliases

    @property
    def hbm_bytes_per_device(self) -> int:
        """Physical HBM behind one JAX device, in bytes."""
        return self.hbm_bytes // self.devices_per_chip

    @property
    def torus_dimensions(self) -> int:
        """2 or 3 physical axes."""
        return len(self.slice_shapes[0])

    @property
    def is_megacore(self) -> bool:
        """True if several TensorCores are one device."""
        return self.cores_per_chip > self.devices_per_chip
