"""A predicted step as a profile, in the format that `jax.profiler` writes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from hloscope.analysis.groups import DEVICES_PER_SLICE_ID
from hloscope.analysis.provenance import find_source_frames
from hloscope.base.documents import encode_document
from hloscope.base.protobuf import encode_message
from hloscope.base.units import sum_known
from hloscope.cost.unrolled import (
    MOST_EVENTS,
    PlacedRole,
    UnrolledTimeline,
    count_hbm_in_use,
    find_iterations_bound,
)
from hloscope.hlo import HloInstruction, HloModule
from hloscope.measurement.profiles import (
    PLACE,
    PREDICTED,
    PREDICTED_BY,
    SLICE,
    DeviceRun,
    Profile,
    ProfiledDevice,
    ProfiledOperation,
    ProfileEvent,
    Stats,
)
from hloscope.model import Collective, CollectivePart
from hloscope.model.capture import Capture, Mesh
from hloscope.model.collectives import index_transfers
from hloscope.model.timeline import Interval, Timeline, Unit, WaitCause
from hloscope.model.vocabulary import Bound
from hloscope.tpu.generation import Chip
from hloscope.version import __version__

# ---- the places of a predicted program's partitions: written into its profile, and read back to price it alike


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionPlaces:
    """The facts that a program's text does not contain.

    Attributes:
        mesh: The user's mesh; None for a program without one.
        device_ids: The physical device of each partition; empty if unknown.
        slice_of_partition: The slice of each partition; empty on one slice.
    """

    mesh: Mesh | None
    device_ids: tuple[int, ...]
    slice_of_partition: tuple[int, ...]


def encode_partition_places(program: Capture) -> str:
    """Returns the places of a program's partitions as text for its profile."""
    mesh = None if program.mesh is None or program.mesh.made_up else program.mesh
    compiled = program.compiled
    place = _PartitionPlaces(mesh=mesh, device_ids=compiled.device_ids, slice_of_partition=compiled.slice_of_partition)
    return encode_document(place)


def restore_partition_places(program: Capture, said: str) -> Capture:
    """Returns a program with the places from its profile; unchanged if these do not fit it.

    Args:
        program: The program by its text, for the slice that the profile was predicted for.
        said: The result of `encode_partition_places`.
    """
    import msgspec

    try:
        place = msgspec.json.decode(said, type=_PartitionPlaces)
    except msgspec.MsgspecError:
        return program
    if not _fits(place, program):
        return program
    compiled = replace(
        program.compiled,
        device_ids=place.device_ids or program.compiled.device_ids,
        slice_of_partition=place.slice_of_partition,
    )
    return replace(program, mesh=place.mesh, compiled=compiled)


def _fits(place: _PartitionPlaces, program: Capture) -> bool:
    """Returns whether places match the number of partitions, and name existing devices and slices."""
    assert program.slice is not None  # whose name the profile has
    count, chosen = program.used_devices, program.slice
    in_slices = [device % DEVICES_PER_SLICE_ID for device in place.device_ids]
    return (
        (place.mesh is None or sorted(place.mesh.ids) == [*range(count)])
        and len(set(place.device_ids)) in (0, count)
        and len(place.device_ids) in (0, count)
        and all(device < chosen.devices_per_slice for device in in_slices)
        and len(place.slice_of_partition) in (0, count)
        and all(0 <= number < chosen.slice_count for number in place.slice_of_partition)
    )


_MICROSECOND_PS = 1_000_000
_SECOND_US = 1e6
_PERCENT = 100.0
_SHOWN_ATTRIBUTES = (
    *("kind", "calls", "to_apply", "condition", "body", "branch_computations", "dimensions", "dim_labels"),
    *("channel_id", "replica_groups", "source_target_pairs", "custom_call_target"),
)
_IN_HBM, _BYTES_ACCESSED = ((1, 1), (2, 1)), 3
"""Of `MemoryAccessed` in XProf's op_metrics.proto: all counted as reads, to which XProf adds the writes of HBM."""
_COMMENT = re.compile(r"/\*.*?\*/")
_DATA_FORMATTING = frozenset({"transpose", "copy", "reshape", "dynamic-reshape"})


