"""`hloscope explain` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from hloscope.analysis.model import Collective
from hloscope.analysis.model.analysis import plain
from hloscope.analysis.places import short_source
from hloscope.errors import caret_excerpt
from hloscope.report.escaping import dumped
from hloscope.report.formats import Canvas
from hloscope.report.layout import drawn, hanging
from hloscope.units import format_bytes, format_time, plural
from hloscope.why.explanation import Explanation, Step

_LISTED = 12
_ORIGINS = {
    "authored": "written by the user",
    "inserted": "inserted by the partitioner",
    "rewritten": "made by a pass after the partitioner",
    "unknown": "not known",
}


def render(explanations: Sequence[Explanation], canvas: Canvas) -> str:
    """Each collective with its line, the reason, the chain that leads to it, its cost and what to change."""
    if not explanations:
        return "There is nothing to explain: the compiled program has no collectives.\n"
    lines: list[Text] = []
    for one in explanations:
        lines += [*([Text()] if lines else []), *_lines(one, canvas.width)]
    return drawn(lines, canvas.width, canvas.colour)


def render_overview(explanations: Sequence[Explanation], canvas: Canvas) -> str:
    """The first one in full, which moves most, and a list of the others with how to ask for one of them."""
    if len(explanations) < 2:
        return render(explanations, canvas)
    lines = [*_lines(explanations[0], canvas.width), Text(), Text("Others, most bytes per step first", style="bold")]
    for one in explanations[1 : _LISTED + 1]:
        listed = Text.assemble(f"  {one.number} ", _headline(one), _brief(one.collective))
        lines += hanging(listed, canvas.width, indent=4)
        lines += hanging(Text(f"    {one.collective.why or 'not known'}", style="dim"), canvas.width, indent=6)
    rest = len(explanations) - 1 - _LISTED
    if rest > 0:
        lines += hanging(Text(f"  +{plural(rest, 'smaller one')}"), canvas.width, indent=4)
    asked = f"More of one: hloscope explain TARGET {explanations[1].number}; of all: hloscope explain TARGET all"
    return drawn([*lines, Text(), *hanging(Text(asked, style="dim"), canvas.width)], canvas.width, canvas.colour)


def render_json(explanations: Sequence[Explanation], canvas: Canvas) -> str:
    """The same as one document: a list under `explanations`."""
    return dumped({"explanations": [_document(one) for one in explanations]})


def _document(one: Explanation) -> dict[str, object]:
    return {
        "collective": one.collective.name,
        "number": one.number,
        "kind": one.collective.kind.value,
        "axes": None if one.collective.axes is None else list(one.collective.axes),
        "axes_guessed": one.collective.axes_guessed,
        "copies": one.copies,
        "place": plain(one.place),
        "excerpt": one.excerpt,
        "excerpt_unread": one.unread,
        "why": one.collective.why,
        "steps": plain(one.steps),
        "equations": list(one.equations),
        "advice": list(one.advice),
        "origin": one.collective.origin.value,
        "payload_bytes": one.collective.payload_bytes,
        "wire_bytes": one.collective.wire_bytes,
        "executions": one.collective.executions,
        "executions_bound": one.collective.executions_bound.value,
        "wire_bytes_per_step": one.collective.wire_bytes_per_step,
        "time_us": one.collective.time_us,
        "exposed_us": one.collective.exposed_us,
        "reason": plain(one.collective.reason),
    }


def _lines(one: Explanation, width: int) -> Iterator[Text]:
    yield from hanging(_headline(one), width)
    if one.place is not None:
        yield from hanging(Text.assemble(("  --> ", "blue"), short_source((one.place,)) or ""), width, indent=6)
        if one.excerpt is not None:
            indented = len(one.excerpt) - len(one.excerpt.lstrip())
            column = (indented if one.place.column is None else one.place.column) + 1  # Python counts columns from 0
            excerpt = caret_excerpt(one.excerpt, column, width - 8).splitlines()
            yield from (Text.assemble(("   | ", "blue"), line) for line in excerpt)
        if one.unread:
            words = "the line was not read: files that HLO text names are read only in the folder of --source-root"
            yield from hanging(Text.assemble(("   | ", "blue"), (words, "dim")), width, indent=5)
    yield from _labelled("why", one.collective.why or "not known", width)
    if one.steps:
        yield Text.assemble(("   = ", "blue"), ("chain", "bold"))
        for step in one.steps:
            yield from hanging(_step(step), width, indent=9)
    if one.equations:
        yield Text.assemble(("   = ", "blue"), ("notation", "bold"))
        for equation in one.equations:
            yield from hanging(Text(f"       {equation}", style="cyan"), width, indent=9)
    yield from _labelled("cost", _cost(one.collective), width)
    yield from _labelled("origin", _origin(one.collective), width)
    for number, change in enumerate(one.advice):
        yield from _labelled("fix" if number == 0 else "or", change.removeprefix("or "), width)


def _headline(one: Explanation) -> Text:
    of = one.collective
    guessed = " (guessed: --dcn says which axis crosses slices)" if of.axes_guessed else ""
    axes = f" over {', '.join(of.axes)}{guessed}" if of.axes else ""
    shapes = ", ".join(of.result_shapes)
    more = f" and {plural(one.copies - 1, 'other')} like it" if one.copies > 1 else ""
    return Text.assemble((str(of.kind), "bold"), f"{axes} of {shapes} per device, %{of.name}{more}")


def _brief(of: Collective) -> str:
    """Its bytes and its line, as far as they are known."""
    place = short_source(of.source)
    return f", {format_bytes(of.wire_bytes_per_step)} per step{f', {place}' if place else ''}"


def _labelled(label: str, words: str, width: int) -> list[Text]:
    text = Text.assemble(("   = ", "blue"), (f"{label}: ", "bold"), words)
    return hanging(text, width, indent=7 + len(label))


def _step(step: Step) -> Text:
    mark = "     > " if step.is_loss else "       "
    place = None if step.source is None else short_source((step.source,))
    words = f"{step.what}{f' ({place})' if place else ''}"
    arrays = ", ".join(step.arrays) + (f" -> {step.becomes}" if step.becomes is not None else "")
    return Text.assemble((mark, "bold"), words, (f": {arrays}" if arrays else "", "cyan"))


def _cost(of: Collective) -> str:
    times = f"{of.executions_bound} {plural(of.executions, 'time')} per step".removeprefix("exact ")
    per_step = format_bytes(of.wire_bytes_per_step)
    time = "" if of.time_us is None else f", {format_time(of.time_us)} each"
    hidden = "" if of.exposed_us is None else f", of which nothing hides {format_time(of.exposed_us)}"
    return f"one device sends {format_bytes(of.wire_bytes)}, {times}: {per_step} per step{time}{hidden}"


def _origin(of: Collective) -> str:
    words = _ORIGINS[of.origin.value]
    was = of.reason.rewritten_from if of.reason is not None else None
    return f"{words}, from its {was}" if was else words
