"""How far predicted times may be off, and when two of them are a tie."""

from dataclasses import replace

import pytest
from cost_examples import BLOCK, fusion, module_text, priced

from hloscope.model import StepTime
from hloscope.model.trial import RuleUse, is_tie, ratio_range
from hloscope.report.price import format_time_line
from hloscope.tpu import find_chip

GROUPS = "channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, use_global_device_ids=true"
ALONE = module_text(f"%a = {BLOCK} parameter(0)\nROOT {fusion('f', 'a', 150_000)}")
REDUCED = module_text(
    f"%a = {BLOCK} parameter(0)\n{fusion('f', 'a', 150_000)}\nROOT %r = {BLOCK} all-reduce(%f), {GROUPS}, to_apply=%sum"
)


def step(**uses):
    """A step of rules, each as long as its number says and off by a tenth."""
    total = sum(uses.values())
    rules = tuple(
        RuleUse(rule=name, time_us=time_us, calibrated=True, error=0.1, more_us=time_us / 10, less_us=time_us / 10)
        for name, time_us in uses.items()
    )
    return StepTime(step_us=total, compute_us=total, exposed_us=0.0, hidden_us=0.0, rules=rules)


def test_a_step_of_one_rule_may_be_off_as_far_as_that_rule():
    time = priced(ALONE).time
    error = find_chip("v5e").measured.error_of("cycles")
    assert (time.least_us, time.most_us) == (pytest.approx(100 * (1 - error)), pytest.approx(100 * (1 + error)))


def test_what_was_not_measured_may_be_off_further():
    known, unknown = priced(ALONE).time, priced(ALONE, "v4:2x2x2").time
    assert (known.calibrated, unknown.uncalibrated) == (("cycles",), ("cycles",))
    widths = [(time.most_us - time.least_us) / time.step_us for time in (known, unknown)]
    assert widths[1] >= 2 * widths[0]


def test_errors_of_different_rules_add_as_squares():
    time = step(one=300.0, other=400.0)
    assert (time.least_us, time.most_us) == (650.0, 750.0)


def test_an_exposed_collective_has_the_range_of_its_rule_and_brings_it_into_the_step():
    found = priced(REDUCED)
    (reduction,) = found.collectives
    assert reduction.time_error == find_chip("v5e").measured.error_of(
        next(use.rule for use in found.time.rules if use.rule != "cycles")
    )
    assert found.time.most_us - found.time.step_us > reduction.time_us * reduction.time_error


def test_a_hidden_collective_does_not_widen_the_range():
    use = RuleUse(rule="permute", time_us=50.0, calibrated=False, error=0.35)
    time = step(cycles=100.0)
    hidden = replace(time, rules=(*time.rules, use))
    assert (hidden.least_us, hidden.most_us) == (time.least_us, time.most_us)


def test_what_both_programs_rest_on_cancels():
    before, after = step(cycles=100.0), step(cycles=98.0)
    assert ratio_range(after, before) == (pytest.approx(0.98), pytest.approx(0.98))
    assert not is_tie(after, before)
    assert is_tie(after, before, same_generation=False)


def test_what_only_one_of_them_rests_on_may_be_a_tie():
    before = step(cycles=100.0)
    assert is_tie(step(cycles=60.0, permute=38.0), before)
    assert not is_tie(step(cycles=60.0, permute=20.0), before)


def test_a_step_is_no_tie_with_itself_and_nothing_is_with_one_that_is_not_priced():
    before = step(cycles=100.0)
    assert not is_tie(before, before)
    assert ratio_range(step(), before) is None


def test_the_range_stands_beside_the_time():
    assert format_time_line(step(one=300.0, other=400.0), 80).plain.startswith("700 us (650 to 750 us)  ")
