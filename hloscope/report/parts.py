"""A program of many collectives: what costs most, with its place in the model, and a row for each part of the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from hloscope import given
from hloscope.analysis.model import Analysis, Collective, Collectives, Phase, Role
from hloscope.analysis.totals import bytes_bound
from hloscope.analysis.vocabulary import Bound
from hloscope.errors import NotationError
from hloscope.findings import Finding
from hloscope.messages import TARGET, Command, Option, say
from hloscope.report.formats import GROUPINGS
from hloscope.report.groups import (
    Group,
    Thing,
    dearest,
    groups_of,
    line_name,
    module_key,
    named_groups,
    phase_of,
    unlike_layers,
)
from hloscope.report.layout import Breaks, Column, column, fold, hanging, table_lines
from hloscope.report.words import axes_words, one_line
from hloscope.rules.exposed_collective import what_to_do
from hloscope.units import format_bytes, format_count, format_share, format_time, plural
from hloscope.why.sentences import advice

_SHOWN = 14
_DEAREST = 3
_NOTICEABLE = 0.01
_NOTATION = re.compile(r"(?<=[\w\]])\[[^\]'\"]+, [^\]]+\](?=`)")
"""The dimensions behind a name, as in `x[B_data, D]`."""
_CLAUSE = re.compile(r", so (?!its )|; ")
_NAMES_SHOWN = 4
_ROLES = {Role.WEIGHTS: "weights", Role.GRADIENT: "gradients", Role.ACTIVATIONS: "activations"}
_TITLES = {
    "module": "Collectives by part of the model",
    "axis": "Collectives by mesh axis",
    "line": "Collectives by line",
    "kind": "Collectives by kind",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costly:
    """One of the things that cost most.

    Attributes:
        headline: `weights of layers[0-35].mlp: gate, up (backward)`.
        about: What it costs and where, why it is there and what to do, each with its label.
        numbers: The places of its collectives in the analysis, counted from 1.
        most: That of the one which costs most.
    """

    headline: Text
    about: tuple[tuple[str, str], ...]
    numbers: tuple[int, ...]
    most: int


def dearest_of(analysis: Analysis) -> Iterator[Costly]:
    """The things that cost most, dearest first."""
    fixes = {(finding.computation, finding.instruction): finding for finding in reversed(analysis.findings)}
    numbers = {id(collective): number for number, collective in enumerate(analysis.collectives, start=1)}
    step_us = None if analysis.time is None else analysis.time.step_us
    for thing in dearest(analysis.collectives, _DEAREST):
        yield Costly(
            headline=_headline(thing),
            about=tuple(_about(thing, step_us, fixes)),
            numbers=tuple(numbers[id(collective)] for collective in thing.group.members),
            most=numbers[id(_most(thing))],
        )


def dearest_lines(analysis: Analysis, width: int, *, can_be_explained: bool = True) -> Iterator[Text]:
    """The things that cost most, each with its place, why it is there and what to do.

    Args:
        analysis: What is known of the program.
        width: Columns.
        can_be_explained: Whether `hloscope explain` takes the program.
    """
    asked: list[int] = []
    for place, costly in enumerate(dearest_of(analysis), start=1):
        yield from hanging(Text.assemble((f"{place} ", "dim"), costly.headline), width)
        for label, words in costly.about:
            style = "dim" if label == "why" else ""
            line = Text.assemble("  ", (f"{label}: " if label else "", "bold dim"), (one_line(words), style))
            yield from hanging(line, width, indent=4)
        asked.append(costly.most)
    if can_be_explained:
        others = f" (also {', '.join(map(str, asked[1:]))})" if asked[1:] else ""
        command = Command("explain", (TARGET, Option("collective", asked[0])))
        yield Text(say("in full: ", command, others), style="dim")


def _most(thing: Thing) -> Collective:
    """The one that costs most, of the kind that does."""
    of_kind = named_groups(thing.group.members, lambda collective: str(collective.kind))[0]
    return max(of_kind.members, key=lambda collective: (collective.exposed_us or 0.0, collective.wire_bytes or 0))


def _headline(thing: Thing) -> Text:
    """`weights of layers[0-35].mlp: gate, up (backward)`."""
    what = "" if thing.role is None else f"{_ROLES[thing.role]} of "
    phase = "" if thing.phase is None else f" ({thing.phase})"
    return Text.assemble((f"{what}{_side_by_side(thing.parts)}", "bold"), phase)


def _cost(group: Group, step_us: float | None) -> str:
    """`33.2 ms exposed (5%) · 4.08 GB`."""
    if group.exposed_us is None:
        return _wire(group)
    share = f" ({format_share(group.exposed_us / step_us)})" if step_us else ""
    return f"{_time(group, group.exposed_us)} exposed{share} · {_wire(group)}"


def _side_by_side(parts: Sequence[Group]) -> str:
    """`layers[0-35].mlp: gate, up`."""
    if len(parts) == 1:
        return parts[0].name
    names = [part.name.rpartition(".") for part in parts]
    longest = max((parent for parent, _, _ in names), key=len)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{longest}: {', '.join(own for _, _, own in names[:_NAMES_SHOWN])}{more}"


def _about(
    thing: Thing,
    step_us: float | None,
    findings: Mapping[tuple[str | None, str | None], Finding],
) -> Iterator[tuple[str, str]]:
    members, most = thing.group.members, _most(thing)
    lines = dict.fromkeys(map(line_name, members))
    more = f", +{plural(len(lines) - 1, 'line')}" if len(lines) > 1 else ""
    names_module = most.part is not None and most.part.module is not None
    line = f" · {line_name(most).partition(' in ')[0]}{more}" if names_module else ""  # else its headline is the line
    yield "", f"{_cost(thing.group, step_us)} in {_kinds(members)}{_over(most)}{line}"
    if most.why and not most.why.startswith("not known"):
        yield "why", _NOTATION.sub("", _CLAUSE.split(most.why, maxsplit=1)[0])
    tried = next((collective.tried for collective in members if collective.tried is not None), None)
    told = _advice(members, most, findings)
    if tried is not None:
        yield "tried", tried
    else:
        yield ("fix", "none is known") if told is None else ("fix, not tried", told)


def _advice(
    members: Sequence[Collective], most: Collective, findings: Mapping[tuple[str | None, str | None], Finding]
) -> str | None:
    """What most findings about them advise; else what the reason does, or what they could be hidden behind."""
    found = [(collective, findings.get((collective.computation, collective.name))) for collective in members]
    about: dict[str, list[Collective]] = {}
    for collective, finding in found:
        if finding is not None and finding.fix and not finding.allowed:
            about.setdefault(finding.fix, []).append(collective)
    told = [fix for fix, told_of in about.items() if _is_most(told_of, members)]
    told += advice(most.reason)[:1] if most.reason is not None else []
    if not told and most.exposed_us:
        return what_to_do(most)
    return told[0] if told else None


def _is_most(some: Sequence[Collective], every: Sequence[Collective]) -> bool:
    """Whether some cost at least half of what all do."""
    part, whole = (Group(name="", members=Collectives(members)).cost for members in (some, every))
    return 2 * part[1] >= whole[1] and 2 * part[2] >= whole[2]


def _over(collective: Collective) -> str:
    return f" over {','.join(collective.axes)}" if collective.axes else ""


def _kinds(members: Iterable[Collective]) -> str:
    """`142 all-gathers, 4 all-reduces`."""
    counts = Counter(collective.kind for collective in members)
    return ", ".join(plural(count, str(kind)) for kind, count in counts.most_common())


def waiting_line(collectives: Sequence[Collective]) -> Text | None:
    """How long each pass waits, the longest first; None where the program has no passes or no prices."""
    if any(collective.exposed_us is None for collective in collectives):
        return None
    if all(phase_of(collective) is None for collective in collectives):
        return None
    whole = Group(name="", members=Collectives(collectives))
    waits = [(str(phase), whole.of_phase(phase)) for phase in Phase] + [("unknown pass", whole.of_phase(None))]
    waits.sort(key=lambda wait: -(wait[1].exposed_us or 0.0))
    words = (_waits(name, group) for name, group in waits if group.members or name != "unknown pass")
    return Text("exposed: " + " · ".join(words))


def _waits(name: str, group: Group) -> str:
    if not group.members:
        return f"{name} none (no collectives)"
    return f"{name} {_time(group, group.exposed_us or 0.0)}"


def groups_by(collectives: Sequence[Collective], by: str) -> list[Group]:
    """Groups by one of `hloscope.report.formats.GROUPINGS`, dearest first.

    Raises:
        NotationError: They cannot be grouped so.
    """
    names: dict[str, Callable[[Collective], str]] = {
        "axis": axes_words,
        "line": line_name,
        "kind": lambda collective: str(collective.kind),
    }
    if by == "module":
        return groups_of(collectives, module_key)
    if not isinstance(by, str) or by not in names:
        choices = ", ".join(GROUPINGS)
        raise NotationError(
            f"collectives cannot be grouped by {given.shown(by)}", fix=f"group them by one of {choices}"
        )
    return named_groups(collectives, names[by])


def group_lines(collectives: Sequence[Collective], by: str, width: int) -> tuple[str, list[Text]]:
    """A title, and a row for each group, dearest first.

    Args:
        collectives: All of the program.
        by: One of `hloscope.report.formats.GROUPINGS`.
        width: Columns.
    """
    groups = groups_by(collectives, by)
    priced = all(group.exposed_us is not None for group in groups)
    order = "most exposed first" if priced else "most bytes per step first"
    shown = [group for place, group in enumerate(groups) if place < _SHOWN and _matters(group, groups)] or groups[:1]
    rest = groups[len(shown) :]
    lines = table_lines(_columns(shown, by, groups), width, [_unlike(group) for group in shown])
    others = [other for other in _TITLES if other != by]
    words = say(
        f"{_rest_words(rest)}list each one: ",
        Option("all"),
        f"; group by {', '.join(others[:-1])} or {others[-1]}: ",
        Option("group-by"),
    )
    return f"{_TITLES[by]}, {order}", lines + fold(Text(words, style="dim"), width)


def _matters(group: Group, groups: Sequence[Group]) -> bool:
    """Whether it is a noticeable part of all bytes or of all that is waited; what is not known is."""
    if group.wire_bytes is None:
        return True
    whole = Group(name="", members=Collectives(collective for other in groups for collective in other.members))
    parts = ((group.exposed_us, whole.exposed_us), (group.wire_bytes, whole.wire_bytes))
    return any(part and every and part >= _NOTICEABLE * every for part, every in parts)


def _columns(groups: Sequence[Group], by: str, every: Sequence[Group]) -> tuple[Column, ...]:
    of_group = partial(column, groups)
    heads = {"module": "part", "axis": "axes", "line": "line", "kind": "collective"}
    name = of_group(heads[by], lambda group: group.name, style="bold", breaks=Breaks.AFTER_PUNCTUATION)
    phases = [phase for phase in Phase if any(group.of_phase(phase).exposed_us for group in every)]
    return (
        name,
        of_group("places", lambda group: format_count(len(group.members)), right=True, given_up=2, below=_left_out),
        of_group("wire/step", _wire, right=True),
        of_group("time", lambda group: _time(group, group.time_us), right=True, given_up=1, below=_left_out),
        of_group("exposed", lambda group: _time(group, group.exposed_us), right=True),
        *(
            of_group(str(phase), partial(_of_phase, phase=phase), right=True, given_up=3, below=f"{phase} {{}}")
            for phase in phases
        ),
    )


def _left_out(_: Group) -> str:
    """What stands below a row in place of a column that does not fit."""
    return ""


def _of_phase(group: Group, phase: Phase) -> str:
    part = group.of_phase(phase)
    return _time(part, part.exposed_us) if part.members else ""


def _time(group: Group, time_us: float | None) -> str:
    return "" if time_us is None else group.members.bound.marked(format_time(time_us))


def _wire(group: Group) -> str:
    known = [collective for collective in group.members if collective.wire_bytes is not None]
    if not known:
        return "unknown"
    bound = Bound.EXACT if len(known) == len(group.members) else Bound.AT_LEAST
    for collective in known:
        bound = bound + bytes_bound(collective)
    return bound.marked(format_bytes(group.wire_bytes))


def _unlike(group: Group) -> Text:
    """`layer 0 alone has 3.1 ms exposed`: the layers that cost much more than the others."""
    unlike = [f"layer {layer} alone has {format_time(wait)} exposed" for layer, wait in unlike_layers(group)]
    return Text(", ".join(unlike), style="dim")


def _rest_words(rest: Sequence[Group]) -> str:
    if not rest:
        return ""
    together = Group(name="", members=Collectives(collective for group in rest for collective in group.members))
    waits = "" if together.exposed_us is None else f", {_time(together, together.exposed_us)} exposed"
    return f"+{plural(len(rest), 'smaller one')}, {_wire(together)}{waits} · "
