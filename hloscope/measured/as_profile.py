"""A prediction as a profile: what `jax.profiler` would have written, had the step run as predicted."""

from __future__ import annotations

from hloscope.cost.predicted import Prediction
from hloscope.errors import ProfileError
from hloscope.hardware.chips import Chip
from hloscope.hlo import HloInstruction
from hloscope.profiles.model import Device, Event, Profile, ProfiledOperation, Run

_MICROSECOND_PS = 1_000_000
_BETWEEN_RUNS_US = 10.0
_MOST_EVENTS = 2_000_000
_NO_EVENTS = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})


def predicted_profile(
    prediction: Prediction, chip: Chip, *, program: str, proto: bytes, devices: int = 1, runs: int = 1
) -> Profile:
    """What a profile of a step would hold.

    Args:
        prediction: The step.
        chip: What it runs on.
        program: The program's name and number, such as `jit_step(1234)`.
        proto: Its serialized `HloProto`.
        devices: Devices that the profile is of; all do the same.
        runs: How often each runs the step.

    Raises:
        ProfileError: The step has more operations than a profile can hold.
    """
    operations, transfers = _events(prediction)
    begins = [number * (prediction.step_us + _BETWEEN_RUNS_US) for number in range(runs)]
    every = tuple(_run(program, prediction.step_us, operations, transfers, begin_us) for begin_us in begins)
    found = (
        Device(name=f"/device:TPU:{number}", kind=_kind(chip), chip_id=number, runs=every) for number in range(devices)
    )
    return Profile(name="predicted", devices=tuple(found), protos={program: proto})


def _kind(chip: Chip) -> str:
    """A generation as profiles name it: `TPU v6 Lite`."""
    return chip.device_kind.replace("lite", "Lite")


_Timed = tuple[ProfiledOperation, float, float]


def _events(prediction: Prediction) -> tuple[list[_Timed], list[_Timed]]:
    """What the device is at and what is on its way beside it, with when it begins and ends, in microseconds."""
    named: dict[str, ProfiledOperation] = {}
    operations: list[_Timed] = []
    transfers: list[_Timed] = []
    begun: dict[str, float] = {}
    for span, begin_us, _ in prediction.schedule():
        instruction = span.instruction
        if instruction.opcode in _NO_EVENTS:
            continue
        if len(operations) >= _MOST_EVENTS:
            raise ProfileError(
                f"the step runs more than {_MOST_EVENTS:,} operations, too many for a profile",
                fix="write the profile of a program with fewer layers",
            )
        operation = named.setdefault(instruction.name, _operation(instruction))
        end_us = begin_us + span.end_us - span.begin_us
        operations.append((operation, begin_us, end_us))
        found = prediction.operations.get((instruction.computation.name, instruction.name))
        if found is not None and found.waits_for in begun:
            start = named[found.waits_for]
            transfers.append((start, begun.pop(found.waits_for), end_us))
        if span.started is not None:
            begun[instruction.name] = begin_us
    return operations, transfers


def _operation(instruction: HloInstruction) -> ProfiledOperation:
    operands = ", ".join(f"%{name}" for name in instruction.operand_names)
    return ProfiledOperation(
        instruction.name, f"%{instruction.name} = {instruction.shape} {instruction.opcode}({operands})"
    )


def _run(program: str, step_us: float, operations: list[_Timed], transfers: list[_Timed], begin_us: float) -> Run:
    def placed(timed: list[_Timed]) -> tuple[Event, ...]:
        return tuple(_event(operation, begin_us + begin, begin_us + end) for operation, begin, end in timed)

    begin_ps, end_ps = _ps(begin_us), _ps(begin_us + step_us)
    return Run(
        program=program,
        begin_ps=begin_ps,
        duration_ps=end_ps - begin_ps,
        operations=placed(operations),
        transfers=placed(transfers),
    )


def _event(operation: ProfiledOperation, begin_us: float, end_us: float) -> Event:
    """An event between whole picoseconds, so that what follows begins where it ends."""
    return Event(operation, _ps(begin_us), _ps(end_us) - _ps(begin_us))


def _ps(time_us: float) -> int:
    return round(time_us * _MICROSECOND_PS)
