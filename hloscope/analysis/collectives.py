"""One record per collective, whatever its spelling, including one that consists of several transfers across slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

from hloscope.analysis.executions import count_executions
from hloscope.analysis.groups import Groups
from hloscope.analysis.model import Collective, CollectivePart, Mesh, Unmodelled
from hloscope.analysis.opcodes import make_unmodelled
from hloscope.analysis.placement import Numbering, Placement
from hloscope.analysis.provenance import find_origin
from hloscope.analysis.records import CollectiveRecorder, TransferRecord, names_reduction
from hloscope.analysis.spellings import is_worth_reading, may_transfer, read_transfer, starts_chain
from hloscope.analysis.totals import collate
from hloscope.analysis.transfers import TransferSite
from hloscope.analysis.uses import LoopEdge, cross_loop_edge, find_only_reading, find_own_slice
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.documents import make_document
from hloscope.hlo import HloInstruction, HloModule, Shape
from hloscope.hlo.call_graph import HloGraph, Value
from hloscope.hlo.replica_groups import MAX_DEVICES
from hloscope.units import sum_known

_CHAIN_MARK = "async_collective_fusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCollectives:
    """The collectives of a module.

    Attributes:
        moves: The collectives, in text order of their computations, callers first.
        unmodelled: The parts of the text that were not understood.
        hidden: Whether those parts may hide further transfers.
    """

    moves: tuple[TransferRecord, ...]
    unmodelled: tuple[Unmodelled, ...]
    hidden: bool


def find_collectives(
    graph: HloGraph, mesh: Mesh | None, layout: Numbering, *, follows: bool = True
) -> FoundCollectives:
    """Finds every place that starts a transfer, starting from ENTRY.

    `channel_id` and `op_name` identify nothing: a collective printed twice runs twice. The one exception is the chain
    of an asynchronous collective fusion, whose later links repeat the collective that its first link starts.

    Args:
        graph: The module.
        mesh: The user's mesh, to name axes.
        layout: The meaning of device ids in the text if the program spans several slices.
        follows: Whether to count moved values, trace them to their producers and users, and read trip counts.
    """
    candidates = _find_candidates(graph.module)
    continued = _find_continuations(graph.module, candidates)
    executions = count_executions(graph, candidates.keys() - continued, reads_trips=follows)
    recorder = CollectiveRecorder(
        graph=graph,
        mesh=mesh,
        layout=layout,
        chain_ends=_find_chain_ends(graph, candidates, continued),
        holders=candidates.keys(),
        follows=follows,
    )
    places = [
        TransferSite(op=op, context=context, siblings=candidates[name], graph=graph, mesh=mesh, layout=layout)
        for name in (computation.name for computation in graph.reachable)
        if name in candidates and name not in continued
        for context in executions.contexts.get(name, ())
        for op in candidates[name]
    ]
    moves = [recorder.record(place, found) for place in places if (found := read_transfer(place)) is not None]
    unread = [move.transfer.unmodelled for move in moves if move.transfer.unmodelled is not None]
    lost = [*_report_unreached(graph, candidates), *_report_unstarted(candidates, continued)]
    return FoundCollectives(
        moves=tuple(_join_across_slices(recorder, moves)),
        unmodelled=(*executions.unmodelled, *unread, *lost),
        hidden=bool(lost),
    )


def _find_candidates(module: HloModule) -> dict[str, tuple[HloInstruction, ...]]:
    """The instructions that may start a transfer, by their computation."""
    found = filter(may_transfer, module.with_opcodes(list(filter(is_worth_reading, module.opcodes))))
    by_name = collate(lambda instruction: instruction.computation.name, found)
    return {name: tuple(instructions) for name, instructions in by_name.items()}


def _find_continuations(module: HloModule, candidates: Iterable[str]) -> set[str]:
    """The computations that continue a collective started in another one."""
    ends = {
        instruction.computation.name
        for instruction in module.with_opcodes(["custom-call"])
        if instruction.custom_call_target == "AsyncCollectiveDone"
    }
    return {name for name in candidates if name in ends or name.startswith(_CHAIN_MARK)}


def _report_unreached(graph: HloGraph, candidates: dict[str, tuple[HloInstruction, ...]]) -> Iterator[Unmodelled]:
    reached = {computation.name for computation in graph.reachable}
    for name, ops in candidates.items():
        if name not in reached:
            yield make_unmodelled(
                ops[0],
                f"computation %{name} contains %{ops[0].name}, but is not reachable from ENTRY",
                "its transfers are not counted, so totals are a lower bound",
            )


def _find_chain_ends(
    graph: HloGraph, candidates: dict[str, tuple[HloInstruction, ...]], continued: set[str]
) -> dict[str, HloInstruction]:
    """The fusion that ends each asynchronous collective fusion, by `chain_id`."""
    ends: dict[str, HloInstruction] = {}
    for name in continued:
        caller = graph.only_caller(name)
        if caller is not None and not name.startswith(_CHAIN_MARK):
            chains = (op.frontend_attributes.get("chain_id") for op in candidates[name])
            ends.update({chain: caller for chain in chains if chain is not None})
    return ends


def _report_unstarted(candidates: dict[str, tuple[HloInstruction, ...]], continued: set[str]) -> Iterator[Unmodelled]:
    """Continuations of an asynchronous collective fusion whose start is missing from the text."""
    started = {
        op.frontend_attributes.get("chain_id")
        for name in (candidates.keys() - continued if continued else ())
        for op in candidates[name]
        if starts_chain(op)
    }
    for name, ops in candidates.items():
        for op in ops if name in continued else ():
            chain = op.frontend_attributes.get("chain_id")
            if chain not in started:
                yield make_unmodelled(
                    op,
                    f"%{op.name} continues an asynchronous collective (chain_id {chain}) that was never started",
                    "it is not counted, so totals are a lower bound",
                )


_FIRST_HALVES = frozenset({Kind.REDUCE_SCATTER, Kind.ALL_REDUCE})


@dataclass(frozen=True, slots=True)
class _Chain:
    """The parts of one all-reduce in execution order, and the loop edges between them."""

    parts: tuple[TransferRecord, ...]
    edges: frozenset[LoopEdge]


def _join_across_slices(recorder: CollectiveRecorder, moves: Sequence[TransferRecord]) -> Iterator[TransferRecord]:
    """Joins the parts of all-reduces across slices; other transfers are returned unchanged.

    TPUs spell one as a reduce-scatter within each slice, an all-reduce of the shard between slices, and an all-gather
    within each slice; small ones as two all-reduces. The first half may also be an all-reduce of which each device
    keeps its shard. Parts are joined where their results feed each other and nothing else, and the shapes and groups
    fit together.

    In loops the shard of one iteration travels during the next: its first half also runs before the loop, and its
    second half after it. The parts in the loop are one all-reduce of every iteration, those around it one more.
    """
    chains: list[_Chain] = []
    for neighbors in collate(_make_surroundings_key, moves).values():
        if any(_is_between_slices(move) for move in neighbors):
            search = _ChainSearch(recorder, neighbors)
            chains.extend(chain for first in neighbors if (chain := search.chain(first)) is not None)
    joined = {id(chain.parts[0]): _join_parts(recorder, chain.parts) for chain in _keep_complete_chains(chains)}
    whole = {first: move for first, move in joined.items() if move is not None}
    taken = {id(part) for chain in chains if id(chain.parts[0]) in whole for part in chain.parts}
    for move in moves:
        if id(move) in whole:
            yield whole[id(move)]
        elif id(move) not in taken:
            yield move


def _keep_complete_chains(chains: Sequence[_Chain]) -> list[_Chain]:
    """The chains, without those that a loop continues but whose counterpart on the loop's other side is missing."""
    across: dict[LoopEdge, set[object]] = {}
    for chain in chains:
        for edge in chain.edges:
            across.setdefault(edge, set()).add(_chain_key(chain))
    return [
        chain for chain in chains if all(across.get(edge.mirrored()) == {_chain_key(chain)} for edge in chain.edges)
    ]


