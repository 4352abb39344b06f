"""The spread of right runs of one program, by element, and its meaning for another run. Does not use JAX.

A spread is made from runs of the reference with values moved by rounding. Elements are judged in groups of one
magnitude: values that cancelled to nearly zero have errors of the size of their terms, unlike those always small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from hloscope.verification.differences import as_double, as_wide, compute_errors

Region = tuple[slice, ...]

LEAST_ELEMENTS = 32
"""The least elements for a statement about a whole array; fewer are judged one by one."""

_ENOUGH, _ZEROS, _NEAR = 64, -10_000, 2
"""Elements of one magnitude that are enough to say how far they move; the magnitude of zero; how many magnitudes below
count where they are fewer: what cancelled further says of its own error, and not of what larger elements are off by."""

_ENOUGH_FOR_SUMS = 2**18
"""The most elements of a run for which its lean and scale are measured."""

_OUTLIER = 16
"""An element that moves this many times the usual for its magnitude depends on a decision, such as an index."""

_SAFETY, _SMALL_SAMPLES = 1.5, 6.0
"""An element may be off by `1.5 + 6 / sqrt(samples)` times the largest move of its magnitude that was seen."""

SCALE_SAFETY, _RATIO_SAFETY, _OFFSET_SAFETY = 2.0, 1.5, 2.0
"""The multiples of the measured values that rounding still explains."""

_ONE_WAY = 0.9
"""The least share of the differing elements with the same sign that counts as one-sided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundingSpread:
    """The effect of rounding on one output of a program.

    Attributes:
        expected: The output.
        allowed: The allowed error of each element in a right program.
        typical: For each element, the root mean square error of the elements of its magnitude.
        unstable: Elements that depend on a decision that rounding can change.
        unit: Unit roundoff of the narrowest stored type on the output's path.
        scale: The largest root mean square of a run's errors, each in units of `typical`.
        ratio: The largest distance from 1 of the ratio of a run to the output, over all regions.
        offset: The largest distance from 0 of the mean error of a run, in units of `typical`, over all regions.
    """

    expected: Any
    allowed: Any
    typical: Any
    unstable: Any
    unit: float
    scale: float = 1.0
    ratio: float = 0.0
    offset: float = 0.0

    def around(self, expected: Any) -> RoundingSpread:
        """The same spread around another right run of the program."""
        return replace(self, expected=as_wide(expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """The lean of a run's errors: `ratio` of the run to the expected values, `offset` in typical errors."""

    ratio: float
    offset: float
    one_way: float
    constant: bool


def measure_spread(expected: Any, runs: Sequence[Any], regions: Sequence[Region], *, unit: float) -> RoundingSpread:
    """Measures a spread.

    Args:
        expected: The output of the program itself.
        runs: The same output of runs with moved values.
        regions: The parts of it on each device.
        unit: Unit roundoff of the narrowest stored type on the output's path.
    """
    exact, expected = np.asarray(expected), as_wide(expected)
    largest = np.zeros(expected.shape, expected.real.dtype)
    for run in runs:
        np.maximum(largest, np.abs(compute_errors(as_wide(run), expected)), out=largest)
    if exact.dtype.kind in "iub":
        nothing = np.zeros(expected.shape)
        allowed, typical, unstable = nothing, nothing, largest > 0
    else:
        allowed, typical, unstable = _measure_elements(expected, runs, largest)
        floor = _find_floor(exact, expected)
        allowed, typical = np.maximum(allowed, floor), np.maximum(typical, floor / 2)
    blank = RoundingSpread(expected=expected, allowed=allowed, typical=typical, unstable=unstable, unit=unit)
    leans = [found for run in runs for part in regions if (found := measure_lean(blank, np.asarray(run)[part], part))]
    return replace(
        blank,
        scale=max((compute_scale(blank, run) or 0.0 for run in runs), default=0.0),
        ratio=max((abs(found.ratio - 1) for found in leans), default=0.0),
        offset=max((abs(found.offset) for found in leans), default=0.0),
    )


def _measure_elements(expected: Any, runs: Sequence[Any], largest: Any) -> tuple[Any, Any, Any]:
    """The allowed and typical error of each element, and the unstable elements."""
    groups = _group_by_magnitude(expected)
    order = np.argsort(groups, axis=None, kind="stable")
    arranged = groups.ravel()[order]
    bounds = [0, *(np.flatnonzero(arranged[1:] != arranged[:-1]) + 1), arranged.size] if arranged.size else [0]
    inside = {int(arranged[start]): order[start:end] for start, end in pairwise(bounds)}
    limits, typical, safety = (np.zeros(1 + max(inside, default=_ZEROS) - _ZEROS, largest.dtype) for _ in range(3))
    for group in inside:
        at = group - _ZEROS
        limits[at], typical[at], safety[at] = _measure_pool(
            _select_pool(group, inside), largest.ravel(), expected.ravel(), runs
        )
    places = groups - _ZEROS
    unstable = largest > limits[places]
    return safety[places] * np.where(unstable, largest, limits[places]), typical[places], unstable


def _select_pool(group: int, inside: Mapping[int, Any]) -> list[tuple[Any, float]]:
    """The elements that are measured for one magnitude, each part with the weight of its moves.

    If they are few, the next magnitudes are included: the moves of larger elements count fully,
    and those of smaller elements in proportion.
    """
    pool, elements = [(inside[group], 1.0)], len(inside[group])
    for near in sorted(inside, key=lambda near: abs(near - group))[1:]:
        if elements < _ENOUGH and near > _ZEROS and group - near <= _NEAR:
            pool.append((inside[near], 2.0 ** max(0, group - near)))
            elements += len(inside[near])
    return pool


def _measure_pool(
    pool: Sequence[tuple[Any, float]], largest: Any, expected: Any, runs: Sequence[Any]
) -> tuple[float, float, float]:
    """The largest and the typical move of elements of one magnitude, and the safety factor of the largest."""
    furthest = max(float(largest[places].max()) * weight for places, weight in pool)
    drawn = [(places[_draw_places(len(places))], weight) for places, weight in pool]
    places = np.concatenate([part for part, _ in drawn])
    weights = np.concatenate([np.full(len(part), weight) for part, weight in drawn])
    moves = largest[places] * weights
    moved = moves[moves > 0]
    limit = min(furthest, _OUTLIER * float(np.median(moved))) if moved.size else 0.0
    usual, weights = places[moves <= limit], weights[moves <= limit]
    squares = [
        np.mean(np.square(np.abs(compute_errors(as_wide(np.ravel(run)[usual]), expected[usual])) * weights))
        for run in runs
        if usual.size and limit
    ]
    elements = sum(len(part) for part, _ in pool)
    return (
        limit,
        sqrt(float(np.mean(squares))) if squares else 0.0,
        _SAFETY + _SMALL_SAMPLES / sqrt(len(runs) * elements),
    )


def compute_scale(spread: RoundingSpread, found: Any) -> float | None:
    """The root mean square of a run's errors in units of the typical ones; None if too little is known."""
    errors = _draw_errors(spread, found)
    return None if errors is None else float(sqrt(np.mean(np.square(np.abs(errors[0])))))


def count_beyond(spread: RoundingSpread, found: Any, times: float) -> int:
    """The number of elements of another run with errors above a multiple of the allowed ones.

    If rounding changes decisions, as many elements as were seen to depend on them may differ without being counted.
    """
    if np.shape(found) != spread.expected.shape:
        return int(spread.expected.size)
    errors = np.where(spread.unstable, 0.0, np.abs(compute_errors(as_wide(found), spread.expected)))
    differing = int(np.count_nonzero(errors > times * spread.allowed))
    return differing if differing > np.count_nonzero(spread.unstable) else 0


def measure_lean(spread: RoundingSpread, found: Any, region: Region) -> Lean | None:
    """The lean of a run's errors in one region with values `found`; None if too little is known."""
    drawn = _draw_errors(spread, found, region)
    if drawn is None or np.iscomplexobj(drawn[0]):
        return None
    errors, scaled = drawn
    size = float(np.dot(scaled, scaled))
    if not size:
        return None
    ratio = 1 + float(np.dot(scaled, errors)) / size
    differing = np.count_nonzero(errors)
    positive = max(np.count_nonzero(errors > 0), np.count_nonzero(errors < 0))
    rest = errors - (ratio - 1) * scaled
    return Lean(
        ratio=ratio,
        offset=float(errors.mean()),
        one_way=positive / differing if differing else 0.0,
        constant=float(np.square(rest).sum()) < 0.1 * float(np.square(errors).sum()),
    )


def has_ratio(spread: RoundingSpread, found: Lean) -> bool:
    """Returns whether a run's elements are a multiple of the expected ones, beyond what rounding explains."""
    return abs(found.ratio - 1) > compute_explained_ratio(spread)


def compute_explained_ratio(spread: RoundingSpread) -> float:
    """The explained distance of a ratio from 1: the measured one, and one rounded factor of a whole array."""
    return _RATIO_SAFETY * spread.ratio + max(spread.unit, 2.0**-21)


def is_one_sided(spread: RoundingSpread, found: Lean, elements: int) -> bool:
    """Returns whether a run's errors point in one direction more than the measured ones."""
    by_chance = 6 / sqrt(elements)
    return found.one_way > _ONE_WAY and abs(found.offset) > _OFFSET_SAFETY * spread.offset + by_chance + 0.25


def find_regions(shape: tuple[int, ...], regions: Sequence[Region]) -> list[Region]:
    """The whole array, and the part of each device, once."""
    everything = tuple(slice(0, size) for size in shape)
    unlike = {tuple((part.start, part.stop) for part in region): region for region in (everything, *regions)}
    return list(unlike.values())


def _draw_errors(spread: RoundingSpread, found: Any, region: Region = ()) -> tuple[Any, Any] | None:
    """The errors of a region's elements, and the elements, in typical errors; None if these are too few.

    Of many elements some are drawn: sums over a quarter of a million say as much as sums over more.
    """
    expected, typical, unstable = spread.expected[region], spread.typical[region], spread.unstable[region]
    drawn = _draw_places(expected.size)
    place = np.unravel_index(drawn, expected.shape) if isinstance(drawn, np.ndarray) else ()
    found, expected, typical = (np.ravel(array[place]) for array in (np.asarray(found), expected, typical))
    found, expected = as_double(found), as_double(expected)
    use = np.isfinite(expected) & np.isfinite(found) & (typical > 0) & ~np.ravel(unstable[place])
    if np.count_nonzero(use) < LEAST_ELEMENTS:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return (found[use] - expected[use]) / typical[use], expected[use] / typical[use]


def _draw_places(elements: int) -> Any:
    """The positions of the elements that represent all of them."""
    if elements <= _ENOUGH_FOR_SUMS:
        return slice(None)
    return np.random.default_rng(0).integers(elements, size=_ENOUGH_FOR_SUMS)


def _group_by_magnitude(expected: Any) -> Any:
    """A number for the magnitude of each element: a factor of two per group, with zeros and non-finite values."""
    sizes = np.abs(expected)
    exponents = np.frexp(sizes)[1].astype(np.int16)
    return np.where(np.isfinite(sizes) & (sizes > 0), exponents, np.int16(_ZEROS))


def _find_floor(exact: Any, expected: Any) -> Any:
    """A unit of single precision, for exact results of the reference; none for a narrow type."""
    dtype = np.asarray(exact).dtype
    unit = 2.0**-52 if (dtype.itemsize >= 8 and dtype.kind == "f") or dtype.itemsize >= 16 else 2.0**-23
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(expected), unit * np.abs(expected), 0.0)
