"""One record per collective, whatever its spelling, also where several transfers across slices make up one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

from hloscope.analysis.executions import count_executions
from hloscope.analysis.groups import Groups
from hloscope.analysis.model import Collective, CollectivePart, Mesh, Unmodelled
from hloscope.analysis.opcodes import unsupported
from hloscope.analysis.placement import Layout, Placement
from hloscope.analysis.provenance import origin_of
from hloscope.analysis.records import Move, Recorder, says_reduction
from hloscope.analysis.spellings import is_worth_reading, may_transfer, read_transfer, starts_chain
from hloscope.analysis.totals import grouped
from hloscope.analysis.transfers import Place
from hloscope.analysis.uses import LoopEdge, across_loop_edge, only_reading_of, own_slice
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.documents import document
from hloscope.hlo import HloInstruction, HloModule, Shape
from hloscope.hlo.call_graph import HloGraph, Value
from hloscope.hlo.replica_groups import MAX_DEVICES
from hloscope.units import known_sum

_CHAIN = "async_collective_fusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The collectives of a module.

    Attributes:
        moves: In text order of the computations that hold them, callers first.
        unmodelled: What was not understood.
        hidden: Whether some of that may hide transfers that are not among them.
    """

    moves: tuple[Move, ...]
    unmodelled: tuple[Unmodelled, ...]
    hidden: bool


def find_collectives(graph: HloGraph, mesh: Mesh | None, layout: Layout, *, follows: bool = True) -> Found:
    """Finds every place that starts a transfer, walking from ENTRY.

    `channel_id` and `op_name` are no identities: what appears twice runs twice. The one exception is the chain of an
    asynchronous collective fusion, whose later links repeat the collective that its first link starts.

    Args:
        graph: The module.
        mesh: The user's mesh, to name axes.
        layout: How ids in the text are to be read, when the program spans several slices.
        follows: Whether the values that they move are counted, and followed to where they are made and used, and trips
            read.
    """
    candidates = _candidates(graph.module)
    continued = _continued(graph.module, candidates)
    executions = count_executions(graph, candidates.keys() - continued, reads_trips=follows)
    recorder = Recorder(
        graph=graph,
        mesh=mesh,
        layout=layout,
        chain_ends=_chain_ends(graph, candidates, continued),
        holders=candidates.keys(),
        follows=follows,
    )
    places = [
        Place(op=op, context=context, siblings=candidates[name], graph=graph, mesh=mesh, layout=layout)
        for name in (computation.name for computation in graph.reachable)
        if name in candidates and name not in continued
        for context in executions.contexts.get(name, ())
        for op in candidates[name]
    ]
    moves = [recorder.record(place, found) for place in places if (found := read_transfer(place)) is not None]
    unread = [move.transfer.unmodelled for move in moves if move.transfer.unmodelled is not None]
    lost = [*_unreached(graph, candidates), *_unstarted_chains(candidates, continued)]
    return Found(
        moves=tuple(_join_across_slices(recorder, moves)),
        unmodelled=(*executions.unmodelled, *unread, *lost),
        hidden=bool(lost),
    )


def _candidates(module: HloModule) -> dict[str, tuple[HloInstruction, ...]]:
    """The instructions that may start a transfer, by the computation that holds them."""
    found = filter(may_transfer, module.with_opcodes(list(filter(is_worth_reading, module.opcodes))))
    by_name = grouped(lambda instruction: instruction.computation.name, found)
    return {name: tuple(instructions) for name, instructions in by_name.items()}


def _continued(module: HloModule, candidates: Iterable[str]) -> set[str]:
    """The computations that carry on a collective that another one starts."""
    ends = {
        instruction.computation.name
        for instruction in module.with_opcodes(["custom-call"])
        if instruction.custom_call_target == "AsyncCollectiveDone"
    }
    return {name for name in candidates if name in ends or name.startswith(_CHAIN)}


def _unreached(graph: HloGraph, candidates: dict[str, tuple[HloInstruction, ...]]) -> Iterator[Unmodelled]:
    reached = {computation.name for computation in graph.reachable}
    for name, ops in candidates.items():
        if name not in reached:
            yield unsupported(
                ops[0],
                f"computation %{name} contains %{ops[0].name}, but is not reachable from ENTRY",
                "its transfers are not counted, so totals are a lower bound",
            )


