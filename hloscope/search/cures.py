"""Cures of decisions: the program with a constraint in its source that gives the axis to the dimension that lost it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic

from hloscope.analysis.provenance import find_users_frame, short_source
from hloscope.base.errors import HloscopeError, TimeLimitError
from hloscope.compile.cache import is_same_program
from hloscope.compile.compiling import prepare_compile
from hloscope.compile.lowering import Lowered, lower_changed
from hloscope.compile.retracing import RewrittenProgram, lower_with_constraint
from hloscope.compile.sharding_change import WrittenConstraint
from hloscope.model import Analysis
from hloscope.model.capture import Capture
from hloscope.model.decision import Decision, Place
from hloscope.model.trial import Figures, Trial, Trials
from hloscope.model.vocabulary import CompileStage
from hloscope.search.trial_cache import SearchSubject
from hloscope.search.trials import (
    DOES_NOT_FIT,
    compute_gain,
    confirm_best,
    is_worthwhile,
    price_as_written,
    price_changed,
)

_Tried = tuple[Lowered, Trial]
_MOST_OPENED = 2
_RULE = "lost-batch"
_ENOUGH = 0.02
"""The share of the step by which a constraint that leaves dimensions open must be faster than one that closes them."""


def try_cures(subject: SearchSubject, seconds: float, *, confirms: bool = True) -> Analysis:
    """An analysis whose lost decisions have been tried the other way round, the costliest first, until one helps.

    Args:
        subject: The program.
        seconds: Time limit for all compiles.
        confirms: Whether what helps is compiled to the end if its changes are compared before that.
    """
    found, until = subject.analysis, monotonic() + seconds
    tried: dict[str, Trials] = {}
    for decision in found.decisions:
        left = until - monotonic()
        if decision.is_lost and left > 0 and not any(trials.helping for trials in tried.values()):
            tried[decision.summary] = try_decision(subject, decision, left, confirms=confirms)
    return add_trials(found, tried)


def add_trials(found: Analysis, tried: Mapping[str, Trials]) -> Analysis:
    """An analysis with the trials of its decisions, by their summaries; rules then advise what was found by trying."""
    decisions = tuple(replace(each, trials=tried.get(each.summary, each.trials)) for each in found.decisions)
    advice = {each.summary: _advise(each.trials) for each in decisions if each.trials is not None}
    findings = tuple(
        replace(finding, fix=fix)
        if finding.rule == _RULE and (fix := advice.get(finding.message.partition(", in ")[0])) is not None
        else finding
        for finding in found.findings
    )
    return found._remembered_by(replace(found, decisions=decisions, findings=findings))


def _advise(trials: Trials) -> str | None:
    """The line that was tried, or the verdict; None if nothing was tried."""
    best = next(iter(trials.helping), None)
    return trials.verdict or None if best is None else "; ".join(best.change)


def try_decision(subject: SearchSubject, decision: Decision, seconds: float, *, confirms: bool = True) -> Trials:
    """Tries to turn a decision where it fell: the function is traced again with a constraint in its source.

    Args:
        subject: The program.
        decision: One of its lost decisions.
        seconds: Time limit for all compiles.
        confirms: As for `try_cures`.
    """
    begun = monotonic()
    before = price_as_written(subject)
    if before.step_us is None:
        return Trials(before=before, not_tried="there are no predicted times for this slice to compare")
    if not _is_traced_alike(subject):
        return Trials(before=before, not_tried="the program is another one when it is traced again")
    done, problems, stopped = _try_places(subject, decision.places, before, begun + seconds)
    done.sort(key=lambda pair: (not pair[1].helps, -(compute_gain_of(before, pair[1]) or 0.0)))
    if confirms and before.stage is CompileStage.SCHEDULED and any(trial.helps for _, trial in done):
        subject.stage("compiling the program with the constraint to machine code")
        done = confirm_best(subject, done, begun + seconds, lambda lowered: lowered)
    problems += [trial.problem for _, trial in done if trial.problem is not None]
    compiled = tuple(trial for _, trial in done if trial.after is not None)
    helps = any(trial.helps for trial in compiled)
    return Trials(
        before=before,
        trials=compiled,
        candidates=len(done) + len(problems),
        not_tried=None if compiled or stopped or not problems else problems[0],
        verdict="" if helps or not compiled else _describe_verdict(before, compiled[0]),
        stopped=stopped,
        seconds=monotonic() - begun,
    )


def _is_traced_alike(subject: SearchSubject) -> bool:
    """Returns whether a program is the same when it is traced again, as it is for a trial; one may count its calls."""
    control = lower_changed(subject.function, subject.lowered, None, store=subject.store)
    first, again = (prepare_compile(program).asked for program in (subject.lowered, control))
    return first is not None and again is not None and is_same_program(first, again)


def _describe_verdict(before: Figures, best: Trial) -> str:
    """The reason that a decision is better left, with the step before and after."""
    was, after, gain = best.before or before, best.after, compute_gain_of(before, best)
    assert after is not None
    steps = f"{was.step_words} -> {after.step_words}"
    if DOES_NOT_FIT in after.unknown and DOES_NOT_FIT not in was.unknown:
        return f"leave it: with a constraint there it does not fit in memory ({steps})"
    if gain is None:
        return "leave it: the step with a constraint there is unknown"
    if gain <= 0:
        return f"leave it: the step takes no less with the constraint, {steps}"
    return f"leave it: what the constraint gains is less than the model can resolve, or rests on unknown costs, {steps}"


def compute_gain_of(before: Figures, trial: Trial) -> float | None:
    """The saved fraction of the step time with a change; None if it is unknown."""
    return None if trial.after is None else compute_gain(trial.before or before, trial.after)


def _try_places(
    subject: SearchSubject, places: Sequence[Place], before: Figures, until: float
) -> tuple[list[_Tried], list[str], bool]:
    """The trials at each place until one helps, what was in the way of others, and whether time ran out."""
    done: list[_Tried] = []
    problems: list[str] = []
    for place in places:
        here: Trial | None = None
        for leaves_open in (False, True):
            if until <= monotonic():
                return done, problems, True
            subject.stage(f"trying a constraint at {short_source(place.source)}")
            try:
                lowered, trial = _try_constraint(subject, place, before, until, leaves_open=leaves_open)
            except TimeLimitError:
                return done, problems, True
            except HloscopeError as error:
                problems.append(": ".join(filter(None, (error.what, error.why))))
                continue
            if here is None or _is_much_better(before, trial, here):
                done.append((lowered, trial))
            here = here or trial
        if here is not None and any(trial.helps for _, trial in done):
            break
    return done, problems, False


def _is_much_better(before: Figures, trial: Trial, than: Trial) -> bool:
    """Returns whether a trial is worth more than a plainer one."""
    gain, other = compute_gain_of(before, trial), compute_gain_of(before, than)
    return gain is not None and (other is None or gain > other + _ENOUGH)


def _try_constraint(
    subject: SearchSubject, place: Place, before: Figures, until: float, *, leaves_open: bool
) -> _Tried:
    """The program with a constraint at a place, and its cost.

    Raises:
        TimeLimitError: It takes too long.
        HloscopeError: There is no line for it, or JAX or the compiler refuses the program.
    """
    frame = find_users_frame(place.source)
    if frame is None:
        raise HloscopeError("no line was found for the constraint")
    constraint = WrittenConstraint(
        file=frame.file,
        line=frame.line,
        column=frame.column,
        sharding=place.sharding,
        leaves_open=leaves_open,
        primitive=place.operation,
        shape=place.shape,
    )
    rewritten = lower_with_constraint(subject.function, subject.lowered, constraint, store=subject.store)
    captured, after = price_changed(subject, rewritten.lowered, before, until - monotonic())
    opened = _list_changed_outputs(subject, captured)
    return rewritten.lowered, Trial(
        change=tuple(_describe_line(place, rewritten)),
        after=after,
        helps=is_worthwhile(before, after),
        frees_output=bool(opened),
        opened=opened[:_MOST_OPENED],
    )


def _list_changed_outputs(subject: SearchSubject, after: Capture) -> tuple[str, ...]:
    """The results that a change gives another sharding: `result becomes P('X', None)`."""
    pairs = zip(subject.captured.outputs or (), after.outputs or (), strict=False)
    return tuple(f"{new.name} becomes {new.sharding}" for old, new in pairs if old.sharding != new.sharding)


def _describe_line(place: Place, rewritten: RewrittenProgram) -> Iterator[str]:
    """The line to write, its place, and what it needs besides."""
    yield f"write {rewritten.after}"
    yield f"at {short_source(place.source)}"
    needs = [f"{line} in that file" for line in rewritten.imports]
    needs += ["a current mesh, as under jax.set_mesh"] * rewritten.needs_mesh
    if needs:
        yield f"needs {' and '.join(needs)}"
    others = [str(list(shape)) for shape in rewritten.shapes if shape != place.shape]
    if others:
        yield f"also constrains what the line makes of shape {' and '.join(others)}"
