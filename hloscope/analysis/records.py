"""Records of transfers as users see them: the moved values, the reduction, and values that stay the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hloscope.analysis.defs import RESHAPES, Maker, find_maker, is_fixed_in, step_outside
from hloscope.analysis.executions import Context
from hloscope.analysis.groups import Groups, find_axes_of_groups, find_axes_of_pairs, find_permute_pattern
from hloscope.analysis.model import Collective, Mesh, MovedValue, make_shapes
from hloscope.analysis.placement import Numbering
from hloscope.analysis.provenance import (
    Provenance,
    find_authored_kind,
    find_origin,
    find_own_instructions,
    find_provenance,
)
from hloscope.analysis.result_uses import find_narrower_use, find_result_slices, find_undoing_slice
from hloscope.analysis.spellings import may_transfer
from hloscope.analysis.totals import Reach, find_reach
from hloscope.analysis.transfers import Transfer, TransferSite
from hloscope.analysis.vocabulary import REDUCING, REDUCTION_OPCODES, Bound, Kind, Link, Origin
from hloscope.analysis.volume import count_wire_bytes, find_common_narrower, find_payload, narrower
from hloscope.hlo import HloComputation, HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph, Value

_NO_VOLUME: Mapping[str, Any] = {"payload_bytes": None, "wire_bytes": None, "bytes_bound": Bound.UNKNOWN}
"""The byte fields of a record whose volume was not requested."""


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
        follows: Whether to count moved values and trace them to their producers and users.
    """

    graph: HloGraph
    mesh: Mesh | None
    layout: Numbering
    chain_ends: Mapping[str, HloInstruction]
    holders: Collection[str]
    follows: bool = True
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
        more = self._volume_and_dataflow(context, transfer, results) if self.follows else _NO_VOLUME
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
            **more,
        )

    def _volume_and_dataflow(self, context: Context, transfer: Transfer, results: tuple[Value, ...]) -> dict[str, Any]:
        """The fields of a record on volume and reduction, and those that the data flow determines."""
        kind, reducer = transfer.kind, _find_reducer(transfer.op)
        wide = _find_wire_type(transfer.op, reducer)
        sizes = find_payload(
            kind, _widen_shapes(transfer.operands, wide), _widen_shapes(transfer.results, wide), transfer.operand_bytes
        )
        return {
            "payload_bytes": sizes.payload_bytes,
            "wire_bytes": count_wire_bytes(kind, sizes.payload_bytes, transfer.groups),
            "bytes_bound": sizes.bound,
            "payload_bytes_at_least": sizes.at_least,
            "wire_bytes_at_least": count_wire_bytes(kind, sizes.at_least, transfer.groups),
            "padded_bytes": sizes.padded,
            "reduction": _find_reduction(transfer.op, reducer) if kind in REDUCING else None,
            **self._dataflow(context, transfer, results, wide),
        }

    def _dataflow(
        self, context: Context, transfer: Transfer, results: tuple[Value, ...], wide: str | None
    ) -> dict[str, Any]:
        """The fields of a record that the surrounding data flow determines."""
        graph = self.graph
        makers = [find_maker(graph, Value(operand), context.wrappers) for operand in _find_counted_operands(transfer)]
        made = [_find_moved_value(graph, maker) for maker in makers]
        return {
            "result_slices": find_result_slices(graph, results) if transfer.kind is Kind.ALL_REDUCE else (),
            "undone_by": find_undoing_slice(graph, transfer, results) if transfer.kind is Kind.ALL_GATHER else None,
            "moved_values": tuple(value for value, _ in made),
            "moves_zeros": bool(made) and all(_holds_zeros(maker) for _, maker in made),
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
_ZEROS = re.compile(r"[\s{}(),]*(?:(?:-?0(?:\.0*)?(?:[eE][+-]?\d+)?|false)[\s{}(),]*)++")
"""The literal of a constant of nothing but zeros, of any type and shape."""
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


def _holds_zeros(maker: Maker) -> bool:
    """Returns whether a value is known to be zeros, such as the initial sums of a windowed einsum."""
    literal = maker.value.instruction.literal
    return literal is not None and _ZEROS.fullmatch(literal) is not None


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


def names_reduction(op: HloInstruction) -> bool:
    """Returns whether a transfer between slices names its reduction."""
    return _REDUCTION_ATTRIBUTE in op.frontend_attributes


def _find_reducer(op: HloInstruction) -> HloComputation | None:
    reducers = [name for attribute, name in op.called if attribute == "to_apply"]
    return op.computation.module.computation(reducers[0]) if len(reducers) == 1 else None


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
