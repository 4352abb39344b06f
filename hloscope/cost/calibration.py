"""Which rules were compared with measurements of which generation, and how well that went."""

from __future__ import annotations

from hloscope.analysis.model.step_time import Spread

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
