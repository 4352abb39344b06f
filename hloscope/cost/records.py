"""The records of the walk over a schedule, and their sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from hloscope.cost.network import NetworkTime
from hloscope.hlo import HloInstruction
from hloscope.model.timeline import TimedRun, Unit, WaitCause
from hloscope.model.vocabulary import Bound

CollectiveKey = tuple[str, str]
"""The computation and the name of the instruction that starts a collective."""


class TimeBasis(StrEnum):
    """The basis of an instruction's time."""

    CYCLES = "cycles"
    VECTOR = "vector unit"
    NARROW = "8-bit matmul"
    MEMORY = "memory"
    ROOFLINE = "roofline"
    TRANSPOSED = "transposed layouts"
    SINGLE_ROWS = "update of single rows"
    LINK_TO_HOST = "link to the host"
    UNKNOWN = "unknown"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTime:
    """The time of one instruction.

    Attributes:
        time_us: Its time in microseconds.
        basis: The compiler's estimated cycles, all of them or those of the vector unit; the peak for 8-bit types; the
        memory traffic, row by row or in general; the traffic to or from the host; a roofline of FLOPs and bytes; or the
        traffic of an unknown operation.
        memory_us: Time of its HBM traffic alone.
        moved_bytes: Bytes of its operands and results, with tile padding.
        hbm_bytes: Lower bound of the HBM bytes that it reads and writes.
        flops: FLOPs, counting a multiply-add as two.
        least_bf16_flops: The same, converted to bf16 FLOPs that take the chip equally long at its peak.
        bf16_flops_per_cycle: FLOPs per compiler cycle of a large matmul that memory does not slow down; 0 for others.
        is_over_host: Whether it crosses the link between the host and the device.
        is_to_host: Whether it crosses it towards the host.
        kernel: The name of a kernel whose cost is unknown, so that its time is a lower bound; None for all else.
    """

    time_us: float
    basis: TimeBasis
    memory_us: float = 0.0
    moved_bytes: int = 0
    hbm_bytes: int = 0
    flops: int = 0
    least_bf16_flops: float = 0.0
    bf16_flops_per_cycle: float = 0.0
    is_over_host: bool = False
    is_to_host: bool = False
    kernel: str | None = None

    @property
    def bound(self) -> Bound:
        """The bound of the time; the host and kernels take at least their given times."""
        if self.basis is not TimeBasis.UNKNOWN:
            return Bound.EXACT
        return Bound.AT_LEAST if self.is_over_host or self.kernel else Bound.UNKNOWN

    @property
    def is_paced_by_memory(self) -> bool:
        """True if the device's own memory limits its pace."""
        paced = self.basis is TimeBasis.MEMORY or self.memory_us >= self.time_us > 0
        return paced and not self.is_over_host


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedCollectives:
    """The collectives of a module and their times.

    Attributes:
        times: Time of each, by the instruction that starts it; None if it cannot be priced.
        asynchronous: Collectives printed as a start and a done, or as an asynchronous collective fusion.
        inside: The collectives of a computation, for callers that do not bear their name.
        shared_part: The part of the first that shares links with the second.
    """

    times: Mapping[CollectiveKey, NetworkTime | None]
    asynchronous: frozenset[CollectiveKey]
    inside: Mapping[str, Sequence[CollectiveKey]]
    shared_part: Callable[[NetworkTime, NetworkTime], float]


def _make_zeros() -> defaultdict[Any, float]:
    return defaultdict(float)


_ROUNDED = 1e-9
"""Relative rounding error of times that are summed and subtracted."""


