"""Quantities: byte counts of every element type and the words for a person."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.units import (
    add_sign,
    count_array_bytes,
    count_element_bits,
    format_bytes,
    format_capacity,
    format_count,
    format_digits,
    format_share,
    format_time,
    pluralize,
)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (4096, "4.10 kB"),
        (32768, "32.8 kB"),
        (822_083_584, "822 MB"),
        (6_576_668_672, "6.58 GB"),
        (999_600, "1.00 MB"),
        (None, "unknown"),
    ],
)
def test_bytes(count, words):
    assert format_bytes(count) == words


@given(st.integers(min_value=0, max_value=10**17))
def test_bytes_are_never_off_by_more_than_half_a_percent(count):
    number, unit = format_bytes(count).split()
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert float(number) * scale == pytest.approx(count, rel=0.0051)


def test_little_is_not_nothing():
    assert [format_time(t) for t in (0.0, 0.004, 0.005, 0.006)] == ["0 us", "under 0.01 us", "0.01 us", "0.01 us"]
    assert [format_share(s) for s in (0.0, 0.0004, 0.001, 0.34)] == ["0.0%", "under 0.1%", "0.1%", "34.0%"]


def test_other_quantities():
    assert [format_time(t) for t in (8.2, 312.0, 73_100.0, None)] == ["8.20 us", "312 us", "73.1 ms", "unknown"]
    assert [format_capacity(c) for c in (16 * 2**30, 128 * 2**20, 100, None)] == [
        "16 GiB",
        "128 MiB",
        "100 B",
        "unknown",
    ]
    assert [format_count(c) for c in (1234567, None)] == ["1,234,567", "unknown"]
    assert [pluralize(n, "collective") for n in (1, 2000)] == ["1 collective", "2,000 collectives"]


def test_element_types():
    assert {name: count_element_bits(name) for name in ("pred", "s4", "f8e4m3fn", "bf16", "c64", "token", "f9")} == {
        "pred": 8,
        "s4": 4,
        "f8e4m3fn": 8,
        "bf16": 16,
        "c64": 64,
        "token": 0,
        "f9": None,
    }
    assert count_array_bytes("s4", 3) == 2
    assert count_array_bytes("bf16", 8) == 16
    assert count_array_bytes("f9", 8) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (4.07e5, "410,000"),
        (2.1e2, "210"),
        (21.4, "21"),
        (2.14, "2.1"),
        (0.00021, "0.00021"),
        (9.99, "10"),
        (-3.0, "-3"),
    ],
)
def test_digits_without_powers_of_ten(value, shown):
    assert format_digits(value) == shown


def test_a_sign_stands_before_the_number():
    signs = [add_sign(words, is_more=more) for words in ("34.0%", "under 0.1%", "6.14 kB") for more in (True, False)]
    assert signs == ["+34.0%", "−34.0%", "under +0.1%", "under −0.1%", "+6.14 kB", "−6.14 kB"]
