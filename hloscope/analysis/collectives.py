"""One record per collective, whatever its spelling, including one that consists of several transfers across slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import Any, NamedTuple

from hloscope.analysis.dataflow import (
    RESHAPES,
    LoopEdge,
    Maker,
    cross_loop_edge,
    find_maker,
    find_only_reading,
    find_own_slice,
    is_fixed_in,
    step_outside,
)
from hloscope.analysis.executions import Context, count_executions, make_unmodelled
from hloscope.analysis.groups import (
    Groups,
    Numbering,
    Placement,
    find_axes_of_groups,
    find_axes_of_pairs,
    find_permute_pattern,
)
from hloscope.analysis.provenance import (
    Provenance,
    find_authored_kind,
    find_origin,
    find_own_instructions,
    find_provenance,
)
from hloscope.analysis.spellings import is_worth_reading, may_transfer, read_transfer, starts_chain
from hloscope.analysis.totals import Reach, find_reach
from hloscope.analysis.transfers import (
    ZEROS,
    Transfer,
    TransferSite,
    count_wire_bytes,
    find_common_narrower,
    find_narrower_use,
    find_payload,
    find_result_slices,
    find_undoing_slice,
    narrower,
)
from hloscope.base.documents import make_document
from hloscope.base.results import group_by
from hloscope.base.units import sum_known
from hloscope.hlo import HloComputation, HloInstruction, HloModule, Shape
from hloscope.hlo.call_graph import HloGraph, Value
from hloscope.hlo.records import MAX_DEVICES
from hloscope.model import Collective, CollectivePart, Mesh, MovedValue, Unmodelled, make_shapes
from hloscope.model.vocabulary import REDUCING, REDUCTION_OPCODES, Bound, Kind, Link, Origin

# ---- records of transfers as users see them: the moved values, the reduction, and values that stay the same


class TransferRecord(NamedTuple):
    """One transfer with its record.

    Attributes:
        place: The place of the transfer.
        transfer: The transfer that was read there.
        own: The instructions that print it.
        provenance: Its source.
        collective: The record.
        reaches: The sending devices; for a transfer of several parts, those of each part.
        results: Its results in the computation that starts it, array by array.
    """

    place: TransferSite
    transfer: Transfer
    own: tuple[HloInstruction, ...]
    provenance: Provenance
    collective: Collective
    reaches: tuple[Reach, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecorder:
    """Turns transfers into records.

    Attributes:
        graph: The module.
        mesh: The user's mesh.
        layout: The meaning of device ids in the text.
        chain_ends: The last fusion of each asynchronous collective fusion, by `chain_id`.
        holders: Names of the computations that hold a possible transfer.
    """

    graph: HloGraph
    mesh: Mesh | None
    layout: Numbering
    chain_ends: Mapping[str, HloInstruction]
    holders: Collection[str]
    _reaches: dict[object, Reach] = field(default_factory=dict)

    def record(self, place: TransferSite, transfer: Transfer) -> TransferRecord:
        """The record of one transfer."""
        own = find_own_instructions(place, transfer, self.chain_ends)
        results = _find_results(transfer, own)
        provenance = find_provenance(self.graph, own, transfer.start, transfer.received)
        link = self._link(transfer)
        return TransferRecord(
            place=place,
            transfer=transfer,
            own=own,
            provenance=provenance,
            collective=self._collective(place, transfer, own, results, provenance, link),
            reaches=(self._reach(transfer, link),),
            results=results,
        )

    def _collective(
        self,
        place: TransferSite,
        transfer: Transfer,
        own: tuple[HloInstruction, ...],
        results: tuple[Value, ...],
        provenance: Provenance,
        link: Link,
    ) -> Collective:
        """The record of a transfer, from its instructions, its results and its source."""
        kind, context = transfer.kind, place.context
        is_permute = kind is Kind.COLLECTIVE_PERMUTE
        everywhere = self._everywhere(transfer)
        return Collective(
            kind=kind,
            name=transfer.start.name,
            computation=transfer.start.computation.name,
            line=transfer.start.line,
            axes=(axes := self._axes(everywhere, kind, provenance)),
            axes_guessed=bool(axes) and self.layout.guessed,
            groups=transfer.groups or (),
            group_size=None if is_permute else max(map(len, transfer.groups or ()), default=None),
            link=link,
            operand_shapes=make_shapes(*transfer.operands),
            result_shapes=make_shapes(*transfer.results),
            executions=context.executions,
            executions_bound=context.bound,
            permute=find_permute_pattern(everywhere, self.mesh) if is_permute and everywhere and self.mesh else None,
            loops=context.loops,
            loop_trips=context.trips,
            origin=self._origin(transfer, own, provenance),
            asynchronous=transfer.asynchronous,
            op_name=provenance.op_name,
            source=provenance.source,
            source_of=provenance.source_of,
            **self._volume_and_dataflow(context, transfer, results),
        )

    def _volume_and_dataflow(self, context: Context, transfer: Transfer, results: tuple[Value, ...]) -> dict[str, Any]:
        """The fields of a record on volume and reduction, and those that the data flow determines."""
        kind, graph = transfer.kind, self.graph
        named = [name for attribute, name in transfer.op.called if attribute == "to_apply"]
        reducer = graph.module.computation(named[0]) if len(named) == 1 else None
        wide = _find_wire_type(transfer.op, reducer)
        sizes = find_payload(
            kind, _widen_shapes(transfer.operands, wide), _widen_shapes(transfer.results, wide), transfer.operand_bytes
        )
        makers = [find_maker(graph, Value(operand), context.wrappers) for operand in _find_counted_operands(transfer)]
        made = [_find_moved_value(graph, maker) for maker in makers]
        return {
            "payload_bytes": sizes.payload_bytes,
            "wire_bytes": count_wire_bytes(kind, sizes.payload_bytes, transfer.groups),
            "bytes_bound": sizes.bound,
            "payload_bytes_at_least": sizes.at_least,
            "wire_bytes_at_least": count_wire_bytes(kind, sizes.at_least, transfer.groups),
            "padded_bytes": sizes.padded,
            "reduction": _find_reduction(transfer.op, reducer) if kind in REDUCING else None,
            "result_slices": find_result_slices(graph, results) if kind is Kind.ALL_REDUCE else (),
            "undone_by": find_undoing_slice(graph, transfer, results) if kind is Kind.ALL_GATHER else None,
            "moved_values": tuple(value for value, _ in made),
            "moves_zeros": bool(made)
            and all(ZEROS.fullmatch(maker.value.instruction.literal or "") for _, maker in made),
            "loop_invariant": _is_loop_invariant(graph, context.loops, makers),
            "narrow_type": _find_narrow_type(graph, transfer, makers, results, wide),
        }

    def axes_of(self, groups: Groups) -> tuple[str, ...] | None:
        """The mesh axes of groups of partition ids of the whole program; None without a mesh."""
        return None if self.mesh is None else find_axes_of_groups(groups, self.mesh)

    def _axes(self, everywhere: Groups | None, kind: Kind, provenance: Provenance) -> tuple[str, ...] | None:
        if everywhere is None or self.mesh is None or kind is not Kind.COLLECTIVE_PERMUTE:
            return None if everywhere is None else self.axes_of(everywhere)
        whole_axes = find_authored_kind(provenance.own_op_name) is Kind.COLLECTIVE_PERMUTE
        return find_axes_of_pairs(everywhere, self.mesh, whole_axes=whole_axes)

    def _everywhere(self, transfer: Transfer) -> Groups | None:
        """A transfer's groups as partition ids of the whole program; None if unknown."""
        if transfer.groups is None or transfer.device_ids:
            return None
        return transfer.groups if transfer.global_ids else self.layout.everywhere(transfer.groups)

    def _reach(self, transfer: Transfer, link: Link) -> Reach:
        key = (transfer.groups, transfer.kind is Kind.COLLECTIVE_PERMUTE, transfer.global_ids, link)
        if key not in self._reaches:
            self._reaches[key] = find_reach(transfer, link, self.layout, self.graph.module.num_partitions)
        return self._reaches[key]

    def _link(self, transfer: Transfer) -> Link:
        """The network: known from the spelling, from the groups, or the only one there is."""
        if transfer.link is not None:
            return transfer.link
        placement = self.layout.placement
        if placement is None or self.layout.one_slice:
            return Link.ICI
        if transfer.groups is None:
            return Link.UNKNOWN
        spans = any(len({placement.slice_of(device) for device in group}) > 1 for group in transfer.groups)
        return Link.DCN if spans else Link.ICI

    def _origin(self, transfer: Transfer, own: tuple[HloInstruction, ...], provenance: Provenance) -> Origin:
        near, near_op_name = provenance.nearest, None
        if near is not None and not may_transfer(near) and not near.opcode.endswith("-done"):
            near_op_name = None if any(name in self.holders for _, name in near.called) else near.op_name
        return find_origin(transfer.kind, transfer.op, own, provenance.own_op_name, near_op_name)


