"""A profile beside a prediction, as a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.analysis.vocabulary import Bound, Link
from hloscope.cost.predicted import Activity
from hloscope.documents import SCHEMA, Schema
from hloscope.shown import Shown, one_line
from hloscope.units import format_time

if TYPE_CHECKING:
    from hloscope.plain_types import CompareDict


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """How long one run took.

    Attributes:
        median_us: The median over all runs and devices; of an even number the lower one.
        least_us: The shortest.
        most_us: The longest.
        predicted_us: The prediction; None where there is none.
    """

    median_us: float
    least_us: float
    most_us: float
    predicted_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """A part of the step; the parts add up to it.

    Attributes:
        part: What the device does or waits for: one of the activities, `nothing` between operations and before the
            first, which is where a device waits for others to begin, or `not matched`.
        measured_us: In the run that took the median time.
        predicted_us: The prediction; None where there is none.
    """

    part: str
    measured_us: float
    predicted_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRule:
    """What a rule of the cost model priced.

    Attributes:
        rule: Such as `cycles` or `pair`.
        operations: How many operations it priced that were measured.
        measured_us: What they took per step.
        predicted_us: What it says they take.
        calibrated: Whether it was compared with published measurements of this generation.
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
        axes: The axes, as `X` or `X,Y`; `not known` where groups match none.
        link: The network.
        collectives: How many.
        wire_bytes: Bytes that one device sends; None when not known.
        measured_exposed_us: What the device waited for them.
        predicted_exposed_us: What it should have; None where that is not known.
        measured_bytes_per_s: What one device sent over the time that transfers took; None when not known.
        measured_bound: How that relates to the truth: at least, where the end of a transfer was not seen.
        predicted_bytes_per_s: The same as predicted; None when not known.
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
        kind: What it does: a kind of collective, `copy from the host` or `copy to the host`.
        name: The HLO instruction that starts it, without `%`.
        computation: The HLO computation that holds it.
        axes: The mesh axes it runs over; None of copies, and when not known.
        executions: How often it ran in one step, as measured.
        wire_bytes: Bytes that one device sends, or that are copied, per execution; None when not known.
        measured_us: What one execution took; None where nothing of the profile tells.
        measured_bound: How that relates to the truth: at most, where the device did not wait for its end, or something
            else was before it on its way.
        predicted_us: What it should take alone; None where nothing tells.
        measured_exposed_us: What of it the device waited for.
        predicted_exposed_us: What it should have waited; None where that is not known.
        measured_hidden_us: The rest of it, which ran beside other things; bound as `measured_us` is.
        predicted_hidden_us: The same as predicted; None where that is not known.
        measured_bytes_per_s: Bytes over `measured_us`; at least, where that is at most.
        predicted_bytes_per_s: The same as predicted.
        rule: What priced it; None where nothing did.
        calibrated: Whether that was compared with published measurements of this generation.
        source: The line of the user's program, such as `model.py:31`; None when not known.
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
    """One operation of the device's schedule.

    Attributes:
        name: The HLO instruction, without `%`.
        computation: The HLO computation that holds it; None where the compiled module has no such instruction.
        opcode: Its opcode.
        activity: What the device does meanwhile; None where the compiled module has no such instruction.
        executions: How often it ran in one step, as measured.
        predicted_executions: How often it should have; None where it is not on the predicted schedule.
        measured_us: What it took in one step, the median over all runs and devices.
        predicted_us: What it should have taken; None where it is not on the predicted schedule.
        rule: What priced it; None where nothing did.
        calibrated: Whether that was compared with published measurements of this generation.
        source: The line of the user's program that the instruction itself says; None where it says none.
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
        """How much longer it took than predicted; None where nothing is."""
        return None if self.predicted_us is None else self.measured_us - self.predicted_us


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProgram:
    """One program of a profile.

    Attributes:
        program: Its name and number in the profile, such as `jit_step(1234)`.
        runs: Its runs, on all devices together.
        devices: The devices on which it ran.
        slice: The slice that it is priced on; None where it is not.
        slice_chosen_by: `profile` where that says it, else `user` or `target`; None without a slice.
        partitions: The devices that the program is for; None when not known.
        step: How long a run took.
        parts: Where the time went.
        operations: Every operation that was measured or predicted, the largest disagreement first.
        measured_operations: Operations that the profile has.
        matched_operations: Those of them that are in the compiled module, with their opcode and shape.
        matched_share: The part of the time in operations that these make up; None where there are none.
        transfers: Collectives and copies between host and device, as they come in the program.
        axes: Collectives by mesh axes.
        rules: By the rule that priced them, most measured time first.
        notes: What has to be known of it, one sentence each.
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
    """A program of a profile that there is nothing to compare with.

    Attributes:
        program: Its name and number in the profile.
        runs: Its runs, on all devices together.
        measured_us: What all of them took together, on one device.
        why: Why nothing is predicted of it.
    """

    program: str
    runs: int
    measured_us: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedFigure:
    """A figure that a profile settles, or fails to.

    Attributes:
        name: A figure of the chip, or a constant of the cost model.
        value: What the profile says; None where it is refused.
        before: What was used for the prediction; None where there was nothing.
        rests_on: Measurements that it rests on.
        why: Why it is refused; None where it is not.
    """

    name: str
    value: float | None
    before: float | None
    rests_on: int
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompareDocument(Shown):
    """A profile beside what is predicted of its programs.

    Attributes:
        schema: Version of this document's shape.
        target: What was compiled to predict from; None where that was the profile's own programs.
        profile: The profile.
        chip: The generation; None of CPU devices, of which nothing is predicted.
        device_kind: The device as the profile has it.
        devices: Devices in the profile.
        programs: Those that are compared, the one with most time first.
        uncompared: The others.
        calibration: What the profile says of the chip's figures; empty unless that was asked for.
        notes: What was chosen on the way, one sentence each.
    """

    schema: Schema = SCHEMA
    target: str | None
    profile: str
    chip: str | None
    device_kind: str
    devices: int
    programs: tuple[MeasuredProgram, ...]
    uncompared: tuple[UncomparedProgram, ...] = ()
    calibration: tuple[CalibratedFigure, ...] = ()
    notes: tuple[str, ...] = ()

    def _subject(self) -> str:
        return "comparison"

    if TYPE_CHECKING:

        def to_dict(self) -> CompareDict:
            """The result as plain data."""

    def __repr__(self) -> str:
        steps = ", ".join(
            f"{one.program.partition('(')[0]} {format_time(one.step.median_us)} measured, "
            f"{format_time(one.step.predicted_us)} predicted"
            for one in self.programs[:3]
        )
        return one_line(f"<CompareDocument of {self.profile}: {steps}>")
