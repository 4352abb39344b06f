"""The report on collectives: bytes by mesh axis and by link, then a row for each collective with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from rich.text import Text

from hloscope.analysis.model import Analysis, Collective, Total
from hloscope.analysis.places import short_source
from hloscope.analysis.totals import UNKNOWN_AXES, axes_key, bytes_bound
from hloscope.analysis.vocabulary import Bound, Kind, Link, Origin
from hloscope.messages import TARGET, Command, Option, say
from hloscope.report.layout import Breaks, Column, column, folded, table_lines
from hloscope.report.words import ELSEWHERE, GUESSED, LINKS, axes_words, leaves_ici, part_of_axis
from hloscope.units import format_bytes, format_count, format_time, known_sum, plural


def axis_lines(analysis: Analysis, width: int) -> list[Text]:
    """Wire bytes per step by mesh axis, the busiest first; by link too where not all of it is ICI."""
    parts = sorted(analysis.totals.by_axis.items(), key=lambda item: -item[1].wire_bytes)
    names = [_axis_words(axis, analysis) for axis, _ in parts]
    by_name = column(names, "axis", str, style="bold cyan", breaks=Breaks.AFTER_PUNCTUATION)
    of_total = partial(column, [total for _, total in parts], right=True)
    columns = (
        by_name,
        of_total("wire bytes", _wire_bytes),
        of_total("share", lambda total: _share(total, analysis), given_up=3),
        of_total(
            "collectives",
            lambda total: format_count(total.collectives),
            given_up=1,
            below=lambda total: plural(total.collectives, "collective"),
        ),
        of_total(
            "transfers",
            lambda total: total.bound.marked(format_count(total.executions)),
            given_up=2,
            below=lambda total: total.bound.marked(plural(total.executions, "transfer")),
        ),
    )
    return table_lines(columns, width) + folded((_by_link(analysis), part_of_axis(names)), width)


def axes_in_short(analysis: Analysis) -> Text | None:
    """`by axis: model 1.84 GB (72%), data 698 MB (28%)`; None where there is one axis alone."""
    parts = sorted(analysis.totals.by_axis.items(), key=lambda item: -item[1].wire_bytes)
    if len(parts) < 2:
        return _by_link(analysis)
    words = [f"{_axis_words(axis, analysis)} {_wire_bytes(total)} ({_share(total, analysis)})" for axis, total in parts]
    by_link = _by_link(analysis)
    return Text(f"by axis: {', '.join(words)}") + (Text(" · ") + by_link if by_link is not None else Text())


def _axis_words(axis: str, analysis: Analysis) -> str:
    if axis != UNKNOWN_AXES:
        guessed = any(collective.axes_guessed and axes_key(collective) == axis for collective in analysis.collectives)
        return (axis or "none") + (GUESSED if guessed else "")
    grouped = analysis.mesh is not None and any(
        collective.axes is None and collective.groups for collective in analysis.collectives
    )
    return "not an axis" if grouped else "unknown"


def _wire_bytes(total: Total) -> str:
    return total.bound.marked(format_bytes(total.wire_bytes))


def _share(total: Total, analysis: Analysis) -> str:
    whole = analysis.totals.wire_bytes
    if not whole:
        return ""
    percent = 100 * total.wire_bytes / whole
    return "<1%" if 0 < percent < 0.5 else f"{percent:.0f}%"


def _by_link(analysis: Analysis) -> Text | None:
    parts = analysis.totals.by_link
    if not leaves_ici(analysis.collectives) or not parts:
        return None
    words = []
    for link, total in parts.items():
        share = _share(total, analysis)
        amount = f" {_wire_bytes(total)}{f' ({share})' if share else ''}"
        words.append(Text.assemble((LINKS[Link(link)], "cyan"), amount))
    return Text("by link: ") + Text(", ").join(words)


_ROWS_SHOWN = 40
_SHAPES_SHOWN = 2
_WHYS_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Collectives that read the same: one row of the table.

    Attributes:
        members: In the order of the analysis.
        number: The first one's place in that order, counted from 1, by which `hloscope explain` finds it.
    """

    members: tuple[Collective, ...]
    number: int

    @property
    def first(self) -> Collective:
        return self.members[0]

    @property
    def wire_bytes(self) -> int | None:
        """Per step, in all places together; None when not known."""
        return known_sum(collective.wire_bytes_per_step for collective in self.members)

    def per_step(self, name: str) -> float | None:
        """`time_us` or `exposed_us` per step, in all places together; None when one of them is not priced."""
        times = [(getattr(collective, name), collective.executions) for collective in self.members]
        return None if any(time is None for time, _ in times) else sum(time * runs for time, runs in times)


