"""Two runs' outputs, element by element and shard by shard. Knows no JAX: shards are NumPy arrays with their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from hloscope.verification.model import OutputComparison, Tolerance, Worst


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard:
    """What one device holds of an output.

    Attributes:
        place: Where the device is in the mesh, such as `X=1, Y=0`.
        start: The index of its first element in the whole array.
        values: Its elements.
    """

    place: str
    start: tuple[int, ...]
    values: Any


def compare_shards(
    shards: Sequence[Shard], expected: Any, tolerance: Tolerance, *, name: str, subject: str, against: str
) -> OutputComparison:
    """Compares each device's shard with the same part of an expected array.

    Args:
        shards: What every device holds.
        expected: The whole expected array.
        tolerance: How far floating-point numbers may lie apart; other types must agree exactly. NaN agrees with NaN,
            and an infinity with itself.
        name: The output's name.
        subject: Whose output it is.
        against: Whose output is expected.
    """
    is_wrong, largest, worst = np.zeros(expected.shape, bool), 0.0, None
    wrong_shards: list[str] = []
    blind_shards: list[str] = []
    for shard in shards:
        place = tuple(slice(a, a + n) for a, n in zip(shard.start, shard.values.shape, strict=True))
        part = expected[place]
        ratios = error_ratios(shard.values, part, tolerance)
        is_wrong[place] |= ratios > 1
        wrong_shards += [shard.place] if np.any(ratios > 1) else []
        blind_shards += [shard.place] if _is_blind(part, tolerance) else []
        if ratios.size and float(ratios.max()) > largest:
            largest = float(ratios.max())
            worst = _worst(shard, part, ratios, tolerance)
    held = sum(int(shard.values.size) for shard in shards)
    return OutputComparison(
        name=name,
        against=against,
        subject=subject,
        elements=int(expected.size),
        copies=held // expected.size if expected.size else 1,
        wrong=int(np.count_nonzero(is_wrong)),
        shards=len(shards),
        wrong_shards=tuple(wrong_shards),
        worst=worst,
        largest_error=largest,
        informative=bool(np.any(telling(expected, tolerance))),
        blind_shards=tuple(blind_shards),
    )


def error_ratios(found: Any, expected: Any, tolerance: Tolerance) -> Any:
    """For each element its error as a multiple of what is allowed; infinite where nothing is, or one is not finite."""
    if not _is_inexact(found):
        return np.where(found == expected, 0.0, inf)
    kind = np.complex128 if np.iscomplexobj(found) else np.float64
    found, expected = np.asarray(found).astype(kind), np.asarray(expected).astype(kind)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        errors = np.abs(found - expected)
        allowed = tolerance.absolute + tolerance.relative * np.abs(expected)
        ratios = np.where(errors == 0, 0.0, np.where(allowed > 0, errors / allowed, inf))
    both_nan = np.isnan(found) & np.isnan(expected)
    same = both_nan | (found == expected)
    finite = np.isfinite(found) & np.isfinite(expected)
    return np.where(same, 0.0, np.where(finite, ratios, inf))


def root_mean_square(expected: Any) -> float:
    """Of the finite elements of an array; 0 where there are none, or for a type that is compared exactly."""
    if not _is_inexact(expected):
        return 0.0
    magnitudes = np.abs(np.asarray(expected).astype(np.complex128 if np.iscomplexobj(expected) else np.float64))
    finite = magnitudes[np.isfinite(magnitudes)]
    largest = float(finite.max(initial=0.0))
    return largest * float(np.sqrt(np.mean(np.square(finite / largest)))) if largest else 0.0  # no square overflows


def telling(expected: Any, tolerance: Tolerance) -> Any:
    """Which elements can tell a wrong program: those that are finite, and for which a zero would be wrong."""
    if not _is_inexact(expected):
        return expected != 0
    finite = np.isfinite(np.asarray(expected).astype(np.complex128 if np.iscomplexobj(expected) else np.float64))
    return finite & (error_ratios(np.zeros_like(expected), expected, tolerance) > 1)


def _is_blind(expected: Any, tolerance: Tolerance) -> bool:
    """Whether most of what a device should hold, true zeros aside, could be anything small and count as right."""
    meant = int(np.count_nonzero(expected != 0))
    return 2 * int(np.count_nonzero(telling(expected, tolerance))) < meant


def whole(shards: Iterable[Shard], shape: tuple[int, ...], dtype: Any) -> Any:
    """The array that shards are parts of; of several copies the first one counts."""
    array = np.zeros(shape, dtype)
    for shard in reversed(list(shards)):
        array[tuple(slice(a, a + n) for a, n in zip(shard.start, shard.values.shape, strict=True))] = shard.values
    return array


def _is_inexact(values: Any) -> bool:
    dtype = np.asarray(values).dtype
    return np.issubdtype(dtype, np.inexact) or dtype.name.startswith(("bfloat", "float"))


def _worst(shard: Shard, expected: Any, ratios: Any, tolerance: Tolerance) -> Worst:
    local = tuple(int(index) for index in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    inexact = _is_inexact(shard.values)
    allowed = tolerance.absolute + tolerance.relative * abs(complex(expected[local])) if inexact else 0.0
    return Worst(
        index=tuple(start + index for start, index in zip(shard.start, local, strict=True)),
        shard=shard.place,
        local_index=local,
        found=_shown(shard.values[local]),
        expected=_shown(expected[local]),
        allowed=allowed,
    )


def _shown(value: Any) -> str:
    if isinstance(value, np.bool_ | bool):
        return str(bool(value)).lower()
    if not _is_inexact(value):
        return str(int(value))
    return f"{complex(value):.7g}" if np.iscomplexobj(value) else f"{float(value):.7g}"
