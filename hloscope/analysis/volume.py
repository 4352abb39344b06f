"""The bytes that a collective moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.hlo import Shape
from hloscope.units import count_array_bytes, count_element_bits, sum_known


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
