"""From what was read at one place to the record that users see."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from hloscope.analysis.axes import axes_of_groups, axes_of_pairs
from hloscope.analysis.groups import Groups
from hloscope.analysis.model import Collective, Mesh, PermutePattern
from hloscope.analysis.moved import is_loop_invariant, moved_values, moves_zeros, narrower_operands
from hloscope.analysis.origin import authored_kind, origin_of
from hloscope.analysis.permutes import pattern_of_pairs
from hloscope.analysis.placement import Layout
from hloscope.analysis.provenance import Provenance, own_instructions, provenance_of
from hloscope.analysis.reach import Reach, reach_of
from hloscope.analysis.reductions import as_reduced, narrower_side, reduction_of
from hloscope.analysis.spellings import may_transfer
from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.uses import narrower_uses, result_slices, undone_by
from hloscope.analysis.vocabulary import Kind, Link, Origin
from hloscope.analysis.volume import Sizes, sizes_of, volume_of, volume_of_permute
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

_REDUCTIONS = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One transfer with its record.

    Attributes:
        place: Where it is.
        transfer: What was read there.
        own: The instructions that print it.
        provenance: Where it was written.
        collective: The record.
        reaches: Who sends in it; for one of several parts, in each of them.
    """

    place: Place
    transfer: Transfer
    own: tuple[HloInstruction, ...]
    provenance: Provenance
    collective: Collective
    reaches: tuple[Reach, ...]

    @property
    def results(self) -> tuple[Value, ...]:
        """What it yields in the computation that starts it, array by array."""
        start = self.transfer.start
        last = next((one for one in reversed(self.own) if one.computation is start.computation), start)
        if self.transfer.received is not None:
            last = next((one for one in self.transfer.received.users if one.opcode == "recv-done"), last)
            return (Value(last, (0,)),)
        if not last.shape.is_tuple:
            return (Value(last),)
        return tuple(Value(last, (index,)) for index in range(len(last.shape.elements)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Turns transfers into records; remembers what it has found out about groups that come again.

    Attributes:
        graph: The module.
        mesh: The user's mesh.
        layout: How ids in the text are to be read.
        chain_ends: The last fusion of each asynchronous collective fusion, by `chain_id`.
        holders: Names of the computations that hold something that may be a transfer.
    """

    graph: HloGraph
    mesh: Mesh | None
    layout: Layout
    chain_ends: Mapping[str, HloInstruction]
    holders: Collection[str]
    _axes: dict[object, tuple[str, ...] | None] = field(default_factory=dict)
    _reaches: dict[object, Reach] = field(default_factory=dict)
    _patterns: dict[object, PermutePattern | None] = field(default_factory=dict)

    def record(self, place: Place, transfer: Transfer) -> Move:
        """The record of one transfer."""
        own = own_instructions(place, transfer, self.chain_ends)
        provenance = provenance_of(self.graph, transfer, own)
        link = self._link(transfer)
        move = Move(
            place=place,
            transfer=transfer,
            own=own,
            provenance=provenance,
            collective=self._collective(place, transfer, own, provenance, link),
            reaches=(self._reach(transfer, link),),
        )
        return replace(move, collective=self._with_dataflow(move))

    def _collective(
        self,
        place: Place,
        transfer: Transfer,
        own: tuple[HloInstruction, ...],
        provenance: Provenance,
        link: Link,
    ) -> Collective:
        """What the text says at the place itself."""
        sizes = _sizes(transfer)
        is_permute = transfer.kind is Kind.COLLECTIVE_PERMUTE
        whole_axes = authored_kind(provenance.own_op_name) is Kind.COLLECTIVE_PERMUTE
        return Collective(
            kind=transfer.kind,
            name=transfer.start.name,
            computation=transfer.start.computation.name,
            line=transfer.start.line,
            axes=(axes := self._axes_of_transfer(transfer, whole_axes=whole_axes)),
            axes_guessed=bool(axes) and self.layout.guessed,
            groups=transfer.groups or (),
            group_size=None if is_permute else _largest_group(transfer.groups),
            link=link,
            operand_shapes=tuple(str(shape) for shape in transfer.operands),
            result_shapes=tuple(str(shape) for shape in transfer.results),
            payload_bytes=sizes.payload_bytes,
            wire_bytes=_wire_bytes(transfer, sizes.payload_bytes),
            executions=place.context.executions,
            executions_bound=place.context.bound,
            bytes_bound=sizes.bound,
            payload_bytes_at_least=sizes.at_least,
            wire_bytes_at_least=_wire_bytes(transfer, sizes.at_least),
            padded_bytes=sizes.padded,
            permute=self._pattern(transfer) if is_permute else None,
            loops=place.context.loops,
            loop_trips=place.context.trips,
            reduction=reduction_of(transfer.op) if transfer.kind in _REDUCTIONS else None,
            origin=self._origin(transfer, own, provenance),
            asynchronous=transfer.asynchronous,
            op_name=provenance.op_name,
            source=provenance.source,
            source_of=provenance.source_of,
        )

    def axes_of(self, groups: Groups, *, is_permute: bool = False, whole_axes: bool = False) -> tuple[str, ...] | None:
        """The mesh axes of groups of partition ids of the whole program; None without a mesh."""
        if self.mesh is None:
            return None
        key = (groups, is_permute, whole_axes)
        if key not in self._axes:
            if is_permute:
                self._axes[key] = axes_of_pairs(groups, self.mesh, whole_axes=whole_axes)
            else:
                self._axes[key] = axes_of_groups(groups, self.mesh)
        return self._axes[key]

    def _everywhere(self, transfer: Transfer) -> Groups | None:
        """A transfer's groups in partition ids of the whole program; None when they are not known."""
        if transfer.groups is None or transfer.device_ids:
            return None
        return transfer.groups if transfer.global_ids else self.layout.everywhere(transfer.groups)

    def _axes_of_transfer(self, transfer: Transfer, *, whole_axes: bool) -> tuple[str, ...] | None:
        groups = self._everywhere(transfer)
        if groups is None:
            return None
        is_permute = transfer.kind is Kind.COLLECTIVE_PERMUTE
        return self.axes_of(groups, is_permute=is_permute, whole_axes=whole_axes)

    def _pattern(self, transfer: Transfer) -> PermutePattern | None:
        groups = self._everywhere(transfer)
        if groups is None or self.mesh is None:
            return None
        if groups not in self._patterns:
            self._patterns[groups] = pattern_of_pairs(groups, self.mesh)
        return self._patterns[groups]

    def _reach(self, transfer: Transfer, link: Link) -> Reach:
        key = (transfer.groups, transfer.kind is Kind.COLLECTIVE_PERMUTE, transfer.global_ids, link)
        if key not in self._reaches:
            self._reaches[key] = reach_of(transfer, link, self.layout, self.graph.module.num_partitions)
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
        near_op_name = self._near_op_name(provenance.nearest)
        return origin_of(transfer.kind, transfer.op, own, provenance.own_op_name, near_op_name)

    def _near_op_name(self, nearest: HloInstruction | None) -> str | None:
        """The `op_name` of an instruction that is no transfer and holds none."""
        if nearest is None or may_transfer(nearest) or nearest.opcode.endswith("-done"):
            return None
        return None if any(name in self.holders for _, name in nearest.called) else nearest.op_name

    def _with_dataflow(self, move: Move) -> Collective:
        """The record with what the data flow around it tells."""
        graph, place, transfer, results = self.graph, move.place, move.transfer, move.results
        if transfer.kind is Kind.OPAQUE:
            return move.collective
        slices = result_slices(graph, results) if transfer.kind is Kind.ALL_REDUCE else ()
        gathers = transfer.kind is Kind.ALL_GATHER
        return replace(
            move.collective,
            result_slices=slices,
            moved_values=moved_values(graph, place, transfer),
            moves_zeros=moves_zeros(graph, place, transfer),
            loop_invariant=is_loop_invariant(graph, place, transfer),
            narrow_type=narrower_operands(graph, place, transfer)
            or narrower_uses(graph, results)
            or narrower_side(transfer.op, transfer.operands, transfer.results),
            undone_by=undone_by(graph, transfer, results) if gathers else None,
        )


def _largest_group(groups: Groups | None) -> int | None:
    return None if groups is None else max(map(len, groups), default=None)


def _sizes(transfer: Transfer) -> Sizes:
    """What its arrays say about its payload, in the types that they have on the wire."""
    operands, results = (as_reduced(transfer.op, side) for side in (transfer.operands, transfer.results))
    return sizes_of(transfer.kind, operands, results, transfer.operand_bytes)


def _wire_bytes(transfer: Transfer, payload_bytes: int | None) -> int | None:
    """What one device must send, when its payload is this large."""
    if transfer.kind is Kind.COLLECTIVE_PERMUTE:
        return volume_of_permute(payload_bytes, transfer.groups).wire_bytes
    return volume_of(transfer.kind, payload_bytes, payload_bytes, _largest_group(transfer.groups)).wire_bytes
