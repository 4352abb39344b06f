"""Bytes on one device, from the figures of the compiler, and what they are when most are taken."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hloscope.analysis.defs import maker_of
from hloscope.analysis.model import BufferRole, Collective, Memory, MemoryPeak, PeakBuffer, shapes_of
from hloscope.analysis.provenance import provenance_of
from hloscope.analysis.totals import grouped
from hloscope.analysis.uses import consumers
from hloscope.analysis.vocabulary import Kind
from hloscope.compiler.model import HbmPeak, LiveBuffer
from hloscope.hlo import HloInstruction, HloModule, Shape
from hloscope.hlo.call_graph import HloGraph, Value
from hloscope.program.capture import Capture
from hloscope.units import known_sum

_LEAST_SHARE = 1 / 4096
"""Buffers of a smaller part of the whole are not told one by one."""
_LOOPS = 8
"""Loops inside each other that a value is followed out of."""
_COPIES = frozenset({"copy", "copy-start", "copy-done"})
_NUMBER = re.compile(r"\d+")


def memory_of(program: Capture) -> Memory:
    """What a program takes of a device's memory, as far as the compiler says.

    Temporaries come from the buffer assignment where the compiler wrote it down, because that is what libtpu compares
    with the chip's HBM. `temp_size_in_bytes` of `CompiledMemoryStats` is something else: for the training step of
    `fixtures/programs/decoder_step.py` on v4:8x8x8 it is 34.4 GB, which would not fit, where 28.2 GB are assigned and
    libtpu 0.0.42.1 compiles it; for a small program it can be 0 where megabytes are assigned.
    """
    figures = program.compiled.memory_bytes
    if program.compiled.hbm_peak is not None:
        figures = {**figures, "temp_size_in_bytes": program.compiled.hbm_peak.heap_bytes}
    names = ("argument", "output", "temp", "alias", "generated_code")
    parts: dict[str, int | None] = {f"{name}_bytes": figures.get(f"{name}_size_in_bytes") for name in names}
    chip = None if program.slice is None else program.slice.chip
    signed = (-size if size and name == "alias_bytes" else size for name, size in parts.items())
    return Memory(
        **parts,
        peak_bytes=known_sum(signed),
        hbm_bytes=chip.hbm_bytes_per_device if chip else None,
        fits=None if chip is None or program.is_text else program.compiled.too_large is None,
    )


def memory_peak(program: Capture, module: HloModule, collectives: Iterable[Collective]) -> MemoryPeak | None:
    """What lies in a device's HBM when most of it is taken; None where the compiler did not say.

    Args:
        program: What one compile yielded.
        module: The final module.
        collectives: Its collectives.
    """
    peak = program.compiled.hbm_peak
    if peak is None:
        return None
    return _Reader(peak, module, collectives).read()


class _Reader:
    """The final module, by what buffers are told by."""

    def __init__(self, peak: HbmPeak, module: HloModule, collectives: Iterable[Collective]) -> None:
        self._peak = peak
        self._graph = HloGraph(module)
        self._gathers = {collective.name for collective in collectives if collective.kind is Kind.ALL_GATHER}
        wanted = {name for buffer in peak.buffers for name, _ in buffer.values} | {peak.at}
        self._instructions = module.named(wanted)
        entry = self._graph.entry
        self._parameters = () if entry is None else entry.parameters
        own = (buffer.bytes for buffer in peak.buffers if buffer.is_output and buffer.parameter is None)
        self._own_outputs = Counter(own)
        self._runs_backward = _is_backward(self._op_name(self._instructions.get(peak.at)))

    def read(self) -> MemoryPeak:
        """All of it, equal layers as one."""
        peak = self._peak
        told = [buffer for buffer in peak.buffers if buffer.bytes >= _LEAST_SHARE * peak.live_bytes]
        at = self._instructions.get(peak.at)
        place = None if at is None else provenance_of(self._graph, [at])
        buffers = grouped(_alike, map(self._told, told)).values()
        return MemoryPeak(
            at=peak.at,
            op_name=None if place is None else place.op_name,
            source=() if place is None else place.source,
            live_bytes=peak.live_bytes,
            fragmentation_bytes=peak.heap_bytes - peak.temporary_bytes,
            buffers=tuple(sorted(map(_together, buffers), key=lambda buffer: -buffer.bytes * buffer.count)),
            other_bytes=peak.live_bytes - sum(buffer.bytes for buffer in told),
        )

    def _told(self, buffer: LiveBuffer) -> PeakBuffer:
        if buffer.parameter is not None:
            return self._argument(buffer, buffer.parameter)
        held = [(self._instructions[name], path) for name, path in buffer.values if name in self._instructions]
        arrays = [(instruction, path) for instruction, path in held if not _shape_at(instruction, path).is_tuple]
        if not arrays:
            role = BufferRole.OUTPUT if buffer.is_output else BufferRole.TEMPORARY
            role = role if buffer.is_temporary or buffer.is_output else BufferRole.CONSTANT
            name = buffer.values[0][0] if buffer.values else ""
            return PeakBuffer(role=role, bytes=buffer.bytes, count=1, name=name, shape=None)
        instruction, path = max(arrays, key=lambda pair: _shape_at(*pair).padded_byte_size or 0)
        maker = self._maker(Value(instruction, path))
        place = provenance_of(self._graph, [maker])
        return PeakBuffer(
            role=self._role(buffer, instruction, maker),
            bytes=buffer.bytes,
            count=1,
            name=maker.name,
            shape=shapes_of(_shape_at(instruction, path))[0],
            op_name=place.op_name,
            source=place.source,
        )

    def _argument(self, buffer: LiveBuffer, number: int) -> PeakBuffer:
        parameter = self._parameters[number] if number < len(self._parameters) else None
        name = None if parameter is None else parameter.op_name or parameter.name
        shape = None if parameter is None or parameter.shape.is_tuple else shapes_of(parameter.shape)[0]
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
        """Whether the backward pass runs, or reads what an instruction makes."""
        return self._runs_backward or any(
            _is_backward(reader.op_name) for reader in consumers(self._graph, instruction)
        )

    def _op_name(self, instruction: HloInstruction | None) -> str | None:
        return None if instruction is None else provenance_of(self._graph, [instruction]).op_name

    def _maker(self, value: Value) -> HloInstruction:
        """What makes a value, also what the body of a loop makes of it, or leaves of what comes in."""
        for _ in range(_LOOPS):
            found = maker_of(self._graph, value, through=())
            loop = self._loop_of(found.value)
            if found.frames or loop is None:
                return found.outermost
            body, path = dict(loop.called).get("body"), found.value.path
            if body is None or not path:
                return found.outermost
            computation = self._graph.module.computation(body)
            after = maker_of(self._graph, Value(computation.root, path), through=())
            is_unchanged = after.value == Value(computation.parameters[0], path)
            before = loop.operand(0)
            if not is_unchanged and after.value.instruction.opcode != "while":
                return after.outermost
            if before is None:
                return loop
            value = Value(before, path) if is_unchanged else after.value
        return value.instruction

    def _loop_of(self, value: Value) -> HloInstruction | None:
        """The loop whose result or carried value a value is part of."""
        instruction = value.instruction
        if instruction.opcode == "while":
            return instruction
        if instruction.opcode != "parameter" or instruction.computation.is_entry:
            return None
        caller = self._graph.only_caller(instruction.computation.name)
        return caller if caller is not None and caller.opcode == "while" else None


def _shape_at(instruction: HloInstruction, path: Sequence[int]) -> Shape:
    shape = instruction.shape
    for number in path:
        if number >= len(shape.elements):
            break
        shape = shape.elements[number]
    return shape


def _is_backward(op_name: str | None) -> bool:
    return "transpose(" in (op_name or "")


def _alike(buffer: PeakBuffer) -> object:
    """What buffers of equal layers have in common."""
    name = _NUMBER.sub("*", buffer.name) if buffer.role is BufferRole.ARGUMENT else ""
    op_name = _NUMBER.sub("*", buffer.op_name or "")
    return buffer.role, buffer.bytes, name, buffer.shape, op_name, buffer.source[:1], buffer.donation_frees


def _together(alike: Iterable[PeakBuffer]) -> PeakBuffer:
    """Buffers that differ in nothing but the layer as one."""
    first, *others = alike
    if not others:
        return first
    return replace(first, count=1 + len(others), name=_common([first.name, *(buffer.name for buffer in others)]))


def _common(names: Sequence[str]) -> str:
    """A name with `*` for the numbers in which names of one form differ; the first of names of several forms."""
    if len({_NUMBER.sub("*", name) for name in names}) > 1:
        return names[0]
    columns = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    numbers = (column[0] if len({*column}) == 1 else "*" for column in columns)
    return _NUMBER.sub(lambda _: next(numbers), names[0])