def _find_results(transfer: Transfer, own: Sequence[HloInstruction]) -> tuple[Value, ...]:
    """The results of a transfer in the computation that starts it, array by array; empty if not understood."""
    start = transfer.start
    last = next((instruction for instruction in reversed(own) if instruction.computation is start.computation), start)
    if transfer.kind is Kind.OPAQUE:
        return ()
    if transfer.received is not None:
        done = (user for user in transfer.received.users if user.opcode == "recv-done")
        return (Value(next(done, last), (0,)),)
    shape = last.shape
    return tuple(Value(last, (index,)) for index in range(len(shape.elements))) if shape.is_tuple else (Value(last),)


_LOOP_LIMIT = 16
_SLICES = frozenset({"dynamic-slice", "slice"})
_CONVERTED_FORMS = RESHAPES | {"convert"}


def _find_counted_operands(transfer: Transfer) -> tuple[HloInstruction, ...]:
    """The operands that hold data: others name destinations and offsets, or are tokens."""
    if transfer.kind is Kind.OPAQUE:
        return ()
    operands = transfer.op.operands if transfer.op.opcode != "send" else transfer.op.operands[:1]
    return tuple(operand for operand in operands if operand.shape.element_type != "token")[: len(transfer.operands)]


def _find_moved_value(graph: HloGraph, maker: Maker) -> tuple[MovedValue, Maker]:
    """The producer of a moved value, traced through conversions, slices and loops."""
    slices: tuple[str | None, ...] = ()
    for _ in range(_LOOP_LIMIT):
        maker = find_maker(graph, *maker, through=_CONVERTED_FORMS)
        value, frames = maker
        if value.instruction.opcode in _SLICES and not value.path:
            slices = (value.instruction.attributes.get("slice"), *slices)
            maker = Maker(Value(value.instruction.operands[0]), frames)
            continue
        if value.instruction.opcode not in ("parameter", "while") or frames:
            break
        outer = step_outside(graph, value)
        if not isinstance(outer, Value):
            break
        maker = Maker(outer)
    where, element = maker.outermost, () if maker.frames else maker.value.path
    return MovedValue(computation=where.computation.name, instruction=where.name, element=element, slices=slices), maker