@dataclass(slots=True)
class Sums:
    """Sums over one execution of a computation: times of its stretches, and their bytes and FLOPs.

    Attributes:
        computing_us: Time in which the device computes or moves its own data.
        waited_us: Waiting time, by what it waits for.
        moving_us: Time of its collectives by themselves, exposed or not.
        hbm_us: The memory-bound part of `compute_us`.
        prefetched_us: Time that the first step waits for data that later steps find prefetched.
        flops: FLOPs, counting a multiply-add as two.
        least_bf16_flops: The same, converted to bf16 FLOPs that take the chip equally long at its peak.
        hbm_bytes: Lower bound of the HBM traffic, including what is prefetched for the next step.
        densest: Largest number of FLOPs per compiler cycle of a large matmul.
        by_basis: Parts of `compute_us`, by basis.
        unknown: (time, bytes, executions) of unknown operations, by opcode.
        rules: Time of collectives by the rule that priced them.
        bound: Whether the times are exact or bounds.
        conditional_us: Time that passes only if the longest branches are taken; infinite if a loop may run less often.
        kernels: Names of kernels whose cost is unknown.
        unpriced: Collectives that cannot be priced.
        waits: Exposed time of each collective over all its executions, including branches that are not taken.
        executions: Executions of each collective.
    """

    computing_us: float = 0.0
    waited_us: dict[WaitCause, float] = field(default_factory=_make_zeros)
    moving_us: float = 0.0
    hbm_us: float = 0.0
    prefetched_us: float = 0.0
    flops: int = 0
    least_bf16_flops: float = 0.0
    hbm_bytes: float = 0.0
    densest: float = 0.0
    by_basis: dict[TimeBasis, float] = field(default_factory=_make_zeros)
    unknown: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    rules: dict[str, float] = field(default_factory=_make_zeros)
    bound: Bound = Bound.EXACT
    conditional_us: float = 0.0
    kernels: set[str] = field(default_factory=set)
    unpriced: int = 0
    waits: dict[CollectiveKey, float] = field(default_factory=_make_zeros)
    executions: dict[CollectiveKey, int] = field(default_factory=Counter)

    @property
    def total_us(self) -> float:
        """The time from the first instruction to the last."""
        return self.compute_us + self.exposed_us

    @property
    def least_us(self) -> float:
        """The same if the shortest branches are taken."""
        return self.total_us - self.conditional_us

    @property
    def exposed_us(self) -> float:
        """Time in which the device only waits for collectives."""
        return self.waited_us.get(WaitCause.COLLECTIVE, 0.0)

    @property
    def compute_us(self) -> float:
        """The remaining time: the device computes, moves its own data, or waits for that."""
        others = (waited_us for cause, waited_us in self.waited_us.items() if cause is not WaitCause.COLLECTIVE)
        return sum(others, self.computing_us)

    @property
    def hidden_us(self) -> float:
        """Time of collectives that is overlapped."""
        hidden_us = self.moving_us - self.exposed_us
        return hidden_us if hidden_us > _ROUNDED * self.moving_us else 0.0

    def add_stretch(self, stretch: Stretch) -> None:
        """Adds the time of one stretch, with everything that runs in it."""
        if stretch.cause is not None:
            self._add_wait(stretch.cause, stretch)
        elif stretch.is_collective:
            self._add_transfer(stretch)
        elif stretch.beside is not None:
            self._add_counts(stretch.beside, 1)
        elif stretch.runs:
            for sums, run in stretch.runs:
                self._add(sums, run.times)
        elif stretch.cost is not None and stretch.unit is Unit.CORE:
            self.computing_us += stretch.cost.time_us
            self._add_basis(stretch.cost, stretch.cost.time_us)

    def _add_wait(self, cause: WaitCause, stretch: Stretch) -> None:
        if stretch.beside is not None:
            self._add_wait_for_thread(stretch.beside, stretch.time_us)
            return
        self.waited_us[cause] += stretch.time_us
        if stretch.key is not None:
            self.waits[stretch.key] += stretch.time_us
        if stretch.cost is not None:
            self._add_basis(stretch.cost, stretch.time_us)

    def _add_basis(self, cost: OperationTime, time_us: float) -> None:
        self.by_basis[cost.basis] += time_us
        if cost.is_paced_by_memory:
            self.hbm_us += time_us

    def _add_transfer(self, stretch: Stretch) -> None:
        assert stretch.key is not None
        if stretch.transfer is None:
            self.unpriced += 1
        else:
            self.moving_us += stretch.transfer.time_us
            self.rules[stretch.transfer.rule] += stretch.transfer.time_us
        self.waits[stretch.key] += 0.0
        self.executions[stretch.key] += 1

    def _add_wait_for_thread(self, beside: Sums, time_us: float) -> None:
        """Adds the awaited part of another thread's work, composed like that work as a whole."""
        share = time_us / beside.total_us if beside.total_us > 0 else 0.0
        for cause, of_thread_us in beside.waits_for_it():
            self.waited_us[cause] += share * of_thread_us
        self._add_parts(beside, share)

    def waits_for_it(self) -> Iterator[tuple[WaitCause, float]]:
        """The wait causes of a thread that waits for all of this one: its kernels, and what these wait for."""
        yield WaitCause.KERNEL, self.computing_us
        yield from self.waited_us.items()

    def add_work(self, cost: OperationTime) -> None:
        """Counts the FLOPs and bytes of an instruction, however long it takes."""
        self.flops += cost.flops
        self.least_bf16_flops += cost.least_bf16_flops
        self.hbm_bytes += cost.hbm_bytes
        self.densest = max(self.densest, cost.bf16_flops_per_cycle)

    def _add(self, other: Sums, times: int) -> None:
        """Adds several executions of a computation."""
        self.computing_us += times * other.computing_us
        for cause, waited_us in other.waited_us.items():
            self.waited_us[cause] += times * waited_us
        self._add_parts(other, times)
        self._add_counts(other, times)

    def _add_parts(self, other: Sums, times: float) -> None:
        """Adds the parts that a computation's time consists of."""
        self.hbm_us += times * other.hbm_us
        for basis, amount in other.by_basis.items():
            self.by_basis[basis] += times * amount
        for key, waited_us in other.waits.items():
            self.waits[key] += times * waited_us

    def _add_counts(self, other: Sums, times: int) -> None:
        """Adds everything of a computation except the time that passes during it."""
        self.moving_us += times * other.moving_us
        self.conditional_us += times * other.conditional_us if times else 0.0
        self.prefetched_us += other.prefetched_us
        self.flops += times * other.flops
        self.least_bf16_flops += times * other.least_bf16_flops
        self.hbm_bytes += times * other.hbm_bytes
        self.densest = max(self.densest, other.densest)
        for rule, amount in other.rules.items():
            self.rules[rule] += times * amount
        for label, (time_us, moved, count) in other.unknown.items():
            self.add_unknown(label, times * time_us, times * moved, times * count)
        for key, executions in other.executions.items():
            self.executions[key] += times * executions
        self.add_doubts(other, times)

    def add_costs(self, branch: Sums) -> None:
        """Records the costs of a branch's collectives, which may be taken, without adding their time to the total."""
        for key, executions in branch.executions.items():
            self.waits[key] += branch.waits[key]
            self.executions[key] += executions
        self.add_doubts(branch)

    def add_doubts(self, other: Sums, times: int = 1) -> None:
        """Records that a computation may take longer than stated, whether or not it is waited for."""
        self.unpriced += times * other.unpriced
        self.bound += other.bound
        self.kernels |= other.kernels

    def add_unknown(self, label: str, time_us: float, moved: int, count: int = 1) -> None:
        """Records operations that were priced without knowing what they do."""
        before = self.unknown.get(label, (0.0, 0, 0))
        self.unknown[label] = (before[0] + time_us, before[1] + moved, before[2] + count)


