"""Values, tolerances and differences: pure functions on NumPy arrays."""

from __future__ import annotations

import re
from math import inf

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hloscope.verification.differences import (
    OutputShard,
    assemble_shards,
    compare_shards,
    compute_allowed,
    compute_error_ratios,
    compute_relative_tolerance,
    compute_root_mean_square,
    find_telling_elements,
    make_error_map,
    make_tolerance,
    read_rounding,
)
from hloscope.verification.job import Draw, describe_draw, draw_values
from hloscope.verification.model import Tolerance
from hloscope.verification.rounding import measure_spread

EXACT = Tolerance()
LOOSE = Tolerance(relative=0.01, absolute=0.001)


def compared(shards, expected, tolerance=LOOSE):
    return compare_shards(
        shards, expected, compute_allowed(tolerance, expected), name="out", subject="target", against="reference"
    )


def split(array, parts):
    pieces = np.split(array, parts)
    return [
        OutputShard(place=f"X={i}", start=(i * len(piece), *[0] * (array.ndim - 1)), values=piece)
        for i, piece in enumerate(pieces)
    ]


@given(arrays.arrays(np.float32, (8, 3), elements=st.floats(width=32, allow_subnormal=False)))
def test_an_array_agrees_with_itself_whatever_it_holds(array):
    assert compared(split(array, 4), array, EXACT).wrong == 0
    assert np.array_equal(assemble_shards(split(array, 4), array.shape, array.dtype), array, equal_nan=True)


@given(st.integers(0, 7), st.integers(0, 2), st.sampled_from([np.float32, np.int32, np.bool_, ml_dtypes.bfloat16]))
def test_one_wrong_element_is_found_where_it_is(row, column, dtype):
    expected = np.ones((8, 3), dtype)
    found = expected.copy()
    found[row, column] = 0
    one = compared(split(found, 4), expected)
    assert one.wrong == 1
    assert one.wrong_shards == (f"X={row // 2}",)
    assert (one.worst.index, one.worst.local_index, one.worst.shard) == (
        (row, column),
        (row % 2, column),
        f"X={row // 2}",
    )
    assert {one.worst.found, one.worst.expected} in ({"0", "1"}, {"false", "true"})


def test_the_worst_element_is_the_one_furthest_beyond_what_is_allowed():
    expected = np.array([1000.0, 1.0])
    one = compared([OutputShard(place="X=0", start=(0,), values=np.array([1011.0, 1.5]))], expected)
    assert one.wrong == 2
    assert one.worst.index == (1,)
    assert one.worst.allowed == pytest.approx(0.011)
    assert one.largest_error == pytest.approx(0.5 / 0.011)


@pytest.mark.parametrize(
    ("found", "expected", "ratio"),
    [
        (np.nan, np.nan, 0),
        (inf, inf, 0),
        (-inf, -inf, 0),
        (inf, -inf, inf),
        (np.nan, 1.0, inf),
        (1.0, np.nan, inf),
        (inf, 1e30, inf),
        (0.0, -0.0, 0),
        (0.0005, 0.0, 0.5),
    ],
)
def test_numbers_that_are_not_finite(found, expected, ratio):
    expected = np.array([expected])
    assert compute_error_ratios(np.array([found]), expected, compute_allowed(LOOSE, expected))[0] == ratio


def test_integers_are_exact_whatever_the_tolerance():
    assert (
        compute_error_ratios(np.array([1000000]), np.array([1000001]), compute_allowed(LOOSE, np.array([1])))[0] == inf
    )


def test_an_element_is_wrong_once_when_any_copy_of_it_is():
    good, bad = np.ones(4, np.float32), np.array([1, 1, 2, 1], np.float32)
    for copies, place in (((good, bad), "X=1"), ((bad, good), "X=0")):
        shards = [OutputShard(place=f"X={at}", start=(0,), values=values) for at, values in enumerate(copies)]
        one = compared(shards, good)
        assert (one.elements, one.copies, one.wrong, one.wrong_shards) == (4, 2, 1, (place,))
    both = compared([OutputShard(place=place, start=(0,), values=bad) for place in ("X=0", "X=1")], good)
    assert (both.elements, both.wrong, both.wrong_shards) == (4, 1, ("X=0", "X=1"))


