"""Bytes on one device, in total and at the peak, from the compiler's figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hloscope.analysis.dataflow import find_consumers, find_maker, find_shape
from hloscope.analysis.provenance import find_provenance
from hloscope.base.results import group_by
from hloscope.hlo import HloInstruction, HloModule
from hloscope.hlo.call_graph import Value, find_call_graph
from hloscope.model import Collective, make_shapes
from hloscope.model.analysis import BufferRole, MemoryPeak, PeakBuffer
from hloscope.model.capture import HbmPeak, LiveBuffer
from hloscope.model.vocabulary import Kind

_LEAST_SHARE = 1 / 4096
"""Buffers with a smaller share of the total are not listed individually."""
_LOOPS = 8
"""Maximum number of nested loops that a value is traced out of."""
_COPIES = frozenset({"copy", "copy-start", "copy-done"})
_NUMBER = re.compile(r"\d+")


def find_memory_peak(peak: HbmPeak, module: HloModule, collectives: Iterable[Collective]) -> MemoryPeak:
    """The contents of a device's HBM at peak usage.

    Args:
        peak: The buffers at the peak, as the compiler assigned them.
        module: The final module.
        collectives: Its collectives.
    """
    return _PeakReader(peak, module, collectives).read()


class _PeakReader:
    """Describes the buffers at the peak from the final module."""

    def __init__(self, peak: HbmPeak, module: HloModule, collectives: Iterable[Collective]) -> None:
        self._peak = peak
        self._graph = find_call_graph(module)
        self._gathers = {collective.name for collective in collectives if collective.kind is Kind.ALL_GATHER}
        wanted = {name for buffer in peak.buffers for name, _ in buffer.values} | {peak.at}
        self._instructions = module.named(wanted)
        entry = self._graph.entry
        self._parameters = () if entry is None else entry.parameters
        own = (buffer.bytes for buffer in peak.buffers if buffer.is_output and buffer.parameter is None)
        self._own_outputs = Counter(own)
        self._runs_backward = _is_backward(self._op_name(self._instructions.get(peak.at)))

    def read(self) -> MemoryPeak:
        """The peak with all its buffers; those of equal layers are merged."""
        peak = self._peak
        told = [buffer for buffer in peak.buffers if buffer.bytes >= _LEAST_SHARE * peak.live_bytes]
        at = self._instructions.get(peak.at)
        place = None if at is None else find_provenance(self._graph, [at])
        buffers = group_by(map(self._told, told), _make_layer_key).values()
        return MemoryPeak(
            at=peak.at,
            op_name=None if place is None else place.op_name,
            source=() if place is None else place.source,
            live_bytes=peak.live_bytes,
            fragmentation_bytes=peak.heap_bytes - peak.temporary_bytes,
            buffers=tuple(sorted(map(_merge_buffers, buffers), key=lambda buffer: -buffer.bytes * buffer.count)),
            other_bytes=peak.live_bytes - sum(buffer.bytes for buffer in told),
        )

    def _told(self, buffer: LiveBuffer) -> PeakBuffer:
        if buffer.parameter is not None:
            return self._argument(buffer, buffer.parameter)
        values = (Value(self._instructions[name], path) for name, path in buffer.values if name in self._instructions)
        shaped = ((find_shape(value), value) for value in values)
        arrays = [(shape, value) for shape, value in shaped if shape is not None and not shape.is_tuple]
        if not arrays:
            role = BufferRole.OUTPUT if buffer.is_output else BufferRole.TEMPORARY
            role = role if buffer.is_temporary or buffer.is_output else BufferRole.CONSTANT
            name = buffer.values[0][0] if buffer.values else ""
            return PeakBuffer(role=role, bytes=buffer.bytes, count=1, name=name, shape=None)
        shape, value = max(arrays, key=lambda pair: pair[0].padded_byte_size or 0)
        maker = self._maker(value)
        place = find_provenance(self._graph, [maker])
        return PeakBuffer(
            role=self._role(buffer, value.instruction, maker),
            bytes=buffer.bytes,
            count=1,
            name=maker.name,
            shape=make_shapes(shape)[0],
            op_name=place.op_name,
            source=place.source,
        )

    def _argument(self, buffer: LiveBuffer, number: int) -> PeakBuffer:
        parameter = self._parameters[number] if number < len(self._parameters) else None
        name = None if parameter is None else parameter.op_name or parameter.name
        shape = None if parameter is None or parameter.shape.is_tuple else make_shapes(parameter.shape)[0]
        is_freed = not buffer.is_output and self._own_outputs[buffer.bytes] > 0
        self._own_outputs[buffer.bytes] -= is_freed
        return PeakBuffer(
            role=BufferRole.ARGUMENT,
            bytes=buffer.bytes,
            count=1,
            name=name or f"parameter {number}",
            shape=shape,
            donation_frees=is_freed,
        )

    def _role(self, buffer: LiveBuffer, instruction: HloInstruction, maker: HloInstruction) -> BufferRole:
        if not buffer.is_temporary:
            return BufferRole.OUTPUT if buffer.is_output else BufferRole.CONSTANT
        starts = {maker.name, *(operand.name for operand in maker.operands if maker.opcode.endswith("-done"))}
        if starts & self._gathers:
            return BufferRole.GATHERED
        made_by = self._op_name(maker) or ""
        if "jvp(" in made_by and not _is_backward(made_by) and self._is_read_backward(instruction):
            return BufferRole.SAVED
        return BufferRole.COPY if instruction.opcode in _COPIES else BufferRole.TEMPORARY

    def _is_read_backward(self, instruction: HloInstruction) -> bool:
        """Returns whether the backward pass runs an instruction or reads its result."""
        return self._runs_backward or any(
            _is_backward(reader.op_name) for reader in find_consumers(self._graph, instruction)
        )

    def _op_name(self, instruction: HloInstruction | None) -> str | None:
        return None if instruction is None else find_provenance(self._graph, [instruction]).op_name

    def _maker(self, value: Value) -> HloInstruction:
        """The producer of a value, traced into and out of the bodies of loops."""
        for _ in range(_LOOPS):
            found = find_maker(self._graph, value, through=())
            loop = self._loop_of(found.value)
            if found.frames or loop is None:
                return found.outermost
            body, path = dict(loop.called).get("body"), found.value.path
            if body is None or not path:
                return found.outermost
            computation = self._graph.module.computation(body)
            after = find_maker(self._graph, Value(computation.root, path), through=())
            is_unchanged = after.value == Value(computation.parameters[0], path)
            before = loop.operand(0)
            if not is_unchanged and after.value.instruction.opcode != "while":
                return after.outermost
            if before is None:
                return loop
            value = Value(before, path) if is_unchanged else after.value
        return value.instruction

    def _loop_of(self, value: Value) -> HloInstruction | None:
        """The loop that a value is the result of, or is carried by."""
        instruction = value.instruction
        if instruction.opcode == "while":
            return instruction
        if instruction.opcode != "parameter" or instruction.computation.is_entry:
            return None
        caller = self._graph.only_caller(instruction.computation.name)
        return caller if caller is not None and caller.opcode == "while" else None


def _is_backward(op_name: str | None) -> bool:
    return "transpose(" in (op_name or "")


def _make_layer_key(buffer: PeakBuffer) -> object:
    """A key shared by the buffers of equal layers."""
    name = _NUMBER.sub("*", buffer.name) if buffer.role is BufferRole.ARGUMENT else ""
    op_name = _NUMBER.sub("*", buffer.op_name or "")
    return buffer.role, buffer.bytes, name, buffer.shape, op_name, buffer.source[:1], buffer.donation_frees


def _merge_buffers(alike: Iterable[PeakBuffer]) -> PeakBuffer:
    """Merges buffers that differ only in their layer."""
    first, *others = alike
    if not others:
        return first
    return replace(first, count=1 + len(others), name=_merge_names([first.name, *(buffer.name for buffer in others)]))


def _merge_names(names: Sequence[str]) -> str:
    """A name with `*` for the numbers in which names of one form differ; the first name if the forms differ."""
    if len({_NUMBER.sub("*", name) for name in names}) > 1:
        return names[0]
    columns = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    numbers = (column[0] if len({*column}) == 1 else "*" for column in columns)
    return _NUMBER.sub(lambda _: next(numbers), names[0])
