"""Predictions of the rows with given constants, and the fit of the constants to the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from published.compiled import compiled
from published.rows import COLLECTIVE, Row

from hloscope.analysis.analyze import analyze_module
from hloscope.analysis.model import Analysis, Mesh
from hloscope.cost.constants import CONSTANTS, Constants
from hloscope.cost.price import price_module
from hloscope.hardware import parse_slice
from hloscope.hardware.overrides import overridden
from hloscope.hlo import HloModule, parse_module

PRIOR = Constants(
    link_share=0.95,
    one_way_ring_share=0.9,
    grid_share=0.9,
    start_us=3.0,
    offloaded_start_us=5.0,
    hop_us=1.0,  # the scaling book
    hbm_share=0.9,
    dcn_share=0.9,
)
"""What one would guess before any measurement."""

PRIOR_WIDTH = {
    "link_share": 0.05,
    "one_way_ring_share": 0.2,
    "grid_share": 0.2,
    "start_us": 0.4,
    "offloaded_start_us": 1.0,
    "hop_us": 0.3,
    "hbm_share": 0.1,
    "dcn_share": 0.5,
}
"""How sure one would be of it: standard deviations of the logarithms."""

NAMES = tuple(PRIOR_WIDTH)

CLOCKS = {"v5e": ("seed", 1.503e9), "v7x": ("recipes", 2.2e9)}
"""The clocks in the chip table that a source's rows set, and what peak FLOP/s over the matrix units' size would say."""

FLOOR = 0.02
"""The error that the model itself is granted, besides a row's own uncertainty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A row and what is predicted for it."""

    row: Row
    predicted_us: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_us / self.row.measured_us

    @property
    def factor(self) -> float:
        """How far off, either way: 1 or more."""
        return max(self.ratio, 1 / self.ratio)


@cache
def parsed(row_name: str) -> tuple[HloModule, Analysis, tuple[int, ...] | None]:
    """A row's module, its analysis and its devices."""
    from published.compiled import row_named

    found = compiled(row_named(row_name))
    mesh = None
    if found.mesh is not None:
        mesh = Mesh(
            axis_names=tuple(found.mesh), axis_sizes=tuple(found.mesh.values()), partition_ids=found.partition_ids
        )
    module = parse_module(found.text, name=row_name)
    chosen = parse_slice(row_named(row_name).slice)
    per_slice = chosen.devices_per_slice if chosen.slice_count > 1 else None
    analysis = analyze_module(module, target=row_name, mesh=mesh, devices_per_slice=per_slice)
    return module, analysis, found.device_ids


def priced(row: Row, constants: Constants = CONSTANTS, *, own_source: bool = True) -> Analysis:
    """A row's analysis with times.

    Args:
        row: The row.
        constants: What was measured.
        own_source: Whether the chip's clock may be the one that this row's source set.
    """
    module, analysis, device_ids = parsed(row.name)
    chosen = parse_slice(row.slice)
    if not own_source and CLOCKS.get(row.generation, ("", 0.0))[0] == row.source:
        chosen = overridden(chosen, [f"clock_hz={CLOCKS[row.generation][1]}"])
    return price_module(analysis, module, chosen, device_ids=device_ids, constants=constants)


def predict(row: Row, constants: Constants = CONSTANTS, *, own_source: bool = True) -> Prediction:
    """The time that was measured, as the model sees it."""
    found = priced(row, constants, own_source=own_source)
    if row.timed == COLLECTIVE:
        (collective,) = found.collectives
        assert collective.time_us is not None
        return Prediction(row=row, predicted_us=collective.time_us)
    assert found.time is not None
    return Prediction(row=row, predicted_us=found.time.step_us)


def fit(rows: Sequence[Row], rounds: int = 6) -> Constants:
    """The constants that predict some rows best, in the least-squares sense on logarithms, held by the prior.

    Gauss-Newton on the logarithms of the constants: a row weighs by its own uncertainty and the model's.
    """
    logs = np.log([getattr(PRIOR, name) for name in NAMES])
    prior, width = logs.copy(), np.array([PRIOR_WIDTH[name] for name in NAMES])
    weight = np.array([1 / math.hypot(row.uncertainty, FLOOR) for row in rows])
    for _ in range(rounds):
        residual = weight * _errors(rows, logs)
        columns = [
            weight * (_errors(rows, logs + 1e-4 * unit) - _errors(rows, logs)) / 1e-4 for unit in np.eye(len(logs))
        ]
        slope = np.vstack([np.array(columns).T, np.diag(1 / width)])
        target = -np.concatenate([residual, (logs - prior) / width])
        logs = logs + np.linalg.lstsq(slope, target, rcond=None)[0]
        logs = np.minimum(logs, np.log([_LIMIT.get(name, np.inf) for name in NAMES]))
    return Constants(**dict(zip(NAMES, (float(value) for value in np.exp(logs)), strict=True)))


_LIMIT = {"link_share": 1.0, "one_way_ring_share": 1.0, "grid_share": 1.0, "hbm_share": 1.0, "dcn_share": 1.0}


def _errors(rows: Sequence[Row], logs: np.ndarray) -> np.ndarray:
    constants = replace(PRIOR, **dict(zip(NAMES, (float(value) for value in np.exp(logs)), strict=True)))
    return np.array([math.log(predict(row, constants).ratio) for row in rows])
