"""Twins that are wrong in one detail, and comparisons that could not fail."""

from __future__ import annotations

from math import inf, nan

import pytest
from verify_helpers import USER_CODE, findings, job

import hloscope
from hloscope.errors import NotationError, TargetError
from hloscope.verification.job import Settings
from hloscope.verification.running import run_job

ALL = tuple(f"X={x}, Y={y}" for x in range(2) for y in range(4))

WRONG = {
    "transposed": ("result[0]", ALL),
    "scaled_by_two": ("result[0]", ALL),
    "one_percent_off": ("result[0]", ALL),
    "all_zero": ("result[0]", ALL),
    "integer_off_by_one": ("result[2]", tuple(place for place in ALL if place.startswith("X=1"))),
    "not_a_number_on_one_shard": ("result[0]", ("X=1, Y=2",)),
    "wrong_at_one_index": ("result[0]", ("X=0, Y=1",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_detail_is_caught_in_its_output_and_at_its_shards(name):
    output, shards = WRONG[name]
    numerics = run_job(job("wrong_details", name, "block"))
    wrong = [one for one in numerics.comparisons if one.wrong]
    assert [(one.name, one.wrong_shards) for one in wrong] == [(output, shards)]
    assert not numerics.agree


def test_one_wrong_element_is_named():
    (finding,) = findings("wrong_details", "wrong_at_one_index", "block")
    assert finding.message == "result[0] differs from the reference in 1 of 256 elements, on 1 of 8 devices (X=0, Y=1)"
    assert finding.why.startswith("worst at [3, 6], which is [3, 2] of the shard at X=0, Y=1: ")


def test_swapped_outputs_are_two_wrong_ones():
    found = findings("wrong_details", "swapped_outputs", "block")
    assert [one.message.split()[0] for one in found] == ["result[1]", "result[2]"]


def test_a_wrong_gradient_is_caught_although_the_outputs_agree():
    (finding,) = findings("wrong_details", "wrong_gradient", "block", grad=True)
    assert finding.message == "gradient of x differs from the reference in 256 of 256 elements, on every device"


def test_donated_arguments_are_given_anew_to_each_run():
    assert findings("wrong_details", "donated", "block") == []
    assert findings("wrong_details", "donated", "block", grad=True) == []


def test_functions_without_outputs_are_not_compared():
    (finding,) = findings("wrong_details", "returns_nothing", "returns_nothing")
    assert finding.rule == "nothing-compared"


def test_an_output_that_has_another_shape_at_scaled_sizes_is_not_left_out_silently():
    (finding,) = findings("wrong_details", "other_shape_at_other_sizes", "block", scale={"N": 32})
    assert finding.rule == "not-compared"
    assert finding.message == "the output result[2] could not be compared"
    assert finding.why == "its shape is [16], and [32] in the reference"


def test_shards_of_small_numbers_are_judged_by_their_own_size():
    (finding,) = findings("wrong_details", "of_two_sizes_and_zero_elsewhere", "of_two_sizes")
    assert finding.rule == "wrong-result"
    assert finding.message.endswith("on 7 of 8 devices (X=1; X=2; X=3; X=4; and 3 more)")


def test_shards_that_a_users_tolerance_hides_are_told():
    (finding,) = findings("wrong_details", "of_two_sizes_and_zero_elsewhere", "of_two_sizes", rtol=1e-6)
    assert finding.rule == "uninformative-output"
    assert finding.message == (
        "most of result is not finite, or so small that zeros would pass, on 7 of 8 devices (X=1; X=2; X=3; X=4; and "
        "3 more)"
    )


def test_a_tolerance_under_which_zeros_pass_compares_nothing():
    (finding,) = findings("wrong_details", "all_zero", "block", atol=10.0)
    assert finding.rule == "uninformative-output"
    assert finding.message == (
        "result[0] is zero, not finite or within its tolerance of zero everywhere: it says nothing"
    )
    (finding,) = findings("wrong_details", "of_two_sizes_and_zero_elsewhere", "of_two_sizes", rtol=1.0)
    assert finding.rule == "nothing-compared"


@pytest.mark.parametrize("tolerance", [nan, inf, -1.0])
@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_tolerances_are_numbers(name, tolerance):
    with pytest.raises(NotationError) as caught:
        Settings(**{name: tolerance})
    assert str(caught.value) == f"error: {name} cannot be {tolerance:g}\n   = fix: give a number that is 0 or more"


@pytest.mark.tpu_compiler
def test_another_type_is_another_structure():
    names = [f"{USER_CODE}/wrong_details.py:{name}" for name in ("other_type", "block")]
    found = hloscope.verify(*names, on="cpu")
    assert "result[0] is bf16[16,16], and f32[16,16] in the reference" in [one.message for one in found.findings]
    assert not found.passed


def test_a_program_is_not_its_own_reference():
    name = f"{USER_CODE}/wrong_details.py:block"
    with pytest.raises(TargetError) as caught:
        hloscope.verify(name, name)
    assert str(caught.value) == (
        f"error: {name} is its own reference, so nothing could differ\n"
        "   = fix: name another function, or add against_single_device=True to compare it with itself on one device"
    )


def test_keys_of_two_arguments_are_not_the_same():
    (finding,) = findings("adversaries", "first_key", "second_key")
    assert finding.message == "result differs from the reference in 16 of 16 elements, on every device"


def test_without_sums_over_devices_rounding_allows_less():
    (finding,) = findings("adversaries", "four_percent_more", "matmul")
    assert finding.rule == "wrong-result"
    assert findings("adversaries", "summed_in_other_order", "matmul") == []


def test_an_empty_output_is_told():
    (finding,) = findings("adversaries", "with_an_empty_output", "with_an_empty_output")
    assert (finding.rule, finding.message) == ("uninformative-output", "result[1] is empty: it says nothing")


def test_what_the_program_alone_rounds_is_a_finding():
    (finding,) = findings("adversaries", "doubled_through_bf16", "doubled")
    assert finding.rule == "rounds-more"
    assert finding.message.startswith("result rounds more than the reference: its errors are ")
    assert findings("adversaries", "doubled", "doubled_through_bf16") == []
    assert findings("adversaries", "doubled_through_bf16", "doubled", rtol=0.01) == []