def _chain_ends(
    graph: HloGraph, candidates: dict[str, tuple[HloInstruction, ...]], continued: set[str]
) -> dict[str, HloInstruction]:
    """The fusion that ends each asynchronous collective fusion, by `chain_id`."""
    ends: dict[str, HloInstruction] = {}
    for name in continued:
        caller = graph.only_caller(name)
        if caller is not None and not name.startswith(_CHAIN):
            chains = (op.frontend_attributes.get("chain_id") for op in candidates[name])
            ends.update({chain: caller for chain in chains if chain is not None})
    return ends


def _unstarted_chains(candidates: dict[str, tuple[HloInstruction, ...]], continued: set[str]) -> Iterator[Unmodelled]:
    """Continuations of an asynchronous collective fusion whose start is nowhere in the text."""
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
                yield unsupported(
                    op,
                    f"%{op.name} continues an asynchronous collective (chain_id {chain}) that was never started",
                    "it is not counted, so totals are a lower bound",
                )


_FIRST_HALVES = frozenset({Kind.REDUCE_SCATTER, Kind.ALL_REDUCE})


@dataclass(frozen=True, slots=True)
class _Chain:
    """The parts of one all-reduce, in the order in which they run, and the edges of loops between them."""

    parts: tuple[Move, ...]
    edges: frozenset[LoopEdge]


def _join_across_slices(recorder: Recorder, moves: Sequence[Move]) -> Iterator[Move]:
    """Joins the parts of all-reduces across slices; all other transfers stay as they are.

    TPUs spell one as a reduce-scatter within each slice, an all-reduce of the shard between slices, and an all-gather
    within each slice; small ones as two all-reduces. The first half may also be an all-reduce of which each device
    keeps its shard. Parts are joined where their results feed each other and nothing else, and the shapes and groups
    fit together.

    In loops the shard of one iteration travels during the next: its first half also runs in front of the loop, and its
    second half behind it. Those in the loop are one all-reduce of every iteration, those around it one more.
    """
    chains: list[_Chain] = []
    for neighbors in grouped(_surroundings, moves).values():
        if any(_is_between_slices(move) for move in neighbors):
            search = _Search(recorder, neighbors)
            chains.extend(chain for first in neighbors if (chain := search.chain(first)) is not None)
    joined = {id(chain.parts[0]): _joined(recorder, chain.parts) for chain in _complete(chains)}
    whole = {first: move for first, move in joined.items() if move is not None}
    taken = {id(part) for chain in chains if id(chain.parts[0]) in whole for part in chain.parts}
    for move in moves:
        if id(move) in whole:
            yield whole[id(move)]
        elif id(move) not in taken:
            yield move


def _complete(chains: Sequence[_Chain]) -> list[_Chain]:
    """The chains without those that a loop continues, but not by a chain of the same transfers on its other side."""
    across: dict[LoopEdge, set[object]] = {}
    for chain in chains:
        for edge in chain.edges:
            across.setdefault(edge, set()).add(_signature(chain))
    return [
        chain for chain in chains if all(across.get(edge.mirrored()) == {_signature(chain)} for edge in chain.edges)
    ]


def _signature(chain: _Chain) -> object:
    return tuple((part.transfer.kind, part.transfer.groups, part.collective.payload_bytes) for part in chain.parts)


def _surroundings(move: Move) -> Hashable:
    """What two moves have in common that run together; a fusion or call around one of them alone does not matter."""
    context, start = move.place.context, move.transfer.start
    return start.computation.name, context.loops, context.wrappers if start == move.place.op else ()


def _is_between_slices(move: Move) -> bool:
    return move.transfer.kind is Kind.ALL_REDUCE and move.transfer.received is not None


