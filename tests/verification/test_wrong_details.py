"""Twins that are wrong in one detail, and comparisons that could not fail."""

from __future__ import annotations

import re
from math import inf, nan

import pytest
from verify_helpers import USER_CODE, findings, job, unmeasured

import hloscope
from hloscope.base.errors import NotationError, TargetError
from hloscope.verification.job import Settings
from hloscope.verification.judging import judge_numerics
from hloscope.verification.running import run_verification

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
    numerics = run_verification(job("wrong_details", name, "block"))
    wrong = [one for one in numerics.comparisons if one.wrong]
    assert [(one.name, one.wrong_shards) for one in wrong] == [(output, shards)]
    assert not numerics.agree


def test_one_wrong_element_is_named(says):
    numerics = run_verification(job("wrong_details", "wrong_at_one_index", "block"))
    worst = numerics.comparisons[0].worst
    assert (worst.index, worst.local_index, worst.shard) == ((3, 6), (3, 2), "X=0, Y=1")
    errors = numerics.comparisons[0].error_map.errors
    assert [(row, column) for row, line in enumerate(errors) for column, error in enumerate(line) if error > 1] == [
        (3, 6)
    ]
    assert {one.error_map for one in numerics.comparisons if one.agrees} == {None}
    (finding,) = judge_numerics(numerics)
    assert finding.rule == "wrong-result"
    assert re.findall(r"result\[\d\]|\d+ of \d+|X=.*(?=\))", finding.message) == [
        *("result[0]", "1 of 256"),
        *("1 of 8", "X=0, Y=1"),
    ]
    assert re.findall(r"\[.*?\]|X=.*(?=: )|-?\d\.\d+(?=,| in)", finding.why) == [
        *("[3, 6]", "[3, 2]", "X=0, Y=1"),
        *(worst.found, worst.expected),
    ]
    says([finding.message, unmeasured(finding.why)])


def test_swapped_outputs_are_two_wrong_ones():
    found = findings("wrong_details", "swapped_outputs", "block")
    assert [one.message.split()[0] for one in found] == ["result[1]", "result[2]"]


def test_a_wrong_gradient_is_caught_although_the_outputs_agree(says):
    numerics = run_verification(job("wrong_details", "wrong_gradient", "block", grad=True))
    assert [(one.name, one.wrong, one.wrong_shards) for one in numerics.comparisons if one.wrong] == [
        ("gradient of x", 256, ALL)
    ]
    (finding,) = judge_numerics(numerics)
    assert finding.rule == "wrong-result"
    assert re.findall(r"gradient of x|\d+|every device", says(finding.message)) == [
        *("gradient of x", "256", "256"),
        "every device",
    ]


def test_donated_arguments_are_given_anew_to_each_run():
    assert findings("wrong_details", "donated", "block") == []
    assert findings("wrong_details", "donated", "block", grad=True) == []


def test_functions_without_outputs_are_not_compared():
    (finding,) = findings("wrong_details", "returns_nothing", "returns_nothing")
    assert finding.rule == "nothing-compared"


def test_an_output_that_has_another_shape_at_scaled_sizes_is_not_left_out_silently(says):
    (finding,) = findings("wrong_details", "other_shape_at_other_sizes", "block", scale={"N": 32})
    assert finding.rule == "not-compared"
    assert "result[2]" in finding.message
    assert re.findall(r"\[\d+\]", finding.why) == ["[16]", "[32]"]
    says([finding.message, finding.why])


SEVEN = tuple(f"X={x}" for x in range(1, 8))
SEVEN_SHOWN = ["7 of 8", "X=1", "X=2", "X=3", "X=4", "3 more"]


def test_shards_of_small_numbers_are_judged_by_their_own_size(says):
    numerics = run_verification(job("wrong_details", "of_two_sizes_and_zero_elsewhere", "of_two_sizes"))
    assert numerics.comparisons[0].wrong_shards == SEVEN
    (finding,) = judge_numerics(numerics)
    assert finding.rule == "wrong-result"
    assert re.findall(r"\d of \d\b|X=\d|\d more", says(finding.message.partition(" elements, ")[2])) == SEVEN_SHOWN


