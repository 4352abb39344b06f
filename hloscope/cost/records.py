"""What the walk over a schedule adds up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hloscope.analysis.vocabulary import Bound
from hloscope.cost.operations import Basis, OperationTime
from hloscope.cost.paths import NetworkTime
from hloscope.hlo import HloInstruction

Key = tuple[str, str]
"""The computation and the name of the instruction that starts a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The collectives of a module, and how long each takes.

    Attributes:
        times: What each takes, by the instruction that starts it; None when it cannot be priced.
        asynchronous: Those that are printed as a start and a done, or as an asynchronous collective fusion.
        inside: The collectives of a computation, for callers that do not bear their name.
    """

    times: Mapping[Key, NetworkTime | None]
    asynchronous: frozenset[Key]
    inside: Mapping[str, Sequence[Key]]


def _zeros() -> defaultdict[Any, float]:
    return defaultdict(float)


@dataclass(slots=True)
class Sums:
    """What happens during one execution of a computation.

    Attributes:
        compute_us: Time in which the device computes or moves its own data.
        exposed_us: Time in which it only waits for communication.
        hidden_us: Communication that runs beside something else.
        hbm_us: The part of `compute_us` in which memory sets the pace.
        prefetched_us: Time that the first step waits for what later steps find prefetched.
        flops: Multiply-adds, two operations each.
        least_bf16_flops: The same, as many bf16 ones as take the chip as long at its peak for their types.
        hbm_bytes: What crosses the memory, at the least: what is prefetched for the next step too.
        densest: The most FLOPs that a large matmul does in one of the compiler's cycles.
        by_basis: Parts of `compute_us` by what they rest on.
        unknown: (time, bytes, executions) by the opcode of what is not known.
        rules: Time of collectives by the rule that priced them.
        bound: How the times relate to the truth.
        kernels: Names of kernels whose cost is unknown.
        unpriced: Collectives that nothing can price.
        waits: How long each collective in it is waited for, in all its executions together.
        executions: How many executions of each collective there are.
    """

    compute_us: float = 0.0
    exposed_us: float = 0.0
    hidden_us: float = 0.0
    hbm_us: float = 0.0
    prefetched_us: float = 0.0
    flops: int = 0
    least_bf16_flops: float = 0.0
    hbm_bytes: float = 0.0
    densest: float = 0.0
    by_basis: dict[Basis, float] = field(default_factory=_zeros)
    unknown: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    rules: dict[str, float] = field(default_factory=_zeros)
    bound: Bound = Bound.EXACT
    kernels: set[str] = field(default_factory=set)
    unpriced: int = 0
    waits: dict[Key, float] = field(default_factory=_zeros)
    executions: dict[Key, int] = field(default_factory=Counter)

    @property
    def total_us(self) -> float:
        """From the first instruction to the last."""
        return self.compute_us + self.exposed_us

    def last_at_least(self, time_us: float, basis: Basis) -> None:
        """Makes the whole last as long as it must, whatever its parts say: the device moves data or multiplies.

        Args:
            time_us: What it must take.
            basis: What that rests on.
        """
        missing_us = time_us - self.total_us
        if missing_us > 0:
            self.compute_us += missing_us
            self.by_basis[basis] += missing_us
            self.hbm_us += missing_us if basis is Basis.MEMORY else 0.0

    def add_operation(self, cost: OperationTime) -> None:
        """Adds one instruction that computes."""
        self.add_wait(cost, cost.time_us)
        self.flops += cost.flops
        self.least_bf16_flops += cost.least_bf16_flops
        self.hbm_bytes += cost.hbm_bytes
        self.densest = max(self.densest, cost.bf16_flops_per_cycle)

    def add_wait(self, cost: OperationTime, waited_us: float) -> None:
        """Adds the part of something asynchronous that the device waits for."""
        self.compute_us += waited_us
        self.by_basis[cost.basis] += waited_us
        if cost.is_paced_by_memory:
            self.hbm_us += waited_us

    def add_collective(self, key: Key, transfer: NetworkTime | None, exposed_us: float) -> None:
        """Adds one collective; None for the time of one that cannot be priced."""
        self.exposed_us += exposed_us
        if transfer is None:
            self.unpriced += 1
        else:
            self.hidden_us += max(transfer.time_us - exposed_us, 0.0)
            self.rules[transfer.rule] += transfer.time_us
        self.waits[key] += exposed_us
        self.executions[key] += 1

    def add(self, other: Sums, times: int = 1, *, share: float = 1.0) -> None:
        """Adds a computation.

        Args:
            other: The computation.
            times: How often it runs.
            share: The part of its time that is waited for; the rest of it runs beside something else.
        """
        waited = times * share
        self.compute_us += waited * other.compute_us
        self.exposed_us += waited * other.exposed_us
        self.hidden_us += times * other.hidden_us + (times - waited) * other.exposed_us
        self.hbm_us += waited * other.hbm_us
        self.prefetched_us += other.prefetched_us
        self.flops += times * other.flops
        self.least_bf16_flops += times * other.least_bf16_flops
        self.hbm_bytes += times * other.hbm_bytes
        self.densest = max(self.densest, other.densest)
        for basis, amount in other.by_basis.items():
            self.by_basis[basis] += waited * amount
        for rule, amount in other.rules.items():
            self.rules[rule] += times * amount
        for label, (time_us, moved, count) in other.unknown.items():
            self.add_unknown(label, times * time_us, times * moved, times * count)
        self.add_doubts(other, times)
        self.add_costs(other, times, share=share)

    def add_costs(self, other: Sums, times: int = 1, *, share: float = 1.0) -> None:
        """Notes what the collectives of a computation cost, without adding their time to the total.

        Args:
            other: The computation.
            times: How often it runs.
            share: The part of it that is waited for.
        """
        for key, executions in other.executions.items():
            self.waits[key] += times * share * other.waits[key]
            self.executions[key] += times * executions

    def add_doubts(self, other: Sums, times: int = 1) -> None:
        """Notes that a computation may take longer than it says, whether it is waited for or not."""
        self.unpriced += times * other.unpriced
        self.bound += other.bound
        self.kernels |= other.kernels

    def add_unknown(self, label: str, time_us: float, moved: int, count: int = 1) -> None:
        """Notes operations that were priced without knowing what they do."""
        before = self.unknown.get(label, (0.0, 0, 0))
        self.unknown[label] = (before[0] + time_us, before[1] + moved, before[2] + count)


@dataclass(slots=True)
class InFlight:
    """Something that was started and not yet waited for.

    Attributes:
        finish_us: When it is done.
        key: The collective; None for all else.
        transfer: What that takes alone, and over which links; None where it cannot be priced, and for all else.
        cost: The copy, or what the host does.
        beside: The computation that runs on another thread of the device.
        is_prefetch: Whether the step before issued it.
        is_finished: Whether something has waited for it.
        behind: The transfer on the same links after which it begins; None where it begins at once.
        exposed_us: How long it has been waited for, by its own done or by that of a transfer behind it.
    """

    finish_us: float
    key: Key | None = None
    transfer: NetworkTime | None = None
    cost: OperationTime | None = None
    beside: Sums | None = None
    is_prefetch: bool = False
    is_finished: bool = False
    behind: InFlight | None = None
    exposed_us: float = 0.0

    def meets(self, found: NetworkTime) -> bool:
        """Whether it uses a link that another transfer needs, or both use the data-centre network."""
        own = self.transfer
        if own is None or own.links is None or found.links is None:
            return own is not None and own.links is found.links and own.rule == found.rule
        return bool(np.any(own.links & found.links))

    def expose(self, since_us: float) -> None:
        """Notes that it is waited for from `since_us` on; until it begins that is waiting for what it is behind."""
        waiting: InFlight = self
        while waiting.behind is not None and not waiting.behind.is_finished and waiting.behind.finish_us > since_us:
            waiting.exposed_us += waiting.finish_us - waiting.behind.finish_us
            waiting = waiting.behind
        waiting.exposed_us += max(waiting.finish_us - since_us, 0.0)


class Span(NamedTuple):
    """When the device is at one instruction of its schedule, from the beginning of the computation.

    Attributes:
        instruction: The instruction.
        begin_us: When it comes to it.
        end_us: When it goes on.
        started: What it has started that runs beside the rest; None for all else.
    """

    instruction: HloInstruction
    begin_us: float
    end_us: float
    started: InFlight | None
