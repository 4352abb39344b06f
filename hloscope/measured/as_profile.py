"""A predicted step as a profile, in the format that `jax.profiler` writes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from hloscope.analysis.model import Collective, CollectivePart
from hloscope.analysis.model.collective import transfers_in
from hloscope.analysis.model.timeline import Interval, Timeline, Unit, WaitCause
from hloscope.analysis.provenance import source_frames
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.counters import Count, hbm_in_use
from hloscope.cost.unrolled import MOST_EVENTS, Placed, Role, Unrolled, times_bound
from hloscope.hlo import HloInstruction, HloModule
from hloscope.measured.place import place_of
from hloscope.profiles.model import (
    PLACE,
    PREDICTED,
    PREDICTED_BY,
    SLICE,
    Device,
    Event,
    Profile,
    ProfiledOperation,
    Run,
    Stats,
)
from hloscope.program.capture import Capture
from hloscope.protobuf import message
from hloscope.tpu.generation import Chip
from hloscope.units import known_sum
from hloscope.version import __version__

_MICROSECOND_PS = 1_000_000
_SECOND_US = 1e6
_BETWEEN_RUNS_US = 10.0
_PERCENT = 100.0
_SHOWN_ATTRIBUTES = (
    *("kind", "calls", "to_apply", "condition", "body", "branch_computations", "dimensions", "dim_labels"),
    *("channel_id", "replica_groups", "source_target_pairs", "custom_call_target"),
)
_IN_HBM, _BYTES_ACCESSED = ((1, 1), (2, 1)), 3
"""Of `MemoryAccessed` in XProf's op_metrics.proto: all told as reads, to which XProf adds the writes of HBM."""
_COMMENT = re.compile(r"/\*.*?\*/")
_DATA_FORMATTING = frozenset({"transpose", "copy", "reshape", "dynamic-reshape"})


def predicted_profile(
    timeline: Timeline,
    program: Capture,
    module: HloModule,
    *,
    proto: bytes = b"",
    devices: int = 1,
    runs: int = 1,
    most_events: int = MOST_EVENTS,
) -> Profile:
    """Returns the profile of a predicted step.

    Args:
        timeline: The step.
        program: What was compiled, for a slice of TPUs.
        module: Its parsed text.
        proto: Its serialized `HloProto`; empty if there is none.
        devices: Number of devices in the profile, all alike.
        runs: Number of steps on each device.
        most_events: Maximum number of events; loops of a longer step are shown with fewer iterations.

    Raises:
        ProfileError: The step has more operations than a profile can hold, with one iteration of each loop.
    """
    chip = None if program.slice is None else program.slice.chip
    assert chip is not None  # or there would be no timeline
    name = f"{module.name}({_number_of(program.compiled.text)})"
    unrolled = Unrolled(timeline, most_events)
    step = _events(unrolled, _Operations(timeline, module, program.compiled.text))
    begins = [number * (timeline.step_us + _BETWEEN_RUNS_US) for number in range(runs)]
    counters = list(hbm_in_use(unrolled))
    every = tuple(
        replace(_run(name, timeline.step_us, step, begin_us), counters=tuple(_counted(counters, begin_us)))
        for begin_us in begins
    )
    notes = () if unrolled.left_out is None else (unrolled.left_out,)
    said: Stats = (
        (PREDICTED_BY, f"hloscope {__version__}: nothing here was measured"),
        (SLICE, timeline.slice),
        (PLACE, place_of(program)),
        ("step_bound", str(timeline.bound)),
        *(("left_out", note) for note in notes),
    )
    found = (
        Device(name=f"/device:TPU:{number}", kind=_kind(chip), chip_id=number, runs=every, stats=said + _peaks(chip))
        for number in range(devices)
    )
    return Profile(
        name=PREDICTED,
        devices=tuple(found),
        protos={name: proto} if proto else {},
        notes=notes,
        stats=said + tuple(_utilization(timeline, chip)),
    )


def _number_of(text: str) -> int:
    """A program's number, which is another one for another program."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:7], "big")


def _kind(chip: Chip) -> str:
    """A generation as profiles name it: `TPU v6 Lite`."""
    return chip.device_kind.replace("lite", "Lite")


def _peaks(chip: Chip) -> Stats:
    """What XProf holds FLOPs and bytes against: the figures of one device."""
    return (
        ("peak_teraflops_per_second", chip.bf16_flops_per_s / chip.devices_per_chip / 1e12),
        ("peak_hbm_bw_gigabytes_per_second", chip.hbm_bytes_per_s / chip.devices_per_chip / 1e9),
        ("has_megacore", int(chip.is_megacore)),
        ("has_merged_vmem", 1),
    )


def _utilization(timeline: Timeline, chip: Chip) -> Iterator[tuple[str, float]]:
    """Shares of the peaks that a step reaches, in percent; XProf's overview takes them from the host."""
    flops = moved_bytes = 0
    for computation in timeline.computations:
        for interval in computation.intervals:
            flops += computation.executions * (interval.flops or 0)
            is_in_hbm = interval.unit in (Unit.CORE, Unit.HBM)
            moved_bytes += computation.executions * (interval.moved_bytes or 0) * is_in_hbm
    if timeline.step_us > 0:
        device_us = timeline.step_us / _SECOND_US / chip.devices_per_chip
        yield "matrix_unit_utilization_percent", _PERCENT * flops / (chip.bf16_flops_per_s * device_us)
        yield "hbm_utilization_percent", _PERCENT * moved_bytes / (chip.hbm_bytes_per_s * device_us)


