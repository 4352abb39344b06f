"""What runs when in one step, on which part of the device, and what it waits for: the predicted schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from hloscope.analysis.model.collectives import Collectives
from hloscope.analysis.model.evidence import Evident
from hloscope.analysis.vocabulary import Bound
from hloscope.documents import SCHEMA, Schema, read
from hloscope.python_words import front_door
from hloscope.shown import Brief, Shown, one_line
from hloscope.units import format_time, plural

if TYPE_CHECKING:
    from hloscope.plain_types import TimelineDict


class Unit(StrEnum):
    """What of a device is at work."""

    CORE = "core"
    """Its TensorCores: what is computed, and what they wait for."""
    ICI = "ici"
    """Links between the chips of a slice."""
    DCN = "dcn"
    """The data-centre network between slices."""
    HBM = "copy within the device"
    TO_HOST = "copy to the host"
    FROM_HOST = "copy from the host"
    HOST = "host"
    """The host itself: callbacks, and what is computed there."""
    THREAD = "another thread"
    """What computes beside the core, such as a SparseCore."""


class WaitCause(StrEnum):
    """What the core waits for."""

    COLLECTIVE = "collective"
    HBM = "hbm"
    """A copy within the device."""
    HOST = "host"
    """A copy to or from the host, or the host itself."""
    KERNEL = "kernel"
    """What computes on another thread of the device."""
    LIMIT = "limit"
    """Nothing in the schedule: a step is not shorter than its bytes take through HBM, or its FLOPs at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """A computation that an instruction runs.

    Attributes:
        computation: Its name.
        times: How often it runs, one after the other; 0 for a branch that takes less than another one, and is not run.
        bound: How that relates to the truth.
    """

    computation: str
    times: int
    bound: Bound = Bound.EXACT


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Interval(Brief):
    """One stretch of time of one part of the device.

    Attributes:
        name: The HLO instruction that the core is at, or that has started what is on its way; None for what is waited
            for behind the last one.
        unit: What is at work, or what waits.
        begin_us: When, from the beginning of one execution of the computation.
        end_us: Until when.
        wait: What the core waits for meanwhile; None where the unit works.
        waits_for: Of a wait the instruction that has started what is waited for, where that is in this computation.
        collective: Of the transfer of a collective, and of a wait for one, the collective's `computation/name`.
        rule: The rule that priced it; None of what runs other computations, and where nothing tells how long it takes,
            so that it takes no time here.
        links: Of a transfer within a slice: the axes of the torus, and the directions along them, whose links it uses,
            such as `x+`.
        runs: The computations that are run meanwhile: of a loop its condition and its body.
        is_prefetch: Whether the step before has begun it.
        issued_us: Of what the core goes on beside: when the core has started it. It begins later where it waits for
            links, or in a queue.
        done: Of that the instruction that waits for it, whether it has to or not; None behind the last one.
        done_us: When the core comes to that instruction.
        flops: Of an operation of the core its multiply-adds, two each; None of all else, and where nothing tells.
        moved_bytes: Bytes that an operation of the core reads and writes of HBM, at the least; that a copy moves; that
            one device sends in a collective. None of waits, and where nothing tells.
        bound: How its time relates to the truth, apart from the error of the model, and with it the bytes of a
            collective: `unknown` of an operation that is priced without knowing what it does.
        live_bytes: Bytes of HBM that buffers take while the core is at it, arguments, outputs and constants included;
            None of what runs beside the core or runs other computations, and where no buffer assignment is known.
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
        """How long it is."""
        return self.end_us - self.begin_us


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TimedComputation(Brief):
    """One computation of the schedule, which is listed once however often it runs.

    Attributes:
        name: Its name.
        executions: How often the core runs it in one step; 0 for branches that are not taken, and for what runs on
            another thread.
        executions_beside: How often another thread runs it, of which `core` in its intervals then speaks.
        executions_bound: How both relate to the truth.
        time_us: How long one execution takes.
        bound: How that relates to the truth, apart from the error of the model.
        intervals: What runs when, by when it begins. Those of the core follow each other without gap or overlap.
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
    """How long a core waits in one step, by what for.

    Attributes:
        collective_us: For collectives: the sum over them of what each is exposed, over all its executions.
        hbm_us: For copies within the device.
        host_us: For copies to or from the host, and for the host.
        kernel_us: For what computes on another thread.
        limit_us: How much longer the step is than its schedule, because its bytes or FLOPs take that long.
    """

    collective_us: float = 0.0
    hbm_us: float = 0.0
    host_us: float = 0.0
    kernel_us: float = 0.0
    limit_us: float = 0.0

    @property
    def total_us(self) -> float:
        """All together."""
        return self.collective_us + self.hbm_us + self.host_us + self.kernel_us + self.limit_us


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Timeline(Shown, Evident):
    """One step as it is predicted, interval by interval; computing and waits add up to the step.

    Example:
        >>> found = hloscope.timeline("model:step", slice="v6e:2x4")
        >>> found.step_us == found.computing_us + found.waits.total_us
        >>> [one for one in found.computation("main.5").intervals if one.wait == "collective"]

    Attributes:
        schema: Version of the document's shape.
        target: What the user named.
        module: The HLO module's name.
        slice: The slice it is predicted for.
        step_us: The whole step.
        bound: How that relates to the truth, apart from the error of the model.
        computing_us: The part in which the core computes or moves its own data.
        waits: The rest, by what the core waits for.
        hidden_us: Time of collectives that nobody waits for.
        entry: The computation that the step begins with.
        computations: Those that are on the schedule, in the order of the text.
        collectives: What `collective` of intervals speaks of, as `analyze` has it, with sources and reasons.
        notes: Assumptions, one sentence each.
    """

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
        return one_line(
            f"<Timeline of {self.target} on {self.slice}: {plural(count, 'interval')}, "
            f"{format_time(self.step_us)} a step, {waits}>"
        )

    def computation(self, name: str) -> TimedComputation:
        """The computation of a name.

        Raises:
            KeyError: There is none of that name on the schedule.
        """
        for computation in self.computations:
            if computation.name == name:
                return computation
        raise KeyError(name)

    def _subject(self) -> str:
        return "timeline"

    if TYPE_CHECKING:

        def to_dict(self) -> TimelineDict:
            """The result as plain data."""

    @classmethod
    @front_door
    def from_dict(cls, document: Mapping[str, object]) -> Timeline:
        """The timeline that `to_dict` made plain data of.

        Raises:
            HloscopeError: It is no such document, or one of another schema.
        """
        return read(cls, document, name="the document", key="computations")
