"""Trials of changes: each is compiled through the ordinary path, priced, and compared with the program as written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from hloscope.base.errors import HloscopeError, TimeLimitError
from hloscope.base.units import format_share, pluralize
from hloscope.compile import client, compiling
from hloscope.compile.compiling import start_compile
from hloscope.compile.lowering import Lowered, lower_changed, lower_resharding
from hloscope.compile.sharding_change import LeafChange, Resharding
from hloscope.cost import price_capture
from hloscope.hlo import parse_module
from hloscope.model import Analysis, Collective, bytes_bound
from hloscope.model.analysis import summarize_memory
from hloscope.model.capture import Capture
from hloscope.model.reason import ReasonKind
from hloscope.model.trial import Figures, Trial, Trials, is_tie
from hloscope.model.vocabulary import Bound, CompileStage
from hloscope.search.ranking import RankedChange, find_candidates, is_explicit, rank_changes
from hloscope.search.trial_cache import SearchSubject, TrialCache, TrialLimits

T = TypeVar("T")

# ---- the cost of a step, and whether one program is certainly better than another

LEAST_TIME_GAIN = 0.05
"""The least gain as a share of the step: the model cannot resolve less."""
LEAST_MEMORY_GAIN = 0.1
"""The least gain as a share of the memory: less is not a reason to change a program.

