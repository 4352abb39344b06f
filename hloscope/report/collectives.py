"""Collectives in a report: one row each, groups of those that belong together, and what costs most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from statistics import median

from rich.text import Text

from hloscope.analysis.model_parts import render_layers
from hloscope.analysis.provenance import short_source
from hloscope.analysis.totals import UNKNOWN_AXES, axes_key
from hloscope.base import calls
from hloscope.base.canvas import GROUPINGS, Canvas
from hloscope.base.errors import TARGET, Command, NotationError, Option, say
from hloscope.base.results import group_by
from hloscope.base.units import format_bytes, format_count, format_share, format_time, pluralize
from hloscope.judge.rules.exposed_collective import suggest_overlap
from hloscope.model import Analysis, Collective, Collectives, ModelPart, Phase, Role, Total, bytes_bound
from hloscope.model.finding import Finding
from hloscope.model.vocabulary import Bound, Kind, Link, Origin
from hloscope.report.layout import Breaks, Column, column, fold, fold_all, hang, render_table
from hloscope.report.words import ELSEWHERE, GUESSED, LINKS, explain_axis_parts, format_axes, join_lines, leaves_ici
from hloscope.why.sentences import suggest_changes

_FEW = 40
"""Collectives that can be listed one by one."""


def choose_grouping(collectives: Sequence[Collective], canvas: Canvas) -> str | None:
    """The grouping; None to list them one by one, if they are few or nothing names a module."""
    if canvas.everything or not collectives:
        return None
    many = len(collectives) > _FEW and any(_find_part(collective).module for collective in collectives)
    return canvas.group_by or ("module" if many else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Collectives that belong together.

    Attributes:
        members: In the order of the analysis.
        name: What they have in common, such as `layers[0-35].mlp.gate`.
        number: The first one's place in the analysis, counted from 1, by which `hloscope explain` finds it.
    """

    members: Collectives
    name: str = ""
    number: int = 0

    @property
    def first(self) -> Collective:
        """The member that the others are like."""
        return self.members[0]

    @property
    def wire_bytes(self) -> int | None:
        """Per step; None if those of any member are unknown."""
        return self.members.wire_bytes_per_step

    @property
    def time_us(self) -> float | None:
        """Per step; None if any member is not priced."""
        return self.members.time_us_per_step

    @property
    def exposed_us(self) -> float | None:
        """The time per step that the core waits for them; None if any member is not priced."""
        return self.members.exposed_us_per_step

    @property
    def cost(self) -> tuple[bool, float, float]:
        """A sorting key, the most expensive last: unknown bytes, then the wait, then the bytes."""
        return self.wire_bytes is None, self.exposed_us or 0.0, self.wire_bytes or 0

    def select_phase(self, phase: Phase | None) -> Group:
        """The members of one pass."""
        return _join(member for member in self.members if _find_part(member).phase is phase)


_NOWHERE = ModelPart()


def _find_part(collective: Collective) -> ModelPart:
    return collective.part or _NOWHERE


def _join(collectives: Iterable[Collective]) -> Group:
    return Group(members=Collectives(collectives))


def group_collectives(
    collectives: Iterable[Collective],
    key: Callable[[Collective], object],
    name: Callable[[Sequence[Collective]], str] | None = None,
) -> list[Group]:
    """Groups of collectives with the same key, the most expensive first, named after their parts of the model."""
    found = group_by(collectives, key).values()
    groups = (Group(name=(name or format_part)(members), members=Collectives(members)) for members in found)
    return sorted(groups, key=lambda group: group.cost, reverse=True)


def group_by_name(collectives: Iterable[Collective], name: Callable[[Collective], str]) -> list[Group]:
    """Groups of collectives with the same name, the most expensive first."""
    return group_collectives(collectives, name, lambda members: name(members[0]))


def find_module(collective: Collective) -> object:
    """The module; the line if no module is known."""
    return _find_part(collective).module or format_line(collective)


def format_line(collective: Collective) -> str:
    """`model.py:31 in attention`: the line outside shared helpers; the instruction if no line is known."""
    line = _find_part(collective).line
    return short_source(collective.source if line is None else (line,)) or f"%{collective.name}"