class _Search:
    """The transfers of one computation in one context, by the instructions that start them."""

    def __init__(self, recorder: Recorder, moves: Iterable[Move]) -> None:
        self._graph = recorder.graph
        self._by_start: dict[HloInstruction, Move] = {move.transfer.start: move for move in moves}

    def chain(self, first: Move) -> _Chain | None:
        """The transfers that make one all-reduce of `first`; None if nothing does."""
        if first.transfer.kind not in _FIRST_HALVES or first.collective.link is not Link.ICI:
            return None
        edges: set[LoopEdge] = set()
        sends = [self._fed_by(value, edges, through_slices=True) for value in first.results]
        between = [move for move in sends if move is not None and _continues(first, move)]
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

    def _fed_by(self, value: Value, edges: set[LoopEdge], *, through_slices: bool = False) -> Move | None:
        """The one transfer that alone reads a value, perhaps in the next iteration of a loop; adds that to `edges`."""
        reading = only_reading_of(self._graph, value)
        if through_slices and reading is not None and own_slice(self._graph, reading) is not None:
            reading = only_reading_of(self._graph, Value(reading.reader), reading.frames)
        crossing = across_loop_edge(self._graph, reading)
        if crossing is not None:
            edge, value = crossing
            edges.add(edge)
            reading = only_reading_of(self._graph, value)
        if reading is None:
            return None
        starts = (_start_of(reader) for reader in (reading.outermost, reading.reader))
        return next((self._by_start[start] for start in starts if start in self._by_start), None)


def _start_of(reader: HloInstruction) -> HloInstruction:
    """The instruction that starts what a reader belongs to: late operands stand on the `-update`."""
    start = reader.operand(0) if reader.opcode.endswith("-update") else None
    return reader if start is None else start


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
    shard = known_sum(move.collective.payload_bytes for move in between)
    return (
        whole is not None
        and shard is not None
        and operands == len(between)
        and all(set(move.transfer.groups or ()) == groups and _along_one_dimension(first, move) for move in after)
        and len({len(group) for group in groups}) == 1
        and shard * len(next(iter(groups))) == whole
        and sum(move.collective.payload_bytes or 0 for move in after) == whole
    )


def _keeps_all(first: Move, between: Sequence[Move]) -> bool:
    """Whether an all-reduce within slices hands its whole result on to one between them."""
    shard = known_sum(move.collective.payload_bytes for move in between)
    return first.transfer.kind is Kind.ALL_REDUCE and shard is not None and shard == first.collective.payload_bytes


def _along_one_dimension(first: Move, last: Move) -> bool:
    """Whether a gather joins what was cut; a fusion that scatters names no dimension."""
    scattered, gathered = first.transfer.op, last.transfer.op
    if scattered.dimensions is None:
        return True
    cut = {_around(shape, scattered.dimensions) for shape in first.transfer.operands}
    joined = {_around(shape, gathered.dimensions or ()) for shape in last.transfer.results}
    return None not in joined and joined <= cut


def _around(shape: Shape, dimensions: Sequence[int]) -> tuple[int, int] | None:
    """Elements before and after a dimension, which a change of rank by dimensions of 1 leaves alone."""
    if len(dimensions) != 1 or dimensions[0] >= len(shape.dimensions):
        return None
    return prod(shape.dimensions[: dimensions[0]]), prod(shape.dimensions[dimensions[0] :])


def _joined(recorder: Recorder, parts: Sequence[Move]) -> Move | None:
    """The one record of several parts; None when their groups do not fit together."""
    first = parts[0]
    groups = _groups_of_all(recorder, parts)
    if groups is None:
        return None
    records = [part.collective for part in parts]
    own = tuple(instruction for part in parts for instruction in part.own)
    best = _best_placed(parts)
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
        wire_bytes=known_sum(record.wire_bytes for record in records),
        wire_bytes_at_least=known_sum(record.wire_bytes_at_least for record in records),
        result_slices=(),
        parts=tuple(document(CollectivePart, record) for record in records),
        origin=origin_of(Kind.ALL_REDUCE, first.transfer.op, own, own_op_name, None),
        asynchronous=any(record.asynchronous for record in records),
        op_name=best.op_name,
        source=best.source,
        source_of=best.source_of,
    )
    return first._replace(collective=collective, own=own, reaches=tuple(part.reaches[0] for part in parts))


def _best_placed(parts: Sequence[Move]) -> Collective:
    """The part that says best where it was written: itself, else by its neighbors."""
    records = [part.collective for part in parts]
    own = (record for record in records if record.source and record.source_of is None)
    return next(own, next((record for record in records if record.source), records[0]))


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
    """Groups within a slice, repeated for every slice; slices are taken in partition order when nothing says."""
    layout = recorder.layout
    if layout.placement is not None:
        return layout.everywhere(groups)
    partitions = recorder.graph.module.num_partitions
    devices = max((device for group in across for device in group), default=-1) + 1
    if devices > MAX_DEVICES:
        return None
    return Placement.in_blocks(-(-devices // partitions) * partitions, partitions).over_all_slices(groups)
