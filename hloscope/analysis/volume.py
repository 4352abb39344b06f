"""The bytes that a collective moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.hlo import Shape
from hloscope.units import array_bytes, element_bits, known_sum


class Sizes(NamedTuple):
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
    return known_sum(sizes) if sizes else None


def narrower(one: str, other: str) -> str | None:
    """The first of two element types where it has fewer bits and both are floats or both are not."""
    bits, other_bits = element_bits(one), element_bits(other)
    if bits is None or other_bits is None or not 0 < bits < other_bits:
        return None
    return one if _is_float(one) == _is_float(other) else None


def common_narrower(pairs: Iterable[tuple[str, str]]) -> str | None:
    """The one type that is the narrower first of all pairs; None where one is not, and where there are none."""
    types = {narrower(one, other) for one, other in pairs}
    return types.pop() if len(types) == 1 else None


def shapes_fit(
    kind: Kind, operands: Collection[Shape], results: Collection[Shape], groups: Iterable[tuple[int, ...]]
) -> bool:
    """Whether as many elements come out as groups of this size make of what goes in; True where nothing says.

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


@lru_cache(maxsize=1024)
def wire_bytes_of(kind: Kind, payload_bytes: int | None, groups: tuple[tuple[int, ...], ...] | None) -> int | None:
    """What one device must send on an ideal ring; of devices that send differently much, the busiest.

    Args:
        kind: What the collective does.
        payload_bytes: Bytes of the result of an all-gather, of all others of the operand, on one device.
        groups: Groups of devices, of which the largest counts; for a permute its pairs.

    Returns:
        All-gather, reduce-scatter and all-to-all (n-1)/n of the payload; all-reduce 2(n-1)/n; broadcast all of it;
        ragged all-to-all at most all of it; a permute all of it for each other device that one sends to. Divisions
        round up. What stays where it is moves nothing. None when not known.

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
    return Sizes(
        payload_bytes=payload,
        at_least=at_least,
        padded=known_sum(None if shape.layout is None else shape.padded_byte_size for shape in counted),
        bound=bound,
    )


def _least(shape: Shape, moved: int, opposite: str) -> tuple[int, Bound]:
    """The fewest bytes that may move of an array, and how `moved` relates to the truth."""
    bound = Bound.AT_MOST if any(shape.dynamic) else Bound.EXACT
    bits, other_bits = element_bits(shape.element_type) or 0, element_bits(opposite) or 0
    if any(shape.dynamic):
        return 0, bound if bits >= other_bits else bound + Bound.AT_LEAST
    if bits > other_bits > 0:
        return array_bytes(opposite, shape.element_count) or 0, Bound.AT_MOST
    return moved, Bound.AT_LEAST if bits < other_bits else Bound.EXACT


def _is_float(element_type: str) -> bool:
    return element_type.startswith(("f", "bf"))
