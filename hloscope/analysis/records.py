"""From what was read at one place to the record that users see: what it moves, how it reduces, what is the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hloscope.analysis.defs import FORMS, Frames, is_fixed_in, maker_of, outside
from hloscope.analysis.groups import Groups, axes_of_groups, axes_of_pairs, pattern_of_pairs
from hloscope.analysis.model import Collective, Mesh, PermutePattern
from hloscope.analysis.placement import Layout
from hloscope.analysis.provenance import Provenance, authored_kind, origin_of, own_instructions, provenance_of
from hloscope.analysis.result_uses import narrower_uses, result_slices, undone_by
from hloscope.analysis.spellings import may_transfer
from hloscope.analysis.totals import Reach, reach_of
from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.vocabulary import Kind, Link, Origin
from hloscope.analysis.volume import Sizes, narrower, sizes_of, volume_of, volume_of_permute
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloComputation, HloInstruction, Shape

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
            reduction=_reduction_of(transfer.op) if transfer.kind in _REDUCTIONS else None,
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
            moved_values=_moved_values(graph, place, transfer),
            moves_zeros=_moves_zeros(graph, place, transfer),
            loop_invariant=_is_loop_invariant(graph, place, transfer),
            narrow_type=_narrower_operands(graph, place, transfer)
            or narrower_uses(graph, results)
            or _narrower_side(transfer.op, transfer.operands, transfer.results),
            undone_by=undone_by(graph, transfer, results) if gathers else None,
        )


def _largest_group(groups: Groups | None) -> int | None:
    return None if groups is None else max(map(len, groups), default=None)


def _sizes(transfer: Transfer) -> Sizes:
    """What its arrays say about its payload, in the types that they have on the wire."""
    operands, results = (_as_reduced(transfer.op, side) for side in (transfer.operands, transfer.results))
    return sizes_of(transfer.kind, operands, results, transfer.operand_bytes)


def _wire_bytes(transfer: Transfer, payload_bytes: int | None) -> int | None:
    """What one device must send, when its payload is this large."""
    if transfer.kind is Kind.COLLECTIVE_PERMUTE:
        return volume_of_permute(payload_bytes, transfer.groups).wire_bytes
    return volume_of(transfer.kind, payload_bytes, payload_bytes, _largest_group(transfer.groups)).wire_bytes


_LOOP_LIMIT = 16
_SLICES = frozenset({"dynamic-slice", "slice"})
_ZEROS = re.compile(r"[\s{}(),]*(?:(?:-?0(?:\.0*)?(?:[eE][+-]?\d+)?|false)[\s{}(),]*)++")
"""The literal of a constant that holds nothing but zeros, of whatever type and shape."""


def _moved_values(graph: HloGraph, place: Place, transfer: Transfer) -> tuple[str, ...]:
    """Names for what is moved, operand by operand: two collectives with one name move the same value.

    Returns:
        `computation::instruction` where it was made, behind copies, conversions, other shapes and loops that carry it
        unchanged; `[1]` after it for an element of a tuple, ` slice` for a slice of it at an offset that is decided at
        run time, which may be another one each time.
    """
    frames = place.context.wrappers
    return tuple(_name(graph, Value(operand), frames) for operand in _counted_operands(transfer))


def _moves_zeros(graph: HloGraph, place: Place, transfer: Transfer) -> bool:
    """Whether all that is moved is known to be zeros, such as those that a windowed einsum starts its sums from."""
    frames = place.context.wrappers
    made = [_made_at(graph, Value(operand), frames)[0].instruction for operand in _counted_operands(transfer)]
    return bool(made) and all(one.literal is not None and _ZEROS.fullmatch(one.literal) for one in made)


def _narrower_operands(graph: HloGraph, place: Place, transfer: Transfer) -> str | None:
    """The narrower element type that every operand was converted from; None when one was not."""
    types = set()
    for operand in _counted_operands(transfer):
        maker = maker_of(graph, Value(operand), place.context.wrappers).value.instruction
        if maker.opcode != "convert" or not maker.operands:
            return None
        types.add(narrower(maker.operands[0].shape.element_type, maker.shape.element_type))
    return types.pop() if len(types) == 1 else None


def _is_loop_invariant(graph: HloGraph, place: Place, transfer: Transfer) -> bool | None:
    """Whether what is moved is the same in every iteration of the innermost loop around it; None without a loop.

    Also None where it cannot be told: what is too far away, and what comes from custom calls or other loops.
    """
    if not place.context.loops:
        return None
    loop, frames = place.context.loops[-1], place.context.wrappers
    found = [is_fixed_in(graph, loop, Value(operand), frames) for operand in _counted_operands(transfer)]
    if False in found:
        return False
    return True if found and None not in found else None


def _counted_operands(transfer: Transfer) -> tuple[HloInstruction, ...]:
    """The operands that hold data: the others name destinations and offsets, or are tokens."""
    operands = transfer.op.operands if transfer.op.opcode != "send" else transfer.op.operands[:1]
    return tuple(operand for operand in operands if operand.shape.element_type != "token")[: len(transfer.operands)]


def _name(graph: HloGraph, value: Value, frames: Frames) -> str:
    value, frames, suffix = _made_at(graph, value, frames)
    where = frames[0] if frames else value.instruction
    element = "" if frames else "".join(f"[{index}]" for index in value.path)
    return f"{where.computation.name}::{where.name}{element}{suffix}"


def _made_at(graph: HloGraph, value: Value, frames: Frames) -> tuple[Value, Frames, str]:
    """Where a value was made, the fusions around that, and which slice of it the value is."""
    suffix = ""
    for _ in range(_LOOP_LIMIT):
        maker = maker_of(graph, value, frames, through=(*FORMS, "convert"))
        value, frames = maker.value, maker.frames
        instruction = value.instruction
        if instruction.opcode in _SLICES and not value.path:
            suffix = f" slice{suffix}" if instruction.opcode == "dynamic-slice" else _bounds(instruction) + suffix
            value = Value(instruction.operands[0])
            continue
        if instruction.opcode not in ("parameter", "while") or frames:
            break
        outer = outside(graph, value)
        if not isinstance(outer, Value):
            break
        value = outer
    return value, frames, suffix


def _bounds(instruction: HloInstruction) -> str:
    return f" {instruction.attributes.get('slice', 'slice')}"


_SAYS = "_xla_megascale_reduce_operation"
_OPCODE_OF_WORD = {"SUM": "add", "MAX": "maximum", "MIN": "minimum", "PROD": "multiply"}
"""How the words begin that say between slices what the opcodes of a reducer say within one."""
_ALL_REDUCES = frozenset({"all-reduce", "all-reduce-start"})
_OPCODES = frozenset({"add", "maximum", "minimum", "multiply", "and", "or", "xor"})
_CHANGES_NOTHING = frozenset({"parameter", "convert", "bitcast", "copy", "get-tuple-element", "tuple"})


def says_reduction(op: HloInstruction) -> bool:
    """Whether a transfer between slices names its reduction."""
    return _SAYS in op.frontend_attributes


def _reduction_of(op: HloInstruction) -> str | None:
    """The opcode that an `all-reduce`, a `reduce-scatter` or a transfer between slices combines elements with.

    Returns:
        `add`, `maximum`, …; None for what reduces nothing, and for a reducer that is more than one operation.
    """
    said = op.frontend_attributes.get(_SAYS)
    if said is not None:
        return next((opcode for word, opcode in _OPCODE_OF_WORD.items() if said.startswith(word)), None)
    reducer = _reducer_of(op)
    opcodes = set() if reducer is None else {one.opcode for one in reducer.instructions} - _CHANGES_NOTHING
    return opcodes.pop() if len(opcodes) == 1 and opcodes <= _OPCODES else None


def _as_reduced(op: HloInstruction, shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The arrays of a collective in the element type that they have on the wire.

    TPUs reduce, and send, in the type of the reducer, and convert on the way in and out: where it is wider than that of
    an operand or a result, the compiler has folded a conversion into the `all-reduce`. For all others, and in text
    without the tiles of a TPU, the arrays as they are.

    Source: the DMAs and buffers in the low-level code that libtpu 0.0.42.1 dumps for v4, v5e, v5p and v6e. All-reduces
        with a reducer of f32 send as much from f32 to bf16, from bf16 to f32 and from bf16 to bf16 as from f32 to f32,
        twice what they send with a reducer of bf16.
    """
    reducer = _reducer_of(op) if op.opcode in _ALL_REDUCES else None
    if reducer is None or not all(leaf.layout is not None and leaf.layout.tiles for leaf in op.shape.leaves()):
        return tuple(shapes)
    wide = reducer.root.shape.element_type
    return tuple(
        replace(shape, element_type=wide) if narrower(shape.element_type, wide) is not None else shape
        for shape in shapes
    )


def _narrower_side(op: HloInstruction, *sides: Iterable[Shape]) -> str | None:
    """The element type in which a TPU reduction takes in or hands out all arrays, narrower than what it sends."""
    for side in sides:
        shapes = tuple(side)
        pairs = zip(shapes, _as_reduced(op, shapes), strict=True)
        types = {narrower(shape.element_type, sent.element_type) for shape, sent in pairs}
        if len(types) == 1 and None not in types:
            return types.pop()
    return None


def _reducer_of(op: HloInstruction) -> HloComputation | None:
    reducers = [name for attribute, name in op.called if attribute == "to_apply"]
    return op.computation.module.computation(reducers[0]) if len(reducers) == 1 else None
