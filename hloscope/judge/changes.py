"""The records of a comparison: a change with what was there before and after, figures of both, and their words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from hloscope.analysis.provenance import short_source
from hloscope.analysis.totals import axes_key
from hloscope.base.results import Brief
from hloscope.base.units import format_bytes, format_flops, format_time, pluralize, sum_known
from hloscope.judge.baselines import Baseline, BaselineRow, MatmulRow, SourceLine, add_bounds, format_axes
from hloscope.model import Collective, Total, Totals
from hloscope.model.vocabulary import Bound, Kind

Part = TypeVar("Part")
Row = TypeVar("Row", bound=BaselineRow | MatmulRow)

UNKNOWN = "unknown"
"""The key of changes in what was not understood."""
REDUCTION = "reduction"
"""The key of changes of the operation that combines elements."""


class Judgement(StrEnum):
    """The judgement on a program compared with its baseline, or on one change."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"


class ChangeKind(StrEnum):
    """The kind of change to a collective."""

    ADDED = "added"
    REMOVED = "removed"
    BYTES = "bytes"
    EXECUTIONS = "executions"
    INTO_LOOP = "moved into a loop"
    OUT_OF_LOOP = "moved out of a loop"
    NEWLY_EXPOSED = "newly exposed"
    BOUND = "known less or more surely"
    REGROUPED = "regrouped"
    EQUIVALENT = "equivalent spelling"
    REDUCTION = "another reduction"

    @property
    def same_traffic(self) -> bool:
        """True if the same data moves as before, in another spelling."""
        return self in (ChangeKind.REGROUPED, ChangeKind.EQUIVALENT)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cause(Brief):
    """One change of a program, however many lines of its baseline it affects.

    Attributes:
        key: Key with which it can be accepted: `all-gather@fsdp`, `types`, `reduction`, `arguments`, `memory`, `step`,
            `kernels`, `unknown`.
        judgement: Judgement on this change by itself.
        message: One sentence, lower case.
        source: Line of user code that it concerns, in the program as it is now; None if unknown.
        why: Why the data moves; None if unknown.
        tried: A tried change that helps against it; None if no change helps.
        wire_bytes: Change in bytes per step on one device, negative for fewer; None if unknown.
        time_us: Change in the transfers' microseconds per step, negative for less; None if unknown.
        is_left_open: Whether nothing changed, and the baseline lacks a figure that could be compared.
    """

    key: str
    judgement: Judgement
    message: str
    source: str | None = None
    why: str | None = None
    tried: str | None = None
    wire_bytes: int | None = None
    time_us: float | None = None
    is_left_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Change(Cause, Generic[Part]):
    """One change with the parts of both programs that it is made of; documents have it without them, as a `Cause`.

    Attributes:
        before: The collectives before, or the rows of a baseline; empty if it adds something or concerns neither.
        after: Those after; empty if it removes something.
        bound: Whether `wire_bytes` is exact or a bound; the difference of two lower bounds is unknown.
        kind: Kind of change, of collectives that were matched.
    """

    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()
    bound: Bound = Bound.EXACT
    kind: ChangeKind | None = None

    @property
    def is_increase(self) -> bool:
        """True if more moves than before, or may, in whatever spelling."""
        may_be_more = self.wire_bytes is None or self.wire_bytes > 0
        return self.judgement is Judgement.WORSE or (self.judgement is Judgement.SAME and may_be_more)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedGrowth:
    """The growth of figures that counts as no change, as shares of their baselines.

    Attributes:
        step: The predicted step.
        memory: Parts of the memory, by their names in a baseline; others are not judged.
    """

    step: float = 0.05
    memory: Mapping[str, float] = field(default_factory=lambda: {"peak": 0.05}, hash=False)