def _chain_key(chain: _Chain) -> object:
    return tuple((part.transfer.kind, part.transfer.groups, part.collective.payload_bytes) for part in chain.parts)


def _make_surroundings_key(move: TransferRecord) -> Hashable:
    """A key shared by moves that run together; a fusion or call around only one of them does not matter."""
    context, start = move.place.context, move.transfer.start
    return start.computation.name, context.loops, context.wrappers if start == move.place.op else ()


def _is_between_slices(move: TransferRecord) -> bool:
    return move.transfer.kind is Kind.ALL_REDUCE and move.transfer.received is not None


class _ChainSearch:
    """The transfers of one computation in one context, by start instruction."""

    def __init__(self, recorder: CollectiveRecorder, moves: Iterable[TransferRecord]) -> None:
        self._graph = recorder.graph
        self._by_start: dict[HloInstruction, TransferRecord] = {move.transfer.start: move for move in moves}

    def chain(self, first: TransferRecord) -> _Chain | None:
        """The transfers that form one all-reduce starting with `first`; None if there are none."""
        if first.transfer.kind not in _FIRST_HALVES or first.collective.link is not Link.ICI:
            return None
        edges: set[LoopEdge] = set()
        sends = [self._fed_by(value, edges, through_slices=True) for value in first.results]
        between = [move for move in sends if move is not None and _is_continued_by(first, move)]
        if not between or len({id(move) for move in between}) < len(first.results):
            return None
        if _keeps_all(first, between):
            return _Chain((first, *between), frozenset(edges))
        gathers = [self._fed_by(value, edges) for move in between for value in move.results]
        after = [move for move in gathers if move is not None and move.transfer.kind is Kind.ALL_GATHER]
        gathering = list({id(move): move for move in after}.values())
        if len(after) < len(between) or not _gathers_back(first, between, gathering):
            return None
        return _Chain((first, *between, *gathering), frozenset(edges))

    def _fed_by(self, value: Value, edges: set[LoopEdge], *, through_slices: bool = False) -> TransferRecord | None:
        """The only transfer that reads a value, perhaps in the next loop iteration, which is then added to `edges`."""
        reading = find_only_reading(self._graph, value)
        if through_slices and reading is not None and find_own_slice(self._graph, reading) is not None:
            reading = find_only_reading(self._graph, Value(reading.reader), reading.frames)
        crossing = cross_loop_edge(self._graph, reading)
        if crossing is not None:
            edge, value = crossing
            edges.add(edge)
            reading = find_only_reading(self._graph, value)
        if reading is None:
            return None
        starts = (_find_start(reader) for reader in (reading.outermost, reading.reader))
        return next((self._by_start[start] for start in starts if start in self._by_start), None)