def _is_loop_invariant(graph: HloGraph, loops: Sequence[str], makers: Iterable[Maker]) -> bool | None:
    """Returns whether the moved value is the same in every iteration of the innermost loop; None without a loop.

    Also None if unknown: for values that are too far away, and those from custom calls or other loops.
    """
    found = [is_fixed_in(graph, loops[-1], *maker) for maker in makers] if loops else []
    if False in found:
        return False
    return True if found and None not in found else None


def _find_narrow_type(
    graph: HloGraph, transfer: Transfer, makers: Iterable[Maker], results: Sequence[Value], wide: str | None
) -> str | None:
    """The narrower type that everything is converted from or to, next to the collective or, on a TPU, as part of it."""
    makes = [maker.value.instruction for maker in makers]
    converted = [(made.operands[0].shape, made.shape) for made in makes if made.opcode == "convert" and made.operands]
    found = None
    if len(converted) == len(makes):
        found = find_common_narrower((before.element_type, after.element_type) for before, after in converted)
    found = found or find_narrower_use(graph, results)
    if wide is not None:
        for side in (transfer.operands, transfer.results):
            found = found or find_common_narrower((shape.element_type, wide) for shape in side)
    return found


_REDUCTION_ATTRIBUTE = "_xla_megascale_reduce_operation"
_OPCODE_OF_WORD = {"SUM": "add", "MAX": "maximum", "MIN": "minimum", "PROD": "multiply"}
"""The first words of reductions between slices, with the opcodes that reducers within a slice use for them."""
_ALL_REDUCES = frozenset({"all-reduce", "all-reduce-start"})
_CHANGES_NOTHING = frozenset({"parameter", "convert", "bitcast", "copy", "get-tuple-element", "tuple"})