USUAL = AllowedGrowth()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a program, before and after.

    Attributes:
        name: Name, such as `predicted step`, `sent over fsdp` or `peak memory`.
        unit: `us`, `bytes` or `flops`, per step on one device.
        before: Value in the baseline; None if unknown.
        after: Value in the program as it is now.
        before_range: Lower and upper end, for a prediction.
        after_range: The same for the program as it is now.
        before_bound: Whether the value in the baseline is exact or a bound.
        after_bound: The same for the program as it is now.
        comparable: Whether both values are comparable. Steps of different versions of the cost model are not, nor is
            memory whose temporaries hloscope 0.1 counted.
    """

    name: str
    unit: str
    before: float | None
    after: float | None
    before_range: tuple[float, float] | None = None
    after_range: tuple[float, float] | None = None
    before_bound: Bound = Bound.EXACT
    after_bound: Bound = Bound.EXACT
    comparable: bool = True

    @property
    def change_bound(self) -> Bound:
        """The bound of the difference and of the ratio of both values."""
        return self.after_bound + -self.before_bound

    @property
    def is_decided(self) -> bool:
        """True if both values are known so well that the larger one surely is the larger one."""
        if self.before is None or self.after is None:
            return False
        return self.change_bound in (Bound.EXACT, Bound.AT_LEAST if self.after > self.before else Bound.AT_MOST)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Judged(Brief):
    """The comparison of a program with its baseline.

    Attributes:
        judgement: Overall judgement.
        causes: All changes except respellings, most important first.
        figures: Figures of both.
        versions: The compiler versions of both, if they differ: `jax 0.10.2, libtpu 0.0.42 then, jax 0.12.0 … now`.
        notes: Notes on what is not a change, such as the same bytes in another spelling.
        caveats: Figures that are not judged, or that may grow by a large amount.
    """

    judgement: Judgement
    causes: tuple[Cause, ...]
    figures: tuple[Figure, ...]
    versions: str | None = None
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def is_only_left_open(self) -> bool:
        """True if no change was found, and the baseline lacks figures that could be compared."""
        return bool(self.causes) and all(cause.is_left_open for cause in self.causes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over the collectives of one kind over the same axes, per device and per step, before and after.

    Attributes:
        kind: Kind of collective.
        axes: Mesh axes joined by `,`; `?` if unknown.
        old: Sum before.
        new: Sum after.
        axes_guessed: Whether the axes of any of them are guessed.
    """

    kind: Kind
    axes: str
    old: Total
    new: Total
    axes_guessed: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Brief):
    """Two lists of collectives, matched.

    Attributes:
        changes: Every difference, the one of most bytes per step first; a collective that changed in two ways has two.
        unchanged: Pairs that are the same except, perhaps, for their names, lines and spelling.
        unsure: Collectives of either side whose bytes or executions are not known exactly, or whose axes are unknown:
            these cannot be shown to be the same.
        tallies: Sums by kind and axes, most bytes first.
        old_total: The sum over all collectives before.
        new_total: The sum over all collectives after.
    """

    changes: tuple[Change[Collective], ...]
    unchanged: tuple[tuple[Collective, Collective], ...]
    unsure: tuple[Collective, ...]
    tallies: tuple[Tally, ...]
    old_total: Totals
    new_total: Totals

    @property
    def same(self) -> bool:
        """True if both are known to move the same data; false wherever something is unknown."""
        return not self.unsure and all(change.judgement is Judgement.SAME for change in self.changes)

    @property
    def increases(self) -> tuple[Change[Collective], ...]:
        """The changes after which more moves, or may move, or more of it is waited for."""
        return tuple(change for change in self.changes if change.judgement is Judgement.WORSE)


class Pair(NamedTuple, Generic[Row]):
    """Rows of a baseline before, and those after that belong to them."""

    before: tuple[Row, ...]
    after: tuple[Row, ...]

    @property
    def place(self) -> SourceLine:
        """The line that they are on now, or were on if nothing is there now."""
        return (self.after or self.before)[0].place

    @property
    def both(self) -> tuple[Row, ...]:
        """All rows, before and after."""
        return (*self.before, *self.after)


def join_pairs(pairs: Iterable[Pair[Row]]) -> Pair[Row]:
    """All rows of several pairs as one pair."""
    known = list(pairs)
    return Pair(tuple(chain(*(pair.before for pair in known))), tuple(chain(*(pair.after for pair in known))))


# ---- changes of collectives in words

_BOUNDS = {Bound.EXACT: "", Bound.AT_MOST: "at most ", Bound.AT_LEAST: "at least ", Bound.UNKNOWN: "~"}
_SIGNS = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-"}


def describe_collectives(kind: ChangeKind, before: Sequence[Collective], after: Sequence[Collective]) -> str:
    """`+1 all-gather fsdp 6 x 2.10 MB payload  moe.py:91`: what happened, to what, and where, on one line."""
    side = after or before
    count = f"{_SIGNS[kind]}{len(side)}" if kind in _SIGNS else "~"
    first = side[0]
    where = short_source(first.source) or (f"%{first.name}" if first.name else "source not known")
    guessed = "?" if first.axes_guessed else ""
    return f"{count} {first.kind} {axes_key(first) or 'none'}{guessed} {_describe_change(kind, before, after)}  {where}"


