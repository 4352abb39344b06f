"""How many bytes a collective moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.hlo import Shape
from hloscope.units import element_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Bytes per device and execution; None when not known.

    Attributes:
        payload_bytes: The larger side on one device.
        wire_bytes: What one device must send on an ideal ring.
    """

    payload_bytes: int | None
    wire_bytes: int | None


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


def sizes_bound(kind: Kind, operand_shapes: Iterable[str], result_shapes: Iterable[str]) -> Bound:
    """How a collective's bytes relate to the truth, as far as the shapes of its arrays tell.

    A bounded dynamic dimension such as `<=64` may be smaller at run time. Where operands and results have different
    element types, either of them may be what moves.

    Args:
        kind: What it does, and so which side is counted: the results of an all-gather, else the operands.
        operand_shapes: Shapes such as `bf16[<=64,8]`.
        result_shapes: The same for the results.
    """
    counted, other = (result_shapes, operand_shapes) if kind is Kind.ALL_GATHER else (operand_shapes, result_shapes)
    counted, other = tuple(counted), tuple(other)
    bound = Bound.AT_MOST if any("<=" in shape for shape in counted) else Bound.EXACT
    for one, opposite in zip(counted, other, strict=False):
        bits = [element_bits(shape.partition("[")[0]) or 0 for shape in (one, opposite)]
        if bits[0] != bits[1]:
            bound += Bound.AT_MOST if bits[0] > bits[1] else Bound.AT_LEAST
    return bound