The live memory differs by a few percent with the compiler's schedule and fusions alone, so that a saving of that
size disappears with the next edit; and memory is useful only if a larger batch, or a layer's activations, then fit.
"""
DOES_NOT_FIT = "it does not fit in memory"
"""An unknown of a program: its step time if it does not run."""
_MOST_TIME_LOSS = 0.005
_UPPER_BOUNDS = (Bound.EXACT, Bound.AT_MOST)
"""Bounds of a figure that the true value does not exceed."""


def price_figures(program: Capture, name: str, stage: CompileStage = CompileStage.COMPILED) -> Figures:
    """The costs of a compiled program, without its reasons and findings.

    Args:
        program: The program.
        name: Its name.
        stage: `scheduled` to estimate the step as if its machine code were not there, for comparisons with such steps.
    """
    if stage is CompileStage.SCHEDULED:
        program = replace(program, compiled=replace(program.compiled, stage=stage))
    module = parse_module(program.compiled.text, name=f"{name} (compiled)")
    return read_figures(price_capture(program, module, target=name), program)


def choose_stage(subject: SearchSubject) -> CompileStage:
    """The stage at which changes of a program are compared: before machine code, if that takes long to make."""
    program = subject.lowered
    has_stages = client.has_scheduled_stage(program.slice, program.facts.compiler_options)
    is_long = len(subject.captured.compiled.text) > compiling.SOON_COMPILED_CHARS
    return CompileStage.SCHEDULED if has_stages and is_long else CompileStage.COMPILED


def read_figures(found: Analysis, program: Capture) -> Figures:
    """The costs of an analyzed program."""
    time, totals = found.time, found.totals
    ranged = (time.least_us, time.most_us) if time is not None and time.has_range else None
    unknown = [item.what.partition("%")[0] for item in found.unmodelled]
    unknown += [f"bytes of a {move.kind}" for move in found.collectives if move.wire_bytes is None]
    slight: list[str] = []
    memory, is_scheduled = summarize_memory(program), program.compiled.stage is CompileStage.SCHEDULED
    if time is not None:
        unknown += [f"kernel {name}" for name in time.unpriced_kernels]
        operations = [f"{item.count} {item.what}" for item in time.unknown_operations]
        (unknown if time.rests_on_unknown else slight).extend(operations)
    if program.compiled.too_large is not None:
        unknown.append(DOES_NOT_FIT)
    return Figures(
        step_us=None if time is None else time.step_us,
        step_us_range=ranged,
        step_bound=Bound.UNKNOWN if time is None else time.bound,
        conditional_us=None if time is None else time.conditional_us,
        wire_bytes=totals.wire_bytes,
        wire_bytes_by_axis={axes: total.wire_bytes for axes, total in totals.by_axis.items()},
        wire_bound=totals.bound,
        hbm_bytes=memory.data_bytes if is_scheduled else memory.peak_bytes,
        collectives=totals.collectives,
        unknown=tuple(sorted(unknown)),
        slight=tuple(sorted(slight)),
        rules=() if time is None else time.rules,
        compute_us=None if time is None else time.compute_us,
        exposed_us=None if time is None else time.exposed_us,
        stage=CompileStage.SCHEDULED if is_scheduled else CompileStage.COMPILED,
        outputs=tuple(array.sharding for array in program.outputs or ()),
    )


def price_as_written(subject: SearchSubject) -> Figures:
    """The costs of a program at the stage at which its changes are compared with it."""
    stage = choose_stage(subject)
    if stage is subject.captured.compiled.stage:
        return read_figures(subject.analysis, subject.captured)
    return price_figures(subject.captured, subject.lowered.name, stage)


def find_compiled_figures(subject: SearchSubject) -> Figures | None:
    """The costs of a program as written with its machine code; None if it is only scheduled so far."""
    is_compiled = subject.captured.compiled.stage is CompileStage.COMPILED
    return read_figures(subject.analysis, subject.captured) if is_compiled else None


def compute_gain(before: Figures, after: Figures) -> float | None:
    """Returns the saved fraction of the step time; negative if it gets slower, None if unknown."""
    if before.step_us is None or after.step_us is None or before.step_us <= 0:
        return None
    return 1 - after.step_us / before.step_us


def is_worthwhile(before: Figures, after: Figures) -> bool:
    """Returns whether a change is worthwhile: clearly faster, or not slower and with less memory.

    Unknowns never count in its favor: if the step after it is a lower bound, or the one before an upper bound, it is
    compared only with a step that has the same bound and the same unknowns.
    """
    before = before.at_least
    gained = compute_gain(before, after)
    known = {*before.unknown, *before.slight}
    if gained is None or not known.issuperset(after.unknown) or not _is_comparable(before, after):
        return False
    if gained > LEAST_TIME_GAIN and not is_tie(after, before):
        return True
    if before.hbm_bytes is None or after.hbm_bytes is None:
        return False
    return after.hbm_bytes <= (1 - LEAST_MEMORY_GAIN) * before.hbm_bytes and gained >= -_MOST_TIME_LOSS


def may_help(before: Figures, after: Figures) -> bool:
    """Returns whether a change that is not known to be worthwhile would be by its time alone."""
    is_faster = (compute_gain(before, after) or 0.0) > LEAST_TIME_GAIN
    return is_faster and not is_tie(after, before) and not fits_no_more(before, after)


def fits_no_more(before: Figures, after: Figures) -> bool:
    """Returns whether a program that fits in memory does not with a change."""
    return DOES_NOT_FIT in after.unknown and DOES_NOT_FIT not in before.unknown


def _is_comparable(before: Figures, after: Figures) -> bool:
    """Returns whether the costs certainly differ as their figures do, or both are bounded alike.

    Two steps with upper bounds take the same branch in the worst case. An upper bound of the bytes before does
    not affect a step.
    """
    is_timed = after.ratio_bound(before) in _UPPER_BOUNDS
    is_counted = before.wire_bound is not Bound.UNKNOWN and after.wire_bound in _UPPER_BOUNDS
    if is_timed and is_counted:
        return True
    is_like_timed = is_timed or before.step_bound == after.step_bound
    is_like_counted = is_counted or before.wire_bound == after.wire_bound
    return is_like_timed and is_like_counted and before.unknown == after.unknown


# ---- the one-time cost of a change to the caller: resharding arguments


def price_resharding(subject: SearchSubject, moved: Sequence[LeafChange], seconds: float) -> float | None:
    """Prices the one-time resharding of arguments from their present shardings to those of a change.

    It is the step time of a program that does nothing else, compiled and priced as any other.

    Args:
        subject: The program.
        moved: The arguments, with their new shardings.
        seconds: Time limit of the compile.

    Returns:
        Microseconds; 0 if each device already has its part, None if unknown or out of time.
    """
    if not moved:
        return 0.0
    try:
        program = lower_resharding(subject.lowered, moved, store=subject.store)
        limited = replace(program, facts=replace(program.facts, timeout_s=seconds))
        found = start_compile(limited, store=subject.store).capture()
    except HloscopeError:
        return None
    figures = price_figures(found, program.name)
    return figures.step_us if figures.collectives else 0.0


_LITTLE = 0.01
"""The exposed share of the step below which no change of a collective gains anything."""
_NOTHING = 5e-4
_MORE_S = 2.0
"""The extra time for the demands on the caller, if the trials took all the time: programs of copies compile at once."""
_MOST_NEAR, _SOON_S, _ESTIMATED = 2, 10.0, 1.25
"""The number of programs that are compiled to the end beside the best, the time that this may take, and the ratio of
two estimated steps up to which the compiled ones may be in the other order: estimates are to be within 25%."""
_TIE = 0.01
"""The gain, as a share, up to which a change counts as no better."""


def try_changes(subject: SearchSubject, collective: Collective, limits: TrialLimits) -> Trials:
    """Tries changes that may remove a collective or make it smaller.

    Changes already tried for the same program with the same or wider limits are not tried again.

    Args:
        subject: The program.
        collective: One of its collectives, with its reason.
        limits: The limits of the trials.
    """
    kept = TrialCache(subject.store, subject.kept, collective)
    known = kept.get(limits)
    if known is not None:
        return known
    found = _try_all(subject, collective, limits)
    if len(found.trials) >= len(kept.known.trials if kept.known is not None else ()):
        kept.put(limits, found)
    return found


def _try_all(subject: SearchSubject, collective: Collective, limits: TrialLimits) -> Trials:
    begun = monotonic()
    before = price_as_written(subject)
    if before.step_us is None:
        return Trials(before=before, not_tried="there are no predicted times for this slice to compare")
    if collective.reason is None:
        return Trials(before=before, not_tried="the reason for the collective is unknown")
    found = find_candidates(subject.captured, collective.reason, subject.lowered.facts.dims)
    if not found:
        is_own = collective.reason.kind is ReasonKind.AUTHORED
        why = "the program itself requests it" if is_own else "no sharding change is known that may remove it"
        return Trials(before=before, not_tried=why, verdict=describe_verdict(before, (), 0, collective))
    subject.stage(f"ranking {pluralize(len(found), 'change')}")
    order = rank_changes(subject, found, limits.seconds)
    done, stopped = _try_in_order(subject, before, order, limits, begun)
    in_order = _sort_best_first(done)
    if before.stage is CompileStage.SCHEDULED:
        subject.stage("compiling the best changes to machine code")
        confirmed, others = confirm_best(
            subject,
            in_order,
            begun + limits.seconds,
            lambda change: lower_changed(subject.function, subject.lowered, change, store=subject.store),
        )
        in_order = [*_sort_best_first(confirmed), *others]
        stopped = stopped or any(trial.helps and trial.before is None for _, trial in in_order[:1])
    trials = _add_resharding_cost(subject, in_order, begun + limits.seconds + _MORE_S)
    return Trials(
        before=before,
        trials=trials,
        candidates=len(order),
        not_tried=None
        if trials or stopped
        else f"JAX cannot trace the program with any of {pluralize(len(order), 'change')}",
        verdict=describe_verdict(
            before, trials, len(order), collective, stopped=stopped, others_left=is_explicit(subject.lowered)
        ),
        stopped=stopped,
        seconds=monotonic() - begun,
    )


def _try_in_order(
    subject: SearchSubject, before: Figures, order: Sequence[RankedChange], limits: TrialLimits, begun: float
) -> tuple[list[tuple[Resharding, Trial]], bool]:
    """The compiled trials, and whether time ran out before all were compiled."""
    done: list[tuple[Resharding, Trial]] = []
    later = list(_order_distinct(order))
    while later and len(done) < limits.changes:
        change = later.pop(_find_next(later, done, limits))
        left = begun + limits.seconds - monotonic()
        if left <= 0:
            return done, True
        subject.stage(f"trying {change}")
        try:
            trial = try_change(subject, before, change, left)
        except TimeLimitError:
            return done, True
        if trial is not None:
            done.append((change, trial))
    return done, False


def confirm_best(
    subject: SearchSubject, done: Sequence[tuple[T, Trial]], until: float, lower: Callable[[T], Lowered]
) -> tuple[list[tuple[T, Trial]], list[tuple[T, Trial]]]:
    """The trials of scheduled programs that still help with their machine code, and the others.

    The best is compiled to the end, and, where that is soon done, those whose estimated steps are not certainly
    longer. One that then fails is withdrawn.

    Args:
        subject: The program.
        done: The changes with their trials, those that help in order.
        until: The deadline, on the clock of `time.monotonic`.
        lower: Returns the program with a change.
    """
    left, withdrawn = list(done), list[tuple[T, Trial]]()
    own, begun = find_compiled_figures(subject), monotonic()
    while left and left[0][1].helps and until > monotonic():
        try:
            own, (best,) = _compile_in_full(subject, left[:1], own, until, lower)
        except (TimeLimitError, _RefusedError):
            break
        first = left.pop(0)
        if not best[1].helps:
            withdrawn.append(best)
            continue
        near = _find_near(left, first[1])
        if not near or monotonic() - begun > _SOON_S:
            return [best], [*left, *withdrawn]
        try:
            _, found = _compile_in_full(subject, near, own, min(until, monotonic() + _SOON_S), lower)
        except TimeLimitError:
            return [best], [*left, *withdrawn]
        withdrawn += [pair for pair in found if not pair[1].helps]
        return [best, *(pair for pair in found if pair[1].helps)], [
            *(pair for pair in left if pair not in near),
            *withdrawn,
        ]
    return [], [*left, *withdrawn]


def _find_near(done: Sequence[tuple[T, Trial]], best: Trial) -> list[tuple[T, Trial]]:
    """The trials that may be faster than the best with their machine code, by the error of estimated steps."""
    limit = _ESTIMATED * (_get_step(best) or 0.0)
    near = [(step, pair) for pair in done if (step := _get_step(pair[1])) is not None and step <= limit]
    return [pair for _, pair in sorted(near, key=lambda each: each[0])[:_MOST_NEAR]]


def _get_step(trial: Trial) -> float | None:
    return None if trial.after is None else trial.after.step_us


class _RefusedError(Exception):
    """The program as written is refused, so that nothing can be compared with it."""


def _compile_in_full(
    subject: SearchSubject,
    pairs: Sequence[tuple[T, Trial]],
    own: Figures | None,
    until: float,
    lower: Callable[[T], Lowered],
) -> tuple[Figures, list[tuple[T, Trial]]]:
    """The cost of the program as written, and trials with the machine code of their programs.

    Raises:
        TimeLimitError: They take too long.
        _RefusedError: The compiler refuses the program as written.
    """
    programs = [*([subject.lowered] if own is None else []), *(lower(change) for change, _ in pairs)]
    figures = _price_in_full(subject, programs, until)
    was = figures.pop(0) if own is None else own
    if isinstance(was, str):
        raise _RefusedError(was)
    found = []
    for (change, trial), after in zip(pairs, figures, strict=True):
        if isinstance(after, str):
            found.append((change, replace(trial, after=None, helps=False, problem=after)))
        else:
            found.append((change, replace(trial, before=was, after=after, helps=is_worthwhile(was, after))))
    return was, found


def _price_in_full(subject: SearchSubject, programs: Sequence[Lowered], until: float) -> list[Figures | str]:
    """The costs of programs, compiled side by side; for one that the compiler refuses, its reason.

    Raises:
        TimeLimitError: They take too long.
    """
    started: list[compiling.PendingCompile] = []
    found: list[Figures | str] = []
    try:
        for program in programs:
            facts = replace(program.facts, timeout_s=max(until - monotonic(), 1.0))
            started.append(start_compile(replace(program, facts=facts), store=subject.store))
        for pending in started:
            try:
                found.append(price_figures(pending.capture(), pending.program.name))
            except TimeLimitError:
                raise
            except HloscopeError as error:
                found.append(error.what)
    finally:
        for pending in started:
            pending.drop()
    return found


def _find_next(later: Sequence[Resharding], done: Sequence[tuple[Resharding, Trial]], limits: TrialLimits) -> int:
    """The index of the next change to try: the first; the last one is there for what all others leave open.

    The caller decides whether a result may be freed, so at least one change, if there is any, does not need that. And
    the best of several changes at once may owe all that it gains to one of them.
    """
    if not done or len(done) < limits.changes - 1:
        return 0
    if all(change.frees_output for change, _ in done):
        return next((at for at, change in enumerate(later) if not change.frees_output), 0)
    best, trial = _sort_best_first(done)[0]
    if not trial.helps or any(change.touched < best.touched for change, _ in done):
        return 0
    smaller = [(change.asks, change.parts, at) for at, change in enumerate(later) if change.touched < best.touched]
    return min(smaller, default=(0, 0, 0))[-1]


def _add_resharding_cost(
    subject: SearchSubject, done: Sequence[tuple[Resharding, Trial]], until: float
) -> tuple[Trial, ...]:
    """The trials; those that help come with their demands on the program's caller."""
    found = []
    for change, trial in done:
        left = until - monotonic()
        is_worth = not change.moved or (trial.helps and left > 0)
        found.append(replace(trial, moving_us=price_resharding(subject, change.moved, left) if is_worth else None))
    return tuple(found)


