"""Changes of a program whose machine code takes long are compared before it is made, and the best one is compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hloscope.base.errors import CompileError
from hloscope.base.store import Store
from hloscope.compile import client, compiling
from hloscope.model.vocabulary import CompileStage
from hloscope.report.words import describe_trials
from hloscope.search import TrialLimits, trials, try_changes

pytestmark = pytest.mark.tpu_compiler
LIMITS = TrialLimits(changes=3, seconds=300)
SCHEDULED, COMPILED = CompileStage.SCHEDULED, CompileStage.COMPILED


@pytest.fixture
def subject(subject_of, tmp_path, monkeypatch):
    """A small program, whose machine code seems to take long."""
    found = subject_of("masked")
    monkeypatch.setattr(client.Question, "is_answered", False)
    monkeypatch.setattr(compiling, "SOON_COMPILED_CHARS", 0)
    return replace(found, store=Store(tmp_path))


def stages(found):
    return [trial.after and trial.after.stage for trial in found.trials]


def test_the_best_of_scheduled_programs_is_compiled_beside_the_program_as_written(subject):
    found = try_changes(subject, subject.analysis.collectives[0], LIMITS)
    assert found.before.stage is SCHEDULED
    best, *others = found.trials
    assert (best.helps, best.before.stage, best.after.stage) == (True, COMPILED, COMPILED)
    pairs = [(trial.before or found.before, trial.after) for trial in others if trial.after is not None]
    assert all(before.stage is after.stage for before, after in pairs)
    near = {trial.after.step_us for trial in others if trial.after is not None and trial.after.stage is COMPILED}
    assert len(near) <= 2
    assert all(step_us >= 0.99 * best.after.step_us for step_us in near)
    lines = [words for _, words in describe_trials(found)]
    assert f"{best.before.step_words} (" in lines[1]
    assert "estimated" not in lines[1]
    said = "estimated: both programs are scheduled"
    priced = [(trial, line) for trial, line in zip(found.trials, lines[1:], strict=False) if " us (" in line]
    assert all((said in line) is (trial.after.stage is SCHEDULED) for trial, line in priced)


def test_a_change_that_the_compiler_refuses_in_the_end_is_withdrawn(subject, monkeypatch):
    capture = compiling.PendingCompile.capture

    def refuse(pending, *args, **options):
        if pending.wanted is COMPILED and pending.program.bytecode != subject.lowered.bytecode:
            raise CompileError("ran out of VMEM")
        return capture(pending, *args, **options)

    monkeypatch.setattr(compiling.PendingCompile, "capture", refuse)
    found = try_changes(subject, subject.analysis.collectives[0], LIMITS)
    assert found.trials
    assert not found.helping
    assert "ran out of VMEM" in {trial.problem for trial in found.trials}


def test_a_compiled_program_is_priced_as_it_would_be_before_its_code_is_made(subject):
    program = subject.captured
    before = trials.price_figures(program, "masked", SCHEDULED)
    scheduled = compiling.start_compile(subject.lowered, wanted=SCHEDULED).capture(reasons=False)
    assert scheduled.compiled.stage is SCHEDULED
    assert trials.price_figures(scheduled, "masked", SCHEDULED) == before
