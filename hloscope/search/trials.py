"""Trials of changes: each is compiled through the ordinary path, priced, and compared with the program as written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic

from hloscope.analysis.model import Collective
from hloscope.analysis.model.reason import ReasonKind
from hloscope.analysis.model.trial import Figures, Trial, Trials
from hloscope.analysis.totals import bytes_bound
from hloscope.errors import HloscopeError, TimeLimitError
from hloscope.program.change import Change
from hloscope.program.compiling import start_compile
from hloscope.program.lowering import lower_changed
from hloscope.search.candidates import candidates
from hloscope.search.figures import FASTER, figures_of, figures_of_capture, gain, helps
from hloscope.search.kept import KeptTrials
from hloscope.search.moving import moving_us
from hloscope.search.ranking import Ranked, ranked
from hloscope.search.subject import Limits, Subject
from hloscope.units import format_share, plural

_LITTLE = 0.01
"""Of the step: what a collective exposes less than, no change of it gains anything by."""
_NOTHING = 5e-4
_MORE_S = 2.0
"""For what changes ask of the caller, programs of copies that compile at once, where trying them took all the time."""
_TIE = 0.01
"""What gains no more than this is no better."""


def try_changes(subject: Subject, collective: Collective, limits: Limits) -> Trials:
    """Tries changes that may remove a collective or make it smaller.

    Changes already tried for the same program with the same or wider limits are not tried again.

    Args:
        subject: The program.
        collective: One of its collectives, with its reason.
        limits: How much may be spent.
    """
    kept = KeptTrials(subject.store, subject.kept, collective)
    known = kept.get(limits)
    if known is not None:
        return known
    found = _try(subject, collective, limits)
    if len(found.trials) >= len(kept.known.trials if kept.known is not None else ()):
        kept.put(limits, found)
    return found


def _try(subject: Subject, collective: Collective, limits: Limits) -> Trials:
    begun = monotonic()
    before = figures_of(subject.analysis, subject.captured)
    if before.step_us is None:
        return Trials(before=before, not_tried="there are no predicted times for this slice to compare")
    if collective.reason is None:
        return Trials(before=before, not_tried="the reason for the collective is unknown")
    found = candidates(subject.captured, collective.reason, subject.lowered.facts.dims)
    if not found:
        is_own = collective.reason.kind is ReasonKind.AUTHORED
        why = "the program itself requests it" if is_own else "no sharding change is known that may remove it"
        return Trials(before=before, not_tried=why, verdict=_verdict(before, (), 0, collective))
    subject.stage(f"ranking {plural(len(found), 'change')}")
    order = ranked(subject, found, limits.seconds)
    done, stopped = _tried(subject, before, order, limits, begun)
    trials = _with_moving(subject, _best_first(done), begun + limits.seconds + _MORE_S)
    return Trials(
        before=before,
        trials=trials,
        candidates=len(order),
        not_tried=None
        if trials or stopped
        else f"JAX cannot trace the program with any of {plural(len(order), 'change')}",
        verdict=_verdict(before, trials, len(order), collective, stopped=stopped),
        stopped=stopped,
        seconds=monotonic() - begun,
    )


def _tried(
    subject: Subject, before: Figures, order: Sequence[Ranked], limits: Limits, begun: float
) -> tuple[list[tuple[Change, Trial]], bool]:
    """What was compiled, and whether time ran out before that was all."""
    done: list[tuple[Change, Trial]] = []
    later = list(_apart(order))
    while later and len(done) < limits.changes:
        change = later.pop(_next_of(later, done, limits))
        left = begun + limits.seconds - monotonic()
        if left <= 0:
            return done, True
        subject.stage(f"trying {change}")
        try:
            trial = tried(subject, before, change, left)
        except TimeLimitError:
            return done, True
        if trial is not None:
            done.append((change, trial))
    return done, False


def _next_of(later: Sequence[Change], done: Sequence[tuple[Change, Trial]], limits: Limits) -> int:
    """Where the next change to try is: the first, or, where all before the last free a result, one that does not.

    Whether a result may be freed is the caller's to say; one change at least, where there is any, does not ask.
    """
    if not done or len(done) < limits.changes - 1 or not all(change.frees_output for change, _ in done):
        return 0
    return next((at for at, change in enumerate(later) if not change.frees_output), 0)


def _with_moving(subject: Subject, done: Sequence[tuple[Change, Trial]], until: float) -> tuple[Trial, ...]:
    """Trials, those that help with what they ask of whoever calls the program."""
    found = []
    for change, trial in done:
        left = until - monotonic()
        is_worth = not change.moved or (trial.helps and left > 0)
        found.append(replace(trial, moving_us=moving_us(subject, change.moved, left) if is_worth else None))
    return tuple(found)


def _apart(order: Sequence[Ranked]) -> Iterator[Change]:
    """In order, but last those that cost what a change costs that touches nothing else: more of it gains nothing.

    Of what is done to the same things there are two, in case that Shardy does not tell which is better; where a result
    is left open it is the same as one that asks for what it is computed in.
    """
    taken: list[Ranked] = []
    later: list[Change] = []
    for found in order:
        enough = [other.change for other in taken if _is_enough(other, found)]
        alternatives = 1 if all(leaf.after is not None for leaf in found.change.results) else 0
        if len(enough) > alternatives or any(change.touched < found.change.touched for change in enough):
            later.append(found.change)
            continue
        taken.append(found)
        yield found.change
    yield from later


def _is_enough(smaller: Ranked, larger: Ranked) -> bool:
    if smaller.time_us is None or larger.time_us is None or not smaller.change.touched <= larger.change.touched:
        return False
    return larger.time_us >= (1 - _TIE) * smaller.time_us


def tried(subject: Subject, before: Figures, change: Change, seconds: float) -> Trial | None:
    """One change, compiled and priced; None where JAX would not trace the program so.

    Args:
        subject: The program.
        before: What it costs as it is.
        change: The change.
        seconds: What the compile may take.

    Raises:
        TimeLimitError: It took longer.
    """
    trial = Trial(
        change=change.words,
        after=None,
        frees_output=change.frees_output,
        pads=bool(change.sizes),
        moves=tuple(leaf.name for leaf in change.moved),
    )
    try:
        program = lower_changed(subject.function, subject.lowered, change, store=subject.store)
    except HloscopeError:
        return None
    limited = replace(program, facts=replace(program.facts, timeout_s=seconds))
    try:
        captured = start_compile(limited, store=subject.store).capture()
        after = figures_of_capture(captured, program.name)
    except TimeLimitError:
        raise
    except HloscopeError as error:
        return replace(trial, problem=error.what)
    outputs = captured.outputs or ()
    left = [leaf for leaf in change.results if leaf.after is None and leaf.index < len(outputs)]
    opened = tuple(f"{leaf.name} becomes {outputs[leaf.index].sharding or 'an unknown sharding'}" for leaf in left)
    return replace(trial, after=after, helps=helps(before, after), opened=opened)


def _best_first(trials: Sequence[tuple[Change, Trial]]) -> list[tuple[Change, Trial]]:
    """Those that help first, fastest first; of two that differ little, the one that asks and changes less.

    One that does all that another does, and gains nothing more, is not worth making, and does not help.
    """
    steps = {change: trial.after.step_us or 0.0 for change, trial in trials if trial.after is not None}

    def is_enough(change: Change, trial: Trial) -> bool:
        return any(
            other.helps and small != change and small.touched <= change.touched and _no_better(small, change)
            for small, other in trials
            if trial.helps
        )

    def _no_better(small: Change, large: Change) -> bool:
        if small.touched == large.touched and steps[large] >= (1 - _TIE) * steps[small]:
            return (steps[small], small.asks, _order[small]) < (steps[large], large.asks, _order[large])
        return small.touched < large.touched and steps[large] >= (1 - _TIE) * steps[small]

    _order = {change: number for number, (change, _) in enumerate(trials)}
    judged = [(change, replace(trial, helps=False) if is_enough(change, trial) else trial) for change, trial in trials]

    fastest = min((steps[change] for change, trial in judged if trial.helps), default=0.0)

    def key(item: tuple[Change, Trial]) -> tuple[bool, bool, float, int, int, int]:
        change, trial = item
        step_us = steps.get(change)
        shown = float(f"{step_us:.2g}") if step_us and step_us > (1 + FASTER) * fastest else 0.0
        return not trial.helps, step_us is None, shown, change.asks, change.widened, change.parts

    return sorted(judged, key=key)


def _verdict(
    before: Figures, trials: Sequence[Trial], candidates: int, collective: Collective, *, stopped: bool = False
) -> str:
    """What to make of it: that it is better left as it is, and why; not before all was tried that was to be."""
    if any(trial.helps for trial in trials):
        return ""
    hardly_matters = list(_why_left(before, collective))
    reasons = [*hardly_matters]
    if trials:
        count = plural(candidates, "change") if candidates == len(trials) else f"{len(trials)} of {candidates} changes"
        reasons.append(f"tried {count}, {_of_best(before, trials)}")
    label = "nothing found yet" if stopped and not hardly_matters else "leave it"
    return f"{label}: {'; '.join(reasons)}" if reasons else ""


def _why_left(before: Figures, collective: Collective) -> Iterator[str]:
    step, exposed = before.step_us, collective.exposed_us
    if step is None or exposed is None or not step:
        return
    share = exposed * collective.executions / step
    if exposed == 0:
        yield "the transfer is fully overlapped"
    elif share < _LITTLE:
        bound = bytes_bound(collective) + -before.step_bound
        yield f"it takes {bound.marked(format_share(share))} of the step"


def _of_best(before: Figures, trials: Sequence[Trial]) -> str:
    priced = [trial.after for trial in trials if trial.after is not None]
    gains = ((gained, after) for after in priced if (gained := gain(before, after)) is not None)
    best, after = max(gains, key=lambda each: each[0], default=(None, None))
    if best is None or after is None:
        return "none of which compiles"
    ratio = after.ratio_bound(before)
    if best <= -_NOTHING:
        return f"the best of which is {ratio.marked(format_share(-best))} slower"
    if best < _NOTHING:
        return "none of which makes it faster"
    share = (-ratio).marked(format_share(best))
    if best > FASTER:
        return f"the best of which may be {share} faster: some of its costs are unknown"
    return f"the best of which is {share} faster, less than the model can resolve"