def test_shards_that_a_users_tolerance_hides_are_told(says):
    numerics = run_verification(job("wrong_details", "of_two_sizes_and_zero_elsewhere", "of_two_sizes", rtol=1e-6))
    assert numerics.comparisons[0].blind_shards == SEVEN
    (finding,) = judge_numerics(numerics)
    assert finding.rule == "uninformative-output"
    assert re.findall(r"result|\d of \d|X=\d|\d more", says(finding.message)) == ["result", *SEVEN_SHOWN]


def test_a_tolerance_under_which_zeros_pass_compares_nothing(says):
    (finding,) = findings("wrong_details", "all_zero", "block", atol=10.0)
    assert finding.rule == "uninformative-output"
    assert re.findall(r"result\[\d\]|tolerance", says(finding.message)) == ["result[0]", "tolerance"]
    (finding,) = findings("wrong_details", "of_two_sizes_and_zero_elsewhere", "of_two_sizes", rtol=1.0)
    assert finding.rule == "nothing-compared"


@pytest.mark.parametrize("tolerance", [nan, inf, -1.0])
@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_tolerances_are_numbers(says, name, tolerance):
    with pytest.raises(NotationError) as caught:
        Settings(**{name: tolerance})
    assert name in caught.value.what
    assert f"{tolerance:g}" in caught.value.what
    says(caught)


@pytest.mark.tpu_compiler
def test_another_type_is_another_structure(says):
    names = [f"{USER_CODE}/wrong_details.py:{name}" for name in ("other_type", "block")]
    found = hloscope.verify(*names, on="cpu")
    (message,) = [one.message for one in found.findings if one.rule == "other-structure"]
    assert re.findall(r"\w+\[\S+\]", says(message)) == ["result[0]", "bf16[16,16]", "f32[16,16]"]
    assert not found.passed


def test_a_program_is_not_its_own_reference(says):
    name = f"{USER_CODE}/wrong_details.py:block"
    with pytest.raises(TargetError) as caught:
        hloscope.verify(name, name)
    assert name in caught.value.what
    assert "against_single_device=True" in caught.value.fix
    says(caught)


def test_keys_of_two_arguments_are_not_the_same(says):
    numerics = run_verification(job("adversaries", "first_key", "second_key"))
    (compared,) = numerics.comparisons
    assert (compared.name, compared.wrong, compared.elements, len(compared.wrong_shards)) == ("result", 16, 16, 8)
    (finding,) = judge_numerics(numerics)
    assert finding.rule == "wrong-result"
    assert re.findall(r"result|\d+|every device", says(finding.message)) == ["result", "16", "16", "every device"]


def test_without_sums_over_devices_rounding_allows_less():
    (finding,) = findings("adversaries", "four_percent_more", "matmul")
    assert finding.rule == "wrong-result"
    assert findings("adversaries", "summed_in_other_order", "matmul") == []


def test_an_empty_output_is_told(says):
    (finding,) = findings("adversaries", "with_an_empty_output", "with_an_empty_output")
    assert finding.rule == "uninformative-output"
    assert re.findall(r"result\[\d\]|empty", says(finding.message)) == ["result[1]", "empty"]


def test_what_the_program_alone_rounds_is_a_finding(says):
    (finding,) = findings("adversaries", "doubled_through_bf16", "doubled")
    assert finding.rule == "rounds-more"
    assert re.search(r"result .* \d\S* times", finding.message)
    says(re.sub(r"\d\S*(?= times)", "MEASURED", finding.message))
    assert findings("adversaries", "doubled", "doubled_through_bf16") == []
    assert findings("adversaries", "doubled_through_bf16", "doubled", rtol=0.01) == []