# ---- operations


class _Operations:
    """What events are of, made once for each instruction.

    Args:
        timeline: The step.
        module: Its compiled program.
        text: The text of that.
    """

    def __init__(self, timeline: Timeline, module: HloModule, text: str) -> None:
        self._module = module
        self._lines = text.split("\n")
        self._made: dict[tuple[str, str], ProfiledOperation] = {}
        self._counts: dict[tuple[str, str], tuple[int | None, int | None]] = {}
        self._waits_for: dict[tuple[str, str], str] = {}
        self._bounds: dict[tuple[str, str], Bound] = {}
        self._live_bytes: dict[tuple[str, str], int] = {}
        self._collectives: dict[tuple[str, str], tuple[Collective, Collective | CollectivePart]] = {}
        transfers = transfers_in(timeline.collectives)
        for computation in timeline.computations:
            for interval in computation.intervals:
                if interval.name is not None:
                    self._note((computation.name, interval.name), interval, transfers.get(interval.collective or ""))

    def _note(
        self,
        key: tuple[str, str],
        interval: Interval,
        transfer: tuple[Collective, Collective | CollectivePart] | None,
    ) -> None:
        """Notes what an interval says of its instruction, of which there may be several."""
        self._bounds[key] = self._bounds.get(key, Bound.EXACT) + interval.bound
        if interval.live_bytes is not None:
            self._live_bytes[key] = interval.live_bytes
        if transfer is not None:
            self._collectives[key] = transfer
        if interval.wait is None and interval.unit is Unit.CORE:
            flops, moved_bytes = self._counts.get(key, (0, 0))
            self._counts[key] = known_sum((flops, interval.flops)), known_sum((moved_bytes, interval.moved_bytes))
        elif interval.wait in (WaitCause.COLLECTIVE, WaitCause.HOST):
            self._waits_for[key] = str(interval.wait if transfer is None else transfer[1].kind)

    def of(self, computation: str, name: str) -> ProfiledOperation:
        """The operation of an instruction."""
        key = computation, name
        if key not in self._made:
            self._made[key] = self._operation(instruction_of(self._module, computation, name), name, key)
        return self._made[key]

    def _operation(self, instruction: HloInstruction | None, name: str, key: tuple[str, str]) -> ProfiledOperation:
        number = len(self._made) + 1
        if instruction is None:
            return ProfiledOperation(name, stats=(("symbol_id", number),))
        flops, moved_bytes = self._counts.get(key, (None, None))
        bound = self._bounds.get(key, Bound.EXACT)
        stats: list[tuple[str, int | str | bytes]] = [
            ("symbol_id", number),
            ("hlo_category", _category(instruction, flops, self._waits_for.get(key))),
            ("shape_with_layout", self._shape_of(instruction)),
        ]
        if bound is not Bound.EXACT:
            stats.append(("time_bound", str(bound)))
        if key in self._live_bytes:
            stats.append(("hbm_bytes_in_use", self._live_bytes[key]))
        if flops is not None:
            stats += [("flops", flops), ("model_flops", flops)]
        if moved_bytes is not None:
            in_hbm = message([(1, message([*_IN_HBM, (_BYTES_ACCESSED, moved_bytes)]))])
            stats += [("bytes_accessed", moved_bytes), ("raw_bytes_accessed", moved_bytes)]
            stats.append(("memory_access_breakdown", in_hbm))
        if instruction.op_name:
            stats.append(("tf_op", f"{instruction.op_name}:"))
        frames = source_frames(instruction)
        if frames:
            places = [f"{frame.file}:{frame.line}" for frame in frames]
            stats += [("source", places[0]), ("source_stack", "\n".join(reversed(places)))]
        if key in self._collectives:
            stats += _about_collective(*self._collectives[key])
        return ProfiledOperation(name, hlo_line(instruction), tuple(stats))

    def _shape_of(self, instruction: HloInstruction) -> str:
        """A result's shape as it is printed, with its layout."""
        index = instruction.line - 1
        line = self._lines[index] if index < len(self._lines) else ""
        printed, found, _ = line.partition(" = ")[2].partition(f" {instruction.opcode}(")
        return _COMMENT.sub("", printed) if found else str(instruction.shape)


def _about_collective(whole: Collective, each: Collective | CollectivePart) -> Iterator[tuple[str, int | str | bytes]]:
    """What XProf shows where a collective is clicked on."""
    yield "collective", f"{each.kind} over {'unknown axes' if each.axes is None else ','.join(each.axes) or 'none'}"
    for name, count in (("payload_bytes", each.payload_bytes), ("wire_bytes", each.wire_bytes)):
        if count is not None:
            yield name, count
    for name, bound in (("bytes_bound", whole.bytes_bound), ("executions_bound", whole.executions_bound)):
        if bound is not Bound.EXACT:
            yield name, str(bound)
    if whole.why is not None:
        yield "why", whole.why