def format_part(members: Sequence[Collective]) -> str:
    """`layers[0-35].mlp.gate`: the module with the layers of all members; the line if no module is known."""
    module = _find_part(members[0]).module
    if module is None:
        return format_line(members[0])
    return render_layers(module, sorted({layer for member in members for layer in _find_part(member).layers}))


def find_dearest(collectives: Iterable[Collective], count: int) -> list[Group]:
    """The largest costs: in each group the same operation on neighboring modules in one pass.

    The step waits longest for the first; if it is not priced, the first moves most bytes.
    """
    return group_collectives(collectives, _make_thing_key)[:count]


def _make_thing_key(collective: Collective) -> tuple[object, ...]:
    part = _find_part(collective)
    parent, _, own = (part.module or "").rpartition(".")
    place = parent if "*" in parent and "*" not in own else find_module(collective)
    return place, part.phase, part.role, collective.axes


_FAR = 2.0
_SHARE = 0.1


def find_unlike_layers(group: Group) -> Iterator[tuple[int, float]]:
    """The layers that cost much more than the others, each with its wait in microseconds per step.

    Much more means more than twice the median, by more than a tenth of the total.
    """
    waits: dict[int, float] = {}
    for collective in group.members:
        layers = _find_part(collective).layers
        if len(layers) == 1 and collective.exposed_us is not None:
            waits[layers[0]] = waits.get(layers[0], 0.0) + collective.exposed_us * collective.executions
    usual, total = median(waits.values()) if waits else 0.0, sum(waits.values())
    for layer, wait in sorted(waits.items()):
        if len(waits) > 2 and wait > _FAR * usual and wait - usual > _SHARE * total:
            yield layer, wait


def render_axes(analysis: Analysis, width: int) -> list[Text]:
    """Wire bytes per step by mesh axis, the busiest first; also by link if some do not use ICI."""
    parts = sorted(analysis.totals.by_axis.items(), key=lambda item: -item[1].wire_bytes)
    names = [_format_axis(axis, analysis) for axis, _ in parts]
    by_name = column(names, "axis", str, style="bold cyan", breaks=Breaks.AFTER_PUNCTUATION)
    of_total = partial(column, [total for _, total in parts], right=True)

    def count_collectives(total: Total) -> str:
        return pluralize(total.collectives, "collective")

    def count_transfers(total: Total) -> str:
        return total.bound.marked(pluralize(total.executions, "transfer"))

    columns = (
        by_name,
        of_total("wire bytes", _format_wire_bytes),
        of_total("share", lambda total: _format_share(total, analysis), given_up=3),
        of_total("collectives", lambda total: format_count(total.collectives), given_up=1, below=count_collectives),
        of_total("transfers", _format_transfers, given_up=2, below=count_transfers),
    )
    return render_table(columns, width) + fold_all((_format_links(analysis), explain_axis_parts(names)), width)


def format_axes_briefly(analysis: Analysis) -> Text | None:
    """`by axis: model 1.84 GB (72%), data 698 MB (28%)`; the links alone if there is only one axis."""
    parts = sorted(analysis.totals.by_axis.items(), key=lambda item: -item[1].wire_bytes)
    if len(parts) < 2:
        return _format_links(analysis)
    amounts = (f"{_format_wire_bytes(total)} ({_format_share(total, analysis)})" for _, total in parts)
    words = [f"{_format_axis(axis, analysis)} {amount}" for (axis, _), amount in zip(parts, amounts, strict=True)]
    by_link = _format_links(analysis)
    return Text(f"by axis: {', '.join(words)}") + (Text(" · ") + by_link if by_link is not None else Text())


def _format_axis(axis: str, analysis: Analysis) -> str:
    if axis != UNKNOWN_AXES:
        guessed = any(collective.axes_guessed and axes_key(collective) == axis for collective in analysis.collectives)
        return (axis or "none") + (GUESSED if guessed else "")
    grouped = any(collective.axes is None and collective.groups for collective in analysis.collectives)
    return "not an axis" if grouped and analysis.mesh is not None else "unknown"


def _format_transfers(total: Total) -> str:
    return total.bound.marked(format_count(total.executions))