def _rows(collectives: Iterable[Collective], key: Callable[[Collective], object]) -> list[_Row]:
    """Joins collectives of one key, largest sum first, unknown before all."""
    alike: dict[object, list[tuple[int, Collective]]] = {}
    for number, collective in enumerate(collectives, start=1):
        alike.setdefault(key(collective), []).append((number, collective))
    rows = [
        _Row(members=tuple(collective for _, collective in members), number=members[0][0]) for members in alike.values()
    ]
    return sorted(rows, key=lambda row: (row.wire_bytes is not None, -(row.wire_bytes or 0)))


def _reads(collective: Collective) -> tuple[object, ...]:
    """What the table shows of a collective, other than which HLO instructions it is and stands beside."""
    runs = collective.executions, collective.executions_bound
    wire = format_bytes(collective.wire_bytes_per_step), bytes_bound(collective)
    place = short_source(collective.source), collective.source_of is None
    return collective.kind, axes_words(collective), _shapes(collective), collective.link, runs, wire, place


def collective_lines(collectives: Sequence[Collective], width: int, *, everything: bool = False) -> list[Text]:
    """One row for collectives that read the same, most bytes per step first; with `everything` one for each."""
    rows = _rows(collectives, id if everything else _reads)
    count, explained = (len(rows), len(rows)) if everything else (_ROWS_SHOWN, _WHYS_SHOWN)
    shown = rows[:count]
    unknown, remarks = _unknown_of_all(rows), []
    whys = [_why(row) if turn < explained and unknown is None else Text() for turn, row in enumerate(shown)]
    lines = table_lines(_columns(shown, with_link=leaves_ici(collectives)), width, whys)
    rest = rows[count:]
    if rest:
        words = say(f"+{plural(len(rest), 'smaller row')}, {_wire(rest)} in total ", ELSEWHERE)
        remarks.append(Text(words, style="dim"))
    if unknown is None and any(_why(row).plain for row in shown[explained:]):
        words = say(
            "reasons of the others: ",
            Command("explain", (TARGET, Option("collective", shown[explained].number))),
            ", or its name in the HLO",
        )
        remarks.append(Text(words, style="dim"))
    return lines + folded((*remarks, unknown), width)


def collective_columns(collectives: Sequence[Collective], count: int) -> tuple[tuple[Column, ...], int]:
    """The table of the first rows of `collective_lines`, and how many rows there are besides."""
    rows = _rows(collectives, _reads)
    return _columns(rows[:count], with_link=leaves_ici(collectives)), max(len(rows) - count, 0)


def _columns(rows: Sequence[_Row], *, with_link: bool) -> tuple[Column, ...]:
    digits = len(str(max(row.number for row in rows))) if len(rows) > 1 else 0
    of_row = partial(column, rows)
    of_first = partial(column, [row.first for row in rows])
    return (
        of_row(f"{' ' * digits} collective" if digits else "collective", partial(_kind, digits=digits)),
        of_first("axes", axes_words, style="cyan", breaks=Breaks.AFTER_PUNCTUATION, given_up=6, below=_axes_in_words),
        of_first("link", lambda first: LINKS[first.link] if with_link else "", given_up=5, below="link {}"),
        of_first("per device", _shapes, breaks=Breaks.BETWEEN_WORDS, given_up=7, below="per device {}"),
        of_row("places", lambda row: format_count(len(row.members)), right=True, given_up=3, below=_places_in_words),
        of_row("times", _times, right=True, given_up=4, below=_times_in_words),
        of_row("wire/step", lambda row: _wire([row]), right=True),
        of_row("time/step", _time, right=True, given_up=4, below="{} per step"),
        of_row("exposed", _exposed, right=True, given_up=3, below="{} exposed"),
        of_row("source", _source, breaks=Breaks.BETWEEN_WORDS, given_up=2),
        of_row(
            "",
            lambda row: f"(of {_neighbors(row)})" if _neighbors(row) else "",
            style="dim",
            given_up=1,
            below=lambda row: f"source taken from {_neighbors(row)}" if _neighbors(row) else "",
        ),
        of_first("", _parts, style="dim", breaks=Breaks.BETWEEN_WORDS, given_up=1),
    )


def _kind(row: _Row, digits: int) -> Text:
    """The kind, behind its number where there are several rows."""
    return Text.assemble((f"{row.number:>{digits}} " if digits else "", "dim"), (row.first.kind, "bold"))