def _find_start(reader: HloInstruction) -> HloInstruction:
    """The start instruction that a reader belongs to: late operands are printed on the `-update`."""
    start = reader.operand(0) if reader.opcode.endswith("-update") else None
    return reader if start is None else start


def _is_continued_by(first: TransferRecord, other: TransferRecord) -> bool:
    """Returns whether a transfer between slices reduces like the one within them: a sum of maxima is neither."""
    within, between = first.collective.reduction, other.collective.reduction
    if not _is_between_slices(other) or within is None:
        return False
    return between == within or not names_reduction(other.transfer.op)


def _gathers_back(first: TransferRecord, between: Sequence[TransferRecord], after: Sequence[TransferRecord]) -> bool:
    """Returns whether the last half gathers what the first one scattered, from the devices that it was scattered to."""
    groups = set(first.transfer.groups or ())
    operands = sum(len(move.transfer.operands) for move in after)
    whole = first.collective.payload_bytes
    shard = sum_known(move.collective.payload_bytes for move in between)
    return (
        whole is not None
        and shard is not None
        and operands == len(between)
        and all(set(move.transfer.groups or ()) == groups and _is_along_one_dimension(first, move) for move in after)
        and len({len(group) for group in groups}) == 1
        and shard * len(next(iter(groups))) == whole
        and sum(move.collective.payload_bytes or 0 for move in after) == whole
    )


