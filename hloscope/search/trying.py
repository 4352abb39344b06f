"""The decisions and collectives of a program that are tried, and its analysis with what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic

from hloscope.model import Analysis, Collective
from hloscope.model.decision import Decision
from hloscope.model.trial import Trials
from hloscope.model.vocabulary import CompileStage
from hloscope.search.cures import compute_gain_of, try_decision
from hloscope.search.trial_cache import SearchSubject, TrialLimits
from hloscope.search.trials import choose_stage, try_changes
from hloscope.why.decisions import list_worth_trying

_RULE = "lost-batch"
_CHANGES = 4
"""Changes that are compiled against what costs much, though no decision is lost."""


def try_cures(subject: SearchSubject, seconds: float, *, confirms: bool = True) -> Analysis:
    """An analysis whose lost decisions have been tried the other way round, the costliest first, until one helps.

    If none is lost or helps, changes are tried against the costliest collective of what is made whole at a cost.

    Args:
        subject: The program.
        seconds: Time limit for all compiles.
        confirms: Whether what helps is compiled to the end if its changes are compared before that. Otherwise changes
            against a collective, which always are, are left out.
    """
    found, until = subject.analysis, monotonic() + seconds
    tried: dict[str, Trials] = {}
    for decision in list_worth_trying(found):
        left = until - monotonic()
        if left <= 0 or any(trials.helping for trials in tried.values()):
            break
        trials = try_decision(subject, decision, left, confirms=confirms, keeps_interrupted=True)
        left = until - monotonic()
        is_over = trials.helping or trials.stopped or left <= 0
        if not decision.is_lost and not is_over and (confirms or choose_stage(subject) is CompileStage.COMPILED):
            worst = find_worst_collective(found, decision)
            others = try_changes(subject, worst, TrialLimits(changes=_CHANGES, seconds=left))
            trials = replace(others, not_tried=others.not_tried or trials.not_tried)
        tried[decision.summary] = trials
        if trials.stopped:
            break
    return add_trials(found, tried)


def find_worst_collective(found: Analysis, decision: Decision) -> Collective:
    """The collective of a decision with most exposed time."""
    of_decision = [each for each in found.collectives if each.name in decision.collectives]
    return max(of_decision, key=lambda each: (each.exposed_us or 0.0) * each.executions)


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
    return trials.verdict or None if best is None else "; ".join((*best.change, *best.conditions))


def try_against(collective: Collective, subject: SearchSubject, limits: TrialLimits) -> Trials:
    """The changes against a collective: the cure of the lost decision behind it, or others."""
    lost = next((each for each in subject.analysis.find_decisions(collective.name) if each.is_lost), None)
    if lost is None or not lost.places:
        return try_changes(subject, collective, limits)
    begun = monotonic()
    if lost.winner is None:  # it concerns few collectives, so that changes against this one may be better than a line
        others = try_changes(subject, collective, limits)
        left = limits.seconds - (monotonic() - begun)
        return others if left <= 0 else _join_trials(others, try_decision(subject, lost, left))
    cured = try_decision(subject, lost, limits.seconds)
    left = limits.seconds - (monotonic() - begun)
    if cured.helping or left <= 0:
        return cured
    return try_changes(subject, collective, TrialLimits(changes=limits.changes, seconds=left))


def _join_trials(others: Trials, cured: Trials) -> Trials:
    """Both, the changes that help first and fastest first."""
    if not cured.helping:
        return others
    helping = sorted((*others.helping, *cured.helping), key=lambda one: -(compute_gain_of(others.before, one) or 0.0))
    rest = [trial for trial in others.trials if not trial.helps]
    return replace(others, trials=(*helping, *rest), candidates=others.candidates + cured.candidates, verdict="")