def _axes_in_words(collective: Collective) -> str:
    if collective.axes:
        return f"over {axes_words(collective)}"
    if collective.axes is not None:
        return "over no axis"
    return f"in {axes_words(collective)}" if collective.groups else "axes unknown"


def _shapes(collective: Collective) -> str:
    """The larger side on one device, which is what `payload_bytes` counts; `f32[16], f32[8,8], +1 more`."""
    gathers = collective.kind in (Kind.ALL_GATHER, Kind.OPAQUE)
    first, second = collective.operand_shapes, collective.result_shapes
    shapes = (second or first) if gathers else (first or second)
    hidden = len(shapes) - _SHAPES_SHOWN
    return ", ".join((*map(str, shapes[:_SHAPES_SHOWN]), *([f"+{hidden} more"] if hidden > 0 else [])))


def _places_in_words(row: _Row) -> str:
    return f"in {plural(len(row.members), 'place')}" if len(row.members) > 1 else ""


def _times(row: _Row) -> str:
    return row.first.executions_bound.marked(format_count(row.first.executions))


def _times_in_words(row: _Row) -> str:
    words = row.first.executions_bound.marked(plural(row.first.executions, "time"))
    return f"{words} each" if len(row.members) > 1 else words


def _wire(rows: Sequence[_Row]) -> str:
    known = [row for row in rows if row.wire_bytes is not None]
    if not known:
        return "unknown"
    floor = Bound.EXACT if len(known) == len(rows) else Bound.AT_LEAST
    bound = reduce(lambda bound, row: bound + bytes_bound(row.first), known, floor)
    return bound.marked(format_bytes(sum(row.wire_bytes or 0 for row in known)))


def _time(row: _Row) -> str:
    time_us = row.per_step("time_us")
    return "" if time_us is None else bytes_bound(row.first).marked(format_time(time_us))


def _exposed(row: _Row) -> Text:
    """`100%`: the share of the transfers' time that is exposed."""
    time_us, exposed_us = row.per_step("time_us"), row.per_step("exposed_us")
    if not time_us or exposed_us is None:
        return Text()
    share = exposed_us / time_us
    return Text(f"{100 * share:.0f}%", style="red" if share > 0.5 else "")


def _why(row: _Row) -> Text:
    """Why it is there, and what helps; of a row of several the first's reason, and how many others there are."""
    reasons = (collective.why for collective in row.members if collective.origin != Origin.AUTHORED)
    whys = list(dict.fromkeys(why for why in reasons if why is not None))
    if not whys:
        return Text()
    more = say(f" (+{plural(len(whys) - 1, 'other reason')}: ", Command("explain"), ")") if len(whys) > 1 else ""
    tried = next((collective.tried for collective in row.members if collective.tried is not None), None)
    helps = [] if tried is None else [("; tried: ", "bold dim"), (tried, "dim")]
    return Text.assemble(("why: ", "bold dim"), (whys[0] + more, "dim"), *helps)


def _unknown_of_all(rows: Sequence[_Row]) -> Text | None:
    """Why nothing is known about several rows, where it is the same for all of them: reported once, below the table."""
    whys = {_why(row).plain: _why(row) for row in rows}
    alike = len(rows) > 1 and len(whys) == 1
    return next((words for plain, words in whys.items() if alike and plain.startswith("why: not known")), None)


def _source(row: _Row) -> Text:
    """`moe.py:31 in expert`; the HLO line where no line of the user's is known."""
    words = short_source(row.first.source)
    if words is not None:
        return Text(words)
    more = f", +{len(row.members) - 1} more" if len(row.members) > 1 else ""
    return Text(f"%{row.first.name}, HLO line {row.first.line}{more}", style="dim")


def _neighbors(row: _Row) -> str:
    """`%fusion.16`: the instruction that the source was taken from where the collective itself has none."""
    if not row.first.source or row.first.source_of is None:
        return ""
    others = len({collective.source_of for collective in row.members}) - 1
    return f"%{row.first.source_of}{f', +{others} more' if others else ''}"


def _parts(collective: Collective) -> str:
    """`= reduce-scatter over model (ICI, 75 MB) + all-reduce over data (DCN, 25 MB)`: what it is made of."""
    guessed = GUESSED if collective.axes_guessed else ""
    words = [
        f"{part.kind}{f' over {part_axes}{guessed}' if (part_axes := ','.join(part.axes or ())) else ''} "
        f"({LINKS[part.link]}, {format_bytes(part.wire_bytes)})"
        for part in collective.parts
    ]
    return f"= {' + '.join(words)}" if words else ""