def _describe_change(kind: ChangeKind, before: Sequence[Collective], after: Sequence[Collective]) -> str:
    if kind in _SIGNS:
        return _format_amount((after or before)[0])
    if kind.same_traffic:
        return f"{_count_kinds(before)} -> {_count_kinds(after)}, the same bytes"
    old, new = before[0], after[0]
    if kind is ChangeKind.NEWLY_EXPOSED:
        return f"is newly exposed: {format_time(old.exposed_us)} -> {format_time(new.exposed_us)}"
    if kind is ChangeKind.BOUND:
        return f"{_format_amount(new)}: was {old.executions_bound}, is {new.executions_bound}"
    if kind is ChangeKind.REDUCTION:
        now, was = (each.reduction or "another operation" for each in (new, old))
        return f"{_format_amount(new)}: {now} where {was} was"
    moved = f", {kind}" if kind in (ChangeKind.INTO_LOOP, ChangeKind.OUT_OF_LOOP) else ""
    return f"{_format_amount(old)} -> {_format_amount(new)}{moved}"


def _count_kinds(side: Sequence[Collective]) -> str:
    kinds = " + ".join(dict.fromkeys(str(part.kind) for part in side))
    return f"{len(side)} {kinds}"


def _format_amount(collective: Collective) -> str:
    """`6 x 2.10 MB payload`: executions per step, where they are several, and payload bytes of each."""
    bound = _BOUNDS[collective.executions_bound]
    count = "" if collective.executions == 1 else f"{collective.executions:,} x "
    payload = format_bytes(collective.payload_bytes)
    known = payload if collective.payload_bytes is None else collective.bytes_bound.marked(payload)
    return f"{bound}{count}{known} payload"


# ---- changes of rows in words


def describe_moved(pair: Pair[BaselineRow], *, in_pairs: bool, lost: str | None = None, as_many: bool = False) -> str:
    """`an all-gather over fsdp is new, 12.6 MB sent per step`.

    Args:
        pair: The rows of the baseline, and what the program has in their place.
        in_pairs: Whether each of them is one that the program had before, at another size.
        lost: What nothing does any more.
        as_many: Whether as many arrays are summed over these axes as before.
    """
    old, new = pair
    though = "; as many arrays as before are summed there" if as_many else ""
    if not old:
        return f"{_describe_rows(new)} {_choose_verb(new)} new, {_format_sum_sent(new)} sent per step{though}"
    if not new:
        gone = f"{_describe_rows(old)} {_choose_verb(old)} gone"
        return f"{lost or gone}{_describe_gone(old)}, {_format_sum_sent(old)} sent per step before{though}"
    sent = f"{format_sent(pair)}{_describe_types(pair)}{_describe_rewritten(pair)}"
    if lost is not None:
        other = {row.kind for row in new} - {row.kind for row in old}
        instead = f"; instead there {_choose_verb(new)} {_describe_rows(new)}" if other else ""
        places = [{row.place for row in side} for side in pair]
        is_told = places[0] & places[1] or _describe_rewritten(pair)
        return f"{lost}{instead}{'' if is_told else _describe_gone(old)}, {sent}"
    if in_pairs or _describe_rows(new) == _describe_rows(old):
        verb = "moves" if _is_one(new) else "move"
        return f"{_describe_rows(new)} {verb} {_compare_amounts(pair)}, {sent}{_describe_combined(pair)}"
    return f"{_describe_rows(new)} where {_describe_rows(old)} {'was' if _is_one(old) else 'were'}, {sent}"


def _compare_amounts(pair: Pair[BaselineRow]) -> str:
    """`more than before`; vaguer if some of it is unknown."""
    before, after = (sum_known(row.wire_bytes for row in side) for side in pair)
    bounds = [add_bounds(side) for side in pair]
    if before is None or after is None:
        old, new = (sum(row.executions for row in side) for side in pair)
        return "another amount than before" + ("" if old == new else f", {old:,} -> {pluralize(new, 'transfer')}")
    if before == after and bounds[0] is not bounds[1]:
        change = bounds[1] + -bounds[0]
        return "an unknown amount" if change is Bound.UNKNOWN else f"{change} as much as before"
    return f"{'more' if after >= before else 'less'} than before"


def describe_unknown(rows: Iterable[BaselineRow]) -> str:
    """`; some of it may not run, as in a branch`: why bytes are no exact figures."""
    if any(row.bound is Bound.AT_MOST for row in rows):
        return "; some of it may not run, as in a branch"
    return "; some of it is unknown"


def _describe_types(pair: Pair[BaselineRow]) -> str:
    """`, bf16+f32 where f32 was`."""
    before, after = ("+".join(sorted({row.dtype or "unknown" for row in side})) for side in pair)
    return "" if before == after else f", {after} where {before} was"


def _describe_gone(gone: Sequence[BaselineRow]) -> str:
    """` (was: `out = jax.lax.psum(y, "model")` in block)`: the line of what is gone, which may be gone as well."""
    places = dict.fromkeys(row.place for row in sorted(gone, key=lambda row: -(row.wire_bytes or 0)))
    told = [place for place in places if place.text is not None]
    if not told:
        return ""
    others = f", and {pluralize(len(told) - 1, 'other line')}" if len(told) > 1 else ""
    name = _find_function_name(told[0])
    return f" (was: `{told[0].text}`{'' if name is None else f' in {name}'}{others})"


