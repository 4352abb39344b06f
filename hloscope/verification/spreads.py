"""The spread of correct runs of one program, by element, and what it implies for another run. Does not use JAX.

A spread is made from runs of the reference with its values moved by rounding. Elements are judged in groups of one
magnitude: what cancelled to nearly zero has errors of the size of its terms, and what was small from the start has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from hloscope.verification.differences import as_double, as_wide, errors_between

Region = tuple[slice, ...]

LEAST_ELEMENTS = 32
"""Elements that a statement about all of an array needs; fewer are judged one by one."""

_ENOUGH, _ZEROS, _NEAR = 64, -10_000, 2
"""Elements of one magnitude that are enough to say how far they move; the magnitude of zero; how many magnitudes below
count where they are fewer: what cancelled further says of its own error, and not of what larger elements are off by."""

_ENOUGH_FOR_SUMS = 2**18
"""Elements of a run that its lean and scale are measured on at most."""

_OUTLIER = 16
"""An element that moves so many times as far as is usual for its magnitude hangs on a decision, such as an index."""

_SAFETY, _SMALL_SAMPLES = 1.5, 6.0
"""An element may be off by `1.5 + 6 / sqrt(samples)` times the largest move of its magnitude that was seen."""

SCALE_SAFETY, _RATIO_SAFETY, _OFFSET_SAFETY = 2.0, 1.5, 2.0
"""How many times what was measured is still explained by rounding."""

_ONE_WAY = 0.9
"""The share of the elements that differ that must do so in the same direction to be called one-sided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """What rounding does to one output of a program.

    Attributes:
        expected: The output.
        allowed: For each element, how far a right program may be off.
        typical: For each element, the root mean square of what elements of its magnitude are off by.
        unstable: Elements that hang on a decision that rounding can tip.
        unit: Unit roundoff of the narrowest type that is stored on the output's path.
        scale: The largest root mean square of a run's errors, each in units of `typical`.
        ratio: How far the ratio of a run to the output was from 1 at most, over all regions.
        offset: How far the mean error of a run, in units of `typical`, was from 0 at most, over all regions.
    """

    expected: Any
    allowed: Any
    typical: Any
    unstable: Any
    unit: float
    scale: float = 1.0
    ratio: float = 0.0
    offset: float = 0.0

    def around(self, expected: Any) -> Spread:
        """The same spread around another right run of the program."""
        return replace(self, expected=as_wide(expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """How a run's errors lean: `ratio` of the run to what was expected, `offset` in units of what is typical."""

    ratio: float
    offset: float
    one_way: float
    constant: bool


def spread_of(expected: Any, runs: Sequence[Any], regions: Sequence[Region], *, unit: float) -> Spread:
    """Measures a spread.

    Args:
        expected: The output of the program itself.
        runs: The same output of runs with its values moved.
        regions: Parts of it that lie on one device each.
        unit: Unit roundoff of the narrowest type that is stored on the output's path.
    """
    exact, expected = np.asarray(expected), as_wide(expected)
    largest = np.zeros(expected.shape, expected.real.dtype)
    for run in runs:
        np.maximum(largest, np.abs(errors_between(as_wide(run), expected)), out=largest)
    if exact.dtype.kind in "iub":
        nothing = np.zeros(expected.shape)
        allowed, typical, unstable = nothing, nothing, largest > 0
    else:
        allowed, typical, unstable = _measured(expected, runs, largest)
        floor = _floor(exact, expected)
        allowed, typical = np.maximum(allowed, floor), np.maximum(typical, floor / 2)
    blank = Spread(expected=expected, allowed=allowed, typical=typical, unstable=unstable, unit=unit)
    leans = [found for run in runs for part in regions if (found := lean(blank, np.asarray(run)[part], part))]
    return replace(
        blank,
        scale=max((scale_of(blank, run) or 0.0 for run in runs), default=0.0),
        ratio=max((abs(found.ratio - 1) for found in leans), default=0.0),
        offset=max((abs(found.offset) for found in leans), default=0.0),
    )


def _measured(expected: Any, runs: Sequence[Any], largest: Any) -> tuple[Any, Any, Any]:
    """What is allowed and typical for each element, and which are unstable."""
    groups = _groups(expected)
    order = np.argsort(groups, axis=None, kind="stable")
    arranged = groups.ravel()[order]
    bounds = [0, *(np.flatnonzero(arranged[1:] != arranged[:-1]) + 1), arranged.size] if arranged.size else [0]
    inside = {int(arranged[start]): order[start:end] for start, end in pairwise(bounds)}
    limits, typical, safety = (np.zeros(1 + max(inside, default=_ZEROS) - _ZEROS, largest.dtype) for _ in range(3))
    for group in inside:
        at = group - _ZEROS
        limits[at], typical[at], safety[at] = _measure(_pool(group, inside), largest.ravel(), expected.ravel(), runs)
    places = groups - _ZEROS
    unstable = largest > limits[places]
    return safety[places] * np.where(unstable, largest, limits[places]), typical[places], unstable


def _pool(group: int, inside: Mapping[int, Any]) -> list[tuple[Any, float]]:
    """The elements that are measured for those of one magnitude, each part with what its moves count for.

    Where they are few, these are the next magnitudes as well: their moves count for as much as they are where they are
    those of larger elements, and in proportion where they are those of smaller ones.
    """
    pool, elements = [(inside[group], 1.0)], len(inside[group])
    for near in sorted(inside, key=lambda near: abs(near - group))[1:]:
        if elements < _ENOUGH and near > _ZEROS and group - near <= _NEAR:
            pool.append((inside[near], 2.0 ** max(0, group - near)))
            elements += len(inside[near])
    return pool


def _measure(
    pool: Sequence[tuple[Any, float]], largest: Any, expected: Any, runs: Sequence[Any]
) -> tuple[float, float, float]:
    """How far elements of one magnitude move at most, what is typical, and how many times the former is allowed."""
    furthest = max(float(largest[places].max()) * weight for places, weight in pool)
    drawn = [(places[_drawn_places(len(places))], weight) for places, weight in pool]
    places = np.concatenate([part for part, _ in drawn])
    weights = np.concatenate([np.full(len(part), weight) for part, weight in drawn])
    moves = largest[places] * weights
    moved = moves[moves > 0]
    limit = min(furthest, _OUTLIER * float(np.median(moved))) if moved.size else 0.0
    usual, weights = places[moves <= limit], weights[moves <= limit]
    squares = [
        np.mean(np.square(np.abs(errors_between(as_wide(np.ravel(run)[usual]), expected[usual])) * weights))
        for run in runs
        if usual.size and limit
    ]
    elements = sum(len(part) for part, _ in pool)
    return (
        limit,
        sqrt(float(np.mean(squares))) if squares else 0.0,
        _SAFETY + _SMALL_SAMPLES / sqrt(len(runs) * elements),
    )


def scale_of(spread: Spread, found: Any) -> float | None:
    """The root mean square of a run's errors, each in units of what is typical; None where too little can be said."""
    errors = _drawn_errors(spread, found)
    return None if errors is None else float(sqrt(np.mean(np.square(np.abs(errors[0])))))


def beyond(spread: Spread, found: Any, times: float) -> int:
    """In how many elements another run is off by more than so many times what is allowed.

    Where rounding tips decisions, as many elements as were seen to hang on them may differ without being counted.
    """
    if np.shape(found) != spread.expected.shape:
        return int(spread.expected.size)
    errors = np.where(spread.unstable, 0.0, np.abs(errors_between(as_wide(found), spread.expected)))
    differing = int(np.count_nonzero(errors > times * spread.allowed))
    return differing if differing > np.count_nonzero(spread.unstable) else 0


def lean(spread: Spread, found: Any, region: Region) -> Lean | None:
    """How a run's errors lean in one region, whose values are `found`; None where too little can be said."""
    drawn = _drawn_errors(spread, found, region)
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


def has_ratio(spread: Spread, found: Lean) -> bool:
    """Whether a run's elements are a multiple of the expected ones, beyond one rounded factor and what was measured."""
    return abs(found.ratio - 1) > explained_ratio(spread)


def explained_ratio(spread: Spread) -> float:
    """How far a ratio may be from 1: by what was measured, and by one rounded factor that a whole array shares."""
    return _RATIO_SAFETY * spread.ratio + max(spread.unit, 2.0**-21)


def leans(spread: Spread, found: Lean, elements: int) -> bool:
    """Whether a run's errors point one way beyond what was measured."""
    by_chance = 6 / sqrt(elements)
    return found.one_way > _ONE_WAY and abs(found.offset) > _OFFSET_SAFETY * spread.offset + by_chance + 0.25


def parts_of(shape: tuple[int, ...], regions: Sequence[Region]) -> list[Region]:
    """The whole array, and each part that one device holds, once."""
    everything = tuple(slice(0, size) for size in shape)
    unlike = {tuple((part.start, part.stop) for part in region): region for region in (everything, *regions)}
    return list(unlike.values())


def _drawn_errors(spread: Spread, found: Any, region: Region = ()) -> tuple[Any, Any] | None:
    """Errors of elements of a region, and the elements, in units of what is typical; None where these are too few.

    Of many elements some are drawn: sums over a quarter of a million say what sums over more do.
    """
    expected, typical, unstable = spread.expected[region], spread.typical[region], spread.unstable[region]
    drawn = _drawn_places(expected.size)
    place = np.unravel_index(drawn, expected.shape) if isinstance(drawn, np.ndarray) else ()
    found, expected, typical = (np.ravel(array[place]) for array in (np.asarray(found), expected, typical))
    found, expected = as_double(found), as_double(expected)
    use = np.isfinite(expected) & np.isfinite(found) & (typical > 0) & ~np.ravel(unstable[place])
    if np.count_nonzero(use) < LEAST_ELEMENTS:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return (found[use] - expected[use]) / typical[use], expected[use] / typical[use]


def _drawn_places(elements: int) -> Any:
    """Where in so many elements those are that stand for all of them."""
    if elements <= _ENOUGH_FOR_SUMS:
        return slice(None)
    return np.random.default_rng(0).integers(elements, size=_ENOUGH_FOR_SUMS)


def _groups(expected: Any) -> Any:
    """A number for the magnitude of each element: a factor of two is one group; zeros, and what is not finite, too."""
    sizes = np.abs(expected)
    exponents = np.frexp(sizes)[1].astype(np.int16)
    return np.where(np.isfinite(sizes) & (sizes > 0), exponents, np.int16(_ZEROS))


def _floor(exact: Any, expected: Any) -> Any:
    """A unit of single precision, for what the reference computes without any rounding; of a narrow type, none."""
    dtype = np.asarray(exact).dtype
    unit = 2.0**-52 if (dtype.itemsize >= 8 and dtype.kind == "f") or dtype.itemsize >= 16 else 2.0**-23
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(expected), unit * np.abs(expected), 0.0)
