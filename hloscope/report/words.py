"""Words that several reports share: bounds and their marks, links, parts of axes, notes, versions, tried changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from rich.text import Text

from hloscope.base.errors import Either, Option, placeholder, say
from hloscope.base.units import format_bytes, format_share, format_time_range, pluralize
from hloscope.model import Collective
from hloscope.model.trial import Figures, Trial, Trials, is_tie
from hloscope.model.vocabulary import Bound, CompileStage, Link
from hloscope.report.layout import fold, hang, section

LINKS = {Link.ICI: "ICI", Link.DCN: "DCN", Link.BOTH: "ICI+DCN", Link.UNKNOWN: "unknown"}
ELSEWHERE = Either("(all of them with --format json)", "(all of them in to_dict())")

BOUNDS_WORDS = {
    Bound.AT_LEAST: "≥ means at least",
    Bound.AT_MOST: "≤ means at most",
    Bound.UNKNOWN: "~ means as counted: some parts are lower bounds, others upper bounds",
}
"""The meaning of the mark of each bound."""

_LEGEND = {words[0]: words for words in BOUNDS_WORDS.values()}
_PART_OF_AXIS = re.compile(r":\(\d+\)\d")
_NOTE_LENGTH = 240


GUESSED = "?"
"""The mark of guessed axes."""

GUESSED_LEGEND = (
    "? marks guessed axes: the text is the program of one of several slices and does not say which axis crosses them; ",
    Option("dcn"),
    " does",
)


def format_axes(collective: Collective) -> str:
    """`X,Y`, with a mark if they are guessed; the number and size of groups if they are not axes."""
    if collective.axes is not None:
        return (",".join(collective.axes) or "none") + (GUESSED if collective.axes_guessed else "")
    if not collective.groups:
        return "unknown"
    if collective.group_size is None:
        return pluralize(len(collective.groups), "pair")
    return f"{pluralize(len(collective.groups), 'group')} of {collective.group_size}"


def leaves_ici(collectives: Iterable[Collective]) -> bool:
    """True if links are worth a column: not every collective stays on ICI."""
    return any(collective.link is not Link.ICI for collective in collectives)


def make_legend(lines: Iterable[Text]) -> Text | None:
    """The meaning of the marks in these lines; None if there are none."""
    marks = {mark for line in lines for mark in re.findall(r"[≥≤~](?=[+−]?\d)", line.plain)}
    return Text(" · ".join(_LEGEND[mark] for mark in _LEGEND if mark in marks), style="dim") if marks else None


def explain_axis_parts(texts: Iterable[str]) -> Text | None:
    """The meaning of `X:(p)s`, if it occurs in one of these texts."""
    if not any(_PART_OF_AXIS.search(text) for text in texts):
        return None
    words = "X:(p)s = the part of axis X of size s, with p devices of X before it (Shardy's notation)"
    return Text(words, style="dim")


def join_lines(text: str) -> str:
    """The text with single blanks in place of line ends and runs of blanks."""
    return " ".join(text.split())


def shorten_note(note: str) -> str:
    """The note on one line; of a long one the first sentences, or words, of 240 characters and an ellipsis."""
    line = join_lines(note)
    if len(line) <= _NOTE_LENGTH:
        return line
    sentences = re.match(rf".{{{_NOTE_LENGTH // 2},{_NOTE_LENGTH}}}[.!?](?= [A-Z\[])", line)
    start = sentences.group() if sentences else line[: _NOTE_LENGTH + 1].rpartition(" ")[0] or line[:_NOTE_LENGTH]
    return f"{start} …"


def render_notes(notes: Iterable[str], width: int) -> Iterator[Text]:
    """The section of notes, a bullet for each; nothing without notes."""
    lines = [line for note in notes for line in hang(Text(f"• {shorten_note(note)}"), width)]
    if lines:
        yield from section("Notes", lines, width)


def render_versions(versions: Mapping[str, str], width: int) -> Iterator[Text]:
    """The last line of a report: the versions of the tools."""
    yield Text()
    yield from fold(Text(", ".join(f"{name} {version}" for name, version in versions.items()), style="dim"), width)


_TRIALS_SHOWN = 3


def describe_trials(trials: Trials | None) -> Iterator[tuple[str, str]]:
    """Labels and lines: each change that helps, best first, or that it is better left, or why nothing was tried."""
    if trials is None:
        return
    worth = [trial for trial in trials.helping if _is_near(trial, trials.helping[0], trials.before)]
    for trial in worth[:_TRIALS_SHOWN]:
        yield "tried", "; ".join(trial.change)
        yield "", describe_gain(trial.before or trials.before, trial)
        for condition in trial.conditions:
            yield "", condition
    rest = len(trials.helping) - len(worth[:_TRIALS_SHOWN])
    if rest:
        yield "tried", f"{pluralize(rest, 'other change')} that help{'s' * (rest == 1)} less"
    if trials.verdict:
        label, _, words = trials.verdict.partition(": ")
        yield label, words
    if trials.not_tried is not None:
        yield "not tried", trials.not_tried
    elif trials.stopped:
        yield "not tried", say("the remaining changes, for lack of time: ", Option("try"), " allows more")


_NEAR_THE_BEST = 1.5


def _is_near(trial: Trial, best: Trial, before: Figures | None) -> bool:
    """True if a change saves nearly as much as the best one, each beside the program as written at its own stage."""
    shares = []
    for each in (trial, best):
        was = each.before or before
        if was is None or each.after is None or not was.step_us or each.after.step_us is None:
            return False
        shares.append(each.after.step_us / was.step_us)
    return shares[0] <= _NEAR_THE_BEST * shares[1]


def describe_gain(before: Figures | None, trial: Trial) -> str:
    """`492 us (458 to 528) -> 73.9 us (68.8 to 79.3), 85.0% less; sends 14.7 MB -> 0 B; HBM 50.7 MB -> 50.4 MB`."""
    after = trial.after
    if before is None or after is None:
        return trial.problem or "its cost is unknown"
    tie = "a tie within the error of the prediction" if is_tie(after, before) else ""
    steps = f"{_format_step(before)} -> {_format_step(after)}"
    words = [", ".join(filter(None, (steps, format_difference(before, after), tie)))]
    axes = dict.fromkeys((*before.wire_bytes_by_axis, *after.wire_bytes_by_axis))
    for axis in axes:
        pair = (before.wire_bytes_by_axis.get(axis, 0), after.wire_bytes_by_axis.get(axis, 0))
        if pair[0] != pair[1]:
            sent = f"{before.sent_words(axis)} -> {after.sent_words(axis)}"
            words.append(f"over {axis or 'no axis'} one device sends {sent} per step")
    if before.hbm_bytes != after.hbm_bytes:
        what = "HBM without code" if CompileStage.SCHEDULED in (before.stage, after.stage) else "HBM"
        words.append(f"{what} {format_bytes(before.hbm_bytes)} -> {format_bytes(after.hbm_bytes)} per device")
    if before.collectives != after.collectives:
        words.append(f"{before.collectives} -> {pluralize(after.collectives, 'collective')}")
    if after.stage is CompileStage.SCHEDULED:
        words.append("estimated: both programs are scheduled, not compiled")
    return "; ".join(words)


def _format_step(figures: Figures) -> str:
    if figures.step_us_range is None:
        return figures.step_words
    return f"{figures.step_words} ({format_time_range(*figures.step_us_range)})"


def format_difference(before: Figures, after: Figures) -> str:
    """`≥85.0% less`: the relative difference of the time of two steps; empty if unknown."""
    if not before.step_us or after.step_us is None:
        return ""
    gain, ratio = 1 - after.step_us / before.step_us, after.ratio_bound(before)
    return f"{(-ratio).marked(format_share(gain))} less" if gain >= 0 else f"{ratio.marked(format_share(-gain))} more"


def make_cost_option(kernel: str) -> Option:
    """The option that sets the cost of a kernel."""
    return Option("kernel-cost", {kernel: (placeholder("FLOPS"), placeholder("BYTES"))})
