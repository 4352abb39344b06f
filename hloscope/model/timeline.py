"""The predicted timeline of one step: what runs when, on which unit of the device, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from hloscope.base.calls import front_door
from hloscope.base.documents import SCHEMA, Schema, read_document
from hloscope.base.results import Brief, Shown, shorten_to_line
from hloscope.base.units import format_time, pluralize
from hloscope.model.capture import Evident
from hloscope.model.collectives import Collectives
from hloscope.model.vocabulary import Bound

if TYPE_CHECKING:
    from hloscope.plain_types import TimelineDict


class Activity(StrEnum):
    """The activity of a device during an operation."""

    COMPUTING = "computing"
    COMMUNICATION = "communication"
    HOST = "host copies"
    MEMORY = "memory copies"


class Unit(StrEnum):
    """A unit of the device that works or waits."""

    CORE = "core"
    """The TensorCores, with what they compute and wait for."""
    ICI = "ici"
    """The links between the chips of a slice."""
    DCN = "dcn"
    """The data-center network between slices."""
    HBM = "copy within the device"
    TO_HOST = "copy to the host"
    FROM_HOST = "copy from the host"
    HOST = "host"
    """The host: callbacks and computation there."""
    THREAD = "another thread"
    """A unit that computes concurrently with the core, such as a SparseCore."""


class WaitCause(StrEnum):
    """The cause of a wait of the core."""

    COLLECTIVE = "collective"
    HBM = "hbm"
    """A copy within the device."""
    HOST = "host"
    """A copy to or from the host, or the host."""
    KERNEL = "kernel"
    """Computation on another thread of the device."""
    LIMIT = "limit"
    """Nothing in the schedule: a step takes at least as long as its bytes through HBM or its FLOPs at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """A computation run by an instruction.

    Attributes:
        computation: Name of the computation.
        times: Number of consecutive executions; 0 for a branch that is not run because another one takes longer.
        bound: Whether that is exact or a bound.
    """

    computation: str
    times: int
    bound: Bound = Bound.EXACT


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Interval(Brief):
    """One stretch of time on one unit of the device.

    Attributes:
        name: The HLO instruction that the core runs or that started the transfer; None for a wait after the last
            instruction.
        unit: The unit that works or waits.
        begin_us: Begin, in microseconds from the start of one execution of the computation.
        end_us: End, on the same clock.
        wait: What the core waits for; None if the unit works.
        waits_for: For a wait, the instruction that started what is waited for, if it is in this computation.
        collective: For a collective's transfer, or a wait for one, the collective's `computation/name`.
        rule: The rule that priced it; None for instructions that run other computations, and for those with an unknown
            duration, which take no time here.
        links: For a transfer within a slice, the torus axes and directions whose links it uses, such as `x+`.
        runs: Computations run during the interval; for a loop, its condition and body.
        is_prefetch: Whether the previous step started it.
        issued_us: For asynchronous work, when the core started it. It begins later if it waits for links or in a queue.
        done: For asynchronous work, the instruction that waits for it, even if it is done by then; None after the last
            instruction.
        done_us: When the core reaches that instruction.
        flops: FLOPs of an operation on the core, counting a multiply-add as two; None for all else, and if unknown.
        moved_bytes: For an operation on the core, a lower bound of its HBM bytes read and written; for a copy, the
            bytes it moves; for a collective, the bytes that one device sends. None for waits, and if unknown.
        bound: Whether its time, and the bytes of a collective, are exact or bounds, apart from the error of the model;
            `unknown` for an operation priced without knowing what it does.
        live_bytes: Bytes of HBM in use while the core runs it, including arguments, outputs and constants; None for
            asynchronous work, for instructions that run other computations, and without a buffer assignment.
    """

    name: str | None
    unit: Unit
    begin_us: float
    end_us: float
    wait: WaitCause | None = None
    waits_for: str | None = None
    collective: str | None = None
    rule: str | None = None
    links: tuple[str, ...] = ()
    runs: tuple[TimedRun, ...] = ()
    is_prefetch: bool = False
    issued_us: float | None = None
    done: str | None = None
    done_us: float | None = None
    flops: int | None = None
    moved_bytes: int | None = None
    bound: Bound = Bound.EXACT
    live_bytes: int | None = None

    @property
    def time_us(self) -> float:
        """Duration in microseconds."""
        return self.end_us - self.begin_us


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TimedComputation(Brief):
    """One computation of the schedule, listed once however often it runs.

    Attributes:
        name: Name of the computation.
        executions: Executions per step on the core; 0 for branches that are not taken, and for work on another thread.
        executions_beside: Executions per step on another thread; `core` in its intervals then means that thread.
        executions_bound: Whether both are exact or bounds.
        time_us: Time of one execution, in microseconds.
        bound: Whether that is exact or a bound, apart from the error of the model.
        intervals: Intervals sorted by begin. Those of the core have no gaps and do not overlap.
    """

    name: str
    executions: int
    executions_beside: int
    executions_bound: Bound = Bound.EXACT
    time_us: float
    bound: Bound = Bound.EXACT
    intervals: tuple[Interval, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waiting time of a core in one step, in microseconds, by what it waits for.

    Attributes:
        collective_us: For collectives: the sum of their exposed times over all executions.
        hbm_us: For copies within the device.
        host_us: For copies to or from the host, and for the host itself.
        kernel_us: For computation on another thread.
        limit_us: Time added to the schedule because the step's bytes or FLOPs take that long.
    """

    collective_us: float = 0.0
    hbm_us: float = 0.0
    host_us: float = 0.0
    kernel_us: float = 0.0
    limit_us: float = 0.0

    @property
    def total_us(self) -> float:
        """Total waiting time in microseconds."""
        return self.collective_us + self.hbm_us + self.host_us + self.kernel_us + self.limit_us


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Timeline(Shown, Evident):
    """The predicted timeline of one step; computing and waiting times add up to the step.

    Example:
        >>> found = hloscope.timeline("model:step", slice="v6e:2x4")
        >>> found.step_us == found.computing_us + found.waits.total_us
        >>> [one for one in found.computation("main.5").intervals if one.wait == "collective"]

    Attributes:
        schema: Schema version of the document.
        target: The target as the user named it.
        module: The HLO module's name.
        slice: The slice that it is predicted for.
        step_us: Time of the step, in microseconds.
        bound: Whether that is exact or a bound, apart from the error of the model.
        computing_us: Time in which the core computes or moves its own data.
        waits: Waiting time, by what the core waits for.
        hidden_us: Time of collectives that is overlapped.
        entry: Name of the computation that the step starts in.
        computations: The scheduled computations, in text order.
        collectives: The collectives that `collective` of intervals refers to, as in the analysis, with sources and
            reasons.
        notes: Assumptions, one sentence each.
    """

    _subject = "timeline"

    schema: Schema = SCHEMA
    target: str
    module: str
    slice: str
    step_us: float
    bound: Bound
    computing_us: float
    waits: Waits
    hidden_us: float
    entry: str
    computations: tuple[TimedComputation, ...]
    collectives: Collectives = field(default_factory=Collectives)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        count = sum(len(computation.intervals) for computation in self.computations)
        waits = f"{format_time(self.waits.total_us)} of waits"
        return shorten_to_line(
            f"<Timeline of {self.target} on {self.slice}: {pluralize(count, 'interval')}, "
            f"{format_time(self.step_us)} a step, {waits}>"
        )

    def computation(self, name: str) -> TimedComputation:
        """Returns the computation with this name.

        Raises:
            KeyError: No scheduled computation has this name.
        """
        for computation in self.computations:
            if computation.name == name:
                return computation
        raise KeyError(name)

    if TYPE_CHECKING:

        def to_dict(self) -> TimelineDict:
            """The result as plain data."""

    @classmethod
    @front_door
    def from_dict(cls, document: Mapping[str, object]) -> Timeline:
        """Creates a timeline from the plain data that `to_dict` returned.

        Raises:
            HloscopeError: The data is not such a document, or has another schema version.
        """
        return read_document(cls, document, name="the document", key="computations")