def make_predicted_profile(
    timeline: Timeline,
    program: Capture,
    module: HloModule,
    *,
    proto: bytes = b"",
    most_events: int = MOST_EVENTS,
) -> Profile:
    """Returns the profile of a predicted step.

    Args:
        timeline: The step.
        program: The compiled program, for a slice of TPUs.
        module: Its parsed text.
        proto: Its serialized `HloProto`; empty without one.
        most_events: Maximum number of events; loops of a longer step are shown with fewer iterations.

    Raises:
        ProfileError: The step has more operations than a profile can hold, with one iteration of each loop.
    """
    chip = None if program.slice is None else program.slice.chip
    assert chip is not None  # or there would be no timeline
    digest = hashlib.sha256(program.compiled.text.encode("utf-8", "replace")).digest()
    name = f"{module.name}({int.from_bytes(digest[:7], 'big')})"
    unrolled = UnrolledTimeline(timeline, most_events)
    step = _collect_events(unrolled, _Operations(timeline, module, program.compiled.text))
    for count in count_hbm_in_use(unrolled):  # viewers draw the stats of these events as counters
        value = ProfiledOperation(count.name, stats=((count.unit, int(count.value)),))
        step.counters.append((value, count.at_us, count.at_us))
    notes = () if unrolled.left_out is None else (unrolled.left_out,)
    said: Stats = (
        (PREDICTED_BY, f"hloscope {__version__}: nothing here was measured"),
        (SLICE, timeline.slice),
        (PLACE, encode_partition_places(program)),
        ("step_bound", str(timeline.bound)),
        *(("left_out", note) for note in notes),
    )
    device = ProfiledDevice(
        name="/device:TPU:0",
        kind=chip.device_kind.replace("lite", "Lite"),
        chip_id=0,
        runs=(_make_run(name, timeline.step_us, step),),
        stats=said + _list_peaks(chip),
    )
    return Profile(
        name=PREDICTED,
        devices=(device,),
        protos={name: proto} if proto else {},
        notes=notes,
        stats=said + tuple(_compute_utilization(timeline, chip)),
    )


def _list_peaks(chip: Chip) -> Stats:
    """The peak figures of one device, to which XProf compares FLOPs and bytes."""
    return (
        ("peak_teraflops_per_second", chip.bf16_flops_per_s / chip.devices_per_chip / 1e12),
        ("peak_hbm_bw_gigabytes_per_second", chip.hbm_bytes_per_s / chip.devices_per_chip / 1e9),
        ("has_megacore", int(chip.is_megacore)),
        ("has_merged_vmem", 1),
    )


def _compute_utilization(timeline: Timeline, chip: Chip) -> Iterator[tuple[str, float]]:
    """The shares of the peaks that a step reaches, in percent; XProf's overview takes them from the host."""
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
    """The operations of events, made once for each instruction.

    Args:
        timeline: The step.
        module: Its compiled program.
        text: The text of that program.
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
        transfers = index_transfers(timeline.collectives)
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
        """Notes the facts of an interval about its instruction, which may have several intervals."""
        self._bounds[key] = self._bounds.get(key, Bound.EXACT) + interval.bound
        if interval.live_bytes is not None:
            self._live_bytes[key] = interval.live_bytes
        if transfer is not None:
            self._collectives[key] = transfer
        if interval.wait is None and interval.unit is Unit.CORE:
            flops, moved_bytes = self._counts.get(key, (0, 0))
            self._counts[key] = sum_known((flops, interval.flops)), sum_known((moved_bytes, interval.moved_bytes))
        elif interval.wait in (WaitCause.COLLECTIVE, WaitCause.HOST):
            self._waits_for[key] = str(interval.wait if transfer is None else transfer[1].kind)

    def of(self, computation: str, name: str) -> ProfiledOperation:
        """The operation of an instruction."""
        key = computation, name
        if key not in self._made:
            self._made[key] = self._operation(find_interval_instruction(self._module, computation, name), name, key)
        return self._made[key]

    def _operation(self, instruction: HloInstruction | None, name: str, key: tuple[str, str]) -> ProfiledOperation:
        number = len(self._made) + 1
        if instruction is None:
            return ProfiledOperation(name, stats=(("symbol_id", number),))
        flops, moved_bytes = self._counts.get(key, (None, None))
        bound = self._bounds.get(key, Bound.EXACT)
        stats: list[tuple[str, int | str | bytes]] = [
            ("symbol_id", number),
            ("hlo_category", _find_category(instruction, flops, self._waits_for.get(key))),
            ("shape_with_layout", self._shape_of(instruction)),
        ]
        if bound is not Bound.EXACT:
            stats.append(("time_bound", str(bound)))
        if key in self._live_bytes:
            stats.append(("hbm_bytes_in_use", self._live_bytes[key]))
        if flops is not None:
            stats += [("flops", flops), ("model_flops", flops)]
        if moved_bytes is not None:
            in_hbm = encode_message([(1, encode_message([*_IN_HBM, (_BYTES_ACCESSED, moved_bytes)]))])
            stats += [("bytes_accessed", moved_bytes), ("raw_bytes_accessed", moved_bytes)]
            stats.append(("memory_access_breakdown", in_hbm))
        if instruction.op_name:
            stats.append(("tf_op", f"{instruction.op_name}:"))
        frames = find_source_frames(instruction)
        if frames:
            places = [f"{frame.file}:{frame.line}" for frame in frames]
            stats += [("source", places[0]), ("source_stack", "\n".join(reversed(places)))]
        if key in self._collectives:
            stats += _describe_collective(*self._collectives[key])
        return ProfiledOperation(name, format_hlo_line(instruction), tuple(stats))

    def _shape_of(self, instruction: HloInstruction) -> str:
        """A result's shape as it is printed, with its layout."""
        index = instruction.line - 1
        line = self._lines[index] if index < len(self._lines) else ""
        printed, found, _ = line.partition(" = ")[2].partition(f" {instruction.opcode}(")
        return _COMMENT.sub("", printed) if found else str(instruction.shape)


