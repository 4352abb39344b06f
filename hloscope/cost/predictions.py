"""The prediction for each operation of a schedule, in the terms in which a profile measures it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hloscope.cost.network import NetworkTime
from hloscope.cost.price import make_program_walk
from hloscope.cost.records import CollectiveKey, InstructionSpan, TimeBasis
from hloscope.cost.walk import Walk, ends_chain, find_copy_unit
from hloscope.hlo import HloInstruction, HloModule
from hloscope.model import Analysis
from hloscope.model.capture import Capture
from hloscope.model.timeline import Activity, Unit
from hloscope.model.vocabulary import Bound
from hloscope.tpu.chips import find_chip
from hloscope.tpu.generation import Chip

_UNPRICED = "not priced"
_ON_ANOTHER_THREAD = "on another thread"
_LINK_TO_HOST = TimeBasis.LINK_TO_HOST.value
_HANDS_ON = frozenset({"get-tuple-element", "call-update", "async-update", "bitcast"})
WITHIN_DEVICE, TO_HOST, FROM_HOST = "within the device", "to the host", "from the host"
_QUEUES = {Unit.HBM: WITHIN_DEVICE, Unit.TO_HOST: TO_HOST, Unit.FROM_HOST: FROM_HOST}
_NOT_RUN = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedOperation:
    """The prediction for one instruction of the schedule.

    Attributes:
        instruction: The instruction.
        activity: The device's activity during it.
        executions: Executions per step.
        time_us: Time per execution, in microseconds; for asynchronous work, only the start or the wait.
        bound: Whether that is exact or a bound, apart from the error of the model.
        rule: The rule that priced it.
        waits_for: The start instruction of what it waits for; None if it does not wait.
        transfer_us: For a transfer, its time once begun, in microseconds; None for all else, and if unknown.
        latency_us: The part of `transfer_us` that does not depend on bytes.
        queued_us: Time that it is queued behind earlier transfers, in microseconds.
        moved_bytes: Bytes that a copy moves; None for all else.
        hbm_bytes: Lower bound of the HBM bytes that a computing operation reads and writes.
        runs_beside: Whether it only starts asynchronous work.
        link_axes: For a collective within a slice, the number of torus axes that carry it; None for all else.
        queue: The queue of a copy, whose copies run one after the other; None for all else.
    """

    instruction: HloInstruction
    activity: Activity
    executions: int
    time_us: float
    bound: Bound
    rule: str
    waits_for: str | None = None
    transfer_us: float | None = None
    latency_us: float | None = None
    queued_us: float = 0.0
    moved_bytes: int | None = None
    hbm_bytes: int = 0
    runs_beside: bool = False
    link_axes: int | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted step, by operation.

    Attributes:
        chip: The generation.
        step_us: Time of the step, in microseconds.
        operations: Predictions by computation and instruction name, in text order, without loops, branches and calls,
            whose time is that of their contents.
        walk: The walk that priced it.
    """

    chip: str
    step_us: float
    operations: Mapping[CollectiveKey, PredictedOperation]
    walk: Walk

    def is_calibrated(self, rule: str) -> bool:
        """Returns whether a rule was compared with measurements of this generation."""
        return find_chip(self.chip).measured.is_calibrated(rule)


def predict_step(program: Capture, module: HloModule, priced: Analysis) -> Prediction | None:
    """Returns the prediction for each operation of a compiled program; None if not priced.

    Args:
        program: The results of its compile.
        module: The parsed text.
        priced: Its analysis, with times.
    """
    if priced.time is None or program.slice is None or program.slice.chip is None:
        return None
    walk = make_program_walk(program, module, priced)
    walk.step()
    operations = {}
    for name, runners in walk.executions().items():
        times = runners[Unit.CORE]
        starts = _find_awaited_starts(walk, name) if times else {}
        for span in walk.spans_of(name) if times else ():
            if span.instruction.opcode not in _NOT_RUN and not span.runs:
                started = starts.get(span.instruction.name)
                operations[name, span.instruction.name] = _predict(walk, span, times, started)
    return Prediction(chip=program.slice.chip.name, step_us=priced.time.step_us, operations=operations, walk=walk)