def _keeps_all(first: TransferRecord, between: Sequence[TransferRecord]) -> bool:
    """Returns whether an all-reduce within slices passes its whole result to one between them."""
    shard = sum_known(move.collective.payload_bytes for move in between)
    return first.transfer.kind is Kind.ALL_REDUCE and shard is not None and shard == first.collective.payload_bytes


def _is_along_one_dimension(first: TransferRecord, last: TransferRecord) -> bool:
    """Returns whether a gather joins the dimension that was cut; a fusion that scatters names none."""
    scattered, gathered = first.transfer.op, last.transfer.op
    if scattered.dimensions is None:
        return True
    cut = {_count_elements_around(shape, scattered.dimensions) for shape in first.transfer.operands}
    joined = {_count_elements_around(shape, gathered.dimensions or ()) for shape in last.transfer.results}
    return None not in joined and joined <= cut


def _count_elements_around(shape: Shape, dimensions: Sequence[int]) -> tuple[int, int] | None:
    """Number of elements before and after a dimension, which dimensions of size 1 do not change."""
    if len(dimensions) != 1 or dimensions[0] >= len(shape.dimensions):
        return None
    return prod(shape.dimensions[: dimensions[0]]), prod(shape.dimensions[dimensions[0] :])


def _join_parts(recorder: CollectiveRecorder, parts: Sequence[TransferRecord]) -> TransferRecord | None:
    """One record for several parts; None if their groups do not fit together."""
    first = parts[0]
    groups = _join_groups_of_parts(recorder, parts)
    if groups is None:
        return None
    records = [part.collective for part in parts]
    own = tuple(instruction for part in parts for instruction in part.own)
    best = _choose_best_placed(parts)
    own_op_name = next((part.provenance.own_op_name for part in parts if part.provenance.own_op_name), None)
    collective = replace(
        first.collective,
        kind=Kind.ALL_REDUCE,
        axes=(axes := recorder.axes_of(groups)),
        axes_guessed=bool(axes) and recorder.layout.guessed,
        groups=groups,
        group_size=len(groups[0]),
        link=Link.BOTH,
        result_shapes=first.collective.operand_shapes,
        bytes_bound=reduce(lambda bound, record: bound + record.bytes_bound, records, Bound.EXACT),
        wire_bytes=sum_known(record.wire_bytes for record in records),
        wire_bytes_at_least=sum_known(record.wire_bytes_at_least for record in records),
        result_slices=(),
        parts=tuple(make_document(CollectivePart, record) for record in records),
        origin=find_origin(Kind.ALL_REDUCE, first.transfer.op, own, own_op_name, None),
        asynchronous=any(record.asynchronous for record in records),
        op_name=best.op_name,
        source=best.source,
        source_of=best.source_of,
    )
    return first._replace(collective=collective, own=own, reaches=tuple(part.reaches[0] for part in parts))


def _choose_best_placed(parts: Sequence[TransferRecord]) -> Collective:
    """The part with the best source location: its own, otherwise that of its neighbors."""
    records = [part.collective for part in parts]
    own = (record for record in records if record.source and record.source_of is None)
    return next(own, next((record for record in records if record.source), records[0]))


def _join_groups_of_parts(recorder: CollectiveRecorder, parts: Sequence[TransferRecord]) -> Groups | None:
    """The devices that all parts connect: each group of a slice with the groups it is joined to in other slices."""
    between = [part.transfer for part in parts if _is_between_slices(part)]
    across = {transfer.groups for transfer in between}
    within = parts[0].transfer.groups
    if len(across) != 1 or within is None or any(transfer.device_ids for transfer in between):
        return None
    [lines] = across
    everywhere = _repeat_in_all_slices(recorder, within, lines or ())
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


def _repeat_in_all_slices(recorder: CollectiveRecorder, groups: Groups, across: Groups) -> Groups | None:
    """Groups within a slice, repeated for every slice; slices are in partition order unless the text says otherwise."""
    layout = recorder.layout
    if layout.placement is not None:
        return layout.everywhere(groups)
    partitions = recorder.graph.module.num_partitions
    devices = max((device for group in across for device in group), default=-1) + 1
    if devices > MAX_DEVICES:
        return None
    return Placement.in_blocks(-(-devices // partitions) * partitions, partitions).over_all_slices(groups)
