"""Quantities: the bits of an element type, and the one formatter for bytes, counts and times."""

from __future__ import annotations

import re
from collections.abc import Iterable

_BITS = {
    "pred": 8, "token": 0, "opaque": 0,
    "s1": 1, "s2": 2, "s4": 4, "s8": 8, "s16": 16, "s32": 32, "s64": 64,
    "u1": 1, "u2": 2, "u4": 4, "u8": 8, "u16": 16, "u32": 32, "u64": 64,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
    "f8e5m2": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3b11fnuz": 8, "f8e3m4": 8, "f8e5m2fnuz": 8, "f8e4m3fnuz": 8,
    "f8e8m0fnu": 8, "f4e2m1fn": 4, "f6e2m3fn": 6, "f6e3m2fn": 6,
}  # fmt: skip


def count_element_bits(element_type: str) -> int | None:
    """Bits that one element of an XLA primitive type takes when densely packed.

    Args:
        element_type: XLA's short name, such as `bf16`, `f8e4m3fn`, `s4` or `pred`.

    Returns:
        The number of bits; 0 for `token` and `opaque`; None for a type that is not known.

    Source: `primitive_util::BitWidth` in xla/primitive_util.h; `pred` is stored as one byte.
    """
    return _BITS.get(element_type)


def count_array_bytes(element_type: str, element_count: int) -> int | None:
    """Logical bytes of an array, without layout padding; None when the element type is not known.

    Sub-byte elements are counted packed, rounded up to a whole byte per array, as TPU stores them.
    """
    bits = count_element_bits(element_type)
    return None if bits is None else -(-bits * element_count // 8)


def sum_known(counts: Iterable[int | None]) -> int | None:
    """The sum; None if a part is unknown, after which no further part is computed."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def format_bytes(count: int | float | None) -> str:
    """Bytes for a person, in powers of 1000 as links and HBM are rated: `822 MB`, `6.58 GB`, `512 B`, `unknown`."""
    return "unknown" if count is None else _format_scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def format_capacity(count: int | None) -> str:
    """A memory's size for a person, in powers of 1024 as memories are built: `16 GiB`, `128 MiB`, `unknown`."""
    if count is None:
        return "unknown"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{_format_three_digits(count / size)} {unit}"
    return f"{count} B"


def format_time(microseconds: float | None) -> str:
    """A time for a person: `8.2 us`, `312 us`, `73.1 ms`, `unknown`."""
    return "unknown" if microseconds is None else _format_scaled(microseconds, ("us", "ms", "s"))


def format_time_range(least_us: float, most_us: float) -> str:
    """A time range with the unit only once if it is the same: `650 to 980 ms`."""
    low, high = format_time(least_us), format_time(most_us)
    return f"{low.removesuffix(' ' + high.rpartition(' ')[2])} to {high}"


def format_flops(count: int | float) -> str:
    """Operations for a person: `68.7 GFLOPs`."""
    return _format_scaled(count, ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"))


def format_count(count: int | None) -> str:
    """A count with thousands separators; `unknown` for None."""
    return "unknown" if count is None else f"{count:,}"


def pluralize(count: int, noun: str) -> str:
    """`1 collective`, `3 collectives`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_digits(value: float, digits: int = 2) -> str:
    """A number with this many digits and without a power of ten, unless that is too long: `210`, `0.21`."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10 ** (digits - 1) <= abs(rounded) < 1e15 else f"{rounded:.{digits}g}"


def format_share(share: float) -> str:
    """A share for a person: `34.0%`; `under 0.1%` for a small share that is not zero."""
    return "under 0.1%" if 0 < share < 0.001 else f"{100 * share:.1f}%"


def add_sign(words: str, *, is_more: bool) -> str:
    """The words for a difference, with the sign before the number: `+34.0%`, `under −0.1%`."""
    return re.sub(r"(?=\d)", "+" if is_more else "−", words, count=1)


def _format_scaled(value: float, units: tuple[str, ...]) -> str:
    if 0 < abs(value) < 0.005:
        return f"under 0.01 {units[0]}"
    for unit in units[:-1]:
        if abs(value) < 999.5:
            return f"{_format_three_digits(value)} {unit}"
        value /= 1000
    return f"{_format_three_digits(value)} {units[-1]}"


def _format_three_digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"
