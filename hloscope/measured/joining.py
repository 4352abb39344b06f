"""One program's runs compared with its prediction: matched by instruction, summed by activity, axis and rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_low

from hloscope.analysis.places import users_line
from hloscope.analysis.provenance import source_frames
from hloscope.analysis.totals import grouped
from hloscope.cost.predicted import Activity
from hloscope.measured.joined import Joined
from hloscope.measured.model import MeasuredOperation, MeasuredProgram, MeasuredRule, MeasuredStep, StepPart
from hloscope.measured.observed import printed_form
from hloscope.measured.transfers import axes_of, transfers_of

_MICROSECOND_PS = 1e6
_ROUNDED_US = 1e-6
"""What adding up leaves over."""

IDLE, NOT_MATCHED = "idle", "not matched"
_RUNS_OTHERS = frozenset({"while", "conditional", "call"})


def compared(joined: Joined) -> MeasuredProgram:
    """Compares a program's runs with its prediction."""
    chosen, observed = None if joined.prediction is None else joined.analysis.slice, joined.observed
    durations = observed.durations_us
    operations = tuple(_operations(joined))
    transfers = tuple(transfers_of(joined))
    return MeasuredProgram(
        program=observed.program,
        runs=len(observed.runs),
        devices=len(observed.devices),
        slice=None if chosen is None else chosen.name,
        slice_chosen_by=None if chosen is None else chosen.chosen_by,
        partitions=joined.module.device_count,
        step=MeasuredStep(
            median_us=median_low(durations),
            least_us=min(durations),
            most_us=max(durations),
            predicted_us=None if joined.prediction is None else joined.prediction.step_us,
        ),
        parts=tuple(_parts(joined)),
        operations=tuple(sorted(operations, key=_disagreement, reverse=True)),
        measured_operations=len(observed.operations),
        matched_operations=len(joined.matched),
        matched_share=joined.matched_share,
        transfers=transfers,
        axes=tuple(axes_of(joined.analysis, transfers)),
        rules=tuple(_rules(joined, operations)),
        notes=() if joined.analysis.time is None else joined.analysis.time.notes,
    )


def _disagreement(operation: MeasuredOperation) -> float:
    """How much it is off in one step; what is not predicted counts whole."""
    found = operation.difference_us
    return operation.measured_us if found is None else abs(found)


# ---- operations


def _operations(joined: Joined) -> Iterator[MeasuredOperation]:
    for name, operation in joined.observed.operations.items():
        instruction = joined.matched.get(name)
        if instruction is not None and instruction.opcode in _RUNS_OTHERS:
            continue
        printed = printed_form(operation)
        opcode = printed[1] if printed is not None else "unknown"
        yield _operation(joined, name, opcode if instruction is None else instruction.opcode)
    for name, predicted in joined.predicted.items():
        if name not in joined.observed.operations and predicted.time_us > 0:
            yield _operation(joined, name, predicted.instruction.opcode)


def _operation(joined: Joined, name: str, opcode: str) -> MeasuredOperation:
    measured = name in joined.observed.operations
    instruction = joined.matched.get(name) if measured else joined.predicted[name].instruction
    predicted = None if instruction is None else joined.predicted.get(name)
    rule = None if predicted is None else predicted.rule
    return MeasuredOperation(
        name=name,
        computation=None if instruction is None else instruction.computation.name,
        opcode=opcode,
        activity=joined.activity_of(name),
        executions=joined.observed.executions(name),
        predicted_executions=None if predicted is None else predicted.executions,
        measured_us=joined.observed.time_us(name),
        predicted_us=None if predicted is None else predicted.executions * predicted.time_us,
        rule=rule,
        calibrated=joined.is_calibrated(rule),
        source=None if instruction is None else users_line(source_frames(instruction)),
    )


def _parts(joined: Joined) -> Iterator[StepPart]:
    """Where the time of the median run goes, and of the prediction; each adds up to its step."""
    run = joined.observed.median_run
    measured: dict[str, float] = {}
    for name, alone_ps in run.alone_ps.items():
        instruction, activity = joined.matched.get(name), joined.activity_of(name)
        if instruction is not None and instruction.opcode in _RUNS_OTHERS:
            continue
        part = NOT_MATCHED if activity is None else activity.value
        measured[part] = measured.get(part, 0.0) + alone_ps / _MICROSECOND_PS
    predictions: dict[str, float] = {}
    for found in joined.predicted.values():
        key = found.activity.value
        predictions[key] = predictions.get(key, 0.0) + found.executions * found.time_us
    measured[IDLE] = max(run.run.duration_us - sum(measured.values()), 0.0)  # threads of a CPU run side by side
    if joined.prediction is not None:
        rest_us = joined.prediction.step_us - sum(predictions.values())
        predictions[IDLE] = rest_us if rest_us > _ROUNDED_US else 0.0
    for part in (*(activity.value for activity in Activity), NOT_MATCHED, IDLE):
        if measured.get(part) or predictions.get(part):
            known = None if joined.prediction is None else predictions.get(part, 0.0)
            yield StepPart(part=part, measured_us=measured.get(part, 0.0), predicted_us=known)


# ---- rules


def _rules(joined: Joined, operations: Sequence[MeasuredOperation]) -> Iterator[MeasuredRule]:
    """By rule, what was measured of the operations that it priced; starts that take no time are of no use."""
    known = [found for found in operations if found.rule is not None and found.predicted_us is not None]
    by_rule = grouped(lambda found: found.rule or "", (found for found in known if found.executions))
    sums = [
        MeasuredRule(
            rule=rule,
            operations=len(each),
            measured_us=sum(found.measured_us for found in each),
            predicted_us=sum(found.predicted_us or 0.0 for found in each),
            calibrated=joined.is_calibrated(rule),
        )
        for rule, each in by_rule.items()
    ]
    yield from sorted(sums, key=lambda found: found.measured_us, reverse=True)