class Stretch(NamedTuple):
    """A stretch of work or waiting of one part of the device, from the beginning of the computation.

    Attributes:
        instruction: The instruction that the core runs, or that started the work in progress; None after the last.
        unit: The part.
        begin_us: Begin.
        end_us: End.
        cause: What the core waits for; None if the unit works.
        cost: For an operation, a copy, or a wait for one: its cost.
        transfer: For a collective or a wait for one: its time; None if it cannot be priced.
        key: The collective.
        of: The instruction that started what is waited for.
        beside: For work on another thread or a wait for it: its sums.
        runs: The computations that run meanwhile, with the sums of one execution of each.
        is_started: Whether the core continues meanwhile.
        is_prefetch: Whether the previous step issued it.
        issued_us: For concurrent work: when the core started it.
        done: The instruction that waits for it, even if it is done by then.
        done_us: When the core reaches that instruction.
    """

    instruction: HloInstruction | None
    unit: Unit
    begin_us: float
    end_us: float
    cause: WaitCause | None = None
    cost: OperationTime | None = None
    transfer: NetworkTime | None = None
    key: CollectiveKey | None = None
    of: HloInstruction | None = None
    beside: Sums | None = None
    runs: tuple[tuple[Sums, TimedRun], ...] = ()
    is_started: bool = False
    is_prefetch: bool = False
    issued_us: float | None = None
    done: HloInstruction | None = None
    done_us: float | None = None

    @property
    def time_us(self) -> float:
        """Duration in microseconds."""
        return self.end_us - self.begin_us

    @property
    def is_collective(self) -> bool:
        """True for a collective in progress."""
        return self.key is not None and self.cause is None


