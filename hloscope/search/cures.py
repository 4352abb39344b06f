"""Cures of decisions: the program with a constraint in its source that gives the axis to the dimension that lost it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic

from hloscope.analysis.provenance import find_users_frame, short_source
from hloscope.base.errors import HloscopeError, TimeLimitError
from hloscope.compile.compiling import start_compile
from hloscope.compile.lowering import Lowered
from hloscope.compile.retracing import RewrittenProgram, lower_with_constraint
from hloscope.compile.sharding_change import DoesNotApplyError, WrittenConstraint
from hloscope.model import Analysis
from hloscope.model.capture import Capture
from hloscope.model.decision import Decision, Place
from hloscope.model.trial import Figures, Trial, Trials
from hloscope.model.vocabulary import CompileStage
from hloscope.search.trial_cache import SearchSubject
from hloscope.search.trials import (
    DOES_NOT_FIT,
    compute_gain,
    is_worthwhile,
    price_as_written,
    price_figures,
    price_in_full,
)

_PRIMITIVES = {"while": "scan"}
"""JAX's primitive for the names of operations that lowering gives another one."""
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
            tried[decision.name] = try_decision(subject, decision, left, confirms=confirms)
    return add_trials(found, tried)


def add_trials(found: Analysis, tried: Mapping[str, Trials]) -> Analysis:
    """An analysis with the trials of its decisions, by name; what rules advise about these is what was found."""
    decisions = tuple(replace(each, trials=tried.get(each.name, each.trials)) for each in found.decisions)
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
    done, stopped = _try_places(subject, decision.places, before, begun + seconds)
    in_order = sorted(done, key=lambda pair: (not pair[1].helps, -(compute_gain_of(before, pair[1]) or 0.0)))
    if confirms and before.stage is CompileStage.SCHEDULED and in_order and in_order[0][1].helps:
        subject.stage("compiling the program with the constraint to machine code")
        in_order[0] = _confirm(subject, in_order[0], begun + seconds)
    trials = tuple(trial for _, trial in in_order)
    refused = next((trial.problem for trial in trials if trial.problem is not None), None)
    compiled = tuple(trial for trial in trials if trial.after is not None)
    return Trials(
        before=before,
        trials=compiled,
        candidates=len(trials),
        not_tried=None if compiled or stopped else refused,
        verdict=""
        if not compiled or any(trial.helps for trial in compiled)
        else _describe_verdict(before, compiled[0]),
        stopped=stopped,
        seconds=monotonic() - begun,
    )


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
        return f"leave it: turning it costs more, {steps}"
    return f"leave it: turning it gains less than the model can resolve, or rests on what is unknown, {steps}"


def compute_gain_of(before: Figures, trial: Trial) -> float | None:
    """The saved fraction of the step time with a change; None if it is unknown."""
    return None if trial.after is None else compute_gain(trial.before or before, trial.after)


def _try_places(
    subject: SearchSubject, places: Sequence[Place], before: Figures, until: float
) -> tuple[list[tuple[Lowered | None, Trial]], bool]:
    """The trials at each place until one helps, and whether time ran out."""
    done: list[tuple[Lowered | None, Trial]] = []
    for place in places:
        for leaves_open in (False, True):
            if until <= monotonic():
                return done, True
            subject.stage(f"trying a constraint at {short_source(place.source)}")
            try:
                found = _try_constraint(subject, place, before, until, leaves_open=leaves_open)
            except TimeLimitError:
                return done, True
            if leaves_open and done and not _is_much_better(before, found[1], done[-1][1]):
                continue
            done.append(found)
        if any(trial.helps for _, trial in done):
            break
    return done, False


def _is_much_better(before: Figures, trial: Trial, than: Trial) -> bool:
    """Returns whether a trial is worth more than a plainer one."""
    gain, other = compute_gain_of(before, trial), compute_gain_of(before, than)
    return gain is not None and (other is None or gain > other + _ENOUGH)


def _try_constraint(
    subject: SearchSubject, place: Place, before: Figures, until: float, *, leaves_open: bool
) -> tuple[Lowered | None, Trial]:
    """The program with a constraint at a place, and its cost.

    Raises:
        TimeLimitError: It takes too long.
    """
    frame = find_users_frame(place.source)
    if frame is None:
        return None, Trial(change=(), after=None, problem="no line was found for the constraint")
    constraint = WrittenConstraint(
        file=frame.file,
        line=frame.line,
        column=frame.column,
        sharding=place.sharding,
        leaves_open=leaves_open,
        primitive=_PRIMITIVES.get(place.operation, place.operation) if place.operation is not None else None,
        shape=place.shape,
    )
    try:
        rewritten = _lower(subject, constraint)
    except HloscopeError as error:
        return None, Trial(change=(), after=None, problem=": ".join(filter(None, (error.what, error.why))))
    trial = Trial(change=tuple(_describe_line(place, rewritten)), after=None)
    limited = replace(
        rewritten.lowered, facts=replace(rewritten.lowered.facts, timeout_s=max(until - monotonic(), 1.0))
    )
    try:
        captured = start_compile(limited, store=subject.store, wanted=before.stage).capture()
        after = price_figures(captured, limited.name, before.stage)
    except TimeLimitError:
        raise
    except HloscopeError as error:
        return rewritten.lowered, replace(trial, problem=error.what)
    opened = _list_changed_outputs(subject, captured)
    helps = is_worthwhile(before, after)
    return rewritten.lowered, replace(
        trial, after=after, helps=helps, frees_output=bool(opened), opened=opened[:_MOST_OPENED]
    )


def _lower(subject: SearchSubject, constraint: WrittenConstraint) -> RewrittenProgram:
    """The program with a constraint; an operation that only lowering makes is found by its shape.

    Raises:
        HloscopeError: As for `lower_with_constraint`.
    """
    try:
        return lower_with_constraint(subject.function, subject.lowered, constraint, store=subject.store)
    except DoesNotApplyError:
        any_operation = replace(constraint, primitive=None)
        return lower_with_constraint(subject.function, subject.lowered, any_operation, store=subject.store)


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
    others = [shape for shape in rewritten.shapes if shape != place.shape]
    needs += [f"the same constraint on values of shape {list(shape)}, which this line makes too" for shape in others]
    if needs:
        yield f"with {' and '.join(needs)}"


def _confirm(subject: SearchSubject, best: tuple[Lowered | None, Trial], until: float) -> tuple[Lowered | None, Trial]:
    """The best trial, compiled to the end beside the program as written, if there is time for that."""
    program, trial = best
    if program is None or until <= monotonic():
        return best
    try:
        own, after = price_in_full(subject, [subject.lowered, program], until)
    except TimeLimitError:
        return best
    if isinstance(own, str):
        return best
    if isinstance(after, str):
        return program, replace(trial, after=None, helps=False, problem=after)
    return program, replace(trial, before=own, after=after, helps=is_worthwhile(own, after))
