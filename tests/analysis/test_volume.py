"""Byte formulas."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.transfers import count_wire_bytes
from hloscope.model.vocabulary import Kind

SIZES = st.integers(0, 10**12)
GROUPS = st.integers(2, 10**4)
SHARE = {
    Kind.ALL_GATHER: lambda n, payload: Fraction(n - 1, n) * payload,
    Kind.ALL_REDUCE: lambda n, payload: Fraction(2 * (n - 1), n) * payload,
    Kind.REDUCE_SCATTER: lambda n, payload: Fraction(n - 1, n) * payload,
    Kind.ALL_TO_ALL: lambda n, payload: Fraction(n - 1, n) * payload,
    Kind.COLLECTIVE_BROADCAST: lambda n, payload: payload,
    Kind.RAGGED_ALL_TO_ALL: lambda n, payload: payload,
}


def groups_of(size):
    return (tuple(range(size)),)


@given(kind=st.sampled_from(list(SHARE)), payload=SIZES, n=GROUPS)
def test_wire_bytes_round_up_by_less_than_one(kind, payload, n):
    wire_bytes = count_wire_bytes(kind, payload, groups_of(n))
    exact = SHARE[kind](n, payload)
    assert isinstance(wire_bytes, int)
    assert exact <= wire_bytes < exact + 1


@given(kind=st.sampled_from(list(SHARE)), payload=SIZES)
def test_groups_of_one_move_nothing(kind, payload):
    assert count_wire_bytes(kind, payload, groups_of(1)) == 0


@given(size=SIZES, n=GROUPS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(size, n):
    size -= size % n
    halves = [count_wire_bytes(kind, size, groups_of(n)) for kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)]
    assert count_wire_bytes(Kind.ALL_REDUCE, size, groups_of(n)) == sum(halves)


def test_the_largest_group_counts():
    assert count_wire_bytes(Kind.ALL_GATHER, 12, ((0,), (1, 2, 3), (4, 5))) == 8


@pytest.mark.parametrize("kind", list(SHARE))
def test_unknown_stays_unknown(kind):
    assert count_wire_bytes(kind, None, groups_of(4)) is None
    assert count_wire_bytes(kind, 8, None) is None
    assert count_wire_bytes(kind, 8, ()) is None


def test_opaque_knows_nothing():
    assert count_wire_bytes(Kind.OPAQUE, 8, groups_of(4)) is None


@pytest.mark.parametrize(
    ("pairs", "wire"),
    [
        (((0, 1), (1, 0)), 8),
        (((0, 0), (1, 1)), 0),
        (((0, 0), (1, 2)), 8),
        (((0, 1), (0, 2)), 16),
        ((), 0),
        (None, None),
    ],
)
def test_permutes(pairs, wire):
    assert count_wire_bytes(Kind.COLLECTIVE_PERMUTE, 8, pairs) == wire


def test_a_permute_of_unknown_bytes():
    assert count_wire_bytes(Kind.COLLECTIVE_PERMUTE, None, ((0, 1),)) is None
    assert count_wire_bytes(Kind.COLLECTIVE_PERMUTE, None, ((0, 0),)) == 0
