"""What lies in HBM over a step and when most of it is taken, from what a compile writes down; and as XProf reads it.

Source: `BufferAssignment::ToString`, `BufferAllocation::ToString` and `HloLiveRange::ToString` of xla/service.
Temporaries lie at offsets of one allocation, the heap; a value is there from the instruction that defines it to the
last one that reads it, both included. Values at one place are one buffer, which loops and updates in place hand on.
Arguments, outputs and constants have allocations of their own, for the whole program. What is so found to be there at
the peak is what libtpu 0.0.42.1 says in `peak_memory_in_bytes`, but for at most 10 kB, of programs whose temporaries
lie in HBM; where more of them lie in the vector memory on the chip, that figure counts those.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from hloscope.compiler.model import HbmPeak, LiveBuffer, Value
from hloscope.protobuf import Value as WireValue
from hloscope.protobuf import fields, message

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


class _Placed(NamedTuple):
    """A value of the heap: where it lies, and from when to when."""

    start: int
    end: int
    first: int
    last: int
    value: Value


def peak_of(assignment: str, live_ranges: str) -> HbmPeak | None:
    """What is there at the peak; None where the texts are missing, too long, or say not of each value when it is there.

    Args:
        assignment: The text of a buffer assignment.
        live_ranges: The text of its values' live ranges.
    """
    if not assignment or not live_ranges or max(len(assignment), len(live_ranges)) > _MOST_CHARS:
        return None
    sequence, _, rest = live_ranges.partition("  BufferLiveRange:")
    names = {int(found[1]): found[2] for found in _INSTRUCTION.finditer(sequence)}
    ranges = {(found[1], _numbers(found[2])): (int(found[3]), int(found[4])) for found in _RANGE.finditer(rest)}
    always, heap_bytes, heap = _read(assignment)
    if not names or any(value not in ranges for value, _, _ in heap):
        return None
    placed = [_Placed(offset, offset + size, *ranges[value], value) for value, size, offset in heap]
    taken = _taken(placed)
    when = max(taken, key=lambda time: (taken[time], -time), default=0)
    temporaries = list(_buffers_at(placed, when))
    found = sorted([*always, *temporaries], key=lambda buffer: -buffer.bytes)
    temporary_bytes = sum(buffer.bytes for buffer in temporaries)
    return HbmPeak(
        at=names.get(when, ""),
        buffers=tuple(found[:_MOST_BUFFERS]),
        other_bytes=sum(buffer.bytes for buffer in found[_MOST_BUFFERS:]),
        live_bytes=sum(buffer.bytes for buffer in found),
        heap_bytes=heap_bytes,
        temporary_bytes=temporary_bytes,
        live_bytes_at=dict(_over_time(names, taken, sum(buffer.bytes for buffer in always))),
    )


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _read(assignment: str) -> tuple[list[LiveBuffer], int, list[tuple[Value, int, int]]]:
    """The buffers that are always there; the bytes of the heap, and its values with their sizes and offsets."""
    always: list[LiveBuffer] = []
    heap: list[tuple[Value, int, int]] = []
    heap_bytes = 0
    for allocation, values in _allocations(assignment):
        size, roles = int(allocation["bytes"]), allocation["roles"]
        if int(allocation["color"] or _HBM) != _HBM or "thread-local" in roles:
            continue
        if "preallocated-temp" in roles:
            heap += ((_value(value), int(value["size"]), heap_bytes + int(value["offset"])) for value in values)
            heap_bytes += size
            continue
        number = _PARAMETER.search(roles)
        always.append(
            LiveBuffer(
                bytes=size,
                values=tuple(map(_value, values)),
                parameter=None if number is None else int(number[1]),
                is_output="maybe-live-out" in roles,
            )
        )
    return always, heap_bytes, heap


def _allocations(assignment: str) -> Iterator[tuple[re.Match[str], list[re.Match[str]]]]:
    """The head of each allocation with the lines of its values."""
    lines = list(_LINE.finditer(assignment))
    heads = [number for number, line in enumerate(lines) if line["bytes"] is not None]
    for head, following in pairwise([*heads, len(lines)]):
        yield lines[head], lines[head + 1 : following]


def _value(line: re.Match[str]) -> Value:
    return line["name"], _numbers(line["element"])


def _taken(placed: Sequence[_Placed]) -> dict[int, int]:
    """What is taken of the heap from each time on at which that changes; what several values share counts once."""
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


def _over_time(names: Mapping[int, str], taken: Mapping[int, int], always_bytes: int) -> Iterator[tuple[str, int]]:
    """All that is there while each instruction runs."""
    there = 0
    for time in sorted({*names, *taken}):
        there = taken.get(time, there)
        if time in names:
            yield names[time], always_bytes + there


def _at(placed: Iterable[_Placed], when: int) -> Iterator[_Placed]:
    return (buffer for buffer in placed if buffer.first <= when <= buffer.last)


def _buffers_at(placed: Iterable[_Placed], when: int) -> Iterator[LiveBuffer]:
    """The buffers of the heap at a time; of values that overlap, the largest is the buffer."""
    there = sorted(_at(placed, when), key=lambda buffer: (buffer.start, -buffer.end))
    values: list[Value] = []
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


def assignment_of(peak: HbmPeak, module: bytes) -> bytes:
    """The peak of HBM as a serialized `BufferAssignmentProto`.

    Only what is there at the peak is told: every temporary is allocated before the first one is freed.

    Args:
        peak: What is in HBM at the peak.
        module: The serialized module, whose numbers of instructions it uses.
    """
    ids = _ids(module, {name for buffer in peak.buffers for name, _ in buffer.values} | {peak.at})
    told = [buffer for buffer in peak.buffers if _defined(buffer, ids) is not None]
    other_bytes = peak.live_bytes - sum(buffer.bytes for buffer in told)
    if other_bytes > 0 and peak.at in ids:  # what is too small to be told by itself
        told.append(LiveBuffer(bytes=other_bytes, values=((peak.at, ()),), is_temporary=True))
    numbered = list(enumerate(told))
    lasting = [pair for pair in numbered if not pair[1].is_temporary]
    temporary = [pair for pair in numbered if pair[1].is_temporary]
    found: list[_Field] = [(_LOGICAL_BUFFERS, _logical(number, buffer, ids)) for number, buffer in numbered]
    for index, (number, buffer) in enumerate(lasting):
        found.append((_ALLOCATIONS, message([*_allocation(index, buffer), (9, _assigned(number, 0, buffer))])))
    offsets = accumulate((buffer.bytes for _, buffer in temporary), initial=0)
    places = [(9, _assigned(number, at, buffer)) for (number, buffer), at in zip(temporary, offsets, strict=False)]
    heap = sum(buffer.bytes for _, buffer in temporary)
    found.append((_ALLOCATIONS, message([(1, len(lasting)), (2, heap), *places])))
    events = [(1, message([(1, kind), (2, number)])) for kind in (_ALLOCATED, _FREED) for number, _ in temporary]
    found.append((_TRACES, message([*events, (2, 1), (3, len(lasting))])))
    return message(found)


def _logical(number: int, buffer: LiveBuffer, ids: dict[str, int]) -> bytes:
    """A buffer by the first of the values that it holds."""
    name, path = buffer.values[0]
    place = message([*((3, index) for index in path), (4, ids[name])])
    return message([(1, number), (2, buffer.bytes), (3, place)])


def _allocation(index: int, buffer: LiveBuffer) -> Iterator[_Field]:
    """What lies there for the whole program: an argument, an output or a constant."""
    yield from ((1, index), (2, buffer.bytes))
    if buffer.parameter is not None:
        yield from ((5, 1), (6, buffer.parameter))
    if buffer.is_output:
        yield 7, 1
    if buffer.parameter is None and not buffer.is_output:
        yield 12, 1


def _assigned(number: int, offset: int, buffer: LiveBuffer) -> bytes:
    return message([(1, number), (2, offset), (3, buffer.bytes)])


def _defined(buffer: LiveBuffer, ids: dict[str, int]) -> int | None:
    return ids.get(buffer.values[0][0]) if buffer.values else None


def _ids(module: bytes, wanted: Collection[str]) -> dict[str, int]:
    """The numbers of instructions, by name."""
    found: dict[str, int] = {}
    for number, computation in fields(module):
        if number == _COMPUTATIONS and isinstance(computation, bytes):
            for kind, instruction in fields(computation):
                if kind == _INSTRUCTIONS and isinstance(instruction, bytes):
                    name, own = _name_and_id(instruction)
                    if name in wanted:
                        found[name] = own
    return found


def _name_and_id(instruction: bytes) -> tuple[str, int]:
    values: dict[int, WireValue] = {}
    for number, value in fields(instruction):
        values[number] = value
    name, own = values.get(_NAME, b""), values.get(_ID_OF_INSTRUCTION, 0)
    return (name.decode("utf-8", "replace") if isinstance(name, bytes) else ""), own if isinstance(own, int) else 0
