"""The changes that must be found, and that each does what the program does in which it was made by hand."""

from __future__ import annotations

import re

import pytest

from hloscope.search import TrialLimits, try_changes

pytestmark = pytest.mark.tpu_compiler
LIMITS = TrialLimits(changes=4, seconds=120)


@pytest.fixture
def tried(subject_of):
    def trials(name: str):
        subject = subject_of(name)
        return try_changes(subject, subject.analysis.collectives[0], LIMITS)

    return trials


def same(found, by_hand) -> bool:
    """Within 1% in the step, in the memory and in each axis' bytes."""
    pairs = [(found.step_us, by_hand.step_us), (found.hbm_bytes, by_hand.hbm_bytes)]
    axes = {*found.wire_bytes_by_axis, *by_hand.wire_bytes_by_axis}
    pairs += [(found.wire_bytes_by_axis.get(axis, 0), by_hand.wire_bytes_by_axis.get(axis, 0)) for axis in axes]
    return all(one == pytest.approx(other, rel=0.01) for one, other in pairs)


@pytest.mark.parametrize(("program", "change", "twin", "at_most"), [
    ("carry_against_constraint", ("constraint at fixable.py:17: dropped",), "carry_without_constraint", 0.1),
    ("carry_against_constraint", ("argument x: P('X', None) -> P(None, 'X')",), "carry_aligned", 0.1),
    ("masked", ("argument mask: P(None, 'X') -> P('X', None)",), "masked_alike", 0.2),
    ("momentum", ("result[1]: P(None, 'X') -> P('X', None)",), "momentum_alike", 0.3),
    pytest.param("six_heads", ("H: 6 padded to 8, with a wrapper that pads before and slices after",), "eight_heads",
                 0.8, marks=pytest.mark.long),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_a_change_is_found_and_costs_what_it_costs_by_hand(tried, figures_of_program, program, change, twin, at_most):
    trials = tried(program)
    (found,) = [trial for trial in trials.trials if trial.change == change]
    assert found.helps
    assert (trials.verdict, trials.not_tried) == ("", None)
    assert same(found.after, figures_of_program(twin))
    assert not same(found.after, trials.before)
    assert same(trials.before, figures_of_program(program))
    assert found.after.step_us < at_most * trials.before.step_us


@pytest.mark.parametrize(
    ("program", "axis"), [("masked", "X"), ("momentum", "X"), pytest.param("six_heads", "Y", marks=pytest.mark.long)]
)
def test_the_best_moves_nothing_any_more_and_comes_first(tried, program, axis):
    trials = tried(program)
    assert trials.before.wire_bytes_by_axis[axis] > 1e6
    assert trials.helping[0].after.wire_bytes == 0
    assert trials.helping[0] == trials.trials[0]
    steps = [trial.after.step_us for trial in trials.helping]
    assert steps == sorted(steps) or max(steps) < 1.06 * min(steps)


@pytest.mark.long
def test_only_what_is_padded_needs_a_wrapper(tried):
    assert {trial.pads for trial in tried("six_heads").trials if "padded" in str(trial.change)} == {True}
    assert {trial.pads for trial in tried("masked").trials} == {False}


@pytest.mark.long
def test_what_cannot_do_with_less_is_better_left(tried):
    trials = tried("scalar_loss")
    assert trials.helping == ()
    assert 0 < len(trials.trials) <= LIMITS.changes
    assert all(trial.after.step_us > 0.95 * trials.before.step_us for trial in trials.trials)
    assert re.match(r"leave it: (it takes [\d.]+% of the step; )?tried \d+ (of \d+ )?changes, ", trials.verdict)
