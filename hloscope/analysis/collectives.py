"""One record per collective, whatever its spelling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hloscope.analysis.axes import axes_of_groups, axes_of_pairs
from hloscope.analysis.executions import Context, count_executions
from hloscope.analysis.groups import Groups
from hloscope.analysis.model import Collective, Mesh, Unmodelled
from hloscope.analysis.origin import authored_kind, origin_of
from hloscope.analysis.placement import Layout
from hloscope.analysis.provenance import own_instructions, provenance_of
from hloscope.analysis.reach import Reach, reach_of
from hloscope.analysis.spellings import may_transfer, read_transfer
from hloscope.analysis.spellings.collectives import starts_chain
from hloscope.analysis.transfers import Place, Transfer, not_understood
from hloscope.analysis.vocabulary import Kind, Link
from hloscope.analysis.volume import Volume, total_bytes, volume_of, volume_of_permute
from hloscope.graph import HloGraph
from hloscope.hlo import HloComputation, HloInstruction

_CHAIN = "async_collective_fusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The collectives of a module.

    Attributes:
        collectives: In text order of the computations that hold them, callers first.
        reaches: Who sends in each of them.
        unmodelled: What was not understood.
        hidden: Whether some of that may hide transfers that `collectives` does not hold.
    """

    collectives: tuple[Collective, ...]
    reaches: tuple[Reach, ...]
    unmodelled: tuple[Unmodelled, ...]
    hidden: bool


def find_collectives(graph: HloGraph, mesh: Mesh | None, layout: Layout) -> Found:
    """Finds every place that starts a transfer, walking from ENTRY.

    `channel_id` and `op_name` are no identities: what appears twice runs twice. The one exception is the chain of an
    asynchronous collective fusion, whose later links repeat the collective that its first link starts.

    Args:
        graph: The module.
        mesh: The user's mesh, to name axes.
        layout: How ids in the text are to be read, when the program spans several slices.
    """
    candidates = {c.name: found for c in graph.module.computations if (found := _candidates(c))}
    continued = {name for name in candidates if _continues_chain(graph.module.computation(name))}
    executions = count_executions(graph, candidates.keys() - continued)
    maker = _Maker(
        graph=graph,
        mesh=mesh,
        layout=layout,
        chain_ends=_chain_ends(graph, candidates, continued),
        axes={},
        reaches={},
    )
    collectives: list[Collective] = []
    reaches: list[Reach] = []
    unmodelled = list(executions.unmodelled)
    for computation in graph.reachable:
        if computation.name not in candidates or computation.name in continued:
            continue
        for place in maker.places(candidates[computation.name], executions.contexts.get(computation.name, ())):
            transfer = read_transfer(place)
            if transfer is not None:
                collectives.append(maker.make(place, transfer))
                reaches.append(maker.reach(transfer))
                unmodelled.extend([transfer.unmodelled] if transfer.unmodelled else [])
    lost = [*_unreached(graph, candidates), *_unstarted_chains(candidates, continued)]
    return Found(
        collectives=tuple(collectives), reaches=tuple(reaches), unmodelled=(*unmodelled, *lost), hidden=bool(lost)
    )


def _candidates(computation: HloComputation) -> tuple[HloInstruction, ...]:
    return tuple(instruction for instruction in computation.instructions if may_transfer(instruction))


def _continues_chain(computation: HloComputation) -> bool:
    """Whether a computation carries on a collective that another one starts."""
    return computation.name.startswith(_CHAIN) or any(
        instruction.custom_call_target == "AsyncCollectiveDone"
        for instruction in computation.instructions
        if instruction.opcode == "custom-call"
    )