def _format_wire_bytes(total: Total) -> str:
    return total.bound.marked(format_bytes(total.wire_bytes))


def _format_share(total: Total, analysis: Analysis) -> str:
    whole = analysis.totals.wire_bytes
    if not whole:
        return ""
    percent = 100 * total.wire_bytes / whole
    return "<1%" if 0 < percent < 0.5 else f"{percent:.0f}%"


def _format_links(analysis: Analysis) -> Text | None:
    parts = analysis.totals.by_link
    if not leaves_ici(analysis.collectives) or not parts:
        return None
    words = []
    for link, total in parts.items():
        share = _format_share(total, analysis)
        amount = f" {_format_wire_bytes(total)}{f' ({share})' if share else ''}"
        words.append(Text.assemble((LINKS[Link(link)], "cyan"), amount))
    return Text("by link: ") + Text(", ").join(words)


_ROWS_SHOWN = 40
_SHAPES_SHOWN = 2
_WHYS_SHOWN = 12


def _make_rows(collectives: Iterable[Collective], key: Callable[[Collective], object]) -> list[Group]:
    """Joins collectives with the same key, largest sum first; unknown sums precede all others."""
    alike = group_by(enumerate(collectives, start=1), lambda numbered: key(numbered[1])).values()
    rows = [Group(members=Collectives(one for _, one in members), number=members[0][0]) for members in alike]
    return sorted(rows, key=lambda row: (row.wire_bytes is not None, -(row.wire_bytes or 0)))


def _make_row_key(collective: Collective) -> tuple[object, ...]:
    """The cells of a collective in the table, without the names of HLO instructions."""
    runs = collective.executions, collective.executions_bound
    wire = format_bytes(collective.wire_bytes_per_step), bytes_bound(collective)
    place = short_source(collective.source), collective.source_of is None
    return collective.kind, format_axes(collective), _format_shapes(collective), collective.link, runs, wire, place


def render_collectives(collectives: Sequence[Collective], width: int, *, everything: bool = False) -> list[Text]:
    """One row for all collectives with equal cells, most bytes per step first; one for each with `everything`."""
    rows = _make_rows(collectives, id if everything else _make_row_key)
    count, explained = (len(rows), len(rows)) if everything else (_ROWS_SHOWN, _WHYS_SHOWN)
    shown = rows[:count]
    unknown, remarks = _find_shared_unknown(rows), []
    whys = [_format_why(row) if turn < explained and unknown is None else Text() for turn, row in enumerate(shown)]
    lines = render_table(_make_columns(shown, with_link=leaves_ici(collectives)), width, whys)
    rest = rows[count:]
    if rest:
        together = _join(one for row in rest for one in row.members)
        words = say(f"+{pluralize(len(rest), 'smaller row')}, {_format_wire(together)} in total ", ELSEWHERE)
        remarks.append(Text(words, style="dim"))
    if unknown is None and any(_format_why(row).plain for row in shown[explained:]):
        command = Command("explain", (TARGET, Option("collective", shown[explained].number)))
        words = say("reasons of the others: ", command, ", or its name in the HLO")
        remarks.append(Text(words, style="dim"))
    return lines + fold_all((*remarks, unknown), width)


def make_collective_columns(collectives: Sequence[Collective], count: int) -> tuple[tuple[Column, ...], int]:
    """The table of the first rows of `render_collectives`, and the number of further rows."""
    rows = _make_rows(collectives, _make_row_key)
    return _make_columns(rows[:count], with_link=leaves_ici(collectives)), max(len(rows) - count, 0)


