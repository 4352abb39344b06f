"""The common form of all spellings of a collective, before any arithmetic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from hloscope.analysis.dataflow import Frames, Maker, Reading, find_maker, find_own_slice, find_readings
from hloscope.analysis.executions import Context, make_unmodelled
from hloscope.analysis.groups import Groups, Numbering
from hloscope.analysis.trip_counts import CompareDirection, wrap_integer
from hloscope.base.units import count_array_bytes, count_element_bits, sum_known
from hloscope.hlo import HloComputation, HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph, Value
from hloscope.model import ArrayShape, Collective, Mesh, Unmodelled
from hloscope.model.vocabulary import Bound, Kind, Link

# ---- the bytes that a collective moves


class Payload(NamedTuple):
    """The payload of a collective on one device, from the shapes of its arrays.

    Attributes:
        payload_bytes: Logical bytes of the counted side; None if unknown.
        at_least: Lower bound of the payload bytes; None if unknown.
        padded: Bytes in memory with tile padding; None if the text has no layout.
        bound: Whether `payload_bytes` is exact or a bound; unknown if it is unknown.
    """

    payload_bytes: int | None
    at_least: int | None
    padded: int | None
    bound: Bound


def flatten_arrays(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The arrays in some shapes; tokens carry no data."""
    return tuple(leaf for shape in shapes for leaf in shape.leaves() if leaf.element_type != "token")


def sum_bytes(shapes: Iterable[Shape]) -> int | None:
    """Logical bytes of all arrays together; None if one of them is unknown, or if there are none."""
    sizes = [None if shape.element_type == "opaque" else shape.byte_size for shape in shapes]
    return sum_known(sizes) if sizes else None


def narrower(one: str, other: str) -> str | None:
    """The first of two element types if it has fewer bits and both are floats or neither is."""
    bits, other_bits = count_element_bits(one), count_element_bits(other)
    if bits is None or other_bits is None or not 0 < bits < other_bits:
        return None
    return one if _is_float(one) == _is_float(other) else None


def find_common_narrower(pairs: Iterable[tuple[str, str]]) -> str | None:
    """The one type that is narrower and first in all pairs; None if one pair differs, or if there are none."""
    types = {narrower(one, other) for one, other in pairs}
    return types.pop() if len(types) == 1 else None


def shapes_fit(
    kind: Kind, operands: Collection[Shape], results: Collection[Shape], groups: Iterable[tuple[int, ...]]
) -> bool:
    """Returns whether groups of this size turn the operands into that many result elements; True if unknown.

    Args:
        kind: The kind of the collective.
        operands: The arrays that one device contributes.
        results: The arrays that one device receives.
        groups: Groups of devices; for a permute its pairs.
    """
    if kind is Kind.RAGGED_ALL_TO_ALL or sum_bytes(operands) is None or sum_bytes(results) is None:
        return True
    put_in, got_out = (sum(shape.element_count for shape in shapes) for shapes in (operands, results))
    members = max(map(len, groups), default=1)
    match kind:
        case Kind.ALL_GATHER:
            return put_in * members == got_out
        case Kind.REDUCE_SCATTER:
            return put_in == got_out * members
    return put_in == got_out


