"""`explain`: the reasons for collectives, and the changes that help against them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

from hloscope.analysis.model_parts import skip_helpers
from hloscope.analysis.provenance import CAPTURED_SOURCES, SourceFiles
from hloscope.app.analyzing import analyze_text_target, make_search_subject
from hloscope.app.requests import FunctionOptions, Request, Text, Trying, follow, parse_trying, refuse_beside_analysis
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.errors import Option, say
from hloscope.base.progress import StageDisplay
from hloscope.base.units import format_time
from hloscope.compile.functions import Function, with_function
from hloscope.compile.target import TargetFacts, accept_options
from hloscope.model import Analysis, Collective
from hloscope.model.trial import Trials
from hloscope.model.vocabulary import CompileStage
from hloscope.why.explanation import Explanation, Explanations
from hloscope.why.explanation import explain_collectives as reasons_of

_QUICK_S = 2.0
"""If a program compiles in less, changes are tried without a request."""
_CHANGES, _SECONDS = 4, 10.0
_ALL = "all"


_PASS_TRY = ("pass ", Option("try", 300), " to try")


@front_door
@accept_options(FunctionOptions)
def explain(
    target: Callable[..., Any] | str | Path | Analysis,
    args: Any = None,
    *,
    collective: str | int | Collective | None = None,
    try_s: float | str | None = None,
    trials: bool = True,
    source_root: str | Path | None = None,
    **options: Unpack[FunctionOptions],
) -> Explanations:
    """Explains why collectives are there: which array, line and shardings cause them, and what would help.

    Sharding changes are compiled and priced before they are recommended.

    Example:
        >>> print(hloscope.explain(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2}))
        >>> hloscope.explain("model.py:step", collective="all-gather.8", try_s=300)[0].trials

    Args:
        target: As for `analyze`; or an analysis, in which case nothing is compiled and no change is tried.
        args: One entry per positional argument, as for `analyze`.
        collective: Which to explain: the name of one, such as `all-gather.8`; its number in the report, where
            `found.collectives[0]` is 1; an element of `found.collectives`; a selector such as `all-gather@fsdp`, as in
            `found[…]`, for all that it matches; a mesh axis, an argument, a line such as `model.py:21` or a decision
            such as `data: D, not B`, for all that are about it; or `all`. A name takes precedence over the others. By
            default all are explained, and changes are tried against the most exposed one of the costliest decision.
        try_s: Time limit for trying changes, in seconds or such as `5m`. By default only a few are tried, and only for
            programs that compile quickly.
        trials: Whether to try changes at all.
        source_root: For HLO text, the folder below which source files that it names may be read.
        {options}

    Returns:
        The explanations, sorted by bytes per step, largest first; of all, that which is tried comes before the others.

    Raises:
        HloscopeError: The input is invalid, there is no such collective, or JAX or the compiler rejects the program.
    """
    parsed = parse_trying(try_s, trials)
    span, named = parsed.seconds, _find_collective_name(collective)
    trying = Trying(wanted=trials, seconds=span)
    root = calls.path("source_root", source_root, example='source_root="src"')
    described = {"args": args, **options}
    everything = collective is not None
    if isinstance(target, Analysis):
        refuse_beside_analysis({**described, "try_s": span})
        # if JAX has not compiled the program, its files are those named in HLO text
        sources = SourceFiles(captured="jax" in target.versions, root=root)
        return Explanations(reasons_of(target, named, sources=sources), everything=everything)
    request = Request(target=target, said=described, source_root=root)
    return find_explanations(request, named, everything=everything, trying=trying)


def _find_collective_name(collective: object) -> str | None:
    """The name or the number of a collective; None for all of them."""
    if collective is None or (isinstance(collective, str) and collective == _ALL):
        return None
    if isinstance(collective, str | Collective):
        return collective if isinstance(collective, str) else collective.name
    number = calls.integer(collective)
    if number is None:
        kind = "the name of one, its number counted from 1, a selector, or one of found.collectives"
        calls.refuse("collective", kind, collective, 'collective="all-gather.8", or collective=1')
    return str(number)


def find_explanations(request: Request, named: str | None, *, everything: bool, trying: Trying) -> Explanations:
    """Explains the collectives of a program; for a function, also tries changes against those shown in full.

    Args:
        request: The request; its front door is given the first explanation before changes are tried.
        named: One collective, as for `explain`; None for all.
        everything: Whether all are shown in full, or only the first one.
        trying: Whether to try changes, and for how long.

    Raises:
        HloscopeError: The input is invalid, there is no such collective, or JAX or the compiler rejects the program.
    """
    root = None if request.source_root is None else Path(request.source_root)

    def of_text(text: Text) -> tuple[Explanation, ...]:
        found = skip_helpers(analyze_text_target(text), request.helpers)
        return reasons_of(found, named, sources=SourceFiles(captured=False, root=root))

    def of_function(function: Function, stage: StageDisplay) -> tuple[Explanation, ...]:
        def begin(found: Explanation) -> None:
            request.door.begin("explanation", [found], stage)

        return _explain_function(function, named, everything=everything, trying=trying, when_explained=begin)

    return Explanations(follow(request, of_function=of_function, of_text=of_text), everything=everything)


def _explain_function(
    function: Function,
    named: str | None,
    *,
    everything: bool,
    trying: Trying,
    when_explained: Callable[[Explanation], None],
) -> tuple[Explanation, ...]:
    """The explanations of a function's collectives, with the results of the changes that were tried."""

    def explained(itself: Callable[..., Any], known: TargetFacts) -> tuple[Explanation, ...]:
        subject = make_search_subject(replace(function, wanted=CompileStage.SCHEDULED), itself, known)
        found = reasons_of(subject.analysis, named, sources=CAPTURED_SOURCES)
        found = _put_costliest_first(found, subject.analysis) if named is None and not everything else found
        if not trying.wanted:
            return found
        shown = len(found) if everything else min(1, len(found))
        if found:
            when_explained(replace(found[0], advice=()))
        return (*_add_trials(found[:shown], subject, trying), *found[shown:])

    return with_function(function, explained)


