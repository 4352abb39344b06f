"""Random inputs: the same numbers for the same seed, position and type, on whatever devices they are put."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, sqrt
from typing import Any

import numpy as np
from ml_dtypes import finfo

from hloscope.errors import NotationError

Bounds = tuple[float, float]

_DEFAULT_INTEGERS = (-100, 100)

_UNEVEN = (0.5, 1.0)
"""The deviation of normal numbers at the start and at the end of each dimension: with numbers of one size, a mean of a
part of them equals that over all of them, and a division by their size does nothing. Larger numbers round more where
functions saturate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The distribution of an argument's values.

    Attributes:
        bounds: The least value and the one above the greatest; by default floats are normal with the mean 0, and
            integers lie between -100 and 100, within the limits of their type.
        is_index: Whether the bounds come from the dimension that the argument indexes.
        fan_in: The divisor of normal numbers' variance: the number of elements that a product with them sums over.
    """

    bounds: Bounds | None = None
    is_index: bool = False
    fan_in: float = 1.0


def draw_values(dtype: Any, shape: tuple[int, ...], draw: Draw, *, seed: int, position: int) -> Any:
    """An array of random values.

    Args:
        dtype: NumPy's or ml_dtypes' type: a float, an integer, a bool or a complex type.
        shape: Its dimensions.
        draw: The distribution.
        seed: The run's seed.
        position: The argument's position, so that two arguments of one type differ.
    """
    dtype = np.dtype(dtype)
    generator = np.random.default_rng([seed, position])
    if dtype == np.bool_:
        return generator.random(shape) < 0.5
    if is_integer(dtype):
        low, high = find_integer_bounds(dtype, draw.bounds)
        wide = np.uint64 if high > 2**63 else np.int64
        return generator.integers(low, high, shape, dtype=wide).astype(dtype)
    if np.issubdtype(dtype, np.complexfloating):
        real, imaginary = (_draw_floats(generator, shape, draw, dtype.itemsize // 2) for _ in range(2))
        return (real + 1j * imaginary).astype(dtype)
    return _draw_floats(generator, shape, draw, dtype.itemsize).astype(dtype)


def describe_draw(dtype: Any, draw: Draw) -> str:
    """Describes the values of an argument for the report: `0 to 7`, `normal`, `normal / √2048`, `-1 to 1`.

    Args:
        dtype: NumPy's or ml_dtypes' type.
        draw: The distribution.
    """
    dtype, bounds = np.dtype(dtype), draw.bounds
    if dtype == np.bool_:
        return "true or false"
    if is_integer(dtype):
        low, high = find_integer_bounds(dtype, bounds)
        indexed = "without the ends of what it indexes" if low > 0 else "all that it indexes"
        return f"{low} to {high - 1}{f', {indexed}' if draw.is_index else ''}"
    if bounds is not None:
        return f"{bounds[0]:g} to {bounds[1]:g}"
    return "normal" if draw.fan_in <= 1 else f"normal / √{round(draw.fan_in)}"


def find_largest_fan_in(dtype: Any) -> float:
    """The largest divisor of a floating-point type's variance with which most numbers are not zero."""
    smallest = float(finfo(dtype).smallest_subnormal)  # type: ignore[no-untyped-call]
    return max(1.0, (8 * smallest) ** -2)


def check_range(name: str, dtype: Any, bounds: Bounds) -> None:
    """Refuses a range without values of the type, which would otherwise be replaced silently.

    Raises:
        NotationError: It is empty, or the type holds none of it, or has no ranges at all.
    """
    low, high = bounds
    if not (isfinite(low) and isfinite(high) and low < high):
        raise NotationError(f"the range of {name} is empty", why=f"{low:g} is not below {high:g}")
    if dtype == np.bool_ or str(dtype).startswith("key<"):
        raise NotationError(f"{name} cannot have a range", why=f"its type is {dtype}", fix="leave its range out")
    if not is_integer(dtype):
        return
    least, greatest = _find_limits(np.dtype(dtype))
    if low > greatest or high <= least or ceil(low) >= high:
        raise NotationError(
            f"{np.dtype(dtype).name} has no value in [{low:g}, {high:g}), the range of {name}",
            fix=f"use a range of integers within {least:,} to {greatest:,}",
        )


def find_integer_bounds(dtype: np.dtype[Any], bounds: Bounds | None) -> tuple[int, int]:
    """The least integer and the one above the greatest, within the limits of the type."""
    low, high = _DEFAULT_INTEGERS if bounds is None else (ceil(bounds[0]), ceil(bounds[1]))
    least, greatest = _find_limits(dtype)
    low = max(low, least)
    return low, max(low + 1, min(high, greatest + 1))


def is_integer(dtype: Any) -> bool:
    """Returns whether a type holds integers, including ml_dtypes' integers narrower than a byte."""
    return np.issubdtype(dtype, np.integer) or np.dtype(dtype).name.startswith(("int", "uint"))


def _find_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    bits = int(dtype.name.lstrip("uint"))
    if dtype.name.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _draw_floats(generator: np.random.Generator, shape: tuple[int, ...], draw: Draw, width_bytes: int) -> Any:
    """Numbers that use all the bytes of their type, so that a program cannot lose some unnoticed."""
    if draw.bounds is not None:
        return generator.uniform(*draw.bounds, shape)
    wide = np.float64 if width_bytes > 4 else np.float32
    numbers: Any = np.asarray(generator.standard_normal(shape, dtype=wide))
    if draw.fan_in > 1:
        return numbers * wide(1 / sqrt(draw.fan_in))
    for axis, size in enumerate(shape):
        if size > 1:
            sizes = np.linspace(*_UNEVEN, size, dtype=wide)
            numbers *= sizes.reshape(size, *[1] * (len(shape) - axis - 1))
    return numbers
