"""What a search and its trials say of figures that are bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_trials_judged import BEFORE as JUDGED

from hloscope.model.trial import Trial, Trials
from hloscope.model.vocabulary import Bound
from hloscope.search.pareto_front import _describe_gain
from hloscope.search.trial_cache import _describe_best_trial
from hloscope.search.trials import _describe_best

BEFORE = replace(JUDGED, compute_us=40.0, exposed_us=60.0)
AFTER = replace(BEFORE, step_us=40.0, exposed_us=0.0, wire_bytes=0, wire_bytes_by_axis={}, collectives=0)


def bounded(figures, step, wire):
    return replace(figures, step_bound=step, wire_bound=wire)


def test_why_a_sharding_is_better_has_the_bounds_of_both():
    assert list(_describe_gain(BEFORE, AFTER)) == ["exposed 60 us -> 0 us", "one device sends 1 kB -> 0 B over X"]
    branch, kernel = bounded(BEFORE, Bound.AT_MOST, Bound.AT_MOST), bounded(AFTER, Bound.AT_LEAST, Bound.AT_LEAST)
    assert list(_describe_gain(branch, AFTER)) == ["exposed ~60 us -> 0 us", "one device sends ≤1 kB -> 0 B over X"]
    assert list(_describe_gain(BEFORE, kernel)) == ["exposed 60 us -> ~0 us", "one device sends 1 kB -> ≥0 B over X"]


def test_what_was_tried_before_has_the_bounds_of_both_steps():
    trials = Trials(before=BEFORE, trials=(Trial(change=("w: P() -> P('X')",), after=AFTER, helps=True),))
    assert _describe_best_trial(trials) == "w: P() -> P('X'), 100 us -> 40 us"
    branch = replace(trials, before=bounded(BEFORE, Bound.AT_MOST, Bound.AT_MOST))
    assert _describe_best_trial(branch) == "w: P() -> P('X'), ≤100 us -> 40 us"
    assert _describe_best_trial(replace(trials, before=None)) == "w: P() -> P('X'), unknown -> 40 us"


@pytest.mark.parametrize(
    ("step_us", "bounds", "words"),
    [
        (97.0, (Bound.EXACT, Bound.EXACT), "is 3.0% faster,"),
        (97.0, (Bound.EXACT, Bound.AT_MOST), "is ≥3.0% faster,"),
        (97.0, (Bound.AT_MOST, Bound.AT_MOST), "is ~3.0% faster,"),
        (50.0, (Bound.EXACT, Bound.AT_LEAST), "may be ≤50.0% faster:"),
        (120.0, (Bound.EXACT, Bound.AT_LEAST), "is ≥20.0% slower"),
        (120.0, (Bound.AT_LEAST, Bound.EXACT), "is ≤20.0% slower"),
    ],
)
def test_the_best_of_what_does_not_help_has_the_bound_of_both(step_us, bounds, words):
    after = replace(BEFORE, step_us=step_us, step_bound=bounds[1])
    before = replace(BEFORE, step_bound=bounds[0])
    slower = replace(after, step_us=2 * step_us)
    trials = [Trial(change=("w",), after=each) for each in (slower, after, None)]
    assert words in _describe_best(before, trials)[0]