def _make_columns(rows: Sequence[Group], *, with_link: bool) -> tuple[Column, ...]:
    digits = len(str(max(row.number for row in rows))) if len(rows) > 1 else 0
    of_row = partial(column, rows)
    of_first = partial(column, [row.first for row in rows])
    return (
        of_row(f"{' ' * digits} collective" if digits else "collective", partial(_format_kind, digits=digits)),
        of_first("axes", format_axes, style="cyan", breaks=Breaks.AFTER_PUNCTUATION, given_up=6, below=_describe_axes),
        of_first("link", lambda first: LINKS[first.link] if with_link else "", given_up=5, below="link {}"),
        of_first("per device", _format_shapes, breaks=Breaks.BETWEEN_WORDS, given_up=7, below="per device {}"),
        of_row("places", _count_places, right=True, given_up=3, below=_describe_places),
        of_row("times", _format_times, right=True, given_up=4, below=_describe_times),
        of_row("wire/step", _format_wire, right=True),
        of_row("time/step", _format_group_time, right=True, given_up=4, below="{} per step"),
        of_row("exposed", _format_exposed, right=True, given_up=3, below="{} exposed"),
        of_row("source", _format_source, breaks=Breaks.BETWEEN_WORDS, given_up=2),
        of_row(
            "",
            lambda row: f"(of {_format_neighbors(row)})" if _format_neighbors(row) else "",
            style="dim",
            given_up=1,
            below=lambda row: f"source taken from {_format_neighbors(row)}" if _format_neighbors(row) else "",
        ),
        of_first("", _format_parts, style="dim", breaks=Breaks.BETWEEN_WORDS, given_up=1),
    )


def _format_kind(row: Group, digits: int) -> Text:
    """The kind, after its number if there are several rows."""
    return Text.assemble((f"{row.number:>{digits}} " if digits else "", "dim"), (row.first.kind, "bold"))


def _describe_axes(collective: Collective) -> str:
    if collective.axes:
        return f"over {format_axes(collective)}"
    if collective.axes is not None:
        return "over no axis"
    return f"in {format_axes(collective)}" if collective.groups else "axes unknown"


def _format_shapes(collective: Collective) -> str:
    """The larger side on one device, which is what `payload_bytes` counts; `f32[16], f32[8,8], +1 more`."""
    gathers = collective.kind in (Kind.ALL_GATHER, Kind.OPAQUE)
    first, second = collective.operand_shapes, collective.result_shapes
    shapes = (second or first) if gathers else (first or second)
    hidden = len(shapes) - _SHAPES_SHOWN
    return ", ".join((*map(str, shapes[:_SHAPES_SHOWN]), *([f"+{hidden} more"] if hidden > 0 else [])))


def _describe_places(row: Group) -> str:
    return f"in {pluralize(len(row.members), 'place')}" if len(row.members) > 1 else ""


def _format_times(row: Group) -> str:
    return row.first.executions_bound.marked(format_count(row.first.executions))


def _describe_times(row: Group) -> str:
    words = row.first.executions_bound.marked(pluralize(row.first.executions, "time"))
    return f"{words} each" if len(row.members) > 1 else words


def _count_places(group: Group) -> str:
    return format_count(len(group.members))


def _format_wire(group: Group) -> str:
    known = [collective for collective in group.members if collective.wire_bytes_per_step is not None]
    if not known:
        return "unknown"
    floor = Bound.EXACT if len(known) == len(group.members) else Bound.AT_LEAST
    bound = reduce(lambda bound, collective: bound + bytes_bound(collective), known, floor)
    return bound.marked(format_bytes(sum(collective.wire_bytes_per_step or 0 for collective in known)))


def _format_group_time(group: Group) -> str:
    return _mark_time(group, group.time_us)


def _mark_time(group: Group, time_us: float | None) -> str:
    return "" if time_us is None else group.members.bound.marked(format_time(time_us))


def _format_exposed(row: Group) -> Text:
    """`100%`: the share of the transfers' time that is exposed."""
    if not row.time_us or row.exposed_us is None:
        return Text()
    share = row.exposed_us / row.time_us
    return Text(f"{100 * share:.0f}%", style="red" if share > 0.5 else "")


def _format_why(row: Group) -> Text:
    """The reason and what helps; for several collectives, the first reason and the number of others."""
    reasons = (collective.why for collective in row.members if collective.origin != Origin.AUTHORED)
    whys = list(dict.fromkeys(why for why in reasons if why is not None))
    if not whys:
        return Text()
    more = say(f" (+{pluralize(len(whys) - 1, 'other reason')}: ", Command("explain"), ")") if len(whys) > 1 else ""
    tried = next((collective.tried for collective in row.members if collective.tried is not None), None)
    helps = [] if tried is None else [("; tried: ", "bold dim"), (tried, "dim")]
    return Text.assemble(("why: ", "bold dim"), (whys[0] + more, "dim"), *helps)