@pytest.mark.parametrize(
    ("array", "tells"),
    [(np.zeros(4), False), (np.full(4, np.nan), False), (np.zeros(0), False), (np.array([0, 0, 1]), True),
     (np.array([np.inf, 2.0]), True), (np.zeros(3, bool), False)],
)  # fmt: skip
def test_arrays_that_tell_nothing(array, tells):
    assert np.any(find_telling_elements(array, compute_allowed(LOOSE, array))) == tells


def test_the_size_of_an_array_leaves_out_what_is_not_finite():
    assert compute_root_mean_square(np.array([3.0, -4.0, np.inf, np.nan])) == pytest.approx(np.sqrt(12.5))
    assert compute_root_mean_square(np.array([3, 4])) == 0
    assert compute_root_mean_square(np.array([3e300, -4e300])) == pytest.approx(np.sqrt(12.5) * 1e300)
    assert compute_root_mean_square(np.zeros(3)) == 0


@given(st.integers(0, 2**32), st.integers(0, 9), st.sampled_from(["float32", "bfloat16", "int8", "uint8", "bool"]))
def test_inputs_depend_on_seed_and_position_alone(seed, position, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    one, again = (draw_values(dtype, (4, 5), Draw(), seed=seed, position=position) for _ in range(2))
    assert one.dtype == dtype
    assert np.array_equal(one, again)
    other = draw_values(dtype, (64, 5), Draw(), seed=seed, position=position + 1)
    assert not np.array_equal(draw_values(dtype, (64, 5), Draw(), seed=seed, position=position), other)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_wide_numbers_have_digits_that_narrow_ones_lose(dtype):
    values = draw_values(dtype, (64,), Draw(), seed=0, position=0)
    narrow = np.complex64 if dtype is np.complex128 else np.float32
    assert values.dtype == dtype
    assert np.count_nonzero(values.astype(narrow).astype(dtype) != values) > 60


@given(st.sampled_from([np.int8, np.uint8, np.int32, ml_dtypes.int4]), st.integers(0, 5), st.integers(1, 7))
def test_indices_stay_in_their_range(dtype, low, width):
    values = draw_values(dtype, (100,), Draw(bounds=(low, low + width)), seed=0, position=0).astype(int)
    limit = 7 if dtype == ml_dtypes.int4 else 255
    assert set(values) <= set(range(low, min(low + width, limit + 1)))


@pytest.mark.parametrize(
    ("dtype", "bounds", "words"),
    [("float32", None, "normal"), ("float32", (-1, 1), "-1 to 1"), ("int32", (0, 8), "0 to 7"),
     ("int8", None, "-100 to 99"), ("uint8", None, "0 to 99"), ("int8", (0, 1000), "0 to 127"),
     ("bool", None, "true or false")],
)  # fmt: skip
def test_ranges_in_words(dtype, bounds, words):
    assert describe_draw(dtype, Draw(bounds=bounds)) == words


@pytest.mark.parametrize(("bounds", "shown"), [((0, 32), ["0", "31", "all"]), ((1, 31), ["1", "30", "without"])])
def test_an_index_in_words(says, bounds, shown):
    words = says(describe_draw("int32", Draw(bounds=bounds, is_index=True)))
    assert re.findall(r"\d+|all|without", words) == shown


def test_what_cancels_does_not_widen_what_larger_elements_are_allowed():
    expected = np.append(np.linspace(1, 2, 31, endpoint=False), 2.0**-7)
    runs = [expected + 0.01 * np.where(np.arange(32) % run, 1, -1) for run in range(2, 8)]
    spread = measure_spread(expected, runs, [], unit=2.0**-9)
    assert spread.allowed[:31].max() < 0.03
    assert spread.allowed[31] > 0.01


DOT = (
    "%2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : "
    "(tensor<8x2048x{0}>, tensor<2048x512x{0}>) -> tensor<8x512x{0}>"
)


def test_rounding_is_read_from_the_lowered_program():
    rounding = read_rounding(DOT.format("bf16"), devices=8)
    assert (rounding.narrowest, rounding.sum_length, rounding.products) == (2.0**-8, 2048, 1)
    inside = read_rounding("sdy.manual_computation(%arg0) {" + DOT.format("f32"), devices=8)
    assert (inside.narrowest, inside.sum_length) == (2.0**-24, 8 * 2048)
    assert read_rounding("stablehlo.add %0, %1 : tensor<8xi32>", devices=8).narrowest == 0


def test_tolerances_grow_with_the_sum_and_with_narrow_types():
    def relative(dtype, platform="cpu", devices=8):
        return compute_relative_tolerance(
            (read_rounding(DOT.format(dtype), devices),), devices=devices, platform=platform
        )

    assert relative("f32") == pytest.approx(4 * 2**-24 * (3 + 2048**0.5))
    assert relative("bf16") == pytest.approx(4 * (2**-8 * 3 + 2**-24 * 2048**0.5))
    assert relative("f32", "tpu") > 100 * relative("f32")
    assert relative("f8E4M3FN") == 0.25


def test_a_program_of_integers_has_no_tolerance():
    rounding = read_rounding("stablehlo.add %0, %1 : tensor<8xi32>", devices=8)
    assert compute_relative_tolerance((rounding,), devices=8, platform="cpu") == 0


def test_the_users_own_tolerances_replace_those():
    assert make_tolerance(0.1, 2.0, rtol=None, atol=None) == Tolerance(relative=0.1, absolute=0.2)
    assert make_tolerance(0.1, 2.0, rtol=0.5, atol=None) == Tolerance(relative=0.5, absolute=1.0, source="user")
    assert make_tolerance(0.1, 2.0, rtol=None, atol=0.0) == Tolerance(relative=0.1, absolute=0.0, source="user")


def test_what_a_tolerance_allows_for_zero_tells_nothing():
    array = np.array([1.0, 0.05, 0.0, np.nan])
    assert find_telling_elements(array, compute_allowed(Tolerance(absolute=0.1), array)).tolist() == [
        True,
        False,
        False,
        False,
    ]
    assert find_telling_elements(array, compute_allowed(Tolerance(relative=1.0), array)).tolist() == [
        False,
        False,
        False,
        False,
    ]


def test_a_device_that_holds_small_numbers_only_is_told():
    expected = np.array([1000.0, 1000.0, 0.5, 0.5, 0.0, 0.0])
    one = compared(split(expected, 3), expected, Tolerance(absolute=1.0))
    assert (one.wrong, one.informative, one.blind_shards) == (0, True, ("X=1",))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (200,), (5, 3), (3, 130), (70, 2, 65), (2, 3, 2, 4)])