def _describe_combined(pair: Pair[BaselineRow]) -> str:
    """`; its line is that of the largest of 7 arrays, 8 before`, where any array of one transfer may have changed."""
    new = pair.after
    if len(new) != 1 or new[0].executions != 1 or (new[0].arrays or 1) == 1:
        return ""
    was = sum_known(row.arrays for row in pair.before)
    before = "" if was in (None, new[0].arrays) else f", {was} before"
    return f"; the line is that of the largest of its {new[0].arrays} arrays{before}"


def _describe_rewritten(pair: Pair[BaselineRow]) -> str:
    """`: `out = psum(h)` where `out = psum(y)` was`, of one call in the code that is another one now."""
    old, new = pair
    if not (len(old) == len(new) == 1 and old[0].written and new[0].written and old[0].arrays == new[0].arrays):
        return ""
    was, now = old[0].place.text, new[0].place.text
    return "" if None in (was, now) or was == now else f": `{now}` where `{was}` was"


def _find_function_name(place: SourceLine) -> str | None:
    """The function of a place without those that it is written in; None for what has no name."""
    name = (place.function or "").rpartition("<locals>.")[2]
    return None if name in ("", "<module>", "<lambda>") else name


def _choose_verb(rows: Sequence[BaselineRow]) -> str:
    return "is" if _is_one(rows) else "are"


def _is_one(rows: Sequence[BaselineRow]) -> bool:
    return len(rows) == 1 and rows[0].executions == 1


def _describe_rows(rows: Sequence[BaselineRow]) -> str:
    counted: dict[tuple[Kind, str], int] = {}
    for row in rows:
        key = (row.kind, format_axes(row))
        counted[key] = counted.get(key, 0) + row.executions
    parts = []
    for (kind, axes), count in counted.items():
        article = "an" if kind[0] in "aeio" else "a"
        parts.append(f"{f'{article} {kind}' if count == 1 else pluralize(count, kind)} over {axes}")
    return " and ".join(parts)


def describe_respelled(pair: Pair[BaselineRow]) -> str:
    """`3 collective-permutes over X became a reduce-scatter over X: the same bytes`."""
    return f"{_describe_rows(pair.before)} became {_describe_rows(pair.after)}, which moves the same bytes"


def format_sent(pair: Pair[BaselineRow]) -> str:
    """`12.6 MB -> 6.29 MB sent per step`."""
    return f"{_format_sum_sent(pair.before)} -> {_format_sum_sent(pair.after)} sent per step"


def _format_sum_sent(rows: Sequence[BaselineRow]) -> str:
    """`≤12.6 MB`: what rows send, with its bound."""
    wire_bytes = sum_known(row.wire_bytes for row in rows)
    if wire_bytes is None:
        return format_bytes(None)
    return add_bounds(rows).marked(format_bytes(wire_bytes))


def sum_flops(rows: Iterable[MatmulRow]) -> int:
    """FLOPs of all rows that are known."""
    return sum(row.flops or 0 for row in rows)


def describe_multiplied(most: Pair[MatmulRow], whole: Figure, *, others: int, is_decided: bool) -> str:
    """`the matmuls in adapted do more: 101 MFLOPs -> 856 MFLOPs, of 10.3 GFLOPs -> 11.1 GFLOPs in total`.

    Args:
        most: The function that changes most.
        whole: What all functions multiply.
        others: How many others change as it does.
        is_decided: Whether it is known that they do more, or less.
    """
    function = _find_function_name(most.place)
    was, now = map(sum_flops, most)
    amount = "more" if now > was else "less"
    bounds = whole.before_bound, whole.after_bound
    all_of_it, here = (
        " -> ".join(bound.marked(format_flops(flops)) for bound, flops in zip(bounds, sides, strict=True))
        for sides in ((whole.before or 0, whole.after or 0), (was, now))
    )
    matmuls = f"the matmuls{f' in {function}' if function else ''}"
    said = f"{matmuls} do {amount}" if is_decided else f"whether {matmuls} do more or less is not known"
    if function is None or (here == all_of_it and not others):
        return f"{said}: {all_of_it}"
    besides = f", and those in {pluralize(others, 'other function')}" if others else ""
    return f"{said}: {here}{besides}; {all_of_it} in total"


def describe_versions(before: Baseline, after: Baseline) -> str | None:
    """The compilers of both, if they differ."""
    if before.compiler == after.compiler:
        return None
    old, new = (", ".join(f"{name} {version}" for name, version in side.compiler) or "none" for side in (before, after))
    return f"{old} in the baseline, {new} here"
