"""One program's runs compared with its prediction: matched by instruction, summed by activity, axis and rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_low

from hloscope.analysis.places import render_users_line
from hloscope.analysis.provenance import find_source_frames
from hloscope.analysis.totals import collate
from hloscope.cost.predicted import Activity
from hloscope.measured.joined import JoinedProgram
from hloscope.measured.model import MeasuredOperation, MeasuredProgram, MeasuredRule, MeasuredStep, StepPart
from hloscope.measured.observed import parse_printed_form
from hloscope.measured.transfers import measure_transfers, sum_by_axes

_MICROSECOND_PS = 1e6
_ROUNDED_US = 1e-6
"""The rounding error of a sum."""

IDLE, NOT_MATCHED = "idle", "not matched"
_RUNS_OTHERS = frozenset({"while", "conditional", "call"})


def compare_program(joined: JoinedProgram) -> MeasuredProgram:
    """Compares a program's runs with its prediction."""
    chosen, observed = None if joined.prediction is None else joined.analysis.slice, joined.observed
    durations = observed.durations_us
    operations = tuple(_compare_operations(joined))
    transfers = tuple(measure_transfers(joined))
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
        parts=tuple(_compare_parts(joined)),
        operations=tuple(sorted(operations, key=_compute_disagreement, reverse=True)),
        measured_operations=len(observed.operations),
        matched_operations=len(joined.matched),
        matched_share=joined.matched_share,
        transfers=transfers,
        axes=tuple(sum_by_axes(joined.analysis, transfers)),
        rules=tuple(_compare_rules(joined, operations)),
        notes=() if joined.analysis.time is None else joined.analysis.time.notes,
    )


def _compute_disagreement(operation: MeasuredOperation) -> float:
    """The error of the prediction in one step; the whole time of an operation without a prediction."""
    found = operation.difference_us
    return operation.measured_us if found is None else abs(found)


# ---- operations


def _compare_operations(joined: JoinedProgram) -> Iterator[MeasuredOperation]:
    for name, operation in joined.observed.operations.items():
        instruction = joined.matched.get(name)
        if instruction is not None and instruction.opcode in _RUNS_OTHERS:
            continue
        printed = parse_printed_form(operation)
        opcode = printed[1] if printed is not None else "unknown"
        yield _compare_operation(joined, name, opcode if instruction is None else instruction.opcode)
    for name, predicted in joined.predicted.items():
        if name not in joined.observed.operations and predicted.time_us > 0:
            yield _compare_operation(joined, name, predicted.instruction.opcode)


def _compare_operation(joined: JoinedProgram, name: str, opcode: str) -> MeasuredOperation:
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
        source=None if instruction is None else render_users_line(find_source_frames(instruction)),
    )


def _compare_parts(joined: JoinedProgram) -> Iterator[StepPart]:
    """The breakdown of the time of the median run, and of the prediction; each adds up to its step."""
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


def _compare_rules(joined: JoinedProgram, operations: Sequence[MeasuredOperation]) -> Iterator[MeasuredRule]:
    """The measured times of the operations by the rule that priced them; starts without a duration are skipped."""
    known = [found for found in operations if found.rule is not None and found.predicted_us is not None]
    by_rule = collate(lambda found: found.rule or "", (found for found in known if found.executions))
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
