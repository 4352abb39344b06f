"""The constants of the cost model that were measured, and how well they predict.

Everything else in the model is arithmetic on the figures in `hardware/`. The rows are published timings; the programs,
the fit and its residuals are in `tests/benchmarks/published`, and a test checks these tables against them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from hloscope.analysis.model.step_time import Spread
from hloscope.errors import SliceError, did_you_mean
from hloscope.hardware.chips import Calibration

MODEL_VERSION = 1
"""Rises with each change after which steps are predicted otherwise: steps of two versions are not compared.

A test holds the predicted steps of the fixtures against it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What was measured; the values are fitted to all rows and rounded to three digits.

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

OF_GENERATION: dict[str, dict[str, float]] = {
    "v5p": {"one_way_ring_share": 1.067, "start_us": 5.41},
    "v6e": {"one_way_ring_share": 1.067},
}
"""The constants that a generation has for itself, because its own rows say otherwise than those of the others."""


def constants_of(chip_name: str) -> Constants:
    """The constants that hold for a generation."""
    return replace(CONSTANTS, **OF_GENERATION.get(chip_name, {}))


_ERRORS: dict[str, dict[str, float]] = {
    "v5e": {
        "cycles": 0.08,
        "ring in one direction": 0.079,
        "pair": 0.04,
        "ring in both directions": 0.111,
        "all-to-all": 0.17,
        "permute": 0.126,
        "vector unit": 0.17,
        "memory": 0.042,
    },
    "v2": {"cycles": 0.04},
    "v6e": {"cycles": 0.116, "memory": 0.064, "rings along several axes": 0.17, "pair": 0.04, "8-bit matmul": 0.17},
    "v7x": {"cycles": 0.102, "ring in both directions": 0.072},
    "v5p": {"rings along several axes": 0.17, "cycles": 0.059, "memory": 0.04, "permute": 0.054},
}
"""How far each rule may be off on the generations where it was measured, from the same rows; a share of the time."""

_NOT_MEASURED = 0.35
"""How far a rule may be off where it was not: what predictions of other generations' rows were."""

_SPREADS: dict[str, Spread] = {
    "v5e": Spread(rows=37, median=1.018, worst=1.146),
    "v2": Spread(rows=1, median=1.01, worst=1.01),
    "v6e": Spread(rows=12, median=1.047, worst=1.19),
    "v7x": Spread(rows=4, median=1.052, worst=1.069),
    "v5p": Spread(rows=15, median=1.045, worst=1.191),
}
"""Predictions of rows whose source was left out of the fit, from `tests/benchmarks/published/residuals.json`."""


def is_calibrated(chip_name: str, rule: str) -> bool:
    """Whether a rule was compared with a measurement of this generation."""
    return rule in _ERRORS.get(chip_name, {})


_MEASURED_ONCE = frozenset({
    "vector unit", "asynchronous gather", "data-center network", "link to the host", "update of single rows",
    "transposed layouts",
})  # fmt: skip
_MEASURED_ONCE_ON = dict.fromkeys(("v5p", "v6e"), frozenset({"ring in one direction", "ring round a closed axis"}))
"""Rules whose constant a single row, profile or step has set; on some generations, which have one of their own."""


def is_measured_once(chip_name: str, rule: str) -> bool:
    """Whether a single measurement has set the constant that a rule rests on."""
    return rule in _MEASURED_ONCE | _MEASURED_ONCE_ON.get(chip_name, frozenset())


def error_of(chip_name: str, rule: str) -> float:
    """How far the times that a rule gives may be off on a generation, as a share of them."""
    return _ERRORS.get(chip_name, {}).get(rule, _NOT_MEASURED)


def spread_of(chip_name: str) -> Spread | None:
    """How far predictions were off for a generation; None where there is no measurement."""
    return _SPREADS.get(chip_name)


def with_measured(constants: Constants, calibration: Calibration | None) -> Constants:
    """The constants, with those in their place that a profile of the user's own has settled.

    Raises:
        SliceError: There is no such constant.
    """
    if calibration is None:
        return constants
    known = [each.name for each in fields(Constants)]
    for name, _ in calibration.constants:
        if name not in known:
            raise SliceError(
                f"{name} is not a constant of the cost model",
                where=calibration.file,
                fix=did_you_mean(name, known, f"they are {', '.join(known)}"),
            )
    return replace(constants, **dict(calibration.constants))
