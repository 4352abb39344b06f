"""`hloscope explain` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from hloscope.analysis.provenance import ONLY_UNDER_ROOT, short_source
from hloscope.base.documents import SCHEMA, Schema, make_document
from hloscope.base.errors import TARGET, Command, Option, format_excerpt, say
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.model import Collective, ReasonKind, bytes_bound
from hloscope.model.reason import Frame, SharedReason, SourceFrame
from hloscope.model.trial import Trials
from hloscope.model.vocabulary import Bound, Kind, Origin
from hloscope.report.escaping import escape_commands, escape_prose, fence_code, render_code
from hloscope.report.layout import hang
from hloscope.report.words import describe_trials
from hloscope.why.explanation import Explanation, Step

_LISTED = 12
_NOTHING = "There is nothing to explain: the compiled program has no collectives."
_ORIGINS = {
    "authored": "written by the user",
    "inserted": "inserted by the partitioner",
    "rewritten": "created by a compiler pass after the partitioner",
    "unknown": "not known",
}


def render_explanations(explanations: Sequence[Explanation], width: int) -> Iterator[Text]:
    """Each collective with its line, its reason, the chain that leads to it, its cost and the fixes."""
    if not explanations:
        yield Text(_NOTHING)
    for index, explanation in enumerate(explanations):
        yield from [Text()] if index else []
        yield from _render_explanation(explanation, width)


def render_overview(explanations: Sequence[Explanation], width: int) -> Iterator[Text]:
    """The largest collective in full, and a list of the others."""
    yield from render_explanations(explanations[:1], width)
    if len(explanations) < 2:
        return
    yield from (Text(), Text("Other collectives, most bytes per step first", style="bold"))
    for explanation in explanations[1 : _LISTED + 1]:
        place = short_source(explanation.collective.source)
        brief = f", {_format_per_step(explanation.collective)} per step{f', {place}' if place else ''}"
        listed = Text.assemble(f"  {explanation.number} ", _format_headline(explanation), brief)
        yield from hang(listed, width, indent=4)
        yield from hang(Text(f"    {explanation.collective.why or 'not known'}", style="dim"), width, indent=6)
    rest = len(explanations) - 1 - _LISTED
    if rest > 0:
        yield from hang(Text(f"  +{pluralize(rest, 'smaller one')}"), width, indent=4)
    asked = say(
        "One of them in full: ",
        Command("explain", (TARGET, Option("collective", explanations[1].number))),
        "; all: ",
        Command("explain", (TARGET, Option("collective", "all"))),
    )
    yield from (Text(), *hang(Text(asked, style="dim"), width))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCollective:
    """A collective, and why it is there.

    Attributes:
        collective: The HLO instruction that starts it, without `%`.
        number: 1-based number in the report's list, by which it can be requested.
        kind: Kind of collective.
        axes: Mesh axes it runs over, major first; None if unknown.
        axes_guessed: Whether the axes rest on a guess of which part of the mesh each of several slices holds.
        copies: Number of places in the compiled program with the same collective for the same reason.
        place: Line of user code; None if unknown.
        excerpt: Text of that line; None if the file cannot be read.
        excerpt_unread: Whether the excerpt is missing because the file is only named in HLO text and the user has not
            allowed reading it.
        why: Why it is there, in terms of the user's program; None if unknown.
        steps: The chain of causes, from the source of the sharding to the operation that needs another one.
        equations: The same in named-axis notation.
        advice: Suggested code changes, none of which was tried.
        decision: What it follows from, with what else does: the costliest of its decisions; None if none is known.
        trials: Results of the changes that were tried; None if none were to be tried.
        origin: Who inserted it.
        payload_bytes: Bytes of the larger of operand and result on one device, per execution; None if unknown.
        wire_bytes: Bytes that one device must send, per execution; None if unknown.
        executions: Executions per step.
        executions_bound: Whether `executions` is exact or a bound.
        wire_bytes_per_step: Bytes that one device sends per step; None if unknown.
        time_us: Predicted time per execution, in microseconds; None if not priced.
        exposed_us: The exposed part of `time_us`, which does not overlap with computation; None if not priced.
        reason: The evidence for `why`; None if unknown.
    """

    collective: str
    number: int
    kind: Kind
    axes: tuple[str, ...] | None
    axes_guessed: bool
    copies: int
    place: Frame | None
    excerpt: str | None
    excerpt_unread: bool
    why: str | None
    steps: tuple[Step, ...]
    equations: tuple[str, ...]
    advice: tuple[str, ...]
    decision: str | None
    trials: Trials | None
    origin: Origin
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    executions_bound: Bound
    wire_bytes_per_step: int | None
    time_us: float | None
    exposed_us: float | None
    reason: SharedReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainDocument:
    """Explanations of why collectives are there.

    Attributes:
        schema: Schema version of the document.
        explanations: Sorted by bytes per step, largest first.
    """

    schema: Schema = SCHEMA
    explanations: tuple[ExplainedCollective, ...]


def make_explanation_document(explanations: Sequence[Explanation]) -> ExplainDocument:
    """The explanations as one document."""
    return ExplainDocument(explanations=tuple(map(_make_explained, explanations)))


def _make_explained(explanation: Explanation) -> ExplainedCollective:
    own = {
        name: getattr(explanation, name)
        for name in ("number", "copies", "place", "excerpt", "steps", "equations", "advice", "decision", "trials")
    }
    own |= {"collective": explanation.collective.name, "excerpt_unread": explanation.unread}
    return make_document(ExplainedCollective, explanation.collective, **own)


def render_markdown(explanations: Sequence[Explanation]) -> str:
    """The explanations as Markdown: a heading for each collective, and the tried changes below it."""
    if not explanations:
        return f"{_NOTHING}\n"
    found: list[str] = []
    for explanation in explanations:
        found += [
            f"### {render_code(_format_headline(explanation).plain)}",
            "",
            escape_prose(explanation.collective.why or "not known"),
            "",
        ]
        found += [f"- **cost**: {escape_prose(_format_cost(explanation.collective))}"]
        for label, words in describe_trials(explanation.trials):
            said = render_code(words) if label == "tried" else escape_prose(words)
            found.append(f"- **{label}**: {said}" if label else f"  {said}")
        found += [f"- not tried: {escape_prose(change)}" for change in explanation.advice]
        if explanation.equations:
            found += ["", *fence_code("\n".join(explanation.equations), "text")]
        found.append("")
    return escape_commands("\n".join(found))


def _render_explanation(explanation: Explanation, width: int) -> Iterator[Text]:
    yield from hang(_format_headline(explanation), width)
    if explanation.place is not None:
        yield from _render_place(explanation, explanation.place, width)
    yield from _render_labelled("why", explanation.collective.why or "not known", width)
    if explanation.decision is not None:
        yield from _render_labelled("decision", explanation.decision, width)
    if explanation.steps:
        yield Text.assemble(("   = ", "blue"), ("chain", "bold"))
        for step in explanation.steps:
            yield from hang(_format_step(step), width, indent=9)
    if explanation.equations:
        yield Text.assemble(("   = ", "blue"), ("notation", "bold"))
        for equation in explanation.equations:
            yield from hang(Text(f"       {equation}", style="cyan"), width, indent=9)
    yield from _render_labelled("cost", _format_cost(explanation.collective), width)
    yield from _render_labelled("origin", _describe_origin(explanation.collective), width)
    for label, words in describe_trials(explanation.trials):
        yield from _render_labelled(label, words, width) if label else hang(Text(f"       {words}"), width, indent=9)
    for number, change in enumerate(explanation.advice):
        label = "fix, not tried" if number == 0 else "or"
        yield from _render_labelled(label, change, width)


def _render_place(explanation: Explanation, place: SourceFrame, width: int) -> Iterator[Text]:
    """The line of code, with a mark below its column."""
    yield from hang(Text.assemble(("  --> ", "blue"), short_source((place,)) or ""), width, indent=6)
    if explanation.excerpt is not None:
        indented = len(explanation.excerpt) - len(explanation.excerpt.lstrip())
        column = indented if place.column is None else place.column  # counted from 0
        excerpt = format_excerpt(explanation.excerpt, column + 1, width - 8).splitlines()
        yield from (Text.assemble(("   | ", "blue"), line) for line in excerpt)
    if explanation.unread:
        unread = say("the line was not read: ", ONLY_UNDER_ROOT)
        yield from hang(Text.assemble(("   | ", "blue"), (unread, "dim")), width, indent=5)


def _format_headline(explanation: Explanation) -> Text:
    of = explanation.collective
    guessed = say(" (guessed: ", Option("dcn"), " says which axis crosses slices)") if of.axes_guessed else ""
    axes = f" over {', '.join(of.axes)}{guessed}" if of.axes else ""
    shapes = ", ".join(map(str, of.result_shapes))
    more = f" and {pluralize(explanation.copies - 1, 'other')} like it" if explanation.copies > 1 else ""
    return Text.assemble((str(of.kind), "bold"), f"{axes} of {shapes} per device, %{of.name}{more}")


def _format_per_step(of: Collective) -> str:
    """The bytes that one device sends for it in a step, with their bound."""
    sent = format_bytes(of.wire_bytes_per_step)
    return sent if of.wire_bytes is None else bytes_bound(of).marked(sent)


def _render_labelled(label: str, words: str, width: int) -> list[Text]:
    text = Text.assemble(("   = ", "blue"), (f"{label}: ", "bold"), words)
    return hang(text, width, indent=7 + len(label))


def _format_step(step: Step) -> Text:
    mark = "     > " if step.is_loss else "       "
    place = None if step.source is None else short_source((step.source,))
    words = f"{step.what}{f' ({place})' if place else ''}"
    arrays = ", ".join(step.arrays) + (f" -> {step.becomes}" if step.becomes is not None else "")
    return Text.assemble((mark, "bold"), words, (f": {arrays}" if arrays else "", "cyan"))


def _format_cost(of: Collective) -> str:
    times = of.executions_bound.said(pluralize(of.executions, "time"))
    sent, each = format_bytes(of.wire_bytes), of.bytes_bound.marked
    sent = sent if of.wire_bytes is None else each(sent)
    time = "" if of.time_us is None else f", {each(format_time(of.time_us))} each"
    exposed = "" if of.exposed_us is None else f", {each(format_time(of.exposed_us))} of it exposed"
    return f"one device sends {sent}, {times} per step: {_format_per_step(of)} per step{time}{exposed}"


def _describe_origin(of: Collective) -> str:
    words = _ORIGINS[of.origin.value]
    if of.origin is Origin.AUTHORED and of.reason is not None and of.reason.kind is not ReasonKind.AUTHORED:
        words = "added by differentiation, inside shard_map"
    was = of.reason.rewritten_from if of.reason is not None else None
    return f"{words}, from its {was}" if was else words
