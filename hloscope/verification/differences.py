"""Two runs' outputs, element by element and shard by shard. Knows no JAX: shards are NumPy arrays with their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from hloscope.verification.model import OutputComparison, Tolerance, Worst

_SHARDS_EXCHANGED = 64
"""Shards of an output up to which a wrong one is looked for among the others."""


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
    shards: Sequence[Shard],
    expected: Any,
    allowed: Any,
    *,
    name: str,
    subject: str,
    against: str,
    unstable: Any = None,
) -> OutputComparison:
    """Compares each device's shard with the same part of an expected array.

    Args:
        shards: What every device holds.
        expected: The whole expected array.
        allowed: For each element how far a floating-point number may be off; other types must agree exactly. NaN
            agrees with NaN, and an infinity with itself.
        name: The output's name.
        subject: Whose output it is.
        against: Whose output is expected.
        unstable: Elements that are not judged; None for none.
    """
    is_wrong, largest, worst, is_informative = np.zeros(expected.shape, bool), 0.0, None, False
    wrong_shards: list[str] = []
    blind_shards: list[str] = []
    for shard in shards:
        place = region_of(shard)
        part, limits = expected[place], allowed[place]
        ratios = error_ratios(shard.values, part, limits)
        tells = telling(part, limits)
        if unstable is not None:
            ratios = np.where(unstable[place], 0.0, ratios)
            tells &= ~unstable[place]
        is_wrong[place] |= ratios > 1
        wrong_shards += [shard.place] if np.any(ratios > 1) else []
        is_informative |= bool(np.any(tells))
        blind_shards += [shard.place] if _is_blind(part, tells) else []
        if ratios.size and float(ratios.max()) > largest:
            largest = float(ratios.max())
            worst = _worst(shard, part, ratios, limits)
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
        informative=is_informative,
        blind_shards=tuple(blind_shards),
        unstable=0 if unstable is None else int(np.count_nonzero(unstable)),
    )


def region_of(shard: Shard) -> tuple[slice, ...]:
    """The part of the whole array that a shard holds."""
    return tuple(slice(start, start + size) for start, size in zip(shard.start, shard.values.shape, strict=True))


def allowed_by(tolerance: Tolerance, expected: Any) -> Any:
    """For each element how far it may be off under a tolerance; 0 for types that must agree exactly."""
    if not is_inexact(expected):
        return np.zeros(expected.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        return tolerance.absolute + tolerance.relative * np.abs(as_wide(expected))


def as_wide(values: Any) -> Any:
    """Numbers in single precision if that holds their type, else in double precision, real or complex."""
    values = np.asarray(values)
    if not is_inexact(values) or values.dtype.itemsize > (8 if np.iscomplexobj(values) else 4):
        return as_double(values)
    return values.astype(np.complex64 if np.iscomplexobj(values) else np.float32, copy=False)


def as_double(values: Any) -> Any:
    """Numbers in double precision, real or complex."""
    values = np.asarray(values)
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def exchanged(shards: Sequence[Shard], wrong: Sequence[str], expected: Any, allowed: Any) -> tuple[str, ...]:
    """For each wrong shard that holds what is expected of another one, that it does."""
    found = []
    for shard in shards:
        if shard.place not in wrong or len(shards) > _SHARDS_EXCHANGED or not np.any(telling(shard.values, 0.0)):
            continue
        for other in shards:
            part = region_of(other)
            if other.values.shape != shard.values.shape or region_of(shard) == part:
                continue
            if not np.any(error_ratios(shard.values, expected[part], allowed[part]) > 1):
                found.append(f"{shard.place} holds what the reference has at {other.place}")
                break
    return tuple(found)


def error_ratios(found: Any, expected: Any, allowed: Any) -> Any:
    """For each element its error as a multiple of what is allowed; infinite where nothing is, or one is not finite."""
    if not is_inexact(found):
        return np.where(found == expected, 0.0, inf)
    found, expected = as_wide(found), as_wide(expected)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        errors = np.abs(found - expected)
        ratios = np.where(errors == 0, 0.0, np.where(allowed > 0, errors / allowed, inf))
    both_nan = np.isnan(found) & np.isnan(expected)
    same = both_nan | (found == expected)
    finite = np.isfinite(found) & np.isfinite(expected)
    return np.where(same, 0.0, np.where(finite, ratios, inf))


def root_mean_square(expected: Any) -> float:
    """Of the finite elements of an array; 0 where there are none, or for a type that is compared exactly."""
    if not is_inexact(expected):
        return 0.0
    magnitudes = np.abs(as_wide(expected))
    finite = magnitudes[np.isfinite(magnitudes)]
    largest = float(finite.max(initial=0.0))
    return largest * float(np.sqrt(np.mean(np.square(finite / largest)))) if largest else 0.0  # no square overflows


def telling(expected: Any, allowed: Any) -> Any:
    """Which elements can tell a wrong program: those that are finite, and for which a zero would be wrong."""
    if not is_inexact(expected):
        return expected != 0
    return np.isfinite(as_wide(expected)) & (error_ratios(np.zeros_like(expected), expected, allowed) > 1)


def _is_blind(expected: Any, tells: Any) -> bool:
    """Whether most of what a device should hold, true zeros aside, could be something else and count as right."""
    meant = int(np.count_nonzero(expected != 0))
    return 2 * int(np.count_nonzero(tells)) < meant


def whole(shards: Iterable[Shard], shape: tuple[int, ...], dtype: Any) -> Any:
    """The array that shards are parts of; of several copies the first one counts."""
    array = np.zeros(shape, dtype)
    for shard in reversed(list(shards)):
        array[tuple(slice(a, a + n) for a, n in zip(shard.start, shard.values.shape, strict=True))] = shard.values
    return array


def is_inexact(values: Any) -> bool:
    """Whether an array holds floating-point numbers, real or complex, those of ml_dtypes included."""
    dtype = np.asarray(values).dtype
    return np.issubdtype(dtype, np.inexact) or dtype.name.startswith(("bfloat", "float"))


def _worst(shard: Shard, expected: Any, ratios: Any, allowed: Any) -> Worst:
    local = tuple(int(index) for index in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    return Worst(
        index=tuple(start + index for start, index in zip(shard.start, local, strict=True)),
        shard=shard.place,
        local_index=local,
        found=_shown(shard.values[local]),
        expected=_shown(expected[local]),
        allowed=float(allowed[local]),
    )


def _shown(value: Any) -> str:
    if isinstance(value, np.bool_ | bool):
        return str(bool(value)).lower()
    if not is_inexact(value):
        return str(int(value))
    return f"{complex(value):.7g}" if np.iscomplexobj(value) else f"{float(value):.7g}"
