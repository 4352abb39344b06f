"""Twins that are right stay silent, and twins that are wrong are named: what a tolerance is worth."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampled import every_other
from verify_helpers import USER_CODE, clauses_with, findings, job, unmeasured

from hloscope.base.errors import NotationError
from hloscope.verification import executing, noise
from hloscope.verification.job import Draw, check_range, draw_values
from hloscope.verification.judging import judge_numerics
from hloscope.verification.model import Untested
from hloscope.verification.rounding import measure_other_splits, measure_rounding, time_run
from hloscope.verification.run_location import run_in_child
from hloscope.verification.running import compare_prepared, prepare_both, run_verification

sys.path.insert(0, str(USER_CODE))
import right_pairs
import wrong_pairs

DEVICES = {"positive_parts_of_sixteen": 16, "normalised_on_sixteen": 16}


def test_there_are_enough_of_each():
    assert len(right_pairs.PAIRS) >= 20
    assert len(wrong_pairs.PAIRS) >= 20


def findings_of_seeds(file, name, seeds, **options):
    """The findings with each seed; both programs are compiled once."""
    first = job(file, f"{name}_twin", name, devices=DEVICES.get(name, 8), **options)
    programs = prepare_both(first)
    jobs = (replace(first, settings=replace(first.settings, seed=seed)) for seed in seeds)
    return [list(judge_numerics(compare_prepared(programs, job))) for job in jobs]


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 7), marks=pytest.mark.long)], ids=["two", "five"])
@pytest.mark.parametrize("name", right_pairs.PAIRS)
def test_a_right_twin_passes_on_several_seeds(name, seeds):
    assert findings_of_seeds("right_pairs", name, seeds) == [[]] * len(seeds)


def test_sixty_four_positive_parts_added_in_bf16_are_right():
    name = right_pairs.ON_SIXTY_FOUR
    found = run_in_child(job("right_pairs", f"{name}_twin", name, devices=64), timeout_s=300)
    assert found.agree
    assert found.comparisons[0].largest_error > 0.1


@pytest.mark.parametrize("name", every_other(name for name, grad in right_pairs.PAIRS.items() if grad))
def test_gradients_of_a_right_twin_pass(name):
    assert findings_of_seeds("right_pairs", name, [0], grad=True) == [[]]


@pytest.mark.parametrize("name", every_other(wrong_pairs.PAIRS))
def test_a_wrong_twin_is_named(says, name):
    options = dict(wrong_pairs.PAIRS[name])
    rule, shown = options.pop("found")
    (found,) = findings_of_seeds("wrong_pairs", name, [0], **options)
    clauses = clauses_with(found, rule, *shown)
    assert clauses
    says(clauses)


def parts(file, target, reference, **options):
    found = run_verification(job(file, target, reference, **options))
    assert found.agree
    return [(one.argument, one.shards) for one in found.untested]


def test_a_sum_that_is_left_out_is_wrong_and_no_rounding():
    assert {found.rule for found in findings("unsummed", "unsummed", "summed")} == {"wrong-result", "copies-differ"}


@pytest.mark.parametrize("reference", ["embedding", "by_one_hot", "of_each_device"])
def test_integers_that_index_something_reach_all_of_it(says, reference):
    found = run_verification(job("covered", "of_each_device", reference))
    assert re.findall(r"\w+:|\d+|all", says(found.inputs[1])) == ["index:", "0", "4095", "all"]
    assert (found.agree, found.untested) == (True, ())


def test_a_range_that_reaches_a_part_leaves_shards_untested():
    (untested,) = run_verification(job("covered", "of_each_device", "embedding", ranges={"index": (0, 1024)})).untested
    assert untested == Untested(argument="table", shards=tuple(f"X={x}" for x in range(2, 8)), parts=8)


def test_what_a_mask_of_zeros_hides_is_untested():
    assert parts("covered", "masked", "masked", ranges={"mask": (0, 1)}) == [("x", ())]
    assert parts("covered", "masked", "masked") == []


def test_a_reverse_pass_finds_the_same(monkeypatch):
    monkeypatch.setattr("hloscope.verification.run_comparison._PATIENCE_S", 0.0)
    assert parts("covered", "masked", "masked", ranges={"mask": (0, 1)}) == [("x", ())]
    assert parts("covered", "of_each_device", "of_each_device", ranges={"index": (512, 4096)}) == [("table", ("X=0",))]


def test_donated_buffers_that_are_only_overwritten_need_not_be_tested():
    assert parts("covered", "overwritten", "overwritten_in_vain") == []
    assert parts("covered", "overwritten_in_vain", "overwritten_in_vain") == [("buffer", ())]


def test_a_reference_is_split_in_other_ways_before_a_difference_is_told(says, monkeypatch):
    run_split, given = executing.run_split, []

    def split(program, values, shardings):
        given.append([tuple(one.spec) for one in shardings])
        (found,) = run_split(program, values, shardings)
        np.testing.assert_allclose(found, np.asarray(program.compiled(*values)), rtol=1e-4, atol=1e-3)
        return [found]

    monkeypatch.setattr("hloscope.verification.executing.run_split", split)
    found = list(judge_numerics(run_verification(job("covered", "product_too_large", "product"))))
    assert [one.rule for one in found] == ["wrong-result"]
    clauses = clauses_with(found, "wrong-result", "1.050")
    assert clauses
    says(clauses)
    assert given == [[(None, "X"), ("X", None)], [("X",)] * 2, [(None, "X")] * 2]


@pytest.mark.parametrize(
    ("factor", "grown", "told"),
    [(1.0, False, False), (1 + 1e-6, True, False), (1.05, False, True)],
    ids=["the same", "rounding", "more than rounding"],
)
def test_what_another_split_changes_is_allowed_as_far_as_it_is_rounding(says, monkeypatch, factor, grown, told):
    prepared = prepare_both(job("covered", "product_too_large", "product"))
    values = [np.linspace(0.5, 1, 256 * 256, dtype=np.float32).reshape(256, 256)] * 2
    target, reference = (time_run(one, values) for one in prepared.values())
    before = measure_rounding(target, reference, job("covered", "product_too_large", "product"), lambda _: None)
    monkeypatch.setattr(
        "hloscope.verification.executing.run_split",
        lambda program, values, _: [np.asarray(program.compiled(*values)) * np.float32(factor)],
    )
    after = measure_other_splits(before, target, reference, lambda _: None)
    assert bool(np.any(after.spreads[0].allowed > before.spreads[0].allowed)) is grown
    assert bool(after.notes) is told
    if told:
        assert re.findall(r"[\d,]+ \w+", says(after.notes[0])) == ["65,536 elements", "4 times"]


def test_counts_that_rounding_hides_are_said(says):
    found = run_verification(job("covered", "mean_over_one_less", "mean"))
    assert found.agree
    (note,) = found.notes
    assert re.findall(r"\d,\d+|result|\d\.(?=\d+%)|bfloat16|--scale", note) == [
        *("result", "4,095", "4,096"),
        *("0.", "bfloat16", "--scale"),
    ]
    says(unmeasured(note))
    found = run_verification(job("covered", "mean_over_one_less", "mean", scale={"S": 64}))
    assert (found.agree, found.notes) == (False, ())


def test_what_rounding_drowns_tells_nothing(says):
    bounds = {f"weights[{layer}]": (-2, 2) for layer in range(6)}
    (finding,) = judge_numerics(run_verification(job("covered", "chaotic_of_other_weights", "chaotic", ranges=bounds)))
    assert finding.rule == "nothing-compared"
    assert "rounding" in says(finding.message)
    (finding,) = judge_numerics(run_verification(job("covered", "chaotic_of_other_weights", "chaotic")))
    assert finding.rule == "wrong-result"  # of weights that are drawn as large as their products need


def test_an_output_that_is_judged_nowhere_says_nothing(says):
    found = run_verification(job("covered", "ranked_backwards", "ranked"))
    assert [one.informative for one in found.comparisons] == [False, True]
    assert (found.comparisons[0].unstable, found.comparisons[0].elements) == (4096, 4096)
    (finding,) = judge_numerics(found)
    assert finding.rule == "uninformative-output"
    message = says(finding.message, "ranked")
    assert re.findall(r"result\[\d\]|\d,\d+|rounding", message) == ["result[0]", "4,096", "4,096", "rounding"]
    (finding,) = judge_numerics(run_verification(job("covered", "ranks", "ranks")))
    assert finding.rule == "nothing-compared"
    assert "rounding" in says(finding.message, "ranks")


def test_a_tolerance_that_lets_zeros_pass_is_blamed_on_whoever_gave_it(says):
    (finding,) = judge_numerics(run_verification(job("covered", "product_too_large", "product", rtol=2.0)))
    assert finding.rule == "nothing-compared"
    assert "requested tolerance" in says(finding.message)


def test_parts_that_would_take_too_long_are_told_as_not_tried(says, monkeypatch):
    monkeypatch.setattr("hloscope.verification.run_comparison._MOST_CHANGES", 3)
    found = run_verification(job("covered", "of_each_device", "embedding"))
    assert found.untested == (Untested(argument="table", shards=(), parts=8, tried=False),)
    (finding,) = judge_numerics(found)
    assert finding.rule == "untested"
    assert re.findall(r"not test|\d shards|table", says(finding.message)) == ["not test", "8 shards", "table"]


def test_arguments_that_there_is_no_time_for_are_told_as_not_tried_in_one(says, monkeypatch):
    monkeypatch.setattr("hloscope.verification.run_comparison._PATIENCE_S", 0.0)
    monkeypatch.setattr("hloscope.verification.run_comparison._MOST_CHANGES", 1)
    monkeypatch.setattr("hloscope.verification.run_comparison._make_gradient_test", lambda *_: None)
    found = run_verification(job("covered", "product", "product"))
    assert found.untested[1:] == (Untested(argument="b", shards=(), parts=8, tried=False),)
    found = run_verification(
        job("covered", "chaotic", "chaotic", ranges={f"weights[{at}]": (-0.1, 0.1) for at in range(6)})
    )
    (rest,) = found.untested[1:]
    assert re.findall(r"weights\[\d\]|\d other", says(rest.argument, "argument")) == ["weights[0]", "5 other"]
    assert rest == Untested(argument=rest.argument, shards=(), parts=6, tried=False)
    (*_, last) = judge_numerics(replace(found, untested=(replace(rest, argument="w", parts=1),)))
    assert last.rule == "untested"
    assert re.findall(r"not test|\bw$", says(last.message, "finding")) == ["not test", "w"]


@pytest.mark.parametrize(
    ("dtype", "bounds", "shown"),
    [
        ("uint8", (300, 400), ["uint8", "300", "400", "b"]),
        ("uint8", (-5, -1), ["uint8", "-5", "-1", "b"]),
        ("int32", (0.2, 0.8), ["int32", "0.2", "0.8", "b"]),
        ("float32", (1, -1), ["b", "empty"]),
        ("float32", (float("nan"), 1), ["b", "empty"]),
        ("bool", (0, 1), ["b", "cannot have a range"]),
    ],
)
def test_a_range_without_values_is_refused(says, dtype, bounds, shown):
    with pytest.raises(NotationError) as caught:
        check_range("b", np.dtype(dtype), bounds)
    assert re.findall(r"u?int\d+|-?\b\d[\d.]*|\bb\b|empty|cannot have a range", caught.value.what) == shown
    says(caught)


def test_ranges_reach_to_the_ends_of_their_types():
    check_range("b", np.dtype("uint64"), (0, 2e19))
    assert draw_values(np.uint64, (64,), Draw(bounds=(0, 2e19)), seed=0, position=0).max() > 2**63
    assert set(draw_values(np.int32, (64,), Draw(bounds=(0.5, 2.5)), seed=0, position=0)) == {1, 2}


def test_programs_that_round_nothing_are_not_run_again(monkeypatch):
    monkeypatch.setattr("hloscope.verification.executing.run_noisy", None)
    found = run_verification(job("covered", "of_each_device", "embedding"))
    assert found.agree
    assert found.comparisons[0].tolerance.source == "rounding"


def test_a_deep_program_is_moved_alike_when_each_kind_of_operation_is_compiled_once(monkeypatch):
    def deep(x, w):
        for _ in range(12):
            x = jnp.cos(x * w)
        return x

    given = np.linspace(0.1, 0.9, 512, dtype=np.float32), np.float32(0.7)
    closed = jax.make_jaxpr(deep)(*given)
    monkeypatch.setattr(noise, "_MANY", 20)
    by_kind = noise.make_noisy(closed, parts=8, platform="cpu", alone=True)
    monkeypatch.setattr(noise, "_MANY", 1000)
    together = noise.make_noisy(closed, parts=8, platform="cpu", alone=True)
    assert (hasattr(by_kind, "lower"), hasattr(together, "lower")) == (False, True)
    exact = np.asarray(jax.jit(deep)(*given))
    sizes = [
        [np.sqrt(np.mean((np.asarray(moved(np.uint32(salt), *given)[0]) - exact) ** 2)) for salt in range(1, 4)]
        for moved in (by_kind, together)
    ]
    assert len(set(sizes[0])) == 3
    assert 0.5 < np.mean(sizes[0]) / np.mean(sizes[1]) < 2
