"""How many bytes a collective moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.hlo import Shape
from hloscope.units import array_bytes, element_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Bytes per device and execution; None when not known.

    Attributes:
        payload_bytes: The larger side on one device.
        wire_bytes: What one device must send on an ideal ring.
    """

    payload_bytes: int | None
    wire_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the arrays of a collective say about its payload, on one device.

    Attributes:
        payload_bytes: Logical bytes of the side that is counted; None when not known.
        at_least: What it cannot be smaller than; None when not known.
        padded: What it takes in memory with its tiles; None when the text gives no layout.
        bound: How `payload_bytes` relates to the truth; unknown when it is not known.
    """

    payload_bytes: int | None
    at_least: int | None
    padded: int | None
    bound: Bound


def arrays(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The arrays in some shapes; tokens carry no data."""
    return tuple(leaf for shape in shapes for leaf in shape.leaves() if leaf.element_type != "token")


def total_bytes(shapes: Iterable[Shape]) -> int | None:
    """Logical bytes of all arrays together; None when one of them is not known, or when there is none."""
    sizes = [None if shape.element_type == "opaque" else shape.byte_size for shape in shapes]
    if not sizes:
        return None
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def narrower(one: str, other: str) -> str | None:
    """The first of two element types where it has fewer bits and both are floats or both are not."""
    bits, other_bits = element_bits(one), element_bits(other)
    if bits is None or other_bits is None or not 0 < bits < other_bits:
        return None
    return one if _is_float(one) == _is_float(other) else None


def shapes_fit(
    kind: Kind, operands: Collection[Shape], results: Collection[Shape], groups: Iterable[tuple[int, ...]]
) -> bool:
    """Whether as many elements come out as groups of this size make of what goes in; True where nothing tells.

    Args:
        kind: What the collective does.
        operands: The arrays that one device puts in.
        results: The arrays that one device gets out.
        groups: Groups of devices; for a permute its pairs.
    """
    if kind is Kind.RAGGED_ALL_TO_ALL or total_bytes(operands) is None or total_bytes(results) is None:
        return True
    put_in, got_out = (sum(shape.element_count for shape in shapes) for shapes in (operands, results))
    members = max(map(len, groups), default=1)
    match kind:
        case Kind.ALL_GATHER:
            return put_in * members == got_out
        case Kind.REDUCE_SCATTER:
            return put_in == got_out * members
    return put_in == got_out


def volume_of(kind: Kind, operand_bytes: int | None, result_bytes: int | None, group_size: int | None) -> Volume:
    """The volume of any collective but a permute.

    Args:
        kind: What it does.
        operand_bytes: Bytes of all operands on one device.
        result_bytes: Bytes of all results on one device.
        group_size: Devices in a group, n; None when not known.

    Returns:
        payload: the result of an all-gather, else the operand. wire: all-gather (n-1)/n of the result; reduce-scatter
        and all-to-all (n-1)/n of the operand; all-reduce 2(n-1)/n of the operand; broadcast the operand;
        ragged all-to-all at most the operand. Divisions round up. Groups of one move nothing.

    Source: the bandwidth-optimal ring algorithms (Patarasuk and Yuan, 2009).
    """
    if kind is Kind.OPAQUE:
        return Volume(payload_bytes=None, wire_bytes=None)
    payload = result_bytes if kind is Kind.ALL_GATHER else operand_bytes
    if payload is None or group_size is None:
        return Volume(payload_bytes=payload, wire_bytes=None)
    if group_size <= 1:
        return Volume(payload_bytes=payload, wire_bytes=0)
    if kind in (Kind.COLLECTIVE_BROADCAST, Kind.RAGGED_ALL_TO_ALL):
        return Volume(payload_bytes=payload, wire_bytes=payload)
    passes = 2 if kind is Kind.ALL_REDUCE else 1
    return Volume(payload_bytes=payload, wire_bytes=-(-passes * (group_size - 1) * payload // group_size))


def volume_of_permute(operand_bytes: int | None, pairs: Iterable[tuple[int, ...]] | None) -> Volume:
    """The volume of a permute: the operand for each other device that one sends to; nothing when all keep theirs.

    Where devices send to different numbers of others, that of the busiest.
    """
    if pairs is None:
        return Volume(payload_bytes=operand_bytes, wire_bytes=None)
    targets = Counter(source for source, target in set(pairs) if source != target)
    copies = max(targets.values(), default=0)
    if copies == 0:
        return Volume(payload_bytes=operand_bytes, wire_bytes=0)
    return Volume(payload_bytes=operand_bytes, wire_bytes=None if operand_bytes is None else copies * operand_bytes)


def sizes_of(kind: Kind, operands: Iterable[Shape], results: Iterable[Shape], sliced: int | None = None) -> Sizes:
    """Reads the sizes of a collective off the shapes of its arrays.

    A bounded dynamic dimension such as `<=64` may be anything smaller at run time, and so may what a ragged all-to-all
    sends. Where operands and results have different element types, either of them may be what moves.

    Args:
        kind: What it does, and so which side is counted: the results of an all-gather, else the operands.
        operands: The arrays that one device puts in.
        results: The arrays that one device gets out.
        sliced: Bytes put in, where only slices of the operands are.
    """
    operands, results = tuple(operands), tuple(results)
    counted, other = (results, operands) if kind is Kind.ALL_GATHER else (operands, results)
    payload = total_bytes(counted) if sliced is None else sliced
    if payload is None or kind is Kind.OPAQUE:
        return Sizes(payload_bytes=None, at_least=None, padded=None, bound=Bound.UNKNOWN)
    if sliced is not None:
        return Sizes(payload_bytes=payload, at_least=payload, padded=None, bound=Bound.EXACT)
    bound, at_least = Bound.EXACT, 0
    for number, shape in enumerate(counted):
        moved = shape.byte_size or 0
        least, own = _least(shape, moved, other[number].element_type if number < len(other) else shape.element_type)
        at_least += least
        bound += own
    if kind is Kind.RAGGED_ALL_TO_ALL:
        bound, at_least = Bound.AT_MOST, 0
    return Sizes(payload_bytes=payload, at_least=at_least, padded=_padded(counted), bound=bound)


def _least(shape: Shape, moved: int, opposite: str) -> tuple[int, Bound]:
    """The fewest bytes that may move of an array, and how `moved` relates to the truth."""
    bound = Bound.AT_MOST if any(shape.dynamic) else Bound.EXACT
    bits, other_bits = element_bits(shape.element_type) or 0, element_bits(opposite) or 0
    if any(shape.dynamic):
        return 0, bound if bits >= other_bits else bound + Bound.AT_LEAST
    if bits > other_bits > 0:
        return array_bytes(opposite, shape.element_count) or 0, Bound.AT_MOST
    return moved, Bound.AT_LEAST if bits < other_bits else Bound.EXACT


def _padded(shapes: Iterable[Shape]) -> int | None:
    sizes = [None if shape.layout is None else shape.padded_byte_size for shape in shapes]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _is_float(element_type: str) -> bool:
    return element_type.startswith(("f", "bf"))