def test_a_map_has_the_largest_error_of_each_block(shape):
    errors = np.random.default_rng(0).choice([0.0, 0.3, 1.0, 1.004, 7.0, inf], shape)
    found = make_error_map(errors)
    rows = np.asarray(errors).reshape(-1, shape[-1] if shape else 1)
    seen = np.zeros(rows.shape, int)
    for row, line in enumerate(found.errors):
        for column, error in enumerate(line):
            first, last = (_place(at(row, column), shape) for at in (found.first, found.last))
            block = (slice(first[0], last[0] + 1), slice(first[1], last[1] + 1))
            seen[block] += 1
            assert error == pytest.approx(rows[block].max(), rel=0.01)
            assert (error > 1) == (rows[block].max() > 1)
    assert (seen == 1).all()
    assert max(len(found.errors), len(found.errors[0])) <= found.MOST


def _place(index, shape):
    """Where an element is down and across a map."""
    return divmod(int(np.ravel_multi_index(index, shape)) if shape else 0, shape[-1] if shape else 1)


def test_a_comparison_has_a_map_of_what_differs():
    expected = np.ones((8, 3), np.float32)
    found = expected.copy()
    found[5, 1] = 2
    one = compared(split(found, 4), expected)
    assert one.error_map.shape == (8, 3)
    assert [place for place, error in np.ndenumerate(np.array(one.error_map.errors)) if error] == [(5, 1)]
    assert compared(split(expected, 4), expected).error_map is None