def instruction_of(module: HloModule, computation: str, name: str) -> HloInstruction | None:
    """An instruction that an interval speaks of; None where the text only implies it."""
    try:
        return module.computation(computation).instruction(name)
    except KeyError:
        return None


def hlo_line(instruction: HloInstruction) -> str:
    """An instruction as HLO prints it, without what a viewer has no use for."""
    operands = ", ".join(f"%{name}" for name in instruction.operand_names)
    attributes = instruction.attributes
    said = "".join(f", {name}={attributes[name]}" for name in _SHOWN_ATTRIBUTES if name in attributes)
    return f"%{instruction.name} = {instruction.shape} {instruction.opcode}({operands}){said}"


def _category(instruction: HloInstruction, flops: int | None, waits_for: str | None) -> str:
    """What XProf groups operations by.

    Source: `HloInstruction::ToCategory` of XLA, and profiles of TPUs, which say "convolution fusion" of matmuls and
    "host send" of what goes to the host. Fusions and calls that wait for a collective are told by its kind here.

    Args:
        instruction: The instruction.
        flops: What it multiplies and adds.
        waits_for: The kind of the collective that it waits for, or `host`.
    """
    opcode = instruction.opcode
    if opcode in _DATA_FORMATTING:
        return "data formatting"
    if waits_for == WaitCause.HOST and opcode.startswith(("send", "recv")):
        return f"host {opcode}"
    is_collective = waits_for is not None and waits_for != WaitCause.HOST
    if is_collective and opcode in ("fusion", "async-done", "call-done"):
        return f"{waits_for} fusion" if opcode == "fusion" else f"{waits_for}-done"
    if opcode != "fusion":
        return opcode
    if flops:
        return "convolution fusion"
    return f"{instruction.attributes.get('kind', 'kLoop').removeprefix('k').lower()} fusion"


# ---- events


class _Step(NamedTuple):
    """What happens in a step: operations with when they begin and end, in microseconds."""

    operations: list[_Timed]
    transfers: list[_Timed]
    loops: list[_Timed]


_Timed = tuple[ProfiledOperation, float, float]


def _events(unrolled: Unrolled, operations: _Operations) -> _Step:
    step = _Step([], [], [])
    last: tuple[int, str] | None = None
    for placed in unrolled:
        name = placed.name
        if name is None or placed.beside:
            continue
        operation = operations.of(placed.computation, name)
        if placed.role is Role.ITERATION:
            step.loops.append(
                (
                    ProfiledOperation(f"iteration {placed.iteration} of {_iterations(placed)}"),
                    placed.begin_us,
                    placed.end_us,
                )
            )
        elif placed.interval.runs and placed.role is Role.WHOLE and placed.is_on_core:
            step.loops.append((operation, placed.begin_us, placed.end_us))
        elif not placed.is_on_core:
            if placed.interval.issued_us is not None:
                step.transfers.append((operation, placed.begin_us, placed.end_us))
            continue
        elif last == (placed.run, name):  # several waits, or what is computed and what is waited for
            step.operations[-1] = (operation, step.operations[-1][1], placed.end_us)
        else:
            step.operations.append((operation, placed.begin_us, placed.end_us))
        last = placed.run, name
    return step


def _iterations(placed: Placed) -> str:
    return times_bound(placed.interval).marked(str(placed.iterations))


def _run(program: str, step_us: float, step: _Step, begin_us: float) -> Run:
    begin_ps, end_ps = _ps(begin_us), _ps(begin_us + step_us)
    return Run(
        program=program,
        begin_ps=begin_ps,
        duration_ps=end_ps - begin_ps,
        operations=tuple(_one_after_the_other(step.operations, begin_us)),
        transfers=tuple(_side_by_side(step.transfers, begin_us)),
        loops=tuple(_side_by_side(step.loops, begin_us)),
    )


def _one_after_the_other(timed: Iterable[_Timed], at_us: float) -> Iterator[Event]:
    """Events between whole picoseconds: what follows begins where it ends, and what takes no time takes one."""
    now_ps = 0
    for operation, begin_us, end_us in timed:
        begin_ps = max(_ps(at_us + begin_us), now_ps)
        now_ps = max(_ps(at_us + end_us), begin_ps + 1)
        yield Event(operation, begin_ps, now_ps - begin_ps)


def _side_by_side(timed: Iterable[_Timed], at_us: float) -> Iterator[Event]:
    for operation, begin_us, end_us in timed:
        begin_ps = _ps(at_us + begin_us)
        yield Event(operation, begin_ps, _ps(at_us + end_us) - begin_ps)


def _counted(counters: Iterable[Count], at_us: float) -> Iterator[Event]:
    """What is counted, as events whose stats have the values."""
    for count in counters:
        operation = ProfiledOperation(count.name, stats=((count.unit, int(count.value)),))
        yield Event(operation, _ps(at_us + count.at_us), 0)


def _ps(time_us: float) -> int:
    return round(time_us * _MICROSECOND_PS)