@dataclass(slots=True, kw_only=True)
class InFlight:
    """Started work that nothing has waited for yet.

    Attributes:
        start: The instruction that started it.
        unit: The unit that carries it out.
        issued_us: When the core started it.
        time_us: Its duration.
        begin_us: When it begins: at once, or after `behind`.
        finish_us: When it is done.
        key: The collective; None for all else.
        transfer: Its time alone, and its links; None if it cannot be priced, and for all else.
        cost: The cost of a copy, or of work on the host.
        thread: The sums of the computation that runs on another thread of the device.
        runs: The computations that run there.
        is_started: Whether the core continues meanwhile.
        is_prefetch: Whether the previous step issued it.
        is_finished: Whether something has waited for it.
        behind: The transfer on the same links after which it begins; None if it begins at once.
        beside: Concurrent transfers on some of the same links. The time that they add counts as if it had begun that
        much later.
        exposed_us: Time that it has been waited for.
    """

    start: HloInstruction
    unit: Unit
    issued_us: float
    time_us: InitVar[float] = 0.0
    begin_us: float = field(init=False)
    finish_us: float = field(init=False)
    key: CollectiveKey | None = None
    transfer: NetworkTime | None = None
    cost: OperationTime | None = None
    thread: Sums | None = None
    runs: tuple[tuple[Sums, TimedRun], ...] = ()
    is_started: bool = True
    is_prefetch: bool = False
    is_finished: bool = False
    behind: InFlight | None = None
    beside: list[InFlight] = field(default_factory=list)
    exposed_us: float = 0.0

    def __post_init__(self, time_us: float) -> None:
        self.begin_us = self.issued_us if self.behind is None else self.behind.finish_us
        self.finish_us = self.begin_us + time_us

    def meets(self, found: NetworkTime) -> bool:
        """Returns whether it uses a link that another transfer needs, or both use the data-center network."""
        own = self.transfer
        if own is None or own.links is None or found.links is None:
            return own is not None and own.links is found.links and own.rule == found.rule
        return bool(np.any(own.links & found.links))

    def waited_for(self, since_us: float) -> Iterator[tuple[InFlight, float, float]]:
        """The transfers that a wait for this one involves, with their times; before it begins, the one it follows."""
        found: list[tuple[InFlight, float, float]] = []
        waiting = self
        while waiting.behind is not None and not waiting.behind.is_finished and waiting.behind.finish_us > since_us:
            found.append((waiting, waiting.behind.finish_us, waiting.finish_us))
            waiting = waiting.behind
        for waiter, begin_us, end_us in ((waiting, since_us, waiting.finish_us), *reversed(found)):
            yield from waiter._with_those_beside(begin_us, end_us)

    def _with_those_beside(self, begin_us: float, end_us: float) -> Iterator[tuple[InFlight, float, float]]:
        """The transfers waited for: before it begins, those that delay it, none for longer than its own time."""
        for other in self.beside:
            left_us = 0.0 if other.transfer is None else other.transfer.time_us - other.exposed_us
            late_us = min(self.begin_us - begin_us, left_us)
            if late_us > 0:
                yield other, begin_us, begin_us + late_us
                begin_us += late_us
        yield self, begin_us, end_us

    def delayed(self, by_us: float) -> None:
        """Delays its begin and end."""
        self.begin_us += by_us
        self.finish_us += by_us

    def stretch(self, done: HloInstruction | None, done_us: float) -> Stretch:
        """The stretch during which it is in progress, for the instruction that waits for it."""
        return Stretch(
            self.start,
            self.unit,
            self.begin_us,
            self.finish_us,
            cost=self.cost,
            transfer=self.transfer,
            key=self.key,
            beside=self.thread,
            runs=self.runs,
            is_started=self.is_started,
            is_prefetch=self.is_prefetch,
            issued_us=self.issued_us if self.is_started else None,
            done=done if self.is_started else None,
            done_us=done_us if self.is_started and done is not None else None,
        )


@dataclass(slots=True)
class Schedule:
    """One execution of a computation.

    Attributes:
        stretches: What runs when; started work is listed where it is waited for.
        sums: Their sums.
    """

    stretches: list[Stretch] = field(default_factory=list)
    sums: Sums = field(default_factory=Sums)


class InstructionSpan(NamedTuple):
    """The time of the core at one instruction of its schedule, from the beginning of the computation.

    Attributes:
        instruction: The instruction.
        begin_us: When it reaches the instruction.
        end_us: When it leaves the instruction.
        started: The concurrent work that it has started; None if it starts none.
        runs: The computations that it runs.
    """

    instruction: HloInstruction
    begin_us: float
    end_us: float
    started: Stretch | None
    runs: tuple[TimedRun, ...]
