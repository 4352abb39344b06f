"""From what was read at one place to the record that users see: what it moves, how it reduces, what is the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hloscope.analysis.defs import FORMS, Maker, is_fixed_in, maker_of, outside
from hloscope.analysis.executions import Context
from hloscope.analysis.groups import Groups, axes_of_groups, axes_of_pairs, pattern_of_pairs
from hloscope.analysis.model import Collective, Mesh, MovedValue, shapes_of
from hloscope.analysis.placement import Layout
from hloscope.analysis.provenance import Provenance, authored_kind, origin_of, own_instructions, provenance_of
from hloscope.analysis.result_uses import narrower_uses, result_slices, undone_by
from hloscope.analysis.spellings import may_transfer
from hloscope.analysis.totals import Reach, reach_of
from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.vocabulary import REDUCTIONS, SUMS, Bound, Kind, Link, Origin
from hloscope.analysis.volume import common_narrower, narrower, sizes_of, wire_bytes_of
from hloscope.hlo import HloComputation, HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph, Value

_NO_VOLUME: Mapping[str, Any] = {"payload_bytes": None, "wire_bytes": None, "bytes_bound": Bound.UNKNOWN}
"""What a record says of its bytes where nobody asks."""


class Move(NamedTuple):
    """One transfer with its record.

    Attributes:
        place: Where it is.
        transfer: What was read there.
        own: The instructions that print it.
        provenance: Where it was written.
        collective: The record.
        reaches: Who sends in it; for one of several parts, in each of them.
        results: What it yields in the computation that starts it, array by array.
    """

    place: Place
    transfer: Transfer
    own: tuple[HloInstruction, ...]
    provenance: Provenance
    collective: Collective
    reaches: tuple[Reach, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Turns transfers into records.

    Attributes:
        graph: The module.
        mesh: The user's mesh.
        layout: How ids in the text are to be read.
        chain_ends: The last fusion of each asynchronous collective fusion, by `chain_id`.
        holders: Names of the computations that hold something that may be a transfer.
        follows: Whether the values that a transfer moves are counted, and followed to where they are made and used.
    """

    graph: HloGraph
    mesh: Mesh | None
    layout: Layout
    chain_ends: Mapping[str, HloInstruction]
    holders: Collection[str]
    follows: bool = True
    _reaches: dict[object, Reach] = field(default_factory=dict)

    def record(self, place: Place, transfer: Transfer) -> Move:
        """The record of one transfer."""
        own = own_instructions(place, transfer, self.chain_ends)
        results = _results(transfer, own)
        provenance = provenance_of(self.graph, own, transfer.start, transfer.received)
        link = self._link(transfer)
        return Move(
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
        place: Place,
        transfer: Transfer,
        own: tuple[HloInstruction, ...],
        results: tuple[Value, ...],
        provenance: Provenance,
        link: Link,
    ) -> Collective:
        """What is known of a transfer, from what prints it, what it yields and where it was written."""
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
            operand_shapes=shapes_of(*transfer.operands),
            result_shapes=shapes_of(*transfer.results),
            executions=context.executions,
            executions_bound=context.bound,
            permute=pattern_of_pairs(everywhere, self.mesh) if is_permute and everywhere and self.mesh else None,
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
        """The fields of a record that say how much is moved, how it is reduced, and what the data flow decides."""
        kind, reducer = transfer.kind, _reducer_of(transfer.op)
        wide = _wire_type(transfer.op, reducer)
        sizes = sizes_of(kind, _sent(transfer.operands, wide), _sent(transfer.results, wide), transfer.operand_bytes)
        return {
            "payload_bytes": sizes.payload_bytes,
            "wire_bytes": wire_bytes_of(kind, sizes.payload_bytes, transfer.groups),
            "bytes_bound": sizes.bound,
            "payload_bytes_at_least": sizes.at_least,
            "wire_bytes_at_least": wire_bytes_of(kind, sizes.at_least, transfer.groups),
            "padded_bytes": sizes.padded,
            "reduction": _reduction_of(transfer.op, reducer) if kind in SUMS else None,
            **self._dataflow(context, transfer, results, wide),
        }

    def _dataflow(
        self, context: Context, transfer: Transfer, results: tuple[Value, ...], wide: str | None
    ) -> dict[str, Any]:
        """The fields of a record that the data flow around the collective decides."""
        graph = self.graph
        makers = [maker_of(graph, Value(operand), context.wrappers) for operand in _counted_operands(transfer)]
        made = [_made_at(graph, maker) for maker in makers]
        return {
            "result_slices": result_slices(graph, results) if transfer.kind is Kind.ALL_REDUCE else (),
            "undone_by": undone_by(graph, transfer, results) if transfer.kind is Kind.ALL_GATHER else None,
            "moved_values": tuple(value for value, _ in made),
            "moves_zeros": bool(made) and all(_holds_zeros(maker) for _, maker in made),
            "loop_invariant": _is_loop_invariant(graph, context.loops, makers),
            "narrow_type": _narrow_type(graph, transfer, makers, results, wide),
        }

    def axes_of(self, groups: Groups) -> tuple[str, ...] | None:
        """The mesh axes of groups of partition ids of the whole program; None without a mesh."""
        return None if self.mesh is None else axes_of_groups(groups, self.mesh)

    def _axes(self, everywhere: Groups | None, kind: Kind, provenance: Provenance) -> tuple[str, ...] | None:
        if everywhere is None or self.mesh is None or kind is not Kind.COLLECTIVE_PERMUTE:
            return None if everywhere is None else self.axes_of(everywhere)
        whole_axes = authored_kind(provenance.own_op_name) is Kind.COLLECTIVE_PERMUTE
        return axes_of_pairs(everywhere, self.mesh, whole_axes=whole_axes)

    def _everywhere(self, transfer: Transfer) -> Groups | None:
        """A transfer's groups in partition ids of the whole program; None when they are not known."""
        if transfer.groups is None or transfer.device_ids:
            return None
        return transfer.groups if transfer.global_ids else self.layout.everywhere(transfer.groups)

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
        near, near_op_name = provenance.nearest, None
        if near is not None and not may_transfer(near) and not near.opcode.endswith("-done"):
            near_op_name = None if any(name in self.holders for _, name in near.called) else near.op_name
        return origin_of(transfer.kind, transfer.op, own, provenance.own_op_name, near_op_name)