def _describe_collective(
    whole: Collective, each: Collective | CollectivePart
) -> Iterator[tuple[str, int | str | bytes]]:
    """The details that XProf shows for a selected collective."""
    yield "collective", f"{each.kind} over {'unknown axes' if each.axes is None else ','.join(each.axes) or 'none'}"
    for name, count in (("payload_bytes", each.payload_bytes), ("wire_bytes", each.wire_bytes)):
        if count is not None:
            yield name, count
    for name, bound in (("bytes_bound", whole.bytes_bound), ("executions_bound", whole.executions_bound)):
        if bound is not Bound.EXACT:
            yield name, str(bound)
    if whole.why is not None:
        yield "why", whole.why


def find_interval_instruction(module: HloModule, computation: str, name: str) -> HloInstruction | None:
    """The instruction of an interval; None if the text only implies it."""
    try:
        return module.computation(computation).instruction(name)
    except KeyError:
        return None


def format_hlo_line(instruction: HloInstruction) -> str:
    """An instruction as HLO prints it, without the parts that viewers do not use."""
    operands = ", ".join(f"%{name}" for name in instruction.operand_names)
    attributes = instruction.attributes
    said = "".join(f", {name}={attributes[name]}" for name in _SHOWN_ATTRIBUTES if name in attributes)
    return f"%{instruction.name} = {instruction.shape} {instruction.opcode}({operands}){said}"


def _find_category(instruction: HloInstruction, flops: int | None, waits_for: str | None) -> str:
    """The category by which XProf groups operations.

    Source: `HloInstruction::ToCategory` of XLA, and profiles of TPUs, which say "convolution fusion" for matmuls and
    "host send" for transfers to the host. Fusions and calls that wait for a collective get its kind here.

    Args:
        instruction: The instruction.
        flops: Its multiply-adds.
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


class _StepEvents(NamedTuple):
    """The events of a step: operations and counters with their begin and end, in microseconds."""

    operations: list[_Timed]
    transfers: list[_Timed]
    loops: list[_Timed]
    counters: list[_Timed]


_Timed = tuple[ProfiledOperation, float, float]


def _collect_events(unrolled: UnrolledTimeline, operations: _Operations) -> _StepEvents:
    step = _StepEvents([], [], [], [])
    last: tuple[int, str] | None = None
    for placed in unrolled:
        name = placed.name
        if name is None or placed.beside:
            continue
        operation = operations.of(placed.computation, name)
        if placed.role is PlacedRole.ITERATION:
            count = find_iterations_bound(placed.interval).marked(str(placed.iterations))
            iteration = ProfiledOperation(f"iteration {placed.iteration} of {count}")
            step.loops.append((iteration, placed.begin_us, placed.end_us))
        elif placed.interval.runs and placed.role is PlacedRole.WHOLE and placed.is_on_core:
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


def _make_run(program: str, step_us: float, step: _StepEvents) -> DeviceRun:
    return DeviceRun(
        program=program,
        begin_ps=0,
        duration_ps=_to_picoseconds(step_us),
        operations=tuple(_place_in_sequence(step.operations)),
        transfers=tuple(_place_side_by_side(step.transfers)),
        loops=tuple(_place_side_by_side(step.loops)),
        counters=tuple(_place_side_by_side(step.counters)),
    )


def _place_in_sequence(timed: Iterable[_Timed]) -> Iterator[ProfileEvent]:
    """Events at whole picoseconds: each begins where the last one ends, and a zero duration becomes one."""
    now_ps = 0
    for operation, begin_us, end_us in timed:
        begin_ps = max(_to_picoseconds(begin_us), now_ps)
        now_ps = max(_to_picoseconds(end_us), begin_ps + 1)
        yield ProfileEvent(operation, begin_ps, now_ps - begin_ps)


def _place_side_by_side(timed: Iterable[_Timed]) -> Iterator[ProfileEvent]:
    for operation, begin_us, end_us in timed:
        begin_ps = _to_picoseconds(begin_us)
        yield ProfileEvent(operation, begin_ps, _to_picoseconds(end_us) - begin_ps)


def _to_picoseconds(time_us: float) -> int:
    return round(time_us * _MICROSECOND_PS)
