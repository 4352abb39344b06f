"""Cures of decisions: the program with a constraint in its source that gives the axis to the dimension that lost it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic

from hloscope.analysis.provenance import find_users_frame, short_source
from hloscope.base.errors import HloscopeError, TimeLimitError
from hloscope.compile.compiling import start_compile
from hloscope.compile.lowering import Lowered
from hloscope.compile.retracing import RewrittenProgram, lower_with_constraint
from hloscope.compile.sharding_change import WrittenConstraint
from hloscope.model import Analysis
from hloscope.model.decision import Decision, Place
from hloscope.model.trial import Figures, Trial, Trials
from hloscope.model.vocabulary import CompileStage
from hloscope.search.trial_cache import SearchSubject
from hloscope.search.trials import compute_gain, is_worthwhile, price_as_written, price_figures, price_in_full

_PRIMITIVES = {"while": "scan"}
"""JAX's primitive for the names of operations that lowering gives another one."""
_ENOUGH = 0.02
"""The share of the step by which a constraint that leaves dimensions open must be faster than one that closes them."""


def try_cures(subject: SearchSubject, seconds: float, *, confirms: bool = True) -> Analysis:
    """An analysis whose costliest lost decision has been tried the other way round.

    Args:
        subject: The program.
        seconds: Time limit for all compiles.
        confirms: Whether what helps is compiled to the end if its changes are compared before that.
    """
    found = subject.analysis
    worst = next((decision for decision in found.decisions if decision.is_lost), None)
    if worst is None:
        return found
    tried = replace(worst, trials=try_decision(subject, worst, seconds, confirms=confirms))
    decisions = tuple(tried if each is worst else each for each in found.decisions)
    return found._remembered_by(replace(found, decisions=decisions))


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
    if not decision.places:
        return Trials(before=before, not_tried="no value was found where both dimensions could have the axis")
    done, stopped = _try_places(subject, decision.places, before, begun + seconds)
    in_order = sorted(done, key=lambda pair: (not pair[1].helps, -(compute_gain_of(before, pair[1]) or 0.0)))
    if confirms and before.stage is CompileStage.SCHEDULED and in_order and in_order[0][1].helps:
        subject.stage("compiling the program with the constraint to machine code")
        in_order[0] = _confirm(subject, in_order[0], begun + seconds)
    trials = tuple(trial for _, trial in in_order)
    refused = next((trial.problem for trial in trials if trial.problem is not None), None)
    is_any = any(trial.after is not None for trial in trials)
    return Trials(
        before=before,
        trials=tuple(trial for trial in trials if trial.after is not None),
        candidates=len(trials),
        not_tried=None if is_any or stopped else refused,
        verdict="" if not is_any or any(trial.helps for trial in trials) else "leave it: turning it costs more",
        stopped=stopped,
        seconds=monotonic() - begun,
    )


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
        rewritten = lower_with_constraint(subject.function, subject.lowered, constraint, store=subject.store)
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
    return rewritten.lowered, replace(trial, after=after, helps=is_worthwhile(before, after))


def _describe_line(place: Place, rewritten: RewrittenProgram) -> Iterator[str]:
    """The line to write, where it is, and what it needs besides."""
    where = short_source(place.source)
    yield f"write {rewritten.after}  # {where}"
    needs = [f"{line} in that file" for line in rewritten.imports]
    needs += ["a current mesh, as under jax.set_mesh"] * rewritten.needs_mesh
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