def _find_reduction(op: HloInstruction, reducer: HloComputation | None) -> str | None:
    """The opcode with which an `all-reduce`, a `reduce-scatter` or a transfer between slices combines elements.

    Returns:
        `add`, `maximum`, …; None for a transfer that reduces nothing, and for a reducer with more than one operation.
    """
    said = op.frontend_attributes.get(_REDUCTION_ATTRIBUTE)
    if said is not None:
        return next((opcode for word, opcode in _OPCODE_OF_WORD.items() if said.startswith(word)), None)
    opcodes = frozenset() if reducer is None else reducer.opcodes - _CHANGES_NOTHING
    return next(iter(opcodes)) if len(opcodes) == 1 and opcodes <= {*REDUCTION_OPCODES} else None


def _find_wire_type(op: HloInstruction, reducer: HloComputation | None) -> str | None:
    """The wider element type that arrays are sent in; None if they are sent in their own.

    TPUs reduce and send in the type of the reducer, and convert on the way in and out: if it is wider than that of an
    operand or a result, the compiler has folded a conversion into the `all-reduce`. Other collectives, and those in
    text without the tiles of a TPU, send arrays unchanged.

    Source: the DMAs and buffers in the low-level code that libtpu 0.0.42.1 dumps for v4, v5e, v5p and v6e. All-reduces
        with a reducer of f32 send as much from f32 to bf16, from bf16 to f32 and from bf16 to bf16 as from f32 to f32,
        twice what they send with a reducer of bf16.
    """
    if reducer is None or op.opcode not in _ALL_REDUCES:
        return None
    tiled = all(leaf.layout is not None and leaf.layout.tiles for leaf in op.shape.leaves())
    return reducer.root.shape.element_type if tiled else None


def _widen_shapes(shapes: tuple[Shape, ...], wide: str | None) -> tuple[Shape, ...]:
    """The arrays in the element types that they have on the wire."""
    if wide is None:
        return shapes
    return tuple(
        shape if narrower(shape.element_type, wide) is None else replace(shape, element_type=wide) for shape in shapes
    )


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


def find_collectives(graph: HloGraph, mesh: Mesh | None, layout: Numbering) -> FoundCollectives:
    """Finds every place that starts a transfer, starting from ENTRY.

    `channel_id` and `op_name` identify nothing: a collective printed twice runs twice. The one exception is the chain
    of an asynchronous collective fusion, whose later links repeat the collective that its first link starts.

    Args:
        graph: The module.
        mesh: The user's mesh, to name axes.
        layout: The meaning of device ids in the text if the program spans several slices.
    """
    candidates = _find_candidates(graph.module)
    continued = _find_continuations(graph.module, candidates)
    executions = count_executions(graph, candidates.keys() - continued)
    recorder = CollectiveRecorder(
        graph=graph,
        mesh=mesh,
        layout=layout,
        chain_ends=_find_chain_ends(graph, candidates, continued),
        holders=candidates.keys(),
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
    by_name = group_by(found, lambda instruction: instruction.computation.name)
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
    for neighbors in group_by(moves, _make_surroundings_key).values():
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
    return between == within or _REDUCTION_ATTRIBUTE not in other.transfer.op.frontend_attributes


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