def _find_shared_unknown(rows: Sequence[Group]) -> Text | None:
    """The shared reason why no row could be explained, reported once below the table; None if they differ."""
    whys = {_format_why(row).plain: _format_why(row) for row in rows}
    alike = len(rows) > 1 and len(whys) == 1
    return next((words for plain, words in whys.items() if alike and plain.startswith("why: not known")), None)


def _format_source(row: Group) -> Text:
    """`moe.py:31 in expert`; the HLO line if the user's line is unknown."""
    words = short_source(row.first.source)
    if words is not None:
        return Text(words)
    more = f", +{len(row.members) - 1} more" if len(row.members) > 1 else ""
    return Text(f"%{row.first.name}, HLO line {row.first.line}{more}", style="dim")


def _format_neighbors(row: Group) -> str:
    """`%fusion.16`: the instruction whose source stands in for the collective's own."""
    if not row.first.source or row.first.source_of is None:
        return ""
    others = len({collective.source_of for collective in row.members}) - 1
    return f"%{row.first.source_of}{f', +{others} more' if others else ''}"


def _format_parts(collective: Collective) -> str:
    """`= reduce-scatter over model (ICI, 75 MB) + all-reduce over data (DCN, 25 MB)`: the parts."""
    guessed = GUESSED if collective.axes_guessed else ""
    words = [
        f"{part.kind}{f' over {part_axes}{guessed}' if (part_axes := ','.join(part.axes or ())) else ''} "
        f"({LINKS[part.link]}, {format_bytes(part.wire_bytes)})"
        for part in collective.parts
    ]
    return f"= {' + '.join(words)}" if words else ""


_MOST_GROUPS = 14
_DEAREST = 3
_NOTICEABLE = 0.01
_NOTATION = re.compile(r"(?<=[\w\]])\[[^\]'\"]+, [^\]]+\](?=`)")
"""The dimensions behind a name, as in `x[B_data, D]`."""
_CLAUSE = re.compile(r", so (?!its )|; ")
_NAMES_SHOWN = 4
_ROLES = {Role.WEIGHTS: "weights", Role.GRADIENT: "gradients", Role.ACTIVATIONS: "activations"}
_Findings = Mapping[tuple[str | None, str | None], Finding]
"""Findings by computation and instruction."""
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


def list_dearest(analysis: Analysis) -> Iterator[Costly]:
    """The largest costs, the most expensive first."""
    fixes = {(finding.computation, finding.instruction): finding for finding in reversed(analysis.findings)}
    numbers = {id(collective): number for number, collective in enumerate(analysis.collectives, start=1)}
    step_us = None if analysis.time is None else analysis.time.step_us
    for group in find_dearest(analysis.collectives, _DEAREST):
        most = _find_most(group)
        yield Costly(
            headline=_format_headline(group),
            about=tuple(_describe_group(group, most, step_us, fixes)),
            numbers=tuple(numbers[id(collective)] for collective in group.members),
            most=numbers[id(most)],
        )


def render_dearest(analysis: Analysis, width: int, *, can_be_explained: bool = True) -> Iterator[Text]:
    """The largest costs, each with its place, reason and fix.

    Args:
        analysis: What is known of the program.
        width: Columns.
        can_be_explained: Whether `hloscope explain` takes the program.
    """
    asked: list[int] = []
    for place, costly in enumerate(list_dearest(analysis), start=1):
        yield from hang(Text.assemble((f"{place} ", "dim"), costly.headline), width)
        for label, words in costly.about:
            style = "dim" if label == "why" else ""
            line = Text.assemble("  ", (f"{label}: " if label else "", "bold dim"), (join_lines(words), style))
            yield from hang(line, width, indent=4)
        asked.append(costly.most)
    if can_be_explained:
        others = f" (also {', '.join(map(str, asked[1:]))})" if asked[1:] else ""
        command = Command("explain", (TARGET, Option("collective", asked[0])))
        yield Text(say("in full: ", command, others), style="dim")


