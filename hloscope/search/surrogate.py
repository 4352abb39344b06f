"""The expected step time of a point before it is compiled, from Shardy's estimate and its compiled neighbors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import erf, pi, sqrt

import numpy as np
from numpy.typing import NDArray

_REACH = 2.5
"""How many differences apart two points still tell something of each other."""
_LEAST_SPREAD = 0.15
_NOISE = 0.02
"""Both of the logarithm of the time."""
_OF_NORMAL = 1.4826
"""The standard deviation of a normal variable, in distances from its lower quartile to its median."""
_FAR = 2.0
"""In standard deviations."""
_UNEXPLAINED = 0.2
"""Of the fastest step: what the parts of its estimate do not tell, whatever their factors."""
_LEAST_FACTOR = 0.05
_LIKELY_OFF = 1.0
"""By how much of itself a part of an estimate may well be off."""

Array = NDArray[np.float64]

_erf = np.vectorize(erf, otypes=[np.float64])


class Surrogate:
    """A Gaussian process over what a compiled step takes, relative to Shardy's estimate of it.

    The logarithm of a step is modelled as that of its estimate plus something that neighbors share: an estimate is
    off in the same way for points that differ in little. The kernel is exponential in the number of differences.

    Some points take many times what was promised, for what the compiler does with them alone. They say little of
    others: the spread is that of what takes less than most, and no error counts for more than twice the spread.

    Args:
        differences: Between each two points that are compiled.
        estimates_us: What Shardy promises of them.
        steps_us: What they took.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1.
    """

    def __init__(self, differences: Array, estimates_us: Array, steps_us: Array) -> None:
        errors = np.log(steps_us) - np.log(estimates_us)
        self._offset = float(np.median(errors))
        spread = max(_OF_NORMAL * (self._offset - float(np.quantile(errors, 0.25))), _LEAST_SPREAD)
        self._variance = spread**2
        errors = np.clip(errors, self._offset - _FAR * spread, self._offset + _FAR * spread)
        covariance = self._variance * np.exp(-differences / _REACH) + _NOISE**2 * np.eye(len(errors))
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ (errors - self._offset)

    def expected(self, differences: Array, estimates_us: Array) -> tuple[Array, Array]:
        """The logarithms of what points take, and their standard deviations.

        Args:
            differences: Of each to each compiled point.
            estimates_us: What Shardy promises of each.
        """
        near = self._variance * np.exp(-differences / _REACH)
        means = np.log(estimates_us) + self._offset + near @ self._weights
        variances = self._variance - np.einsum("ij,jk,ik->i", near, self._inverse, near, optimize=True)
        return means, np.sqrt(np.maximum(variances, _NOISE**2))


def calibrated(parts_us: Array, steps_us: Array) -> Array:
    """By which factor each part of an estimate counts, by what was compiled: 1 where nothing speaks against it.

    Which part of an estimate is too large or too small depends on the program: whether transfers are hidden, how much
    is fused, how much of what a matmul reads lies in vector memory. The factors are normal variables around 1. The
    slower a step, the more of it they leave: what is slow for a reason of its own tells little of them.

    Args:
        parts_us: What was promised of each that was compiled, in columns for the parts.
        steps_us: What each took.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), eq. 2.8.
    """
    weights = steps_us.min() / (_UNEXPLAINED * steps_us**2)
    seen = parts_us * weights[:, None]
    missing = (steps_us - parts_us.sum(axis=1)) * weights
    precision = seen.T @ seen + np.diag(np.full(parts_us.shape[1], _LIKELY_OFF**-2.0))
    factors: Array = np.maximum(1.0 + np.linalg.solve(precision, seen.T @ missing), _LEAST_FACTOR)
    return factors


def expected_gains(means: Array, deviations: Array, best: float) -> Array:
    """By how much normal variables are expected to fall below the best so far.

    Source: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions" (1998), eq. 15.
    """
    z = (best - means) / deviations
    gains: Array = deviations * (z * 0.5 * (1 + _erf(z / sqrt(2))) + np.exp(-z * z / 2) / sqrt(2 * pi))
    return gains


class Differences:
    """How many traits two points differ in."""

    def __init__(self, traits: Iterable[Iterable[Hashable]]) -> None:
        self._columns: dict[Hashable, int] = {}
        for each in traits:
            for trait in each:
                self._columns.setdefault(trait, len(self._columns))

    def rows(self, traits: Sequence[Iterable[Hashable]]) -> Array:
        """Ones where a point has a trait."""
        found = np.zeros((len(traits), len(self._columns)))
        for number, each in enumerate(traits):
            found[number, [self._columns[trait] for trait in each]] = 1.0
        return found

    @staticmethod
    def between(some: Array, others: Array) -> Array:
        """The number of traits that one of two points has and the other has not."""
        found: Array = some @ (1 - others).T + (1 - some) @ others.T
        return found