def _predict(walk: Walk, span: InstructionSpan, executions: int, started: HloInstruction | None) -> PredictedOperation:
    instruction, computation = span.instruction, span.instruction.computation.name
    activity, rule = _find_activity(walk, computation, instruction if started is None else started)
    key = (computation, instruction.name)
    transfer = walk.priced.times.get(key)
    is_copy = walk.operations.find_copy(instruction) is not None
    copy = walk.operations.copy_time(instruction) if is_copy else None
    transfer_us = transfer.time_us if transfer is not None else None if copy is None else copy.time_us
    begun = span.started
    return PredictedOperation(
        instruction=instruction,
        activity=activity,
        executions=executions,
        time_us=span.end_us - span.begin_us,
        bound=_find_operation_bound(walk, instruction if started is None else started, activity, rule),
        rule=rule,
        waits_for=None if started is None else started.name,
        transfer_us=transfer_us,
        latency_us=None if transfer is None else transfer.latency_us,
        queued_us=0.0 if begun is None or transfer_us is None else max(begun.begin_us - span.begin_us, 0.0),
        moved_bytes=None if copy is None else copy.moved_bytes,
        hbm_bytes=walk.operations.time_of(instruction).hbm_bytes if activity is Activity.COMPUTING else 0,
        runs_beside=begun is not None,
        link_axes=None if transfer is None else _count_link_axes(transfer, walk.operations.chip),
        queue=None if copy is None else _QUEUES[find_copy_unit(copy)],
    )


def _find_operation_bound(walk: Walk, instruction: HloInstruction, activity: Activity, rule: str) -> Bound:
    """The bound of an operation's time: exact or a bound."""
    if activity is Activity.COMMUNICATION:
        return Bound.AT_LEAST if rule == _UNPRICED else Bound.EXACT
    if rule == _ON_ANOTHER_THREAD:
        return Bound.EXACT
    operations = walk.operations
    is_copy = operations.find_copy(instruction) is not None
    return (operations.copy_time(instruction) if is_copy else operations.time_of(instruction)).bound


def _count_link_axes(transfer: NetworkTime, chip: Chip) -> int | None:
    """Number of torus axes with links in use; links are flattened by chip, axis and direction."""
    if transfer.links is None:
        return None
    used = transfer.links.reshape(-1, chip.torus_dimensions, 2)
    return int(used.any(axis=(0, 2)).sum())


def _find_awaited_starts(walk: Walk, computation: str) -> dict[str, HloInstruction]:
    """The start that each waiting instruction of a computation waits for, by the waiting instruction's name.

    The end of an asynchronous collective fusion waits for its start, which other fusions have passed on.
    """
    found: dict[str, HloInstruction] = {}
    chains: dict[str, HloInstruction] = {}
    for instruction in walk.graph.module.computation(computation).instructions:
        opcode, name = instruction.opcode, instruction.name
        if opcode == "fusion" and (computation, name) in walk.priced.asynchronous:
            chains[name] = instruction
        elif opcode in ("get-tuple-element", "fusion") and chains:
            chain = next((chains[operand] for operand in instruction.operand_names if operand in chains), None)
            if chain is not None and opcode == "fusion" and ends_chain(walk.graph, instruction):
                found[name] = chain
            elif chain is not None:
                chains[name] = chain
        elif opcode.endswith("-done"):
            start = _find_start_of_done(instruction)
            if start is not None:
                found[name] = start
    return found


def _find_start_of_done(done: HloInstruction) -> HloInstruction | None:
    """The start that a done waits for, looking through the updates of an asynchronous call."""
    start = done.operand(0)
    while start is not None and start.opcode in _HANDS_ON:
        start = start.operand(0)
    return start


def _find_activity(walk: Walk, computation: str, instruction: HloInstruction) -> tuple[Activity, str]:
    """The activity of a device, from the start that it waits for, and the rule that priced it."""
    priced, operations = walk.priced, walk.operations
    inside = [key for _, name in instruction.called for key in priced.inside.get(name, ())]
    own = (computation, instruction.name)
    for key in [own] if own in priced.times else inside:
        found = priced.times[key]
        return Activity.COMMUNICATION, _UNPRICED if found is None else found.rule
    if operations.find_copy(instruction) is not None:
        copy = operations.copy_time(instruction)
        return (Activity.HOST, _LINK_TO_HOST) if copy.is_over_host else (Activity.MEMORY, copy.basis.value)
    if instruction.opcode in ("send", "recv"):
        return Activity.COMMUNICATION, _UNPRICED
    if instruction.opcode.endswith(("-start", "-done")) and instruction.called:
        return Activity.COMPUTING, _ON_ANOTHER_THREAD
    cost = operations.time_of(instruction)
    rule = _UNPRICED if cost.basis is TimeBasis.UNKNOWN else cost.basis.value
    return (Activity.HOST, _LINK_TO_HOST) if cost.is_over_host else (Activity.COMPUTING, rule)
