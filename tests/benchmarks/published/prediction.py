"""Predictions of the rows with given constants, and the fit of the constants to the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np
from published.compiled import compiled
from published.rows import COLLECTIVE, Row

from hloscope.analysis.analyze import analyze_module
from hloscope.cost.price import price_module
from hloscope.cost.records import TimeBasis
from hloscope.hlo import HloModule, parse_module
from hloscope.model import Analysis, Mesh
from hloscope.tpu import Slice, parse_slice
from hloscope.tpu.chips import CHIPS
from hloscope.tpu.generation import CONSTANTS, Constants
from hloscope.tpu.slices import override_chip

PRIOR = Constants(
    link_share=0.95,
    one_way_ring_share=0.9,
    grid_share=0.9,
    dma_grid_share=1.0,
    start_us=3.0,
    permute_start_us=3.0,
    offloaded_start_us=5.0,
    hop_us=1.0,  # the scaling book
    array_us=0.03,
    hbm_read_share=0.9,
    hbm_write_share=0.8,
    vector_share=0.5,
    narrow_share=0.75,  # the least that bf16 matmuls of 8192 and more reach on v6e
    dcn_share=0.9,
)
"""What one would guess before any measurement."""

PRIOR_WIDTH = {
    "link_share": 0.05,
    "one_way_ring_share": 0.2,
    "grid_share": 0.2,
    "dma_grid_share": 0.2,
    "start_us": 0.4,
    "permute_start_us": 0.4,
    "offloaded_start_us": 1.0,
    "hop_us": 0.3,
    "array_us": 1.0,
    "hbm_read_share": 0.1,
    "hbm_write_share": 0.1,
    "vector_share": 0.3,
    "narrow_share": 0.05,
    "dcn_share": 0.5,
    "v5p.start_us": 0.7,
}
"""How sure one would be of it: standard deviations of the logarithms.

Of a constant that a generation has for itself, how far it may be from that of all others.
"""

NAMES = tuple(PRIOR_WIDTH)

BY_HAND = {
    "host_share": 0.903,
    "host_both_ways_share": 0.831,
    "single_rows_share": 0.029,
    "transposed_share": 0.718,
    "v5p.one_way_ring_share": 1.067,
    "v6e.one_way_ring_share": 1.067,
}
"""Constants that no row sets: those of operations of a profile, and of a whole step whose text is not kept here."""

CLOCKS = {"v5e": ("seed", 1.494e9), "v7x": ("recipes", 2.03e9)}
"""The clocks in the chip table that a source's rows set, and what the matmuls of the other sources say."""

FLOOR = 0.02
"""The error that the model itself is granted, besides a row's own uncertainty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A row, and what is predicted for it, with its range."""

    row: Row
    predicted_us: float
    least_us: float
    most_us: float

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


Table = Mapping[str, float]
"""Constants by name; those of one generation with its name before them, as in `v5p.start_us`."""


def shipped_table() -> Table:
    """The constants that ship."""
    own = {chip.name: own_constants(chip.measured.constants) for chip in CHIPS}
    named = {f"{chip}.{name}": value for chip, found in own.items() for name, value in found.items()}
    return {**asdict(CONSTANTS), **named}


def own_constants(constants: Constants) -> dict[str, float]:
    """The constants of a generation that differ from those of all others."""
    return {name: value for name, value in asdict(constants).items() if value != getattr(CONSTANTS, name)}


def constants_in(table: Table, generation: str) -> Constants:
    """The constants of a table that hold for a generation."""
    base = {name: value for name, value in table.items() if "." not in name}
    prefix = f"{generation}."
    own = {name.removeprefix(prefix): value for name, value in table.items() if name.startswith(prefix)}
    return Constants(**{**base, **own})


def measured_by(table: Table, chosen: Slice) -> Slice:
    """A slice whose chip has the constants of a table."""
    chip = chosen.chip
    assert chip is not None
    measured = replace(chip.measured, constants=constants_in(table, chip.name))
    return replace(chosen, chip=replace(chip, measured=measured))


