"""One all-reduce across slices that is printed as several transfers, within slices and between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

from hloscope.analysis.groups import Groups
from hloscope.analysis.model import Collective, CollectivePart
from hloscope.analysis.origin import origin_of
from hloscope.analysis.placement import Placement
from hloscope.analysis.records import Move, Recorder
from hloscope.analysis.reductions import says_reduction
from hloscope.analysis.values.readers import only_reading_of, own_slice
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.graph import Value
from hloscope.hlo import HloInstruction
from hloscope.hlo.replica_groups import MAX_DEVICES

_FIRST_HALVES = frozenset({Kind.REDUCE_SCATTER, Kind.ALL_REDUCE})


def join_across_slices(recorder: Recorder, moves: Sequence[Move]) -> Iterator[Move]:
    """Joins the parts of all-reduces across slices; all other transfers stay as they are.

    TPUs spell one as a reduce-scatter within each slice, an all-reduce of the shard between slices, and an all-gather
    within each slice; small ones as two all-reduces. The first half may also be an all-reduce of which each device
    keeps its shard. Parts are joined where their results feed each other and nothing else, and the shapes and groups
    fit together. Those that a loop carries into its next iteration stay single.
    """
    joined: dict[int, Move] = {}
    taken: set[int] = set()
    by_place: dict[object, list[Move]] = {}
    for move in moves:
        by_place.setdefault((move.collective.computation, move.place.context.key), []).append(move)
    for neighbours in by_place.values():
        if not any(_is_between_slices(move) for move in neighbours):
            continue
        search = _Search(recorder, neighbours)
        for first in neighbours:
            parts = search.parts(first)
            whole = _joined(recorder, parts) if parts else None
            if whole is not None:
                joined[id(first)] = whole
                taken.update(id(part) for part in parts)
    for move in moves:
        if id(move) in joined:
            yield joined[id(move)]
        elif id(move) not in taken:
            yield move


def _is_between_slices(move: Move) -> bool:
    return move.transfer.kind is Kind.ALL_REDUCE and move.transfer.received is not None


class _Search:
    """The transfers of one computation in one context, by the instructions that start them."""

    def __init__(self, recorder: Recorder, moves: Iterable[Move]) -> None:
        self._graph = recorder.graph
        self._by_start: dict[HloInstruction, Move] = {move.transfer.start: move for move in moves}

    def parts(self, first: Move) -> list[Move]:
        """The transfers that make one all-reduce of `first`, in the order in which they run; none if nothing does."""
        if first.transfer.kind not in _FIRST_HALVES or first.collective.link is not Link.ICI:
            return []
        sends = [self._fed_by(value, through_slices=True) for value in first.results]
        between = [move for move in sends if move is not None and _continues(first, move)]
        if not between or len({id(move) for move in between}) < len(first.results):
            return []
        gathers = [self._fed_by(value) for move in between for value in move.results]
        after = [move for move in gathers if move is not None and move.transfer.kind is Kind.ALL_GATHER]
        gathering = list({id(move): move for move in after}.values())
        if len(after) == len(between) and _gathers_back(first, between, gathering):
            return [first, *between, *gathering]
        return [first, *between] if _keeps_all(first, between) else []

    def _fed_by(self, value: Value, *, through_slices: bool = False) -> Move | None:
        """The one transfer that alone reads a value."""
        reading = only_reading_of(self._graph, value)
        if through_slices and reading is not None and own_slice(self._graph, reading) is not None:
            reading = only_reading_of(self._graph, Value(reading.reader), reading.frames)
        if reading is None:
            return None
        return self._by_start.get(reading.outermost) or self._by_start.get(reading.reader)


def _continues(first: Move, other: Move) -> bool:
    """Whether a transfer between slices reduces as the one within them does: a sum of maxima is neither."""
    within, between = first.collective.reduction, other.collective.reduction
    if not _is_between_slices(other) or within is None:
        return False
    return between == within or not says_reduction(other.transfer.op)


def _gathers_back(first: Move, between: Sequence[Move], after: Sequence[Move]) -> bool:
    """Whether the last half gathers what the first one scattered, from the devices that it was scattered to."""
    groups = set(first.transfer.groups or ())
    operands = sum(len(move.transfer.operands) for move in after)
    whole = first.collective.payload_bytes
    shards = [move.collective.payload_bytes for move in between]
    return (
        whole is not None
        and None not in shards
        and operands == len(between)
        and all(set(move.transfer.groups or ()) == groups and _along_one_dimension(first, move) for move in after)
        and len({len(group) for group in groups}) == 1
        and sum(shard or 0 for shard in shards) * len(next(iter(groups))) == whole
        and sum(move.collective.payload_bytes or 0 for move in after) == whole
    )


def _keeps_all(first: Move, between: Sequence[Move]) -> bool:
    """Whether an all-reduce within slices hands its whole result on to one between them."""
    shards = [move.collective.payload_bytes for move in between]
    is_whole = first.transfer.kind is Kind.ALL_REDUCE and None not in shards
    return is_whole and sum(shard or 0 for shard in shards) == first.collective.payload_bytes


def _along_one_dimension(first: Move, last: Move) -> bool:
    """Whether a gather joins the dimension that was scattered; a fusion that scatters does not name it."""
    scattered, gathered = first.transfer.op, last.transfer.op
    if scattered.dimensions is None:
        return True
    return scattered.dimensions == gathered.dimensions and len(first.transfer.operands[0].dimensions) == len(
        last.transfer.results[0].dimensions
    )


def _joined(recorder: Recorder, parts: Sequence[Move]) -> Move | None:
    """The one record of several parts; None when their groups do not fit together."""
    first = parts[0]
    groups = _groups_of_all(recorder, parts)
    if groups is None:
        return None
    records = [part.collective for part in parts]
    own = tuple(instruction for part in parts for instruction in part.own)
    told = _best_told(parts)
    own_op_name = next((part.provenance.own_op_name for part in parts if part.provenance.own_op_name), None)
    collective = replace(
        first.collective,
        kind=Kind.ALL_REDUCE,
        axes=recorder.axes_of(groups),
        groups=groups,
        group_size=len(groups[0]),
        link=Link.BOTH,
        result_shapes=first.collective.operand_shapes,
        bytes_bound=reduce(lambda bound, record: bound + record.bytes_bound, records, Bound.EXACT),
        wire_bytes=_sum(record.wire_bytes for record in records),
        wire_bytes_at_least=_sum(record.wire_bytes_at_least for record in records),
        result_slices=(),
        parts=tuple(_part(record) for record in records),
        origin=origin_of(Kind.ALL_REDUCE, first.transfer.op, own, own_op_name, None),
        asynchronous=any(record.asynchronous for record in records),
        op_name=told.op_name,
        source=told.source,
        source_of=told.source_of,
    )
    return replace(first, collective=collective, own=own, reaches=tuple(part.reaches[0] for part in parts))


def _best_told(parts: Sequence[Move]) -> Collective:
    """The part that says best where it was written: itself, else by its neighbours."""
    records = [part.collective for part in parts]
    own = (record for record in records if record.source and record.source_of is None)
    return next(own, next((record for record in records if record.source), records[0]))


def _sum(counts: Iterable[int | None]) -> int | None:
    counts = tuple(counts)
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _part(record: Collective) -> CollectivePart:
    return CollectivePart(
        kind=record.kind,
        name=record.name,
        line=record.line,
        axes=record.axes,
        groups=record.groups,
        group_size=record.group_size,
        link=record.link,
        payload_bytes=record.payload_bytes,
        wire_bytes=record.wire_bytes,
        executions=record.executions,
        asynchronous=record.asynchronous,
    )


def _groups_of_all(recorder: Recorder, parts: Sequence[Move]) -> Groups | None:
    """The devices that all parts together join: each group of a slice with those that it is joined to in others."""
    between = [part.transfer for part in parts if _is_between_slices(part)]
    across = {transfer.groups for transfer in between}
    within = parts[0].transfer.groups
    if len(across) != 1 or within is None or any(transfer.device_ids for transfer in between):
        return None
    [lines] = across
    everywhere = _in_all_slices(recorder, within, lines or ())
    if everywhere is None or not lines:
        return None
    group_of = {device: number for number, group in enumerate(everywhere) for device in group}
    if not all(device in group_of for line in lines for device in line):
        return None
    joined = Counter(frozenset(group_of[device] for device in line) for line in lines)
    groups = tuple(tuple(sorted(device for number in numbers for device in everywhere[number])) for numbers in joined)
    complete = all(len(group) == count * len(lines[0]) for group, count in zip(groups, joined.values(), strict=True))
    is_even = len({len(group) for group in groups}) == 1
    is_disjoint = len({device for group in groups for device in group}) == sum(map(len, groups))
    return groups if complete and is_even and is_disjoint else None


def _in_all_slices(recorder: Recorder, groups: Groups, across: Groups) -> Groups | None:
    """Groups within a slice, repeated for every slice; slices are taken in partition order when nothing tells."""
    layout = recorder.layout
    if layout.placement is not None:
        return layout.everywhere(groups)
    partitions = recorder.graph.module.num_partitions
    devices = max((device for group in across for device in group), default=-1) + 1
    if devices > MAX_DEVICES:
        return None
    return Placement.in_blocks(-(-devices // partitions) * partitions, partitions).over_all_slices(groups)