def _unreached(graph: HloGraph, candidates: dict[str, tuple[HloInstruction, ...]]) -> Iterator[Unmodelled]:
    reached = {computation.name for computation in graph.reachable}
    for name, ops in candidates.items():
        if name not in reached:
            yield not_understood(
                ops[0],
                f"computation %{name} holds %{ops[0].name}, but nothing that ENTRY reaches calls it",
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
                yield not_understood(
                    op,
                    f"%{op.name} carries on an asynchronous collective (chain_id {chain}) that nothing starts",
                    "it is not counted, so totals are a lower bound",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Turns transfers into collectives; remembers the axes and the senders of groups it has seen."""

    graph: HloGraph
    mesh: Mesh | None
    layout: Layout
    chain_ends: dict[str, HloInstruction]
    axes: dict[tuple[Groups, bool, bool, bool], tuple[str, ...] | None]
    reaches: dict[tuple[Groups | None, bool, bool, Link | None], Reach]

    def reach(self, transfer: Transfer) -> Reach:
        """Who sends in a transfer."""
        is_permute = transfer.kind is Kind.COLLECTIVE_PERMUTE
        key = (transfer.groups, is_permute, transfer.global_ids, transfer.link)
        if key not in self.reaches:
            partitions = self.graph.module.num_partitions
            self.reaches[key] = reach_of(transfer, self._link(transfer), self.layout, partitions)
        return self.reaches[key]

    def places(self, ops: tuple[HloInstruction, ...], contexts: tuple[Context, ...]) -> Iterator[Place]:
        """Every instruction in every context."""
        for context in contexts:
            for op in ops:
                yield Place(op=op, context=context, siblings=ops, graph=self.graph, mesh=self.mesh, layout=self.layout)

    def make(self, place: Place, transfer: Transfer) -> Collective:
        own = own_instructions(place, transfer, self.chain_ends)
        provenance = provenance_of(self.graph, transfer, own)
        groups = transfer.groups
        volume = _volume(transfer)
        is_permute = transfer.kind is Kind.COLLECTIVE_PERMUTE
        return Collective(
            kind=transfer.kind,
            name=transfer.start.name,
            computation=transfer.start.computation.name,
            line=transfer.start.line,
            axes=self._axes(transfer, authored_kind(provenance.own_op_name) is Kind.COLLECTIVE_PERMUTE),
            groups=groups or (),
            group_size=None if is_permute or groups is None else max(map(len, groups), default=None),
            link=self._link(transfer),
            operand_shapes=tuple(str(shape) for shape in transfer.operands),
            result_shapes=tuple(str(shape) for shape in transfer.results),
            payload_bytes=volume.payload_bytes,
            wire_bytes=volume.wire_bytes,
            executions=place.context.executions,
            executions_bound=place.context.bound,
            loops=place.context.loops,
            origin=origin_of(
                transfer.kind, transfer.op, own, provenance.own_op_name, self._near_op_name(provenance.nearest)
            ),
            asynchronous=transfer.asynchronous,
            op_name=provenance.op_name,
            source=provenance.source,
            source_of=provenance.source_of,
        )

    def _near_op_name(self, nearest: HloInstruction | None) -> str | None:
        """The `op_name` of an instruction that is no transfer and holds none."""
        if nearest is None or may_transfer(nearest) or nearest.opcode.endswith("-done"):
            return None
        callees = [self.graph.module.computation(name) for _, name in nearest.called]
        return None if any(_candidates(callee) for callee in callees) else nearest.op_name

    def _axes(self, transfer: Transfer, whole_axes: bool) -> tuple[str, ...] | None:
        if self.mesh is None or transfer.groups is None or transfer.device_ids:
            return None
        is_permute = transfer.kind is Kind.COLLECTIVE_PERMUTE
        key = (transfer.groups, is_permute, whole_axes, transfer.global_ids)
        if key not in self.axes:
            groups = transfer.groups if transfer.global_ids else self.layout.everywhere(transfer.groups)
            if groups is None:
                self.axes[key] = None
            elif is_permute:
                self.axes[key] = axes_of_pairs(groups, self.mesh, whole_axes=whole_axes)
            else:
                self.axes[key] = axes_of_groups(groups, self.mesh)
        return self.axes[key]

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


def _volume(transfer: Transfer) -> Volume:
    operand_bytes = total_bytes(transfer.operands) if transfer.operand_bytes is None else transfer.operand_bytes
    if transfer.kind is Kind.COLLECTIVE_PERMUTE:
        return volume_of_permute(operand_bytes, transfer.groups)
    size = max(map(len, transfer.groups), default=None) if transfer.groups is not None else None
    return volume_of(transfer.kind, operand_bytes, total_bytes(transfer.results), size)
