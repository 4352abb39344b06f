"""How far right runs of one program lie apart, element by element, and what that says of another run. Knows no JAX.

A spread is made from runs of the reference with its values moved by rounding. Elements are judged in groups of one
magnitude: what cancelled to nearly zero has errors of the size of its terms, and what was small from the start has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np

from hloscope.verification.differences import as_wide

Region = tuple[slice, ...]

_LEAST_ELEMENTS = 32
"""Elements that a statement about all of an array needs; fewer are judged one by one."""

_ENOUGH, _ZEROS, _NEAR = 64, -10_000.0, 2
"""Elements of one magnitude that are enough to say how far they move; the magnitude of zero; how many magnitudes below
count where they are fewer: what cancelled further says of its own error, and not of what larger elements are off by."""

_OUTLIER = 16
"""An element that moves so many times as far as is usual for its magnitude hangs on a decision, such as an index."""

_SAFETY, _SMALL_SAMPLES = 1.5, 6.0
"""An element may be off by `1.5 + 6 / sqrt(samples)` times the largest move of its magnitude that was seen."""

_SCALE_SAFETY, _RATIO_SAFETY, _OFFSET_SAFETY = 2.0, 1.5, 2.0
_ONE_WAY = 0.9
"""The share of the elements that differ that must do so in the same direction to be called one-sided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """What rounding does to one output of a program.

    Attributes:
        expected: The output, in double precision.
        allowed: For each element, how far a right program may be off.
        typical: For each element, the root mean square of what elements of its magnitude are off by.
        unstable: Elements that hang on a decision that rounding can tip.
        scale: The largest root mean square of a run's errors, each in units of `typical`.
        ratio: How far the ratio of a run to the output was from 1 at most, over all regions.
        offset: How far the mean error of a run, in units of `typical`, was from 0 at most, over all regions.
        unit: Unit roundoff of the narrowest type that is stored on the output's path.
    """

    expected: Any
    allowed: Any
    typical: Any
    unstable: Any
    scale: float
    ratio: float
    offset: float
    unit: float

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
    exact, expected = expected, as_wide(expected)
    is_exact = np.asarray(exact).dtype.kind in "iub"
    with np.errstate(invalid="ignore", over="ignore"):
        errors = [_errors(as_wide(run), expected) for run in runs]
    largest = np.abs(errors[0])
    for error in errors[1:]:
        largest = np.maximum(largest, np.abs(error))
    allowed, typical, unstable = np.zeros(expected.shape), np.zeros(expected.shape), np.zeros(expected.shape, bool)
    if not is_exact:
        allowed, typical, unstable = _measured(expected, errors, largest)
    unstable = largest > 0 if is_exact else unstable
    floor = 0.0 if is_exact else _floor(exact, expected)
    allowed, typical = np.maximum(allowed, floor), np.maximum(typical, floor / 2)
    blank = Spread(
        expected=expected, allowed=allowed, typical=typical, unstable=unstable, scale=1, ratio=0, offset=0, unit=unit
    )
    leans = [one for error in errors for part in regions if (one := lean(blank, (expected + error)[part], part))]
    return Spread(
        expected=expected,
        allowed=allowed,
        typical=typical,
        unstable=unstable,
        scale=max((scale_of(blank, expected + error) or 0.0 for error in errors), default=0.0),
        ratio=max((abs(one.ratio - 1) for one in leans), default=0.0),
        offset=max((abs(one.offset) for one in leans), default=0.0),
        unit=unit,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Elements of one magnitude, and those that are measured for them: where they are few, the next ones as well.

    Attributes:
        group: Their magnitude.
        measured: The magnitudes that are measured, each with what its moves count for: as much as they are where they
            are those of larger elements, and in proportion where they are those of smaller ones.
    """

    group: float
    measured: tuple[tuple[float, float], ...]


def _measured(expected: Any, errors: Sequence[Any], largest: Any) -> tuple[Any, Any, Any]:
    """What is allowed and typical for each element, and which are unstable."""
    groups = _groups(expected).ravel()
    order = np.argsort(groups, kind="stable")
    names, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    moves, errors = largest.ravel()[order], [np.abs(error).ravel()[order] for error in errors]
    results = np.zeros(groups.size), np.zeros(groups.size), np.zeros(groups.size, bool)
    inside = {float(name): slice(start, start + size) for name, start, size in zip(names, starts, counts, strict=True)}
    for pool in _pools(names, counts):
        _measure(pool, inside, moves, errors, results)
    allowed, typical, unstable = (np.empty_like(one) for one in results)
    for found, one in zip((allowed, typical, unstable), results, strict=True):
        found[order] = one
    return allowed.reshape(expected.shape), typical.reshape(expected.shape), unstable.reshape(expected.shape)


def _pools(names: Any, counts: Any) -> Iterator[_Pool]:
    for name, count in zip(names, counts, strict=True):
        measured, elements = [(float(name), 1.0)], int(count)
        for near in np.argsort(np.abs(names - name))[1:]:
            if elements >= _ENOUGH:
                break
            if names[near] > _ZEROS and name - names[near] <= _NEAR:
                measured.append((float(names[near]), 2.0 ** float(max(0.0, name - names[near]))))
                elements += int(counts[near])
        yield _Pool(group=float(name), measured=tuple(measured))


def _measure(
    pool: _Pool, inside: Mapping[float, slice], largest: Any, errors: Sequence[Any], results: tuple[Any, Any, Any]
) -> None:
    """Fills in what holds for the elements of one magnitude."""
    allowed, typical, unstable = results
    moves = np.concatenate([largest[inside[group]] * weight for group, weight in pool.measured])
    moved = moves[moves > 0]
    limit = min(float(moves.max()), _OUTLIER * float(np.median(moved))) if moved.size else 0.0
    together = [np.concatenate([error[inside[group]] * weight for group, weight in pool.measured]) for error in errors]
    squares = [np.mean(np.square(error[moves <= limit])) for error in together] if limit else [0.0]
    own = largest[inside[pool.group]]
    safety = _SAFETY + _SMALL_SAMPLES / sqrt(len(errors) * moves.size)
    allowed[inside[pool.group]] = safety * np.where(own <= limit, limit, own)
    typical[inside[pool.group]] = sqrt(float(np.mean(squares)))
    unstable[inside[pool.group]] = own > limit


def scale_of(spread: Spread, found: Any) -> float | None:
    """The root mean square of a run's errors, each in units of what is typical; None where too little can be said."""
    use = _usable(spread, found)
    if np.count_nonzero(use) < _LEAST_ELEMENTS:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        errors = np.abs(as_wide(found)[use] - spread.expected[use]) / spread.typical[use]
    return float(sqrt(np.mean(np.square(errors))))


def beyond(spread: Spread, found: Any, times: float) -> int:
    """In how many elements another run is off by more than so many times what is allowed.

    Where rounding tips decisions, as many elements as were seen to hang on them may differ without being counted.
    """
    if np.shape(found) != spread.expected.shape:
        return int(spread.expected.size)
    errors = np.where(spread.unstable, 0.0, np.abs(_errors(as_wide(found), spread.expected)))
    differing = int(np.count_nonzero(errors > times * spread.allowed))
    return differing if differing > np.count_nonzero(spread.unstable) else 0


def lean(spread: Spread, found: Any, region: Region) -> Lean | None:
    """How a run's errors lean in one region, whose values are `found`; None where too little can be said."""
    found, expected, typical = as_wide(found), spread.expected[region], spread.typical[region]
    use = _usable(spread, found, region)
    if np.count_nonzero(use) < _LEAST_ELEMENTS or np.iscomplexobj(expected):
        return None
    scaled, errors = expected[use] / typical[use], (found[use] - expected[use]) / typical[use]
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


def is_too_rough(spread: Spread, scale: float | None) -> bool:
    """Whether a run's errors are larger all in all than rounding makes them."""
    return scale is not None and scale > _SCALE_SAFETY * max(spread.scale, 1.0)


def has_ratio(spread: Spread, one: Lean) -> bool:
    """Whether a run's elements are a multiple of the expected ones, beyond one rounded factor and what was measured."""
    return abs(one.ratio - 1) > explained_ratio(spread)


def explained_ratio(spread: Spread) -> float:
    """How far a ratio may be from 1: by what was measured, and by one rounded factor that a whole array shares."""
    return _RATIO_SAFETY * spread.ratio + max(spread.unit, 2.0**-21)


def leans(spread: Spread, one: Lean, elements: int) -> bool:
    """Whether a run's errors point one way beyond what was measured."""
    by_chance = 6 / sqrt(elements)
    return one.one_way > _ONE_WAY and abs(one.offset) > _OFFSET_SAFETY * spread.offset + by_chance + 0.25


def is_an_array(spread: Spread) -> bool:
    """Whether there are enough elements for a statement about all of them."""
    return bool(spread.expected.size >= _LEAST_ELEMENTS)


def parts_of(shape: tuple[int, ...], regions: Sequence[Region]) -> Iterator[Region]:
    """The whole array, and each part that one device holds, once."""
    seen = {tuple((0, size) for size in shape)}
    yield tuple(slice(0, size) for size in shape)
    for region in regions:
        key = tuple((part.start, part.stop) for part in region)
        if key not in seen:
            seen.add(key)
            yield region


def _usable(spread: Spread, found: Any, region: Region = ()) -> Any:
    steady = ~spread.unstable[region] & np.isfinite(spread.expected[region]) & (spread.typical[region] > 0)
    return steady & np.isfinite(as_wide(found))


def _errors(run: Any, expected: Any) -> Any:
    """How far each element is off; infinite where one of both is not finite and the other is something else."""
    same = (run == expected) | (np.isnan(run) & np.isnan(expected))
    errors = np.where(same, 0, run - expected)
    return np.where(np.isfinite(errors), errors, np.inf)


def _groups(expected: Any) -> Any:
    """A number for the magnitude of each element: a factor of two is one group; zeros, and what is not finite, too."""
    sizes = np.abs(expected)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponents = np.floor(np.log2(sizes))
    return np.where(np.isfinite(exponents), exponents, _ZEROS)


def _floor(exact: Any, expected: Any) -> Any:
    """A unit of single precision, for what the reference computes without any rounding; of a narrow type, none."""
    dtype = np.asarray(exact).dtype
    unit = 2.0**-52 if (dtype.itemsize >= 8 and dtype.kind == "f") or dtype.itemsize >= 16 else 2.0**-23
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(expected), unit * np.abs(expected), 0.0)
