"""The results of changes that were tried, as phrases for text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.model.step_time import is_tie
from hloscope.analysis.model.trial import Figures, Trial, Trials
from hloscope.messages import Option, say
from hloscope.units import format_bytes, format_share, format_time_range, plural

_SHOWN = 3


def labelled(trials: Trials | None) -> Iterator[tuple[str, str]]:
    """Labels and lines: each change that helps, best first, or that it is better left, or why nothing was tried."""
    if trials is None:
        return
    worth = [trial for trial in trials.helping if _is_near(trial, trials.helping[0])]
    for trial in worth[:_SHOWN]:
        yield "tried", "; ".join(trial.change)
        yield "", gains(trials.before, trial)
        for condition in trial.conditions:
            yield "", condition
    rest = len(trials.helping) - len(worth[:_SHOWN])
    if rest:
        yield "tried", f"{plural(rest, 'other change')} that help{'s' * (rest == 1)} less"
    if trials.verdict:
        label, _, words = trials.verdict.partition(": ")
        yield label, words
    if trials.not_tried is not None:
        yield "not tried", trials.not_tried
    elif trials.stopped:
        yield "not tried", say("the remaining changes, for lack of time: ", Option("try"), " allows more")


_NEAR = 1.5


def _is_near(trial: Trial, best: Trial) -> bool:
    """Whether a change is worth a thought beside the best one."""
    if trial.after is None or best.after is None or trial.after.step_us is None or best.after.step_us is None:
        return False
    return trial.after.step_us <= _NEAR * best.after.step_us


def gains(before: Figures | None, trial: Trial) -> str:
    """`492 us (458 to 528) -> 73.9 us (68.8 to 79.3), 85.0% less; sends 14.7 MB -> 0 B; HBM 50.7 MB -> 50.4 MB`."""
    after = trial.after
    if before is None or after is None:
        return trial.problem or "its cost is unknown"
    tie = "a tie within the error of the prediction" if is_tie(after, before) else ""
    steps = f"{_step(before)} -> {_step(after)}"
    words = [", ".join(filter(None, (steps, difference_words(before, after), tie)))]
    axes = dict.fromkeys((*before.wire_bytes_by_axis, *after.wire_bytes_by_axis))
    for axis in axes:
        pair = (before.wire_bytes_by_axis.get(axis, 0), after.wire_bytes_by_axis.get(axis, 0))
        if pair[0] != pair[1]:
            sent = f"{before.sent_words(axis)} -> {after.sent_words(axis)}"
            words.append(f"over {axis or 'no axis'} one device sends {sent} per step")
    if before.hbm_bytes != after.hbm_bytes:
        words.append(f"HBM {format_bytes(before.hbm_bytes)} -> {format_bytes(after.hbm_bytes)} per device")
    if before.collectives != after.collectives:
        words.append(f"{before.collectives} -> {plural(after.collectives, 'collective')}")
    return "; ".join(words)


def _step(figures: Figures) -> str:
    if figures.step_us_range is None:
        return figures.step_words
    return f"{figures.step_words} ({format_time_range(*figures.step_us_range)})"


def difference_words(before: Figures, after: Figures) -> str:
    """`≥85.0% less`: how much less time a step takes than another, or more; empty if that is unknown."""
    if not before.step_us or after.step_us is None:
        return ""
    gain, ratio = 1 - after.step_us / before.step_us, after.ratio_bound(before)
    return f"{(-ratio).marked(format_share(gain))} less" if gain >= 0 else f"{ratio.marked(format_share(-gain))} more"
