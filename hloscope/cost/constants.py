"""The constants of the cost model that were measured, and how well they predict.

Everything else in the model is arithmetic on the figures in `hardware/`. The rows are published timings; the programs,
the fit and its residuals are in `tests/benchmarks/published`, and a test checks these tables against them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.model.step_time import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What was measured; the values are fitted to all rows and rounded to three digits.

    Attributes:
        link_share: Of a link's usable bandwidth, what transfers between neighbours, rings in both directions, permutes
            and all-to-alls reach.
        one_way_ring_share: The same for a ring of three devices or more that runs in one direction only.
        grid_share: The same for an all-reduce over several axes of the torus at once.
        start_us: Fixed time of a collective that the TensorCore runs.
        offloaded_start_us: Fixed time of a collective that a SparseCore runs.
        hop_us: Time that each step of a ring, or each link of a route, adds.
        hbm_share: Of the HBM bandwidth, what copies reach.
        dcn_share: Of the data-centre network bandwidth, what transfers between slices reach.
    """

    link_share: float = 1.0  # at its upper limit: the figure in the chip table is the usable bandwidth
    one_way_ring_share: float = 0.83
    grid_share: float = 0.661
    start_us: float = 2.64
    offloaded_start_us: float = 12.1
    hop_us: float = 0.936
    hbm_share: float = 0.832
    dcn_share: float = 0.335


CONSTANTS = Constants()

_RULES: dict[str, frozenset[str]] = {
    "v2": frozenset({"cycles"}),
    "v5e": frozenset({
        "cycles", "pair", "ring in one direction", "ring in both directions", "permute", "all-to-all",
    }),
    "v6e": frozenset({"cycles", "memory", "rings along several axes", "data-centre network"}),
    "v7x": frozenset({"cycles", "ring in both directions"}),
}  # fmt: skip
"""The rules that the measured programs of a generation use."""

_SPREADS: dict[str, Spread] = {
    "v2": Spread(rows=1, median=1.01, worst=1.01),
    "v5e": Spread(rows=21, median=1.016, worst=1.146),
    "v6e": Spread(rows=3, median=1.107, worst=1.362),
    "v7x": Spread(rows=3, median=1.136, worst=1.144),
}
"""Predictions of rows whose source was left out of the fit, from `tests/benchmarks/published/residuals.json`."""


def is_calibrated(chip_name: str, rule: str) -> bool:
    """Whether a rule was compared with a measurement of this generation."""
    return rule in _RULES.get(chip_name, frozenset())


def spread_of(chip_name: str) -> Spread | None:
    """How far predictions were off for a generation; None where there is no measurement."""
    return _SPREADS.get(chip_name)
