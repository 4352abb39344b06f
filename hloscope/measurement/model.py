"""A profile compared with a prediction, as a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.base.documents import SCHEMA, Schema
from hloscope.base.results import Shown, shorten_to_line
from hloscope.base.units import format_time
from hloscope.model.timeline import Activity
from hloscope.model.vocabulary import Bound, Link

if TYPE_CHECKING:
    from hloscope.plain_types import CompareDict


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """The duration of one run.

    Attributes:
        median_us: Median over all runs and devices; the lower one of an even number.
        least_us: Shortest run.
        most_us: Longest run.
        predicted_us: Predicted time; None if not predicted.
    """

    median_us: float
    least_us: float
    most_us: float
    predicted_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One part of the step; the parts add up to the step.

    Attributes:
        part: What the device does or waits for: one of the activities; `idle` between operations and before the
            first, where a device waits for others to begin; or `not matched`.
        measured_us: Measured time in the median run.
        predicted_us: Predicted time; None if not predicted.
    """

    part: str
    measured_us: float
    predicted_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRule:
    """The operations that one rule of the cost model priced.

    Attributes:
        rule: Name of the rule, such as `cycles` or `pair`.
        operations: Number of measured operations that it priced.
        measured_us: Their measured time per step.
        predicted_us: Their predicted time per step.
        calibrated: Whether it was checked against published measurements on this generation.
    """

    rule: str
    operations: int
    measured_us: float
    predicted_us: float
    calibrated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAxis:
    """The collectives over the same mesh axes, per step.

    Attributes:
        axes: The axes, as `X` or `X,Y`; `not known` if the groups match no axes.
        link: The network they cross.
        collectives: Number of collectives.
        wire_bytes: Bytes that one device sends; None if unknown.
        measured_exposed_us: Measured exposed time.
        predicted_exposed_us: Predicted exposed time; None if unknown.
        measured_bytes_per_s: Bytes that one device sent over the time of the transfers; None if unknown.
        measured_bound: Whether that is exact or a bound: a lower bound if the end of a transfer was not recorded.
        predicted_bytes_per_s: The predicted value of the same; None if unknown.
    """

    axes: str
    link: Link
    collectives: int
    wire_bytes: int | None
    measured_exposed_us: float
    predicted_exposed_us: float | None
    measured_bytes_per_s: float | None
    measured_bound: Bound
    predicted_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTransfer:
    """A collective, or a copy between the host and the device.

    Attributes:
        kind: A kind of collective, `copy from the host` or `copy to the host`.
        name: The HLO instruction that starts it, without `%`.
        computation: The HLO computation that contains it.
        axes: Mesh axes it runs over; None for copies, and if unknown.
        executions: Measured executions per step.
        wire_bytes: Bytes that one device sends, or that are copied, per execution; None if unknown.
        measured_us: Measured time of one execution; None if the profile does not show it.
        measured_bound: Whether that is exact or a bound: an upper bound if the device did not wait for its end, or if
            another transfer was queued before it.
        predicted_us: Predicted time by itself; None if unknown.
        measured_exposed_us: Measured exposed time of one execution. It includes the wait for earlier transfers before
            the operation can begin, which an analysis counts as exposed time of those.
        predicted_exposed_us: The predicted value of the same; None if unknown.
        measured_hidden_us: Measured overlapped time: the rest of `measured_us`, with the same bound.
        predicted_hidden_us: Predicted overlapped time; None if unknown.
        measured_bytes_per_s: Bytes over `measured_us`; a lower bound if that is an upper bound.
        predicted_bytes_per_s: The predicted value of the same.
        rule: The rule that priced it; None if not priced.
        calibrated: Whether that rule was checked against published measurements on this generation.
        source: Line of user code, such as `model.py:31`; None if unknown.
    """

    kind: str
    name: str
    computation: str
    axes: tuple[str, ...] | None
    executions: float
    wire_bytes: int | None
    measured_us: float | None
    measured_bound: Bound
    predicted_us: float | None
    measured_exposed_us: float
    predicted_exposed_us: float | None
    measured_hidden_us: float | None
    predicted_hidden_us: float | None
    measured_bytes_per_s: float | None
    predicted_bytes_per_s: float | None
    rule: str | None
    calibrated: bool
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOperation:
    """One operation on the device's schedule.

    Attributes:
        name: The HLO instruction, without `%`.
        computation: The HLO computation that contains it; None if the compiled module has no such instruction.
        opcode: Its opcode.
        activity: What the device does during the operation; None if the compiled module has no such instruction.
        executions: Measured executions per step.
        predicted_executions: Predicted executions per step; None if it is not on the predicted schedule.
        measured_us: Measured time per step, the median over all runs and devices.
        predicted_us: Predicted time per step; None if it is not on the predicted schedule.
        rule: The rule that priced it; None if not priced.
        calibrated: Whether that rule was checked against published measurements on this generation.
        source: Line of user code in the instruction's own metadata; None if it has none.
    """

    name: str
    computation: str | None
    opcode: str
    activity: Activity | None
    executions: float
    predicted_executions: int | None
    measured_us: float
    predicted_us: float | None
    rule: str | None
    calibrated: bool
    source: str | None

    @property
    def difference_us(self) -> float | None:
        """Measured minus predicted time; None if not predicted."""
        return None if self.predicted_us is None else self.measured_us - self.predicted_us


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProgram:
    """One program in a profile.

    Attributes:
        program: Name and number in the profile, such as `jit_step(1234)`.
        runs: Number of runs on all devices.
        devices: Number of devices that it ran on.
        slice: The slice that it is priced on; None if not priced.
        slice_chosen_by: `profile` if the profile names the slice, otherwise `user` or `target`; None if not priced.
        partitions: Number of devices that the program was compiled for; None if unknown.
        step: Duration of a run.
        parts: Breakdown of the time.
        operations: All measured or predicted operations, largest disagreement first.
        measured_operations: Number of operations in the profile.
        matched_operations: Number of these that the compiled module also has, with the same opcode and shape.
        matched_share: Share of the operations' time that matched operations make up; None if there are no operations.
        transfers: Collectives and copies between host and device, in program order.
        axes: Collectives, summed by mesh axes.
        rules: Operations by the rule that priced them, most measured time first.
        notes: Notes on the comparison, one sentence each.
    """

    program: str
    runs: int
    devices: int
    slice: str | None
    slice_chosen_by: str | None
    partitions: int | None
    step: MeasuredStep
    parts: tuple[StepPart, ...]
    operations: tuple[MeasuredOperation, ...]
    measured_operations: int
    matched_operations: int
    matched_share: float | None
    transfers: tuple[MeasuredTransfer, ...]
    axes: tuple[MeasuredAxis, ...]
    rules: tuple[MeasuredRule, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UncomparedProgram:
    """A program in a profile that has no prediction to compare with.

    Attributes:
        program: Name and number in the profile.
        runs: Number of runs on all devices.
        measured_us: Measured time of all runs, on one device.
        why: Why it has no prediction.
    """

    program: str
    runs: int
    measured_us: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedFigure:
    """A figure calibrated from a profile, or refused.

    Attributes:
        name: Name of a figure of the chip or a constant of the cost model.
        value: Value from the profile; None if refused.
        before: Value used for the prediction; None if there was none.
        rests_on: Number of measurements that it rests on.
        why: Why it is refused; None if it is not.
    """

    name: str
    value: float | None
    before: float | None
    rests_on: int
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompareDocument(Shown):
    """A profile compared with the predictions for its programs.

    Attributes:
        schema: Schema version of the document.
        target: The program that the prediction is for; None for the profile's own programs.
        profile: Path of the profile.
        chip: Chip generation; None for CPU devices, which have no prediction.
        device_kind: Device kind as named in the profile.
        devices: Number of devices in the profile.
        is_prediction: Whether the profile is one that hloscope wrote from its own prediction: then nothing in it was
            measured.
        programs: The compared programs, most time first.
        uncompared: Programs without a prediction.
        calibration: Figures calibrated from the profile; empty unless requested.
        notes: Choices made for the comparison, one sentence each.
    """

    _subject = "comparison"

    schema: Schema = SCHEMA
    target: str | None
    profile: str
    chip: str | None
    device_kind: str
    devices: int
    is_prediction: bool = False
    programs: tuple[MeasuredProgram, ...]
    uncompared: tuple[UncomparedProgram, ...] = ()
    calibration: tuple[CalibratedFigure, ...] = ()
    notes: tuple[str, ...] = ()

    if TYPE_CHECKING:

        def to_dict(self) -> CompareDict:
            """The result as plain data."""

    def __repr__(self) -> str:
        steps = ", ".join(
            f"{one.program.partition('(')[0]} {format_time(one.step.median_us)} measured, "
            f"{format_time(one.step.predicted_us)} predicted"
            for one in self.programs[:3]
        )
        return shorten_to_line(f"<CompareDocument of {self.profile}: {steps}>")
