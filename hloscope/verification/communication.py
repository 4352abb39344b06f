"""What two programs move, side by side: equal traffic in another spelling is equal, more than the reference is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hloscope.analysis.model import Analysis, Collective, Total
from hloscope.analysis.places import users_line
from hloscope.compare import Change, Comparison, match
from hloscope.findings import Finding, Severity
from hloscope.units import format_bytes, plural

MORE, UNSURE = "more-than-reference", "communication-unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """What both programs move with collectives of one kind over the same axes, per step on one device.

    Attributes:
        kind: The kind.
        axes: Mesh axes joined by `,`.
        reference: The reference's sum.
        target: The program's sum.
        reference_us: Predicted time of the reference's; None when not priced.
        target_us: Predicted time of the program's; None when not priced.
    """

    kind: str
    axes: str
    reference: Total
    target: Total
    reference_us: float | None
    target_us: float | None


def compare_communication(target: Analysis, reference: Analysis) -> Comparison:
    """Matches the collectives of both; the reference's are the old ones.

    A program and its twin say the same in different functions, so what is matched is what moves, not where it was
    written: source frames are taken off for the matching, and put back afterwards.
    """
    bare = [[replace(one, source=(), op_name=None) for one in side.collectives] for side in (reference, target)]
    rows = zip((*bare[0], *bare[1]), (*reference.collectives, *target.collectives), strict=True)
    originals = {id(one): original for one, original in rows}

    def back(ones: Iterable[Collective]) -> tuple[Collective, ...]:
        return tuple(originals[id(one)] for one in ones)

    found = match(*bare, equivalent=True)
    return replace(
        found,
        changes=tuple(replace(one, old=back(one.old), new=back(one.new)) for one in found.changes),
        unchanged=tuple((originals[id(one)], originals[id(other)]) for one, other in found.unchanged),
        unsure=back(found.unsure),
    )


def traffic_rows(comparison: Comparison, target: Analysis, reference: Analysis) -> tuple[TrafficRow, ...]:
    """One row for each kind and axes that either program uses, most bytes first."""
    return tuple(
        TrafficRow(
            kind=str(tally.kind),
            axes=tally.axes,
            reference=tally.old,
            target=tally.new,
            reference_us=_time(reference.collectives, str(tally.kind), tally.axes),
            target_us=_time(target.collectives, str(tally.kind), tally.axes),
        )
        for tally in comparison.tallies
    )


def judge_communication(comparison: Comparison) -> Iterator[Finding]:
    """Yields a finding for each transfer that the program makes beyond its reference, and for what is not known.

    A transfer that the reference does not make is an error where the program moves more over these axes than the
    reference does, and a note where it moves no more: then it stands in the place of another.
    """
    increases = [change for change in comparison.increases if not change.same_traffic]
    for changes in _by_place(increases):
        yield _more(changes, comparison)
    for one in comparison.unsure:
        message = f"how much {one.kind} %{one.name} moves is not known exactly, so nobody can say that it moves no more"
        yield Finding(
            rule=UNSURE,
            severity=Severity.WARNING,
            message=message,
            computation=one.computation,
            instruction=one.name,
            line=one.line,
            source=users_line(one.source),
        )


def judge_not_understood(target: Analysis, reference: Analysis, comparison: Comparison) -> Iterator[Finding]:
    """Yields a finding for each thing in the program, and not in its reference, that may move what nobody counted."""
    told = {loop for one in comparison.unsure for loop in one.loops} | {one.name for one in comparison.unsure}
    known = {(item.what, item.effect) for item in reference.unmodelled}
    for item in target.unmodelled:
        if item.instruction in told or (item.what, item.effect) in known:
            continue
        yield Finding(
            rule=UNSURE,
            severity=Severity.WARNING,
            message=f"{item.what}, so nobody can say that the program moves no more than its reference",
            instruction=item.instruction,
            line=item.line,
            why=item.effect,
        )


def _by_place(changes: Iterable[Change]) -> list[list[Change]]:
    """Changes of one kind to collectives of one kind, over the same axes and from the same line, together."""
    places: dict[object, list[Change]] = {}
    for change in changes:
        one = change.any
        places.setdefault((change.kind, one.kind, _axes(one), users_line(one.source)), []).append(change)
    return list(places.values())


def _more(changes: list[Change], comparison: Comparison) -> Finding:
    one = changes[0].any
    axes = _axes(one)
    tallies = [tally for tally in comparison.tallies if tally.axes == axes]
    before, after = sum(tally.old.wire_bytes for tally in tallies), sum(tally.new.wire_bytes for tally in tallies)
    sizes = [change.wire_bytes_per_step for change in changes]
    more = None if None in sizes else sum(size for size in sizes if size is not None)
    size = "an unknown number of bytes" if more is None else format_bytes(more)
    over = f"over {axes.replace(',', ', ')}"
    count = plural(sum(len(change.new) for change in changes), str(one.kind))
    return Finding(
        rule=MORE,
        severity=Severity.ERROR if after > before or more is None else Severity.NOTE,
        message=f"{count} {over}: {size} per step and device more than in the reference ({changes[0].kind})",
        computation=one.computation,
        instruction=one.name,
        line=one.line,
        source=users_line(one.source),
        why=one.why,
        cost=f"{over} the program moves {format_bytes(after)}, and the reference {format_bytes(before)}",
    )


def _axes(one: Collective) -> str:
    return "?" if one.axes is None else ",".join(one.axes)


def _time(collectives: Iterable[Collective], kind: str, axes: str) -> float | None:
    """Microseconds per step of the collectives of a kind over these axes; None where one of them is not priced."""
    total = 0.0
    for one in collectives:
        if str(one.kind) != kind or _axes(one) != axes:
            continue
        if one.time_us is None:
            return None
        total += one.time_us * one.executions
    return total