def _results(transfer: Transfer, own: Sequence[HloInstruction]) -> tuple[Value, ...]:
    """What a transfer yields in the computation that starts it, array by array; nothing where it is not understood."""
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
"""The literal of a constant that holds nothing but zeros, of whatever type and shape."""
_CONVERTED_FORMS = FORMS | {"convert"}


def _counted_operands(transfer: Transfer) -> tuple[HloInstruction, ...]:
    """The operands that hold data: the others name destinations and offsets, or are tokens."""
    if transfer.kind is Kind.OPAQUE:
        return ()
    operands = transfer.op.operands if transfer.op.opcode != "send" else transfer.op.operands[:1]
    return tuple(operand for operand in operands if operand.shape.element_type != "token")[: len(transfer.operands)]


def _made_at(graph: HloGraph, maker: Maker) -> tuple[MovedValue, Maker]:
    """Where what is moved was made, also behind conversions, slices and loops."""
    slices: tuple[str | None, ...] = ()
    for _ in range(_LOOP_LIMIT):
        maker = maker_of(graph, *maker, through=_CONVERTED_FORMS)
        value, frames = maker
        if value.instruction.opcode in _SLICES and not value.path:
            slices = (value.instruction.attributes.get("slice"), *slices)
            maker = Maker(Value(value.instruction.operands[0]), frames)
            continue
        if value.instruction.opcode not in ("parameter", "while") or frames:
            break
        outer = outside(graph, value)
        if not isinstance(outer, Value):
            break
        maker = Maker(outer)
    where, element = maker.outermost, () if maker.frames else maker.value.path
    return MovedValue(computation=where.computation.name, instruction=where.name, element=element, slices=slices), maker


def _holds_zeros(maker: Maker) -> bool:
    """Whether a value is known to be zeros, such as those that a windowed einsum starts its sums from."""
    literal = maker.value.instruction.literal
    return literal is not None and _ZEROS.fullmatch(literal) is not None


