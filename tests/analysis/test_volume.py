"""Byte formulas."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.vocabulary import Kind
from hloscope.analysis.volume import volume_of, volume_of_permute

SIZES = st.integers(0, 10**12)
GROUPS = st.integers(2, 10**4)
SHARE = {
    Kind.ALL_GATHER: lambda n, operand, result: Fraction(n - 1, n) * result,
    Kind.ALL_REDUCE: lambda n, operand, result: Fraction(2 * (n - 1), n) * operand,
    Kind.REDUCE_SCATTER: lambda n, operand, result: Fraction(n - 1, n) * operand,
    Kind.ALL_TO_ALL: lambda n, operand, result: Fraction(n - 1, n) * operand,
    Kind.COLLECTIVE_BROADCAST: lambda n, operand, result: operand,
    Kind.RAGGED_ALL_TO_ALL: lambda n, operand, result: operand,
}


@given(kind=st.sampled_from(list(SHARE)), operand=SIZES, result=SIZES, n=GROUPS)
def test_wire_bytes_round_up_by_less_than_one(kind, operand, result, n):
    volume = volume_of(kind, operand, result, n)
    exact = SHARE[kind](n, operand, result)
    assert isinstance(volume.wire_bytes, int)
    assert exact <= volume.wire_bytes < exact + 1
    assert volume.payload_bytes == (result if kind is Kind.ALL_GATHER else operand)


@given(kind=st.sampled_from(list(SHARE)), operand=SIZES, result=SIZES)
def test_groups_of_one_move_nothing(kind, operand, result):
    assert volume_of(kind, operand, result, 1).wire_bytes == 0


@given(size=SIZES, n=GROUPS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(size, n):
    size -= size % n
    both = (
        volume_of(Kind.REDUCE_SCATTER, size, None, n).wire_bytes + volume_of(Kind.ALL_GATHER, None, size, n).wire_bytes
    )
    assert volume_of(Kind.ALL_REDUCE, size, size, n).wire_bytes == both


@pytest.mark.parametrize("kind", list(SHARE))
def test_unknown_stays_unknown(kind):
    assert volume_of(kind, None, None, 4).wire_bytes is None
    assert volume_of(kind, 8, 8, None).wire_bytes is None
    assert volume_of(kind, 8, 8, None).payload_bytes == 8


def test_opaque_knows_nothing():
    volume = volume_of(Kind.OPAQUE, 8, 8, 4)
    assert (volume.payload_bytes, volume.wire_bytes) == (None, None)


@pytest.mark.parametrize(
    ("pairs", "wire"), [(((0, 1), (1, 0)), 8), (((0, 0), (1, 1)), 0), (((0, 0), (1, 2)), 8), ((), 0), (None, None)]
)
def test_permutes(pairs, wire):
    volume = volume_of_permute(8, pairs)
    assert (volume.payload_bytes, volume.wire_bytes) == (8, wire)


def test_a_permute_of_unknown_bytes():
    assert volume_of_permute(None, ((0, 1),)).wire_bytes is None
    assert volume_of_permute(None, ((0, 0),)).wire_bytes == 0
