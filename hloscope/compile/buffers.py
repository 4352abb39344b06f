"""The contents of HBM over a step and their peak, from the dumps of a compile; and the same as XProf reads it.

Source: `BufferAssignment::ToString`, `BufferAllocation::ToString` and `HloLiveRange::ToString` of xla/service.
Temporaries lie at offsets of one allocation, the heap; a value is live from the instruction that defines it to the
last one that reads it, both included. Values at one place are one buffer, which loops and in-place updates share.
Arguments, outputs and constants have allocations of their own, for the whole program. The buffers found this way at
the peak differ by at most 10 kB from `peak_memory_in_bytes` of libtpu 0.0.42.1 for programs whose temporaries
lie in HBM; if more of them lie in the vector memory on the chip, that figure counts those instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from hloscope.base.protobuf import encode_message, read_at_path, read_fields
from hloscope.model.capture import BufferValue, HbmPeak, LiveBuffer

_MOST_CHARS = 1 << 28
_MOST_BUFFERS = 512
_HBM = 0
_LINE = re.compile(
    r"^(?:allocation \d+: size (?P<bytes>\d+)(?:, color (?P<color>\d+))?(?P<roles>.*):"
    r"| value: <\d+ (?P<name>[^\s{]+)(?:\{(?P<element>[\d,]*)\})?(?: \(\w+\))? @\d+> "
    r"\(size=(?P<size>\d+),offset=(?P<offset>\d+)\): (?P<shape>.*))$",
    re.MULTILINE,
)
_RANGE = re.compile(r"^    ([^\s{]+)\{([\d,]*)\}:(\d+)-(\d+)$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^    (\d+):(\S+)$", re.MULTILINE)
_PARAMETER = re.compile(r"\bparameter (\d+)")


class _HeapValue(NamedTuple):
    """A value of the heap: its place and its lifetime."""

    start: int
    end: int
    first: int
    last: int
    value: BufferValue


def find_hbm_peak(assignment: str, live_ranges: str) -> HbmPeak | None:
    """The peak of HBM; None if the texts are missing or too long, or lack the lifetime of a value.

    Args:
        assignment: The text of a buffer assignment.
        live_ranges: The text of its values' live ranges.
    """
    if not assignment or not live_ranges or max(len(assignment), len(live_ranges)) > _MOST_CHARS:
        return None
    sequence, _, rest = live_ranges.partition("  BufferLiveRange:")
    names = {int(found[1]): found[2] for found in _INSTRUCTION.finditer(sequence)}
    ranges = {(found[1], _parse_numbers(found[2])): (int(found[3]), int(found[4])) for found in _RANGE.finditer(rest)}
    always, heap_bytes, heap = _read_assignment(assignment)
    if not names or any(value not in ranges for value, _, _ in heap):
        return None
    placed = [_HeapValue(offset, offset + size, *ranges[value], value) for value, size, offset in heap]
    taken = _sum_heap_over_time(placed)
    when = max(taken, key=lambda time: (taken[time], -time), default=0)
    temporaries = list(_find_live_buffers(placed, when))
    found = sorted([*always, *temporaries], key=lambda buffer: -buffer.bytes)
    temporary_bytes = sum(buffer.bytes for buffer in temporaries)
    return HbmPeak(
        at=names.get(when, ""),
        buffers=tuple(found[:_MOST_BUFFERS]),
        other_bytes=sum(buffer.bytes for buffer in found[_MOST_BUFFERS:]),
        live_bytes=sum(buffer.bytes for buffer in found),
        heap_bytes=heap_bytes,
        temporary_bytes=temporary_bytes,
        live_bytes_at=dict(_sum_all_over_time(names, taken, sum(buffer.bytes for buffer in always))),
    )


def lists_every_value(assignment: str, live_ranges: str) -> bool:
    """Returns whether a buffer assignment has a place for every value that has a lifetime, as a whole one does."""
    placed = {_parse_value(line) for line in _LINE.finditer(assignment) if line["name"] is not None}
    return all((found[1], _parse_numbers(found[2])) in placed for found in _RANGE.finditer(live_ranges))


def _parse_numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _read_assignment(assignment: str) -> tuple[list[LiveBuffer], int, list[tuple[BufferValue, int, int]]]:
    """The buffers that are always live; the bytes of the heap, and its values with their sizes and offsets."""
    always: list[LiveBuffer] = []
    heap: list[tuple[BufferValue, int, int]] = []
    heap_bytes = 0
    for allocation, values in _split_allocations(assignment):
        size, roles = int(allocation["bytes"]), allocation["roles"]
        if int(allocation["color"] or _HBM) != _HBM or "thread-local" in roles:
            continue
        if "preallocated-temp" in roles:
            heap += ((_parse_value(value), int(value["size"]), heap_bytes + int(value["offset"])) for value in values)
            heap_bytes += size
            continue
        number = _PARAMETER.search(roles)
        always.append(
            LiveBuffer(
                bytes=size,
                values=tuple(map(_parse_value, values)),
                parameter=None if number is None else int(number[1]),
                is_output="maybe-live-out" in roles,
            )
        )
    return always, heap_bytes, heap


def _split_allocations(assignment: str) -> Iterator[tuple[re.Match[str], list[re.Match[str]]]]:
    """The head of each allocation, with the lines of its values."""
    lines = list(_LINE.finditer(assignment))
    heads = [number for number, line in enumerate(lines) if line["bytes"] is not None]
    for head, following in pairwise([*heads, len(lines)]):
        yield lines[head], lines[head + 1 : following]


def _parse_value(line: re.Match[str]) -> BufferValue:
    return line["name"], _parse_numbers(line["element"])


def _sum_heap_over_time(placed: Sequence[_HeapValue]) -> dict[int, int]:
    """The used bytes of the heap from each time at which they change; the overlap of several values counts once."""
    edges = sorted({edge for buffer in placed for edge in (buffer.start, buffer.end)})
    number = {edge: index for index, edge in enumerate(edges)}
    sizes = np.array([end - start for start, end in pairwise(edges)], dtype=np.int64)
    holders = np.zeros(len(sizes), dtype=np.int32)
    changes = [(buffer.first, 1, buffer) for buffer in placed] + [(buffer.last + 1, -1, buffer) for buffer in placed]
    found: dict[int, int] = {}
    taken = 0
    for time, change, buffer in sorted(changes, key=lambda each: each[:2]):
        place = slice(number[buffer.start], number[buffer.end])
        held = holders[place]
        before = int(sizes[place] @ (held > 0))
        held += change
        taken += int(sizes[place] @ (held > 0)) - before
        found[time] = taken
    return found


def _sum_all_over_time(
    names: Mapping[int, str], taken: Mapping[int, int], always_bytes: int
) -> Iterator[tuple[str, int]]:
    """The bytes that are live during each instruction."""
    there = 0
    for time in sorted({*names, *taken}):
        there = taken.get(time, there)
        if time in names:
            yield names[time], always_bytes + there


def _find_live_buffers(placed: Iterable[_HeapValue], when: int) -> Iterator[LiveBuffer]:
    """The buffers of the heap at a time; of overlapping values, the largest is the buffer."""
    live = (buffer for buffer in placed if buffer.first <= when <= buffer.last)
    there = sorted(live, key=lambda buffer: (buffer.start, -buffer.end))
    values: list[BufferValue] = []
    start = end = -1
    for buffer in there:
        if buffer.start >= end and values:
            yield LiveBuffer(bytes=end - start, values=tuple(values), is_temporary=True)
            values = []
        start, end = (buffer.start, buffer.end) if not values else (start, max(end, buffer.end))
        values.append(buffer.value)
    if values:
        yield LiveBuffer(bytes=end - start, values=tuple(values), is_temporary=True)


# ---- what is read of it by others: XProf's memory viewer

_LOGICAL_BUFFERS, _ALLOCATIONS, _TRACES = 1, 3, 4
_COMPUTATIONS, _INSTRUCTIONS, _NAME, _ID_OF_INSTRUCTION = 3, 2, 1, 35
_ALLOCATED, _FREED = 0, 1

"""Fields and values of `BufferAssignmentProto` in xla/service/hlo.proto, as libtpu 0.0.42.1 writes them."""

_Field = tuple[int, int | bytes]


def encode_peak(peak: HbmPeak, module: bytes) -> bytes:
    """Encodes the peak of HBM as a serialized `BufferAssignmentProto`.

    It holds only the buffers of the peak: every temporary is allocated before the first one is freed.

    Args:
        peak: The contents of HBM at the peak.
        module: The serialized module, whose instruction numbers it uses.
    """
    ids = _find_ids(module, {name for buffer in peak.buffers for name, _ in buffer.values} | {peak.at})
    told = [buffer for buffer in peak.buffers if buffer.values and buffer.values[0][0] in ids]
    other_bytes = peak.live_bytes - sum(buffer.bytes for buffer in told)
    if other_bytes > 0 and peak.at in ids:  # what is too small to be told by itself
        told.append(LiveBuffer(bytes=other_bytes, values=((peak.at, ()),), is_temporary=True))
    numbered = list(enumerate(told))
    lasting = [pair for pair in numbered if not pair[1].is_temporary]
    temporary = [pair for pair in numbered if pair[1].is_temporary]
    found: list[_Field] = []
    for number, buffer in numbered:
        found.append((_LOGICAL_BUFFERS, _encode_logical_buffer(number, buffer, ids)))
    for index, (number, buffer) in enumerate(lasting):
        allocation = [*_encode_allocation(index, buffer), (9, _encode_assigned(number, 0, buffer))]
        found.append((_ALLOCATIONS, encode_message(allocation)))
    offsets = accumulate((buffer.bytes for _, buffer in temporary), initial=0)
    places = [
        (9, _encode_assigned(number, at, buffer)) for (number, buffer), at in zip(temporary, offsets, strict=False)
    ]
    heap = sum(buffer.bytes for _, buffer in temporary)
    found.append((_ALLOCATIONS, encode_message([(1, len(lasting)), (2, heap), *places])))
    events = [(1, encode_message([(1, kind), (2, number)])) for kind in (_ALLOCATED, _FREED) for number, _ in temporary]
    found.append((_TRACES, encode_message([*events, (2, 1), (3, len(lasting))])))
    return encode_message(found)


def _encode_logical_buffer(number: int, buffer: LiveBuffer, ids: dict[str, int]) -> bytes:
    """A buffer, by the first of its values."""
    name, path = buffer.values[0]
    place = encode_message([*((3, index) for index in path), (4, ids[name])])
    return encode_message([(1, number), (2, buffer.bytes), (3, place)])


def _encode_allocation(index: int, buffer: LiveBuffer) -> Iterator[_Field]:
    """An allocation for the whole program: an argument, an output or a constant."""
    yield from ((1, index), (2, buffer.bytes))
    if buffer.parameter is not None:
        yield from ((5, 1), (6, buffer.parameter))
    if buffer.is_output:
        yield 7, 1
    if buffer.parameter is None and not buffer.is_output:
        yield 12, 1


def _encode_assigned(number: int, offset: int, buffer: LiveBuffer) -> bytes:
    return encode_message([(1, number), (2, offset), (3, buffer.bytes)])


def _find_ids(module: bytes, wanted: Collection[str]) -> dict[str, int]:
    """The numbers of instructions, by name."""
    found: dict[str, int] = {}
    for instruction in read_at_path(module, (_COMPUTATIONS, _INSTRUCTIONS)):
        name, own = _read_name_and_id(instruction)
        if name in wanted:
            found[name] = own
    return found


def _read_name_and_id(instruction: bytes) -> tuple[str, int]:
    values = dict(read_fields(instruction))
    name, own = values.get(_NAME, b""), values.get(_ID_OF_INSTRUCTION, 0)
    return (name.decode("utf-8", "replace") if isinstance(name, bytes) else ""), own if isinstance(own, int) else 0
