"""XLA's integer types: their ranges, and how their arithmetic wraps around."""

from __future__ import annotations

_WIDTHS = frozenset({"1", "2", "4", "8", "16", "32", "64"})


def integer_bits(element_type: str) -> int | None:
    """Bits of an XLA integer type such as `s32`; None for any other type."""
    digits = element_type[1:]
    return int(digits) if element_type[:1] in ("s", "u") and digits in _WIDTHS else None


def is_in_range(number: int, element_type: str) -> bool:
    """Whether an integer type holds the number; False for any other type."""
    bits = integer_bits(element_type)
    if bits is None:
        return False
    if element_type[0] == "u":
        return 0 <= number < 1 << bits
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def wrapped(number: int, element_type: str) -> int:
    """The number as an integer type stores it, modulo 2 to its bits; unchanged for any other type."""
    bits = integer_bits(element_type)
    if bits is None:
        return number
    return number % (1 << bits) if element_type[0] == "u" else signed(number, element_type)


def signed(number: int, element_type: str) -> int:
    """The number nearest to 0 that is the same modulo 2 to the bits of an integer type."""
    bits = integer_bits(element_type)
    if bits is None:
        return number
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half
