"""What is tried first against programs whose reasons a person wrote down, and what it does (`fixes.toml`)."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hloscope.analysis.provenance import SourceFiles
from hloscope.model.vocabulary import CompileStage
from hloscope.search import TrialLimits, try_changes
from hloscope.search.ranking import find_candidates
from hloscope.why.explanation import explain_collectives

pytestmark = pytest.mark.tpu_compiler
KNOWN = Path(__file__).parent.parent / "why" / "programs"
TABLE = tomllib.loads((Path(__file__).parent / "fixes.toml").read_text(encoding="utf-8"))
LIMITS = TrialLimits(changes=4, seconds=600)
"""What `explain` tries by itself; the time is so long that a busy machine finds the same."""
SAMPLE = (
    "asking:in_two_ways",
    "by_hand:layers_by_hand",
    "looping:same_table",
)
"""A result, nothing to change and an argument; `test_fixes_found.py` has a constraint, and more of the others."""
LEAST_FASTER = 30
FASTER = 0.95
ESTIMATED = 1.25
"""The error of the estimated steps of changes that are not near the best, and so are not compiled to the end."""


@pytest.fixture(scope="session")
def tried(subject_of):
    """What is tried against the first collective of `family:program`."""

    def trials(program: str):
        family, _, name = program.partition(":")
        subject = subject_of(name, str(KNOWN / f"{family}.py"))
        (first, *_) = explain_collectives(subject.analysis, None, sources=SourceFiles())
        return try_changes(subject, first.collective, LIMITS)

    return trials


def find_ratio(trials, trial) -> float:
    """The step after a change by the one before, at the stage to which both were compiled."""
    return trial.after.step_us / (trial.before or trials.before).step_us


def check(program: str, trials) -> None:
    known = TABLE[program]
    assert all(find_ratio(trials, trial) <= 1.005 for trial in trials.helping)
    if "left" in known:
        assert not trials.helping
        assert trials.verdict.startswith("leave it: ") if known["left"] == "leave it" else trials.not_tried
        return
    best = trials.helping[0]
    assert (best.after.stage, (best.before or trials.before).stage) == (CompileStage.COMPILED, CompileStage.COMPILED)
    assert [*best.change] == known["change"]
    assert find_ratio(trials, best) == pytest.approx(known["ratio"], abs=0.01)
    assert (best.frees_output, [*best.moves]) == (known.get("frees_output", False), known.get("moves", []))
    if "ratio_without_freeing" in known:
        errors = [
            find_ratio(trials, trial) / (ESTIMATED if trial.after.stage is CompileStage.SCHEDULED else 1)
            for trial in trials.helping
            if not trial.frees_output
        ]
        assert min(errors) <= known["ratio_without_freeing"] + 0.01
    assert best.moving_us == 0 if not best.moves else best.moving_us is None or best.moving_us >= 0


@pytest.mark.parametrize("program", SAMPLE)
def test_the_best_change_is_the_one_that_was_made_by_hand(tried, program):
    check(program, tried(program))


@pytest.mark.long
@pytest.mark.parametrize("program", sorted(TABLE))
def test_each_program_gets_the_change_that_was_made_by_hand(tried, program):
    check(program, tried(program))


def test_an_operation_that_two_calls_share_gets_no_constraint_of_its_own(subject_of):
    subject = subject_of("flash_blocks", str(KNOWN / "attending.py"))
    (reason, *_) = [one.reason for one in subject.analysis.collectives if one.reason.consumer.name == "dynamic_slice"]
    found = find_candidates(subject.captured, reason, {})
    assert any(change.arguments for change in found)
    assert not any(change.constraints for change in found)


def test_the_table_is_of_every_program_with_a_truth():
    truths = {
        f"{path.stem}:{name}"
        for path in KNOWN.glob("*.toml")
        for name in tomllib.loads(path.read_text(encoding="utf-8"))
    }
    assert {*TABLE} == truths


def test_most_programs_that_a_person_could_help_are_helped_without_freeing_a_result():
    faster = [
        row
        for row in TABLE.values()
        if row.get("ratio_without_freeing", 1 if "frees_output" in row else row.get("ratio", 1)) < FASTER
    ]
    assert len(faster) >= LEAST_FASTER