def _find_most(group: Group) -> Collective:
    """The most expensive member of the most expensive kind."""
    of_kind = group_by_name(group.members, lambda collective: str(collective.kind))[0]
    return max(of_kind.members, key=lambda collective: (collective.exposed_us or 0.0, collective.wire_bytes or 0))


def _format_headline(group: Group) -> Text:
    """`weights of layers[0-35].mlp: gate, up (backward)`."""
    part = _find_part(group.first)
    what = "" if part.role is None else f"{_ROLES[part.role]} of "
    phase = "" if part.phase is None else f" ({part.phase})"
    return Text.assemble((f"{what}{_join_names(group_collectives(group.members, find_module))}", "bold"), phase)


def _format_cost(group: Group, step_us: float | None) -> str:
    """`33.2 ms exposed (5%) · 4.08 GB`."""
    if group.exposed_us is None:
        return _format_wire(group)
    share = f" ({format_share(group.exposed_us / step_us)})" if step_us else ""
    return f"{_mark_time(group, group.exposed_us)} exposed{share} · {_format_wire(group)}"


def _join_names(parts: Sequence[Group]) -> str:
    """`layers[0-35].mlp: gate, up`."""
    if len(parts) == 1:
        return parts[0].name
    names = [part.name.rpartition(".") for part in parts]
    longest = max((parent for parent, _, _ in names), key=len)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{longest}: {', '.join(own for _, _, own in names[:_NAMES_SHOWN])}{more}"


def _describe_group(
    group: Group, most: Collective, step_us: float | None, findings: _Findings
) -> Iterator[tuple[str, str]]:
    members = group.members
    lines = dict.fromkeys(map(format_line, members))
    more = f", +{pluralize(len(lines) - 1, 'line')}" if len(lines) > 1 else ""
    line = f" · {format_line(most).partition(' in ')[0]}{more}"
    line = "" if _find_part(most).module is None else line  # else its headline is the line
    counts = Counter(collective.kind for collective in members).most_common()
    kinds = ", ".join(pluralize(count, str(kind)) for kind, count in counts)
    over = f" over {','.join(most.axes)}" if most.axes else ""
    yield "", f"{_format_cost(group, step_us)} in {kinds}{over}{line}"
    if most.why and not most.why.startswith("not known"):
        yield "why", _NOTATION.sub("", _CLAUSE.split(most.why, maxsplit=1)[0])
    tried = next((collective.tried for collective in members if collective.tried is not None), None)
    told = _find_advice(members, most, findings)
    if tried is not None:
        yield "tried", tried
    else:
        yield ("fix", "none is known") if told is None else ("fix, not tried", told)


def _find_advice(members: Sequence[Collective], most: Collective, findings: _Findings) -> str | None:
    """The advice of most of their findings, of the reason, or for overlapping them, in this order."""

    def fix_of(collective: Collective) -> str | None:
        finding = findings.get((collective.computation, collective.name))
        return None if finding is None or finding.allowed else finding.fix

    told = [fix for fix, some in group_by(members, fix_of).items() if fix and _is_most(some, members)]
    told += suggest_changes(most.reason)[:1] if most.reason is not None else []
    if not told and most.exposed_us:
        return suggest_overlap(most)
    return told[0] if told else None


def _is_most(some: Sequence[Collective], every: Sequence[Collective]) -> bool:
    """True if some cost at least half of the total."""
    part, whole = (_join(members).cost for members in (some, every))
    return 2 * part[1] >= whole[1] and 2 * part[2] >= whole[2]


def format_waits(collectives: Sequence[Collective]) -> Text | None:
    """The waiting time of each pass, longest first; None if the program has no passes or no prices."""
    whole = _join(collectives)
    if whole.exposed_us is None or all(_find_part(collective).phase is None for collective in collectives):
        return None
    waits = [(str(phase or "unknown pass"), whole.select_phase(phase)) for phase in (*Phase, None)]
    waits = [wait for wait in waits if wait[1].members or wait[0] != "unknown pass"]
    waits.sort(key=lambda wait: -(wait[1].exposed_us or 0.0))
    words = (
        f"{name} {_mark_time(group, group.exposed_us)}" if group.members else f"{name} none (no collectives)"
        for name, group in waits
    )
    return Text("exposed: " + " · ".join(words))