def _order_distinct(order: Sequence[RankedChange]) -> Iterator[Resharding]:
    """The changes in order, but last those as costly as a change of only a part of the same things: they gain nothing.

    Two changes of the same things are kept, in case Shardy does not show which is better; an open
    result counts as one with the sharding that it is computed in.
    """
    taken: list[RankedChange] = []
    later: list[Resharding] = []
    for found in order:
        enough = [other.change for other in taken if _is_enough(other, found)]
        alternatives = 1 if all(leaf.after is not None for leaf in found.change.results) else 0
        if len(enough) > alternatives or any(change.touched < found.change.touched for change in enough):
            later.append(found.change)
            continue
        taken.append(found)
        yield found.change
    yield from later


def _is_enough(smaller: RankedChange, larger: RankedChange) -> bool:
    if smaller.time_us is None or larger.time_us is None or not smaller.change.touched <= larger.change.touched:
        return False
    return larger.time_us >= (1 - _TIE) * smaller.time_us


def try_change(subject: SearchSubject, before: Figures, change: Resharding, seconds: float) -> Trial | None:
    """Compiles and prices one change; None if JAX refuses to trace the changed program.

    Args:
        subject: The program.
        before: The program's present costs.
        change: The change.
        seconds: Time limit of the compile.

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
    try:
        captured, after = price_changed(subject, program, before, seconds)
    except TimeLimitError:
        raise
    except HloscopeError as error:
        return replace(trial, problem=error.what)
    outputs = captured.outputs or ()
    left = [leaf for leaf in change.results if leaf.after is None and leaf.index < len(outputs)]
    opened = tuple(f"{leaf.name} becomes {outputs[leaf.index].sharding or 'an unknown sharding'}" for leaf in left)
    return replace(trial, after=after, helps=is_worthwhile(before, after), opened=opened)


def price_changed(subject: SearchSubject, program: Lowered, before: Figures, seconds: float) -> tuple[Capture, Figures]:
    """Compiles a changed program to the stage of the one as written, and prices it.

    Raises:
        TimeLimitError: It took longer.
        HloscopeError: The compiler refuses it.
    """
    limited = replace(program, facts=replace(program.facts, timeout_s=max(seconds, 1.0)))
    captured = start_compile(limited, store=subject.store, wanted=before.stage).capture()
    return captured, price_figures(captured, program.name, before.stage)


def _sort_best_first(trials: Sequence[tuple[Resharding, Trial]]) -> list[tuple[Resharding, Trial]]:
    """The helpful trials first, fastest first; of two that differ little, the less demanding and smaller one.

    A change that includes another one and gains nothing more is not worth making, and does not help.
    """
    steps = {change: trial.after.step_us or 0.0 for change, trial in trials if trial.after is not None}

    def is_enough(change: Resharding, trial: Trial) -> bool:
        return any(
            other.helps and small != change and small.touched <= change.touched and _no_better(small, change)
            for small, other in trials
            if trial.helps
        )

    def _no_better(small: Resharding, large: Resharding) -> bool:
        if small.touched == large.touched and steps[large] >= (1 - _TIE) * steps[small]:
            return (steps[small], small.asks, _order[small]) < (steps[large], large.asks, _order[large])
        return small.touched < large.touched and steps[large] >= (1 - _TIE) * steps[small]

    _order = {change: number for number, (change, _) in enumerate(trials)}
    judged = [(change, replace(trial, helps=False) if is_enough(change, trial) else trial) for change, trial in trials]

    fastest = min((steps[change] for change, trial in judged if trial.helps), default=0.0)

    def key(item: tuple[Resharding, Trial]) -> tuple[bool, bool, float, int, int, int]:
        change, trial = item
        step_us = steps.get(change)
        shown = float(f"{step_us:.2g}") if step_us and step_us > (1 + LEAST_TIME_GAIN) * fastest else 0.0
        return not trial.helps, step_us is None, shown, change.asks, change.widened, change.parts

    return sorted(judged, key=key)


def describe_verdict(
    before: Figures,
    trials: Sequence[Trial],
    candidates: int,
    collective: Collective,
    *,
    stopped: bool = False,
    others_left: bool = False,
) -> str:
    """The conclusion, with reasons, that the program is best left as it is; not before all planned trials are done.

    While other changes are left, as with explicit axes those of the program's own requests, it may not be.
    """
    if any(trial.helps for trial in trials):
        return ""
    hardly_matters = list(_explain_leaving(before, collective))
    reasons = [*hardly_matters]
    is_open = False
    if trials:
        described, is_open = _describe_best(before, trials)
        count = (
            pluralize(candidates, "change") if candidates == len(trials) else f"{len(trials)} of {candidates} changes"
        )
        reasons.append(f"tried {count}, {described}")
    known = "no cure was found" if others_left else "leave it"
    label = "leave it" if hardly_matters else "nothing found yet" if stopped else "undecided" if is_open else known
    return f"{label}: {'; '.join(reasons)}" if reasons else ""


def _explain_leaving(before: Figures, collective: Collective) -> Iterator[str]:
    step, exposed = before.step_us, collective.exposed_us
    if step is None or exposed is None or not step:
        return
    share = exposed * collective.executions / step
    if exposed == 0:
        yield "the transfer is fully overlapped"
    elif share < _LITTLE:
        bound = bytes_bound(collective) + -before.step_bound
        yield f"it takes {bound.marked(format_share(share))} of the step"


def _describe_best(before: Figures, trials: Sequence[Trial]) -> tuple[str, bool]:
    """The best of changes of which none surely helps, and whether it may help."""
    pairs = [(trial.before or before, trial.after) for trial in trials if trial.after is not None]
    gains = [(gained, *pair) for pair in pairs if (gained := compute_gain(*pair)) is not None]
    if not gains:
        return "none of which compiles", False
    best, was, after = max(gains, key=lambda each: each[0])
    ratio = after.ratio_bound(was)
    if best <= -_NOTHING:
        return f"the best of which is {ratio.marked(format_share(-best))} slower", False
    if best < _NOTHING:
        return "none of which makes it faster", False
    share = (-ratio).marked(format_share(best))
    if fits_no_more(was, after):
        return f"the best of which is {share} faster, but does not fit in memory", False
    if may_help(was, after):
        return f"the best of which may be {share} faster: some of its costs are unknown", True
    return f"the best of which is {share} faster, less than the model can resolve", False