def _put_costliest_first(found: Sequence[Explanation], analysis: Analysis) -> tuple[Explanation, ...]:
    """Explanations that begin with the most exposed collective, of the decision that is tried first if there is one."""
    from hloscope.why.decisions import list_worth_trying  # text alone does not need it

    decision = next(iter(list_worth_trying(analysis)), None)
    of_decision = [each for each in found if decision is not None and each.collective.name in decision.collectives]

    def wait_us(each: Explanation) -> float:
        return (each.collective.exposed_us or 0.0) * each.collective.executions

    first = max(of_decision or found, key=wait_us, default=None)
    return tuple(sorted(found, key=lambda each: each is not first))


def _add_trials(found: Sequence[Explanation], subject: Any, trying: Trying) -> list[Explanation]:
    """Adds the results of changes to explanations, as long as there is time left."""
    from hloscope.search import TrialLimits
    from hloscope.search.ranking import MOST_CANDIDATES
    from hloscope.search.trial_cache import TrialCache
    from hloscope.search.trying import try_against

    changes = _CHANGES if trying.seconds is None else MOST_CANDIDATES
    until = monotonic() + (_SECONDS if trying.seconds is None else trying.seconds)
    done = []
    for explanation in found:
        why_not = _explain_untried(subject, trying)
        left = until - monotonic()
        if why_not is None and (left <= 0 or changes <= 0):
            why_not = say("the time limit was spent on earlier collectives: allow more with ", Option("try"))
        if why_not is not None:
            known = TrialCache(subject.store, subject.kept, explanation.collective).known
            done.append(replace(explanation, trials=known or Trials(not_tried=why_not)))
            continue
        # the first collective gets the whole time, so that what was found once is found again
        seconds = left if done else _SECONDS if trying.seconds is None else trying.seconds
        trials = try_against(explanation.collective, subject, TrialLimits(changes=changes, seconds=seconds))
        changes -= len(trials.trials)
        done.append(replace(explanation, trials=trials))
    return [replace(each, trials=_keep_open(each)) for each in done]


def _keep_open(explanation: Explanation) -> Trials | None:
    """Trials of which none helps are no advice to leave a collective while a change of code is untried."""
    trials = explanation.trials
    if trials is None or not explanation.advice or not trials.verdict.startswith("leave it: tried"):
        return trials
    return replace(trials, verdict=f"no sharding helps{trials.verdict.removeprefix('leave it')}")


def _explain_untried(subject: Any, trying: Trying) -> str | None:
    """The reason that no change is tried against a collective; None if changes are tried."""
    compile_s, time = subject.captured.compiled.seconds, subject.analysis.time
    if time is None or subject.lowered.slice.chip is None:
        return f"{subject.lowered.slice.name} has no times to compare"
    if subject.lowered.strategy is None:
        return "JAX has already traced it, and cannot trace it with a change: pass the function itself"
    if trying.seconds is not None:
        return None
    if compile_s is None:
        return say("it was compiled in this process, and each change would be too: ", *_PASS_TRY)
    if compile_s >= _QUICK_S:
        return say(f"the program takes {format_time(1e6 * compile_s)} to compile: ", *_PASS_TRY)
    return None
