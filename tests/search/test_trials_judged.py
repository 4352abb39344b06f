"""When a change helps: the figures alone decide, and what is not known never speaks for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from hloscope.app.explaining import _put_costliest_first
from hloscope.compile.sharding_change import LeafChange, Resharding
from hloscope.model.trial import Figures, RuleUse, Trial
from hloscope.model.vocabulary import Bound
from hloscope.search.trial_cache import TrialLimits
from hloscope.search.trials import DOES_NOT_FIT, _find_next, compute_gain, describe_verdict, is_worthwhile

BEFORE = Figures(
    step_us=100.0,
    step_us_range=(90.0, 110.0),
    step_bound=Bound.EXACT,
    wire_bytes=1000,
    wire_bytes_by_axis={"X": 1000},
    wire_bound=Bound.EXACT,
    hbm_bytes=1000,
    collectives=1,
)
COLLECTIVE = SimpleNamespace(exposed_us=60.0, executions=1)
FASTER = replace(BEFORE, step_us=50.0, wire_bytes=0, wire_bytes_by_axis={}, collectives=0)


@pytest.mark.parametrize(("change", "expected"), [
    ({"step_us": 94.0}, True),
    ({"step_us": 96.0}, False),
    ({"step_us": 100.0, "hbm_bytes": 900}, True),
    ({"step_us": 100.0, "hbm_bytes": 910}, False),
    ({"step_us": 100.0, "hbm_bytes": 980}, False),
    ({"step_us": 102.0, "hbm_bytes": 100}, False),
    ({"step_us": 50.0, "hbm_bytes": 5000}, True),
    ({"step_us": None}, False),
    ({"step_us": 100.0, "hbm_bytes": None}, False),
], ids=str)  # fmt: skip
def test_faster_by_more_than_the_model_can_be_off_or_smaller_and_not_slower(change, expected):
    assert is_worthwhile(BEFORE, replace(BEFORE, **change)) is expected


def test_a_tie_does_not_help():
    doubtful = RuleUse(rule="permute", time_us=40.0, calibrated=False, error=0.35, more_us=14.0, less_us=14.0)
    after = replace(BEFORE, step_us=92.0)
    assert is_worthwhile(BEFORE, after)
    assert not is_worthwhile(BEFORE, replace(after, rules=(doubtful,)))
    assert is_worthwhile(replace(BEFORE, rules=(doubtful,)), replace(after, rules=(doubtful,)))


@pytest.mark.parametrize("change", [
    {"step_bound": Bound.AT_LEAST},
    {"step_bound": Bound.UNKNOWN},
    {"wire_bound": Bound.AT_LEAST},
    {"wire_bound": Bound.UNKNOWN},
    {"unknown": ("kernel splash",)},
], ids=str)  # fmt: skip
def test_a_lower_bound_after_an_exact_figure_does_not_help(change):
    assert is_worthwhile(BEFORE, FASTER)
    assert not is_worthwhile(BEFORE, replace(FASTER, **change))


def test_an_upper_bound_before_may_have_hidden_a_faster_step():
    assert not is_worthwhile(replace(BEFORE, step_bound=Bound.AT_MOST), FASTER)
    assert is_worthwhile(replace(BEFORE, step_bound=Bound.AT_LEAST), FASTER)
    assert is_worthwhile(BEFORE, replace(FASTER, step_bound=Bound.AT_MOST))


CERTAIN = {
    (Bound.EXACT, Bound.EXACT),
    (Bound.EXACT, Bound.AT_MOST),
    (Bound.AT_LEAST, Bound.EXACT),
    (Bound.AT_LEAST, Bound.AT_MOST),
}
COUNTED = {*CERTAIN, (Bound.AT_MOST, Bound.EXACT), (Bound.AT_MOST, Bound.AT_MOST)}
ALIKE = {(bound, bound) for bound in Bound}
"""The bounds before and after."""


def judged(step, wire, unknown=()):
    before = replace(BEFORE, step_bound=step[0], wire_bound=wire[0], unknown=("kernel splash", *unknown))
    return is_worthwhile(before, replace(FASTER, step_bound=step[1], wire_bound=wire[1], unknown=("kernel splash",)))


def test_steps_and_bytes_are_each_certain_or_bounded_alike():
    pairs = list(product(Bound, repeat=2))
    compared = {each for each in product(pairs, pairs) if judged(*each)}
    assert compared == set(product(CERTAIN | ALIKE, COUNTED | ALIKE))


def test_of_programs_with_other_unknowns_only_what_is_certain_is_compared():
    pairs = list(product(Bound, repeat=2))
    compared = {each for each in product(pairs, pairs) if judged(*each, unknown=("dot",))}
    assert compared == set(product(CERTAIN, COUNTED))


def test_a_program_that_sends_nothing_any_more_is_better_where_a_branch_sent_before():
    before = replace(BEFORE, step_bound=Bound.AT_MOST, wire_bound=Bound.AT_MOST)
    after = replace(FASTER, step_bound=Bound.AT_MOST)
    assert is_worthwhile(before, after)
    assert not is_worthwhile(before, replace(after, step_bound=Bound.AT_LEAST))
    assert not is_worthwhile(before, replace(after, wire_bound=Bound.AT_LEAST))


def test_two_programs_with_the_same_unknowns_are_compared():
    unknown = {"step_bound": Bound.AT_LEAST, "unknown": ("kernel splash",)}
    assert is_worthwhile(replace(BEFORE, **unknown), replace(FASTER, **unknown))
    assert not is_worthwhile(replace(BEFORE, **unknown), replace(FASTER, step_bound=Bound.AT_LEAST))


def test_bytes_that_are_at_most_so_many_do_not_blur_a_step_that_is_exact():
    assert is_worthwhile(replace(BEFORE, wire_bound=Bound.AT_MOST), FASTER)
    assert not is_worthwhile(replace(BEFORE, wire_bound=Bound.UNKNOWN), FASTER)


def test_what_was_too_small_to_matter_before_is_no_news():
    found = replace(FASTER, unknown=("1 custom-call X64Combine",))
    assert is_worthwhile(replace(BEFORE, slight=found.unknown), found)
    assert not is_worthwhile(replace(BEFORE, slight=("2 custom-call X64Combine",)), found)
    assert not is_worthwhile(BEFORE, replace(found, slight=found.unknown))


def test_gain_is_a_share_of_the_step():
    assert compute_gain(BEFORE, FASTER) == 0.5
    assert compute_gain(BEFORE, replace(BEFORE, step_us=150.0)) == -0.5
    assert compute_gain(BEFORE, replace(BEFORE, step_us=None)) is None


@pytest.mark.parametrize(("after", "expected"), [
    (replace(FASTER, step_bound=Bound.AT_LEAST, unknown=("kernel splash",)), "undecided: tried 1 change, the best of "),
    (replace(FASTER, unknown=(DOES_NOT_FIT,)), "leave it: tried 1 change, the best of which is 50.0% faster, but "),
    (replace(BEFORE, step_us=100.0), "leave it: tried 1 change, none of which makes it faster"),
    (replace(BEFORE, step_us=150.0), "leave it: tried 1 change, the best of which is 50.0% slower"),
], ids=["unknown", "too large", "equal", "slower"])  # fmt: skip
def test_a_change_that_may_help_is_left_undecided(after, expected):
    trial = Trial(change=("argument x: P() -> P('X')",), after=after, helps=False)
    assert describe_verdict(BEFORE, (trial,), 1, COLLECTIVE).startswith(expected)


def test_to_leave_it_is_no_advice_while_other_changes_are_left():
    trial = Trial(change=("argument x: P() -> P('X')",), after=replace(BEFORE, step_us=150.0), helps=False)
    found = describe_verdict(BEFORE, (trial,), 1, COLLECTIVE, others_left=True)
    assert found.startswith("no cure was found: tried 1 change, the best of which is 50.0% slower")


def test_a_step_that_branches_bound_is_compared_where_they_are_shortest():
    before = replace(BEFORE, step_bound=Bound.AT_MOST)
    assert not is_worthwhile(before, FASTER)
    assert is_worthwhile(replace(before, conditional_us=30.0), FASTER)
    assert not is_worthwhile(replace(before, conditional_us=49.0), FASTER)


def make_change(*names):
    leaves = [LeafChange(index=at, name=f"w{at}", before=(("X",),), after=((),)) for at in names]
    return Resharding(arguments=tuple(leaves))


def test_the_last_trial_is_the_smallest_part_of_several_changes_that_help():
    both, one, other, others = make_change(0, 1, 2), make_change(0), make_change(3), make_change(0, 1)
    done = [(both, Trial(change=both.words, after=FASTER, helps=True))]
    later = [other, others, one]
    assert _find_next(later, done, TrialLimits(changes=4, seconds=1)) == 0
    assert later[_find_next(later, done, TrialLimits(changes=2, seconds=1))] is one
    tried = [*done, (one, Trial(change=one.words, after=BEFORE, helps=False))]
    assert _find_next([other, others], tried, TrialLimits(changes=3, seconds=1)) == 0


def test_what_is_tried_is_explained_first():
    def explain(name, exposed_us, executions=1):
        return SimpleNamespace(
            collective=SimpleNamespace(name=name, exposed_us=exposed_us, executions=executions, link=None, axes=())
        )

    found = [explain("large", 1.0), explain("slow", 3.0, executions=4), explain("lost", 2.0), explain("own", None)]
    analysis = SimpleNamespace(decisions=(), time=None, collectives=())
    names = [each.collective.name for each in _put_costliest_first(found, analysis)]
    assert names == ["slow", "large", "lost", "own"]
    lost = SimpleNamespace(is_lost=True, collectives=("large", "lost"), exposed_us=3.0)
    analysis.decisions = (lost,)
    names = [each.collective.name for each in _put_costliest_first(found, analysis)]
    assert names == ["lost", "large", "slow", "own"]
