"""The expected step time of a point before it is compiled, from Shardy's estimate and its compiled neighbors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import erf, pi, sqrt

import numpy as np
from numpy.typing import NDArray

_REACH = 2.5
"""The number of differences at which two points still carry information about each other."""
_LEAST_SPREAD = 0.15
_NOISE = 0.02
"""Both are of the logarithm of the time."""
_OF_NORMAL = 1.4826
"""The standard deviation of a normal variable, in distances from its lower quartile to its median."""
_FAR = 2.0
"""In standard deviations."""
_UNEXPLAINED = 0.2
"""The share of the fastest step that the parts of its estimate cannot explain, whatever their factors."""
_LEAST_FACTOR = 0.05
_LIKELY_OFF = 1.0
"""The likely relative error of a part of an estimate."""

Array = NDArray[np.float64]

_erf = np.vectorize(erf, otypes=[np.float64])


class Surrogate:
    """A Gaussian process over the time of a compiled step, relative to Shardy's estimate.

    The logarithm of a step is modelled as that of its estimate plus a term that neighbors share: an estimate is
    off in the same way for points that differ little. The kernel is exponential in the number of differences.

    Some points take many times their estimate, because of something the compiler does with them alone. They say little
    about others: the spread is that of the points below the median, and no error counts for more than twice the spread.

    Args:
        differences: The differences between each two compiled points.
        estimates_us: Shardy's estimates of them.
        steps_us: Their step times.

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
        """The expected logarithms of the times of points, and their standard deviations.

        Args:
            differences: The differences of each point to each compiled point.
            estimates_us: Shardy's estimate of each.
        """
        near = self._variance * np.exp(-differences / _REACH)
        means = np.log(estimates_us) + self._offset + near @ self._weights
        variances = self._variance - np.einsum("ij,jk,ik->i", near, self._inverse, near, optimize=True)
        return means, np.sqrt(np.maximum(variances, _NOISE**2))


def calibrate_parts(parts_us: Array, steps_us: Array) -> Array:
    """The factor of each part of an estimate, from the compiled points: 1 without contrary evidence.

    The error of each part of an estimate depends on the program: whether transfers are hidden, how much
    is fused, how much of a matmul's input lies in vector memory. The factors are normal variables around 1. The
    slower a step, the more of it they leave unexplained: a step that is slow for its own reason says little about them.

    Args:
        parts_us: The estimates of the compiled points, with a column for each part.
        steps_us: The time of each.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), eq. 2.8.
    """
    weights = steps_us.min() / (_UNEXPLAINED * steps_us**2)
    seen = parts_us * weights[:, None]
    missing = (steps_us - parts_us.sum(axis=1)) * weights
    precision = seen.T @ seen + np.diag(np.full(parts_us.shape[1], _LIKELY_OFF**-2.0))
    factors: Array = np.maximum(1.0 + np.linalg.solve(precision, seen.T @ missing), _LEAST_FACTOR)
    return factors


def compute_expected_gains(means: Array, deviations: Array, best: float) -> Array:
    """The expected amount by which normal variables fall below the best value so far.

    Source: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions" (1998), eq. 15.
    """
    z = (best - means) / deviations
    gains: Array = deviations * (z * 0.5 * (1 + _erf(z / sqrt(2))) + np.exp(-z * z / 2) / sqrt(2 * pi))
    return gains


class Differences:
    """The number of traits in which two points differ."""

    def __init__(self, traits: Iterable[Iterable[Hashable]]) -> None:
        self._columns: dict[Hashable, int] = {}
        for each in traits:
            for trait in each:
                self._columns.setdefault(trait, len(self._columns))

    def rows(self, traits: Sequence[Iterable[Hashable]]) -> Array:
        """A row for each point, with a one for each trait that it has."""
        found = np.zeros((len(traits), len(self._columns)))
        for number, each in enumerate(traits):
            found[number, [self._columns[trait] for trait in each]] = 1.0
        return found

    @staticmethod
    def between(some: Array, others: Array) -> Array:
        """The number of traits that exactly one of two points has."""
        found: Array = some @ (1 - others).T + (1 - some) @ others.T
        return found