def _is_loop_invariant(graph: HloGraph, loops: Sequence[str], makers: Iterable[Maker]) -> bool | None:
    """Whether what is moved is the same in every iteration of the innermost loop around it; None without a loop.

    Also None where it cannot be known: what is too far away, and what comes from custom calls or other loops.
    """
    found = [is_fixed_in(graph, loops[-1], *maker) for maker in makers] if loops else []
    if False in found:
        return False
    return True if found and None not in found else None


def _narrow_type(
    graph: HloGraph, transfer: Transfer, makers: Iterable[Maker], results: Sequence[Value], wide: str | None
) -> str | None:
    """The narrower type that all is converted from or to, around the collective or, on a TPU, as a part of it."""
    makes = [maker.value.instruction for maker in makers]
    converted = [(made.operands[0].shape, made.shape) for made in makes if made.opcode == "convert" and made.operands]
    found = None
    if len(converted) == len(makes):
        found = common_narrower((before.element_type, after.element_type) for before, after in converted)
    found = found or narrower_uses(graph, results)
    if wide is not None:
        for side in (transfer.operands, transfer.results):
            found = found or common_narrower((shape.element_type, wide) for shape in side)
    return found


_SAYS = "_xla_megascale_reduce_operation"
_OPCODE_OF_WORD = {"SUM": "add", "MAX": "maximum", "MIN": "minimum", "PROD": "multiply"}
"""How the words begin that say between slices what the opcodes of a reducer say within one."""
_ALL_REDUCES = frozenset({"all-reduce", "all-reduce-start"})
_CHANGES_NOTHING = frozenset({"parameter", "convert", "bitcast", "copy", "get-tuple-element", "tuple"})


def says_reduction(op: HloInstruction) -> bool:
    """Whether a transfer between slices names its reduction."""
    return _SAYS in op.frontend_attributes


def _reducer_of(op: HloInstruction) -> HloComputation | None:
    reducers = [name for attribute, name in op.called if attribute == "to_apply"]
    return op.computation.module.computation(reducers[0]) if len(reducers) == 1 else None


def _reduction_of(op: HloInstruction, reducer: HloComputation | None) -> str | None:
    """The opcode that an `all-reduce`, a `reduce-scatter` or a transfer between slices combines elements with.

    Returns:
        `add`, `maximum`, …; None for what reduces nothing, and for a reducer that is more than one operation.
    """
    said = op.frontend_attributes.get(_SAYS)
    if said is not None:
        return next((opcode for word, opcode in _OPCODE_OF_WORD.items() if said.startswith(word)), None)
    opcodes = frozenset() if reducer is None else reducer.opcodes - _CHANGES_NOTHING
    return next(iter(opcodes)) if len(opcodes) == 1 and opcodes <= {*REDUCTIONS} else None


def _wire_type(op: HloInstruction, reducer: HloComputation | None) -> str | None:
    """The element type that arrays of narrower ones are widened to on the wire; None where they are sent as they are.

    TPUs reduce, and send, in the type of the reducer, and convert on the way in and out: where it is wider than that of
    an operand or a result, the compiler has folded a conversion into the `all-reduce`. All others, and those in text
    without the tiles of a TPU, send arrays as they are.

    Source: the DMAs and buffers in the low-level code that libtpu 0.0.42.1 dumps for v4, v5e, v5p and v6e. All-reduces
        with a reducer of f32 send as much from f32 to bf16, from bf16 to f32 and from bf16 to bf16 as from f32 to f32,
        twice what they send with a reducer of bf16.
    """
    if reducer is None or op.opcode not in _ALL_REDUCES:
        return None
    tiled = all(leaf.layout is not None and leaf.layout.tiles for leaf in op.shape.leaves())
    return reducer.root.shape.element_type if tiled else None


def _sent(shapes: tuple[Shape, ...], wide: str | None) -> tuple[Shape, ...]:
    """Arrays in the element types that they have on the wire."""
    if wide is None:
        return shapes
    return tuple(
        shape if narrower(shape.element_type, wide) is None else replace(shape, element_type=wide) for shape in shapes
    )