def list_groups(collectives: Sequence[Collective], by: str) -> list[Group]:
    """Groups by one of `GROUPINGS`, dearest first.

    Raises:
        NotationError: They cannot be grouped so.
    """
    names: dict[str, Callable[[Collective], str]] = {
        "axis": format_axes,
        "line": format_line,
        "kind": lambda collective: str(collective.kind),
    }
    if by == "module":
        return group_collectives(collectives, find_module)
    if not isinstance(by, str) or by not in names:
        fix = f"group them by one of {', '.join(GROUPINGS)}"
        raise NotationError(f"collectives cannot be grouped by {calls.format_value(by)}", fix=fix)
    return group_by_name(collectives, names[by])


def render_groups(collectives: Sequence[Collective], by: str, width: int) -> tuple[str, list[Text]]:
    """A title, and a row for each group, dearest first.

    Args:
        collectives: All of the program.
        by: One of `GROUPINGS`.
        width: Columns.
    """
    groups = list_groups(collectives, by)
    priced = all(group.exposed_us is not None for group in groups)
    order = "most exposed first" if priced else "most bytes per step first"
    whole = _join(collectives)
    shown = [group for group in groups[:_MOST_GROUPS] if _is_noticeable(group, whole)] or groups[:1]
    rest = groups[len(shown) :]
    lines = render_table(_make_group_columns(shown, by, groups), width, [_describe_unlike(group) for group in shown])
    others = [other for other in _TITLES if other != by]
    groupings = f"; group by {', '.join(others[:-1])} or {others[-1]}: "
    words = say(f"{_describe_rest(rest)}list each one: ", Option("all"), groupings, Option("group-by"))
    return f"{_TITLES[by]}, {order}", lines + fold(Text(words, style="dim"), width)


def _is_noticeable(group: Group, whole: Group) -> bool:
    """True if a group has a noticeable part of all bytes or of the waiting time, or if its bytes are unknown."""
    if group.wire_bytes is None:
        return True
    parts = ((group.exposed_us, whole.exposed_us), (group.wire_bytes, whole.wire_bytes))
    return any(part and every and part >= _NOTICEABLE * every for part, every in parts)


def _make_group_columns(groups: Sequence[Group], by: str, every: Sequence[Group]) -> tuple[Column, ...]:
    of_group = partial(column, groups)
    heads = {"module": "part", "axis": "axes", "line": "line", "kind": "collective"}
    name = of_group(heads[by], lambda group: group.name, style="bold", breaks=Breaks.AFTER_PUNCTUATION)
    phases = [phase for phase in Phase if any(group.select_phase(phase).exposed_us for group in every)]
    return (
        name,
        of_group("places", _count_places, right=True, given_up=2, below=_leave_empty),
        of_group("wire/step", _format_wire, right=True),
        of_group("time", _format_group_time, right=True, given_up=1, below=_leave_empty),
        of_group("exposed", lambda group: _mark_time(group, group.exposed_us), right=True),
        *(
            of_group(str(phase), partial(_format_phase, phase=phase), right=True, given_up=3, below=f"{phase} {{}}")
            for phase in phases
        ),
    )


def _leave_empty(_: Group) -> str:
    """An empty replacement, below a row, for a column that does not fit."""
    return ""


def _format_phase(group: Group, phase: Phase) -> str:
    part = group.select_phase(phase)
    return _mark_time(part, part.exposed_us) if part.members else ""


def _describe_unlike(group: Group) -> Text:
    """`layer 0 alone has 3.1 ms exposed`: the layers that cost much more than the others."""
    unlike = [f"layer {layer} alone has {format_time(wait)} exposed" for layer, wait in find_unlike_layers(group)]
    return Text(", ".join(unlike), style="dim")


def _describe_rest(rest: Sequence[Group]) -> str:
    if not rest:
        return ""
    together = _join(collective for group in rest for collective in group.members)
    waits = "" if together.exposed_us is None else f", {_mark_time(together, together.exposed_us)} exposed"
    return f"+{pluralize(len(rest), 'smaller one')}, {_format_wire(together)}{waits} · "