@lru_cache(maxsize=1024)
def count_wire_bytes(kind: Kind, payload_bytes: int | None, groups: tuple[tuple[int, ...], ...] | None) -> int | None:
    """Bytes that one device must send on an ideal ring; if devices send different amounts, those of the busiest.

    Args:
        kind: The kind of the collective.
        payload_bytes: Bytes of the result of an all-gather, of all others of the operand, on one device.
        groups: Groups of devices, the largest of which counts; for a permute its pairs.

    Returns:
        All-gather, reduce-scatter and all-to-all (n-1)/n of the payload; all-reduce 2(n-1)/n; broadcast all of it;
        ragged all-to-all at most all of it; a permute all of it for each other device that one sends to. Divisions
        round up. Data that stays in place moves nothing. None if unknown.

    Source: the bandwidth-optimal ring algorithms (Patarasuk and Yuan, 2009).
    """
    if kind is Kind.OPAQUE or groups is None:
        return None
    if kind is Kind.COLLECTIVE_PERMUTE:
        targets = Counter(source for source, target in set(groups) if source != target)
        copies = max(targets.values(), default=0)
        return 0 if copies == 0 else None if payload_bytes is None else copies * payload_bytes
    members = max(map(len, groups), default=0)
    if payload_bytes is None or members == 0:
        return None
    if kind in (Kind.COLLECTIVE_BROADCAST, Kind.RAGGED_ALL_TO_ALL):
        return payload_bytes if members > 1 else 0
    passes = 2 if kind is Kind.ALL_REDUCE else 1
    return -(-passes * (members - 1) * payload_bytes // members)


def find_payload(kind: Kind, operands: Iterable[Shape], results: Iterable[Shape], sliced: int | None = None) -> Payload:
    """Reads the sizes of a collective off the shapes of its arrays.

    A bounded dynamic dimension such as `<=64` may be anything smaller at run time, and so may what a ragged all-to-all
    sends. If operands and results have different element types, either may be the one that moves.

    Args:
        kind: Its kind, which determines the counted side: the results of an all-gather, otherwise the operands.
        operands: The arrays that one device contributes.
        results: The arrays that one device receives.
        sliced: Bytes contributed, if only slices of the operands are.
    """
    operands, results = tuple(operands), tuple(results)
    counted, other = (results, operands) if kind is Kind.ALL_GATHER else (operands, results)
    payload = sum_bytes(counted) if sliced is None else sliced
    if payload is None or kind is Kind.OPAQUE:
        return Payload(payload_bytes=None, at_least=None, padded=None, bound=Bound.UNKNOWN)
    if sliced is not None:
        return Payload(payload_bytes=payload, at_least=payload, padded=None, bound=Bound.EXACT)
    bound, at_least = Bound.EXACT, 0
    for number, shape in enumerate(counted):
        moved = shape.byte_size or 0
        least, own = _min_bytes(shape, moved, other[number].element_type if number < len(other) else shape.element_type)
        at_least += least
        bound += own
    if kind is Kind.RAGGED_ALL_TO_ALL:
        bound, at_least = Bound.AT_MOST, 0
    return Payload(
        payload_bytes=payload,
        at_least=at_least,
        padded=sum_known(None if shape.layout is None else shape.padded_byte_size for shape in counted),
        bound=bound,
    )


def _min_bytes(shape: Shape, moved: int, opposite: str) -> tuple[int, Bound]:
    """The fewest bytes of an array that may move, and the bound of `moved`."""
    bound = Bound.AT_MOST if any(shape.dynamic) else Bound.EXACT
    bits, other_bits = count_element_bits(shape.element_type) or 0, count_element_bits(opposite) or 0
    if any(shape.dynamic):
        return 0, bound if bits >= other_bits else bound + Bound.AT_LEAST
    if bits > other_bits > 0:
        return count_array_bytes(opposite, shape.element_count) or 0, Bound.AT_MOST
    return moved, Bound.AT_LEAST if bits < other_bits else Bound.EXACT


def _is_float(element_type: str) -> bool:
    return element_type.startswith(("f", "bf"))


# ---- fusions with separate operations for each core, on chips whose two cores are one device (megacore: v4, v5p)
#
# All other operations are split over both cores, and the compiler's cycles for them are those of such a half. In a
# megacore fusion each core has its own operations, one after the other, and the fusion takes as long as the longer of
# the two: on v5p a matmul of 281 us alongside reduce-scatters and an all-reduce of 423 us took 424 us.
#
# Source: a profile of a training step on v5p, and the text that libtpu prints for v4 and v5p with
#     `xla_tpu_enable_megacore_fusion`.

MEGACORE_MARK = "use_single_core"
"""A word in every text that contains such fusions."""

_CORE = re.compile(r'"megacore_config"\s*:\s*\{[^{}]*"use_single_core"\s*:\s*true[^{}]*')
_NUMBER = re.compile(r'"core_id"\s*:\s*"?(\d+)')

CoreBranches = tuple[tuple[HloInstruction, ...], ...]
"""The instructions that each core runs, in order."""


def find_core_branches(graph: HloGraph, instruction: HloInstruction) -> CoreBranches:
    """The instructions of a fusion that each core runs; empty if both cores run all of it together."""
    if instruction.opcode != "fusion":
        return ()
    found: dict[int, list[HloInstruction]] = {}
    for inner in graph.module.computation(instruction.called[0][1]).instructions:
        core = read_core_id(inner)
        if core is not None:
            found.setdefault(core, []).append(inner)
    return tuple(map(tuple, found.values()))


def read_core_id(instruction: HloInstruction) -> int | None:
    """The number of the core that runs an instruction alone; None for all others."""
    said = _CORE.search(instruction.attributes.get("backend_config", ""))
    number = None if said is None else _NUMBER.search(said[0])
    return None if said is None else int(number[1]) if number else 0


class Transfer(NamedTuple):
    """One place that starts a transfer.

    Attributes:
        kind: Kind of transfer.
        start: The instruction that starts it and gives it its name.
        op: The instruction that holds its groups and operands; may lie in a computation that `start` calls.
        operands: Arrays that one device contributes.
        results: Arrays that one device receives.
        groups: Groups of device ids, for a permute source-target pairs; None if the text does not state them.
        received: The `recv` that belongs to a `send`; None for all others.
        operand_bytes: Bytes contributed, if the operands' shapes do not determine them; None to use `operands`.
        asynchronous: Whether it is printed as a start and a done instruction.
        link: The network, if the spelling determines it.
        global_ids: Whether `groups` count the devices of all slices, in text that is one slice's program.
        device_ids: Whether `groups` hold physical device ids, because their partitions are unknown.
        unmodelled: The part of it that was not understood.
    """

    kind: Kind
    start: HloInstruction
    op: HloInstruction
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    groups: Groups | None
    received: HloInstruction | None = None
    operand_bytes: int | None = None
    asynchronous: bool = False
    link: Link | None = None
    global_ids: bool = False
    device_ids: bool = False
    unmodelled: Unmodelled | None = None


class TransferSite(NamedTuple):
    """An instruction that may start a transfer, in one of the contexts in which it runs.

    Attributes:
        op: The instruction.
        context: The way in which ENTRY reaches it.
        siblings: All such instructions of its computation, including `op`.
        graph: The module.
        mesh: The user's mesh.
        layout: The meaning of device ids in the text.
    """

    op: HloInstruction
    context: Context
    siblings: tuple[HloInstruction, ...]
    graph: HloGraph
    mesh: Mesh | None
    layout: Numbering

    @property
    def computation(self) -> HloComputation:
        """The computation that holds the instruction."""
        return self.op.computation

    @property
    def start(self) -> HloInstruction:
        """The instruction that names the transfer: the outermost fusion or call around it, if it is alone in that.

        In a fusion with separate operations for each core, other transfers may accompany it.
        """
        if not self.context.wrappers or len(self.siblings) != 1:
            return self.op
        around, *inside = (*self.context.wrappers, self.op)
        return inside[0] if around.opcode == "fusion" and read_core_id(inside[0]) is not None else around

    @property
    def wrapped_asynchronously(self) -> bool:
        """True if an asynchronous start runs the computation."""
        return any(wrapper.opcode.endswith("-start") for wrapper in self.context.wrappers)


LOWER_BOUND = "its bytes are not known, so totals are a lower bound"


def make_opaque(place: TransferSite, what: str, link: Link | None = None) -> Transfer:
    """A transfer of which nothing but the place is known."""
    op = place.op
    return Transfer(
        kind=Kind.OPAQUE,
        start=place.start,
        op=op,
        operands=flatten_arrays(operand.shape for operand in op.operands),
        results=flatten_arrays([op.shape]),
        groups=None,
        asynchronous=op.opcode.endswith("-start") or place.wrapped_asynchronously,
        link=link,
        unmodelled=make_unmodelled(op, what, LOWER_BOUND),
    )


# ---- the uses of a collective's result: whether only the device's own shard of it is read, or only a narrower type
#
# A device's own part shows in the offsets that each device computes from its number, which are evaluated for each
# device.

_SLICES = frozenset({"dynamic-slice"})
ZEROS = re.compile(r"[\s{}(),]*(?:(?:-?0(?:\.0*)?(?:[eE][+-]?\d+)?|false)[\s{}(),]*)++")
"""The literal of a constant of nothing but zeros, of any type and shape."""
_CONVERSIONS = frozenset({"convert"})
_ELEMENTWISE = frozenset({"convert", "negate", "abs", "exponential", "tanh", "logistic", "rsqrt", "sqrt"})
"""Opcodes with one operand after which each device still needs only its own part."""


def find_result_slices(graph: HloGraph, results: Iterable[Value]) -> tuple[ArrayShape, ...]:
    """Shapes of the device's own slices, if no other part of some values is ever read; empty otherwise."""
    shapes: list[ArrayShape] = []
    for value in results:
        before = len(shapes)
        for reading in find_readings(graph, value, wanted=_SLICES):
            part = find_own_slice(graph, reading)
            if part is None:
                return ()
            shapes.append(ArrayShape(str(part)))
        if len(shapes) == before:
            return ()
    return tuple(shapes)


def gathers_by_summing(graph: HloGraph, collective: Collective) -> bool:
    """Returns whether an all-reduce sums the parts of an array that each device has and that are zero on all others.

    libtpu compiles some all-gathers so.
    """
    if collective.reduction != "add" or len(collective.operand_shapes) != 1 or graph.module.replica_count != 1:
        return False
    operand = graph.module.computation(collective.computation).instruction(collective.name).operand(0)
    if operand is None:
        return False
    placed = find_maker(graph, Value(operand))
    whole = placed.value.instruction.operand(0) if placed.value.instruction.opcode == "dynamic-update-slice" else None
    if whole is None:
        return False
    filled = find_maker(graph, Value(whole), placed.frames).value.instruction
    return ZEROS.fullmatch(filled.literal or "") is not None and _writes_parts_apart(graph, placed, collective)


def _writes_parts_apart(graph: HloGraph, placed: Maker, collective: Collective) -> bool:
    """Returns whether a `dynamic-update-slice` writes one part on each device, and no two of a group at one place."""
    _, part, *offsets = placed.value.instruction.operands
    for group in collective.groups:
        cells = set[tuple[int, ...]]()
        for device in group:
            found = [_evaluate_on_device(graph, Value(offset), device, placed.frames) for offset in offsets]
            known = [at for at in found if at is not None]
            pairs = list(zip(known, part.shape.dimensions, strict=False))
            if len(pairs) != len(offsets) or any(at % size for at, size in pairs):
                return False
            cells.add(tuple(at // size for at, size in pairs))
        if len(cells) < len(group):
            return False
    return bool(collective.groups)


def find_narrower_use(graph: HloGraph, results: Iterable[Value]) -> str | None:
    """The narrower element type that every reader converts some values to; None if one reader does not."""
    pairs: set[tuple[str, str]] = set()
    for value in results:
        for reading in find_readings(graph, value, wanted=_CONVERSIONS):
            if reading is None or reading.reader.opcode != "convert":
                return None
            pairs.add((reading.reader.shape.element_type, reading.value.instruction.shape.element_type))
    return find_common_narrower(pairs)


def find_undoing_slice(graph: HloGraph, transfer: Transfer, results: Sequence[Value]) -> str | None:
    """The slice that returns to each device the very part that it contributed to an all-gather.

    Args:
        graph: The module.
        transfer: The all-gather.
        results: Its results.

    Returns:
        The slicing instruction, or the outermost fusion around it; the first one if there are several. None if anything
        reads more or another part, or if offsets are unknown.
    """
    found: list[HloInstruction] = []
    parts = transfer.operands if len(transfer.operands) == len(results) else ()
    for value, part in zip(results, parts, strict=False):
        for reading in find_readings(graph, value, also=_ELEMENTWISE, wanted=_SLICES):
            if reading is None or not _takes_own_part(graph, transfer, part, reading):
                return None
            found.append(reading.outermost)
    return min(found, key=lambda reader: reader.line).name if found else None


def _takes_own_part(graph: HloGraph, transfer: Transfer, part: Shape, reading: Reading) -> bool:
    """Returns whether a reader takes, on each device, the part at the device's own position in its group."""
    taken, dimensions = find_own_slice(graph, reading), transfer.op.dimensions
    if taken is None or taken.dimensions != part.dimensions or not dimensions or transfer.groups is None:
        return False
    gathered, offsets = dimensions[0], reading.reader.operands[1:]
    if len(offsets) != len(part.dimensions) or transfer.op.computation.module.replica_count != 1:
        return False
    positions = [(device, position) for group in transfer.groups for position, device in enumerate(group)]
    return all(
        _evaluate_on_device(graph, Value(offset), device, reading.frames)
        == (position * part.dimensions[gathered] if dimension == gathered else 0)
        for device, position in positions
        for dimension, offset in enumerate(offsets)
    )


_DEPTH_LIMIT = 64
_INTEGER = re.compile(r"-?\d+")
_LOOKED_THROUGH = frozenset({"bitcast", "reshape", "convert"})
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
    "minimum": min,
    "maximum": max,
    "and": lambda left, right: left & right,
    "or": lambda left, right: left | right,
}
_OF_NATURALS: dict[str, Callable[[int, int], int]] = {
    "divide": lambda left, right: left // right if right else 0,
    "remainder": lambda left, right: left % right if right else left,
    "shift-right-logical": lambda left, right: left >> right,
    "shift-left": lambda left, right: left << min(right, _DEPTH_LIMIT),
}
"""Operations evaluated only if no operand is negative, so that the signs of types do not matter."""


def _evaluate_on_device(graph: HloGraph, value: Value, device: int, frames: Frames = (), depth: int = 0) -> int | None:
    """An integer scalar on one device; None if the text does not determine it, as for elided tables.

    Args:
        graph: The module.
        value: The scalar.
        device: The partition, in a program without replicas.
        frames: The fusions around it, outermost first.
        depth: Number of values on the way that are computed from it.
    """
    maker = find_maker(graph, value, frames, through=_LOOKED_THROUGH)
    instruction = maker.value.instruction
    opcode = instruction.opcode
    if depth > _DEPTH_LIMIT or maker.value.path:
        return None
    if opcode in ("partition-id", "replica-id"):
        return device if opcode == "partition-id" else 0
    if opcode == "constant":
        numbers = _read_table(instruction)
        return numbers[0] if numbers is not None and len(numbers) == 1 else None
    if opcode == "dynamic-slice":
        return _look_up_entry(graph, instruction, device, maker.frames, depth)
    operands = instruction.operands
    parts = [_evaluate_on_device(graph, Value(operand), device, maker.frames, depth + 1) for operand in operands]
    known = [part for part in parts if part is not None]
    if not known or len(known) != len(parts):
        return None
    result = _compute_operation(instruction, known)
    return None if result is None else wrap_integer(result, instruction.shape.element_type)


def _look_up_entry(graph: HloGraph, lookup: HloInstruction, device: int, frames: Frames, depth: int) -> int | None:
    """An entry of a constant table, with the index clamped to its range."""
    if len(lookup.operands) != 2 or lookup.shape.element_count != 1:
        return None
    table = _read_table(find_maker(graph, Value(lookup.operands[0]), frames).value.instruction)
    index = _evaluate_on_device(graph, Value(lookup.operands[1]), device, frames, depth + 1)
    return None if not table or index is None else table[max(0, min(index, len(table) - 1))]


def _read_table(constant: HloInstruction) -> list[int] | None:
    """The entries of an integer constant of at most one dimension; None for any other instruction or an elided one."""
    text = constant.literal or ""
    if text in ("true", "false"):
        return [int(text == "true")]
    numbers = [int(number) for number in _INTEGER.findall(text)]
    is_whole = re.fullmatch(r"[\d\s,{}-]*", text) is not None and len(constant.shape.dimensions) <= 1
    return numbers if is_whole and len(numbers) == constant.shape.element_count else None


def _compute_operation(instruction: HloInstruction, operands: Sequence[int]) -> int | None:
    opcode = instruction.opcode
    match operands:
        case [left, right] if opcode in _ARITHMETIC:
            return _ARITHMETIC[opcode](left, right)
        case [left, right] if opcode in _OF_NATURALS and min(left, right) >= 0:
            return _OF_NATURALS[opcode](left, right)
        case [left, right] if opcode == "compare" and min(left, right) >= 0:
            direction = CompareDirection.__members__.get(instruction.attributes.get("direction", ""))
            return None if direction is None else int(direction.holds(left - right))
        case [low, number, high] if opcode == "clamp":
            return max(low, min(number, high))
        case [condition, left, right] if opcode == "select":
            return left if condition else right
    return None
