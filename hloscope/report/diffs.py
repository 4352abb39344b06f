"""Two programs side by side, as text, JSON or Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.text import Text

from hloscope.analysis.provenance import render_users_line, short_source, split_place
from hloscope.base.calls import choice, front_door
from hloscope.base.documents import SCHEMA, Schema, make_document
from hloscope.base.errors import Command, say
from hloscope.base.results import Brief, Shown, group_by, shorten_to_line
from hloscope.base.units import add_sign, format_bytes, pluralize
from hloscope.judge.changes import UNKNOWN, Cause, Change, ChangeKind, Figure, Judged, Judgement, Tally
from hloscope.judge.figures import MEMORY, MULTIPLIED, STEP, find_figure
from hloscope.judge.judging import judge_all
from hloscope.judge.verdict import NO_REASON
from hloscope.model import Analysis, Collective, SourceFrame, Total, Totals
from hloscope.model.trial import is_tie
from hloscope.model.vocabulary import Bound, Kind
from hloscope.report.checks import AMOUNT_WORDS, UNBROKEN, format_figure
from hloscope.report.escaping import escape_commands, escape_line, escape_prose, fence_code, render_code
from hloscope.report.layout import Column, column, fold_all, hang, render_table
from hloscope.report.words import GUESSED, make_legend

if TYPE_CHECKING:
    from hloscope.plain_types import DiffDict


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCollective:
    """One collective of a change.

    Attributes:
        kind: Kind of collective.
        axes: Mesh axes it runs over; None if unknown.
        payload_bytes: Bytes of the larger of operand and result on one device, per execution; None if unknown.
        wire_bytes: Bytes that one device must send, per execution; None if unknown.
        bytes_bound: Whether these bytes are exact or bounds.
        executions: Executions per step.
        executions_bound: Whether `executions` is exact or a bound.
        source: Line of user code, such as `moe.py:31`; None if unknown.
    """

    kind: Kind
    axes: tuple[str, ...] | None
    payload_bytes: int | None
    wire_bytes: int | None
    bytes_bound: Bound
    executions: int
    executions_bound: Bound
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ListedChange(Brief):
    """One difference.

    Attributes:
        kind: Kind of change.
        increase: Whether the new program moves more.
        wire_bytes_per_step: Change in wire bytes per step, negative for fewer; None if unknown on either side.
        bound: Whether that difference is exact or a bound.
        text: The change on one line.
        old: Collectives before.
        new: Collectives after.
    """

    kind: ChangeKind
    increase: bool
    wire_bytes_per_step: int | None
    bound: Bound
    text: str
    old: tuple[ChangedCollective, ...]
    new: tuple[ChangedCollective, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTotals:
    """The sums over all collectives of both programs.

    Attributes:
        old: Sums before.
        new: Sums after.
    """

    old: Totals
    new: Totals


BETWEEN_BOUNDS = "a change is unknown where the bounds of both sides do not bound their difference"

Sides = tuple[Analysis | None, Analysis | None]
"""The program before and the one after; None for a baseline."""


class KeepsSides:
    """A result that keeps the analyses it compares, unless it is copied, pickled or read from a document."""

    __slots__ = ("_sides",)

    if TYPE_CHECKING:
        _sides: Sides

    @property
    def sides(self) -> Sides:
        """The compared analyses; None for one that is not available in this process."""
        return getattr(self, "_sides", (None, None))

    def _remembered_by(self, other: DiffDocument) -> DiffDocument:
        """The same result in other words, which remembers what this one does."""
        return attach_sides(other, self.sides)


def attach_sides(found: DiffDocument, sides: Sides) -> DiffDocument:
    """Returns the result with the compared analyses attached."""
    object.__setattr__(found, "_sides", sides)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DiffDocument(Shown, KeepsSides):
    """The comparison of two programs.

    Attributes:
        schema: Schema version of the document.
        old: The program before.
        new: The program after.
        same: Whether both are known to move the same data.
        changes: All changes, most bytes per step first.
        unsure: Number of collectives whose bytes or executions are not known exactly.
        not_understood: Names of the programs in which something was not understood.
        unlike: What makes the two hard to compare: different slices or meshes.
        totals: Sums over all collectives, per device and per step.
        tallies: The same, by kind and axes.
        peak_bytes: Peak memory in bytes, before and after; None if unknown.
        step_us: Predicted step time in microseconds, before and after; None if unknown.
        step_bounds: Whether these times are exact or bounds, apart from the error of the model; None as for `step_us`.
        judged: Comparison of the two, judged as `check` judges a program against its baseline: all causes, and the
            figures of both.
    """

    _subject = "difference"

    schema: Schema = SCHEMA
    old: str
    new: str
    same: bool
    changes: tuple[ListedChange, ...]
    unsure: int
    not_understood: tuple[str, ...]
    unlike: tuple[str, ...]
    totals: TwoTotals
    tallies: tuple[Tally, ...]
    peak_bytes: tuple[int | None, int | None]
    step_us: tuple[float | None, float | None]
    step_bounds: tuple[Bound | None, Bound | None]
    judged: Judged

    @property
    def headline(self) -> str:
        """The summary line: `worse, 3 changes of what moves`, `better` or `the same`, with what is unknown."""
        found = "the same" if self.judged.judgement is Judgement.SAME else str(self.judged.judgement)
        words = f"{found}, {pluralize(len(self.changes), 'change')} of what moves" if self.changes else found
        return f"{words}, as far as is known" if self.unsure or self.not_understood else words

    def broken(self, fail_on: str = "increase", *, at_least_ok: bool = False) -> tuple[Cause, ...]:
        """Returns the changes that fail the comparison.

        Args:
            fail_on: `increase` for changes that make the program worse or different, such as a dropped sum, unless it
                is better overall; `any` for every change.
            at_least_ok: Whether to pass what is not understood.

        Raises:
            NotationError: `fail_on` is neither.
        """
        named = choice("fail_on", fail_on, ("increase", "any"))
        causes = tuple(cause for cause in self.judged.causes if not (at_least_ok and cause.key == UNKNOWN))
        if named == "any":
            return causes
        judgement = self.judged.judgement
        if len(causes) < len(self.judged.causes):
            is_named = any(cause.judgement is Judgement.DIFFERENT for cause in self.judged.causes)
            loses = judgement is Judgement.DIFFERENT and not is_named  # what is lost, though each device computes it
            judgement = judge_all(causes, self.judged.figures, loses=loses)
        fails = judgement in (Judgement.WORSE, Judgement.DIFFERENT)
        return tuple(cause for cause in causes if fails and cause.judgement is not Judgement.BETTER)

    @front_door
    def fails(self, fail_on: str = "increase", *, at_least_ok: bool = False) -> bool:
        """Whether the program is worse or different, or could be because not everything is known.

        Args:
            fail_on: As for `broken`.
            at_least_ok: Whether to pass what is not known exactly.

        Raises:
            NotationError: `fail_on` is neither of these.
        """
        doubtful = bool(self.unsure or self.not_understood) and not at_least_ok
        return bool(self.broken(fail_on, at_least_ok=at_least_ok)) or self.is_respelled_by(fail_on) or doubtful

    def is_respelled_by(self, fail_on: str) -> bool:
        """Whether the same moves in spellings that may be exchanged, and that counts: it does not if `equivalent`."""
        return fail_on == "any" and any(not change.kind.same_traffic for change in self.changes)

    def __repr__(self) -> str:
        return shorten_to_line(f"<{self.old} and {self.new}: {self.headline}>")

    if TYPE_CHECKING:

        def to_dict(self) -> DiffDict:
            """The result as plain data."""


def make_listed_change(change: Change[Collective]) -> ListedChange:
    """A change in the form of the document."""
    old, new = (
        tuple(make_document(ChangedCollective, one, source=render_users_line(one.source)) for one in side)
        for side in (change.before, change.after)
    )
    own = {"increase": change.is_increase, "wire_bytes_per_step": change.wire_bytes, "text": change.message}
    return make_document(ListedChange, change, **own, old=old, new=new)


def list_figure_rows(report: DiffDocument) -> Iterator[tuple[str, str, str, str]]:
    """The figures, the step first: name, before, after and change."""
    totals, figures = report.totals, [figure for figure in report.judged.figures if figure.before or figure.after]
    yield from (_make_figure_row(figure, report) for figure in figures if figure.name == STEP)
    yield "sent per step", *_compare_totals(totals.old, totals.new)
    for tally in report.tallies:
        guessed = GUESSED if tally.axes_guessed else ""
        yield f"{tally.kind} {tally.axes or 'none'}{guessed}", *_compare_totals(tally.old, tally.new)
    parts = (figure for figure in figures if figure.name.startswith(MEMORY) and figure.before != figure.after)
    peak = (figure for figure in figures if figure.name == _PEAK)
    multiplied = (figure for figure in figures if figure.name == MULTIPLIED)
    yield from (_make_figure_row(figure, report) for figure in dict.fromkeys((*peak, *parts, *multiplied)))


_PEAK = f"{MEMORY}peak"


def _make_figure_row(figure: Figure, report: DiffDocument) -> tuple[str, str, str, str]:
    """A figure with its ranges and its change; a bound has no range."""
    if figure.name == STEP:  # of a baseline, which rounds it, or of an analysis
        figure = replace(figure, before=report.step_us[0], after=report.step_us[1])
    bounds = (figure.before_bound, figure.after_bound)
    *_, change = _compare_values((figure.before, figure.after), bounds, AMOUNT_WORDS[figure.unit])
    return *format_figure(figure), change if figure.comparable else "not comparable"


def _compare_totals(old: Total, new: Total) -> tuple[str, str, str]:
    return _compare_values((old.wire_bytes, new.wire_bytes), (old.bound, new.bound), format_bytes)


def _compare_values(
    values: tuple[float | None, float | None],
    bounds: tuple[Bound | None, Bound | None],
    show: Callable[[float], str],
) -> tuple[str, str, str]:
    """A quantity before and after, and the difference, each with its bound or `unknown`."""
    pairs = [(value, bound or Bound.EXACT) for value, bound in zip(values, bounds, strict=True)]
    before, after = ("unknown" if value is None else bound.marked(show(value)) for value, bound in pairs)
    (old, old_bound), (new, new_bound) = pairs
    bound = new_bound + -old_bound
    if old is None or new is None or bound is Bound.UNKNOWN:
        return before, after, "unknown"
    if old == new:
        return before, after, "=" if bound is Bound.EXACT else bound.marked(show(0))
    return before, after, bound.marked(add_sign(show(abs(new - old)), is_more=new > old))


def list_doubts(report: DiffDocument) -> Iterator[str]:
    """Reasons to doubt the difference."""
    yield from dict.fromkeys((*report.judged.notes, *report.judged.caveats))
    for name in report.not_understood:
        yield say(f"not everything in {name} was understood: ", Command("analyze"), " shows what")
    if report.unsure:
        yield f"bytes or executions of {pluralize(report.unsure, 'collective')} are not known exactly"
    if any(row[-1] == "unknown" and "unknown" not in row[:-1] for row in list_figure_rows(report)):
        yield BETWEEN_BOUNDS


def make_figure_columns(report: DiffDocument) -> list[Column]:
    """The table of the figures of both programs."""
    rows, headers = list(list_figure_rows(report)), ("per device", "before", "after", "change")
    return [column(rows, name, itemgetter(n), right=n > 0) for n, name in enumerate(headers)]


def render_difference(report: DiffDocument, width: int) -> Iterator[Text]:
    """The causes, a line for each change of what moves, and the figures of both programs."""
    yield from hang(Text(f"{report.old} -> {report.new}: {report.headline}"), width)
    yield from render_causes(report, width)
    yield from (line for change in list_change_lines(report) for line in hang(Text(change.text), width))
    table = render_table(make_figure_columns(report), width)
    yield from (Text(), *(Text(line.plain) for line in (*table, *fold_all((make_legend(table),), width))))
    yield from (line for doubt in list_doubts(report) for line in hang(Text(f"note: {doubt}"), width))


def render_causes(report: DiffDocument, width: int = UNBROKEN) -> Iterator[Text]:
    """`worse: an all-gather over X is new, 8.19 kB sent per step (model.py:20 in step)`, and below it why it moves."""
    for cause, words in zip(report.judged.causes, _describe_causes(report), strict=True):
        yield from hang(Text(words), width)
        for label, about in list_details(cause):
            text = Text(f"  {label}: {about}", style="dim")
            yield from hang(text, width, indent=len(label) + 4)


def _describe_causes(report: DiffDocument) -> Iterator[str]:
    for cause, place in zip(report.judged.causes, find_cause_places(report), strict=True):
        yield f"{cause.judgement}: {cause.message}{'' if place is None else f' ({place})'}"


def list_details(cause: Cause) -> Iterator[tuple[str, str]]:
    """The known reason why the data moves, and the change that was tried against it."""
    if cause.why and not cause.why.startswith(NO_REASON):
        yield "why", cause.why
    if cause.tried:
        yield "tried", cause.tried


def find_cause_places(report: DiffDocument) -> Iterator[str | None]:
    """`moe.py:31 in expert_forward`: the line of each cause as short as an analysis shows it; None without one."""
    known: dict[str | None, str | None] = {}
    for side in filter(None, report.sides):
        stacks = chain((one.source for one in side.collectives), (one.source for one in side.matmuls))
        known.update({render_users_line(stack): short_source(stack) for stack in stacks})
    for cause in report.judged.causes:
        if cause.source is None:
            yield None
        else:
            file, line = split_place(cause.source)
            yield known.get(cause.source) or short_source((SourceFrame(file=file, line=line or 0),))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLine:
    """A line of the list of changes: all that happened to the same collectives, and to others like them.

    Attributes:
        kinds: What happened, such as other bytes and other executions.
        increase: Whether the new program moves more.
        text: The changes on one line, with the number of others that read the same.
    """

    kinds: tuple[ChangeKind, ...]
    increase: bool
    text: str


def list_change_lines(report: DiffDocument) -> Iterator[ChangeLine]:
    """The changes, most bytes per step first, those of the same collectives on one line."""
    alike = group_by(report.changes, lambda change: (change.old, change.new, _split_change(change)[1]))
    for changes in alike.values():
        what, place = _split_change(changes[0])
        said = dict.fromkeys(_split_change(change)[0] for change in changes)
        whole = "; ".join(words for words in said if not any(other != words and words in other for other in said))
        kinds = Counter(change.kind for change in changes)
        more = max(kinds.values()) - 1
        yield ChangeLine(
            kinds=tuple(kinds),
            increase=any(change.increase for change in changes),
            text=f"{whole or what}  {place}{f', +{more:,} more' if more else ''}",
        )


def _split_change(change: ListedChange) -> tuple[str, str]:
    """The change and its place."""
    what, _, place = change.text.rpartition("  ")
    return what, place


def is_step_tie(report: DiffDocument) -> bool:
    """Whether it is undecided which of both steps is shorter, within the error of the prediction.

    Of a baseline only the range of its step is known, so that it is undecided where both ranges overlap.
    """
    step = find_figure(report.judged.figures, STEP)
    if step is None or report.step_us[0] == report.step_us[1] or step.change_bound is not Bound.EXACT:
        return False
    before, after = report.sides
    if before is not None and after is not None and before.time is not None and after.time is not None:
        alike = before.slice is not None and after.slice is not None and before.slice.chip == after.slice.chip
        return is_tie(after.time, before.time, same_generation=alike)
    if step.before_range is None or step.after_range is None:
        return False
    return step.before_range[0] <= step.after_range[1] and step.after_range[0] <= step.before_range[1]


def render_markdown(report: DiffDocument) -> str:
    """A comment for a pull request."""
    lines = [
        say("### ", Command("diff"), f": {report.headline}"),
        "",
        f"{render_code(report.old)} → {render_code(report.new)}",
        "",
    ]
    if report.judged.causes:
        for cause, words in zip(report.judged.causes, _describe_causes(report), strict=True):
            lines += [
                f"* {escape_prose(words)}",
                *(f"  * {label}: {escape_prose(about)}" for label, about in list_details(cause)),
            ]
        lines += [""]
    lines += ["| per device | before | after | change |", "| --- | ---: | ---: | ---: |"]
    rows = [*list_figure_rows(report)]
    lines += [f"| {' | '.join(map(escape_prose, row))} |" for row in rows]
    marks = make_legend(Text(cell) for row in rows for cell in row)
    lines += [] if marks is None else ["", escape_prose(marks.plain)]
    if report.changes:
        changes = (escape_line(change.text) for change in list_change_lines(report))
        # ```diff colours lines that begin with +, - or !
        marked = (f"!{line.removeprefix('~')}" if line.startswith("~") else line for line in changes)
        block = fence_code("\n".join(marked), "diff")
        lines += ["", "<details><summary>changes</summary>", "", *block, "", "</details>"]
    return escape_commands("\n".join([*lines, *(f"\n> {escape_prose(doubt)}" for doubt in list_doubts(report))])) + "\n"