def priced(row: Row, table: Table, *, own_source: bool = True) -> Analysis:
    """A row's analysis with times.

    Args:
        row: The row.
        table: What was measured.
        own_source: Whether the chip's clock may be the one that this row's source set.
    """
    module, analysis, device_ids = parsed(row.name)
    chosen = parse_slice(row.slice)
    if not own_source and CLOCKS.get(row.generation, ("", 0.0))[0] == row.source:
        chosen = override_chip(chosen, [f"clock_hz={CLOCKS[row.generation][1]}"])
    chosen = measured_by(table, chosen)
    return price_module(analysis, module, chosen, device_ids=device_ids)


def predict(row: Row, table: Table, *, own_source: bool = True) -> Prediction:
    """The time that was measured, as the model sees it."""
    found = priced(row, table, own_source=own_source)
    if row.timed == COLLECTIVE:
        longest = max(found.collectives, key=lambda collective: collective.time_us or 0.0)
        time_us, error = longest.time_us or 0.0, longest.time_error or 0.0
        return Prediction(row=row, predicted_us=time_us, least_us=time_us * (1 - error), most_us=time_us * (1 + error))
    time = found.time
    assert time is not None
    return Prediction(row=row, predicted_us=time.step_us, least_us=time.least_us, most_us=time.most_us)


def rule_of(row: Row) -> str:
    """The rule that most of a row's time rests on."""
    return _rule_of(row.name)


@cache
def _rule_of(name: str) -> str:
    from published.compiled import row_named

    row = row_named(name)
    found = priced(row, shipped_table())
    assert found.time is not None
    kinds = {basis.value for basis in TimeBasis}
    asked = [use for use in found.time.rules if row.timed != COLLECTIVE or use.rule not in kinds]
    return max(asked, key=lambda use: use.time_us).rule


_PHENOMENA = {"8-bit matmul": "cycles", "vector unit": "memory"}
"""Rules that price what another one prices too: matmuls of narrow types, and what streams through memory."""


def phenomenon_of(row: Row) -> tuple[str, str]:
    """What a row measures: the generation, and the rule or those that go with it."""
    rule = rule_of(row)
    return row.generation, _PHENOMENA.get(rule, rule)


def fit(rows: Sequence[Row], rounds: int = 5) -> Table:
    """The constants that predict some rows best, in the least-squares sense on logarithms, held by the prior.

    Gauss-Newton on the logarithms of the constants: a row weighs by its own uncertainty and the model's. What a
    generation has for itself is fitted as its distance from the constant of all others.
    """
    rows = setting(rows)
    width = np.array([PRIOR_WIDTH[name] for name in NAMES])
    prior = np.array([0.0 if "." in name else math.log(getattr(PRIOR, name)) for name in NAMES])
    logs, weight = prior.copy(), np.array([1 / math.hypot(row.uncertainty, FLOOR) for row in rows])
    for _ in range(rounds):
        errors = _errors(rows, logs)
        columns = [weight * (_errors(rows, logs + 1e-3 * unit) - errors) / 1e-3 for unit in np.eye(len(logs))]
        slope = np.vstack([np.array(columns).T, np.diag(1 / width)])
        target = -np.concatenate([weight * errors, (logs - prior) / width])
        logs = logs + np.linalg.lstsq(slope, target, rcond=None)[0]
        limits = np.array([0.0 if name.endswith("_share") and "." not in name else np.inf for name in NAMES])
        logs = np.minimum(logs, limits)
    return _table(logs)


def setting(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows that constants are fitted to: those beyond the required ones set only what no other row measures.

    They are doubtful in themselves, such as a matmul of 6 us, of which a fixed cost that nobody knows may be a part.
    """
    required = {rule_of(row) for row in rows if not row.extra}
    return tuple(row for row in rows if not row.extra or rule_of(row) not in required)


def _table(logs: np.ndarray) -> Table:
    base = {name: float(np.exp(value)) for name, value in zip(NAMES, logs, strict=True) if "." not in name}
    own = {
        name: base[name.partition(".")[2]] * float(np.exp(value))
        for name, value in zip(NAMES, logs, strict=True)
        if "." in name
    }
    return {**base, **own, **BY_HAND}


def _errors(rows: Sequence[Row], logs: np.ndarray) -> np.ndarray:
    table = _table(logs)
    return np.array([math.log(predict(row, table).ratio) for row in rows])
