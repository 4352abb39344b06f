"""The peak of HBM as a buffer assignment, as XProf's memory viewer reads it.

Only what is there at the peak is told: every temporary is allocated before the first one is freed.

Source: `BufferAssignmentProto` of xla/service/hlo.proto, whose numbers these are, and what libtpu 0.0.42.1 writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import accumulate

from hloscope.compiler.buffers import HbmPeak, LiveBuffer
from hloscope.protobuf import Value, fields, message

_LOGICAL_BUFFERS, _ALLOCATIONS, _TRACES = 1, 3, 4
_COMPUTATIONS, _INSTRUCTIONS, _NAME, _ID_OF_INSTRUCTION = 3, 2, 1, 35
_ALLOCATED, _FREED = 0, 1

_Field = tuple[int, int | bytes]


def assignment_of(peak: HbmPeak, module: bytes) -> bytes:
    """A serialized `BufferAssignmentProto`.

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
    values: dict[int, Value] = {}
    for number, value in fields(instruction):
        values[number] = value
    name, own = values.get(_NAME, b""), values.get(_ID_OF_INSTRUCTION, 0)
    return (name.decode("utf-8", "replace") if isinstance(name, bytes) else ""), own if isinstance(own, int) else 0
