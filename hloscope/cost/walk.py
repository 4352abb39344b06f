"""The walk over a schedule: what runs when on which unit of the device, each computation once however often it runs.

The order of the text is the order of execution, as it is for a scheduled module.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite

from hloscope.analysis.transfers import CoreBranches
from hloscope.analysis.trip_counts import find_trip_count
from hloscope.cost.network import NetworkTime
from hloscope.cost.operations import Operations, reaches_host, runs_on_host
from hloscope.cost.records import (
    CollectiveKey,
    InFlight,
    InstructionSpan,
    OperationTime,
    PricedCollectives,
    Schedule,
    Stretch,
    Sums,
    TimeBasis,
)
from hloscope.hlo import HloComputation, HloInstruction
from hloscope.hlo.call_graph import HloGraph
from hloscope.model.timeline import TimedRun, Unit, WaitCause
from hloscope.model.vocabulary import Bound

# ---- copies that run concurrently with the core, over time
#
# Between host and device they run one after the other in one direction, and concurrently in opposite directions, which
# slows both. Within the device's memory they also run one after the other, with the bandwidth that computation leaves
# to them.

_ROUNDED_US = 1e-9


@dataclass(slots=True)
class _Copy:
    """A queued copy, and its remaining microseconds at full pace."""

    name: str
    left_us: float


class CopyQueues:
    """The copies in progress, in one queue for each direction, over time.

    Within the device's memory, computation comes first: copies only get the bandwidth that it leaves, so that both
    together never move more bytes than the memory can.

    Args:
        both_ways_pace: Pace of a copy while another one runs in the opposite direction, as a share of its pace alone.
    """

    def __init__(self, both_ways_pace: float = 1.0) -> None:
        self._both_ways_pace = both_ways_pace
        self._queues = defaultdict[Unit, deque[_Copy]](deque)
        self._begun_us: dict[str, float] = {}
        self._ended_us: dict[str, float] = {}
        self._now_us = 0.0

    def start(self, name: str, unit: Unit, time_us: float, now_us: float) -> None:
        """Queues a copy after those started earlier in the same direction.

        Args:
            name: Its name.
            unit: Its direction.
            time_us: Its time if it runs alone.
            now_us: The time of its start.
        """
        self.go_on(now_us)
        self._queues[unit].append(_Copy(name, time_us))

    def times_us(self, name: str, now_us: float) -> tuple[float, float]:
        """The begin and end of a copy, past or future, if it is waited for from now on."""
        self.go_on(now_us)
        self.go_on(inf, awaited=name)
        # no time passes after a loop that never ends: the copy then neither begins nor ends before it
        return self._begun_us.get(name, now_us), self._ended_us.get(name, now_us)

    def go_on(self, until_us: float, pace: float = 1.0, *, awaited: str | None = None) -> None:
        """Advances the time to a point, or to the end of a copy.

        Args:
            until_us: The new time.
            pace: Pace of copies meanwhile, as a share of their pace alone.
            awaited: The copy whose end stops the time.
        """
        while awaited not in self._ended_us and pace > 0 and self._now_us < until_us:
            running = [queue for queue in self._queues.values() if queue]
            if not running:
                break
            paced = pace if len(running) == 1 else pace * self._both_ways_pace
            passed_us = min(until_us - self._now_us, min(queue[0].left_us for queue in running) / paced)
            begun_us, self._now_us = self._now_us, self._now_us + passed_us
            for queue in running:
                copy = queue[0]
                self._begun_us.setdefault(copy.name, begun_us)
                copy.left_us -= passed_us * paced
                if copy.left_us <= _ROUNDED_US:
                    self._ended_us[queue.popleft().name] = self._now_us
        if awaited is None:
            self._now_us = max(self._now_us, until_us)


# ---- the walk over one computation in text order: what runs when, and what the core waits for

_STEP = "async_collective_fusion"
_ENDS_CHAIN = "AsyncCollectiveDone"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_BETWEEN_SLICES = "_xla_megascale"
_STARTING_OPCODES = ("-start", "send")
_LATE_OPERANDS = frozenset({"call-update", "async-update"})
_LEAST_US = 1e-6
"""Waits below this are rounding errors of sums."""


def ends_chain(graph: HloGraph, fusion: HloInstruction) -> bool:
    """Returns whether a fusion only waits for an asynchronous collective that other fusions carry out."""
    inside = graph.module.computation(fusion.called[0][1]).instructions
    return any(inner.opcode == "custom-call" and inner.custom_call_target == _ENDS_CHAIN for inner in inside)


class ComputationWalk:
    """The walk over one computation.

    Started collectives and copies run concurrently with the schedule until they are waited for. Copies run one after
    the other, with the HBM bandwidth that computation leaves to them; collectives that use the same links wait for each
    other. Nothing is assumed to continue across the edge of a loop.

    Args:
        computation: The computation.
        operations: Prices computing instructions.
        priced: Times of collectives.
        sums_of: A function that returns the sums of one execution of another computation.
    """

    def __init__(
        self,
        computation: HloComputation,
        operations: Operations,
        priced: PricedCollectives,
        sums_of: Callable[[str], Sums],
    ) -> None:
        self._operations = operations
        self._graph = operations.graph
        self._priced = priced
        self._sums_of = sums_of
        self._computation = computation
        self._schedule = Schedule()
        self._sums = self._schedule.sums
        self._now_us = 0.0
        self._at: HloInstruction | None = None
        self._memory_copies, host_copies = CopyQueues(), CopyQueues(operations.both_ways_pace)
        self._copies = {Unit.HBM: self._memory_copies, Unit.TO_HOST: host_copies, Unit.FROM_HOST: host_copies}
        self._in_flight: dict[str, InFlight] = {}
        self._chains: dict[str, InFlight] = {}
        self._sent: dict[str, InFlight] = {}
        self._received: dict[str, str] = {}

    def run(self) -> Schedule:
        """The schedule, from the first instruction to the last."""
        for instruction in self._computation.instructions:
            self._at = instruction
            self._visit(instruction)
        self._at = None
        for name in list(self._in_flight):
            self._finish(self._in_flight.pop(name))
        for stretch in self._schedule.stretches:
            self._sums.add_stretch(stretch)
        return self._schedule

    def _record(self, stretch: Stretch) -> None:
        """Records work or waiting of the core, which advances the time."""
        self._schedule.stretches.append(stretch)
        self._memory_copies.go_on(stretch.end_us, 1.0 - self._memory_share(stretch))
        self._now_us = max(self._now_us, stretch.end_us)

    def _memory_share(self, stretch: Stretch) -> float:
        """The fraction of the HBM bandwidth that the core's current work takes."""
        if stretch.cause is not None or stretch.time_us <= 0:
            return 0.0
        memory_us = sum(run.times * self._operations.streaming_us(sums.hbm_bytes) for sums, run in stretch.runs)
        if stretch.cost is not None and not stretch.cost.is_over_host:
            memory_us += stretch.cost.memory_us
        return min(memory_us / stretch.time_us, 1.0)

    def _visit(self, instruction: HloInstruction) -> None:
        opcode = instruction.opcode
        if opcode == "get-tuple-element":
            self._follow_chain(instruction)
        elif opcode in ("parameter", "constant", "bitcast", "tuple"):
            return
        elif self._operations.find_copy(instruction) is not None:
            self._start_copy(instruction)
        elif opcode.endswith("-done"):
            self._done(instruction)
        elif opcode == "recv" and self._receives(instruction):
            return
        elif opcode in _LATE_OPERANDS:
            self._restart(instruction)
        elif (self._computation.name, instruction.name) in self._priced.times:
            self._collective(instruction, (self._computation.name, instruction.name))
        elif instruction.called:
            self._call(instruction)
        else:
            self._operate(instruction)

    # ---- computation

    def _operate(self, instruction: HloInstruction) -> OperationTime:
        cost = self._operations.time_of(instruction)
        if cost.basis is not TimeBasis.FREE:
            self._sums.add_work(cost)
            self._note_unknown(cost, f"kernel {cost.kernel}" if cost.kernel else _render_label(instruction))
            begin_us, end_us = self._now_us, self._now_us + cost.time_us
            if cost.is_over_host:
                unit = Unit.HOST if reaches_host(instruction) else find_copy_unit(cost)
                self._schedule.stretches.append(Stretch(instruction, unit, begin_us, end_us, cost=cost))
                self._record(Stretch(instruction, Unit.CORE, begin_us, end_us, cause=WaitCause.HOST, cost=cost))
            else:
                self._record(Stretch(instruction, Unit.CORE, begin_us, end_us, cost=cost))
        return cost

    def _note_unknown(self, cost: OperationTime, label: str) -> None:
        """Notes an operation priced without knowing what it does; only a lower bound affects the step's bound."""
        if cost.basis is TimeBasis.UNKNOWN:
            self._sums.add_unknown(label, cost.time_us, cost.moved_bytes)
            self._sums.bound += cost.bound if cost.bound is Bound.AT_LEAST else Bound.EXACT
            self._sums.kernels |= {cost.kernel} if cost.kernel else set()

    def _call(self, instruction: HloInstruction) -> None:
        match instruction.opcode:
            case "while":
                self._loop(instruction)
            case "conditional":
                self._branch(instruction)
            case "call":
                self._run([TimedRun(computation=name, times=1) for _, name in instruction.called])
            case "fusion":
                self._fusion(instruction)
            case opcode if opcode.endswith("-start"):
                self._start_call(instruction)
            case _:
                self._operate(instruction)

    def _run(self, runs: list[TimedRun]) -> None:
        """Runs computations on the core, one after the other."""
        found = tuple((self._sums_of(run.computation), run) for run in runs)
        for _, run in found:
            self._sums.bound += run.bound
        end_us = self._now_us + sum(run.times * sums.total_us for sums, run in found)
        self._record(Stretch(self._at, Unit.CORE, self._now_us, end_us, runs=found))

    def _branch(self, instruction: HloInstruction) -> None:
        """Runs a conditional, which takes at most as long as its longest branch unless one cannot be priced."""
        branches = [(self._sums_of(name), name) for _, name in instruction.called]
        longest = max((sums for sums, _ in branches), key=lambda sums: sums.total_us)
        bound = Bound.AT_MOST if longest.total_us > 0 else Bound.EXACT
        self._sums.conditional_us += longest.least_us - min(sums.least_us for sums, _ in branches)
        runs: list[TimedRun] = []
        for sums, name in branches:
            is_run = sums is longest and not any(run.times for run in runs)
            runs.append(TimedRun(computation=name, times=int(is_run), bound=bound if is_run else Bound.EXACT))
            if sums is not longest:
                self._sums.add_costs(sums)
        self._run(runs)

    def _loop(self, instruction: HloInstruction) -> None:
        trips = find_trip_count(self._graph, instruction)
        if trips.bound not in (Bound.EXACT, Bound.AT_LEAST):
            self._sums.conditional_us = inf
        self._run(
            [
                TimedRun(
                    computation=name,
                    times=trips.count + 1 if attribute == "condition" else trips.count,
                    bound=trips.bound,
                )
                for attribute, name in sorted(instruction.called, key=lambda pair: pair[0] != "condition")
            ]
        )

    def _fusion(self, instruction: HloInstruction) -> None:
        """Runs a fusion, which may be a link of an asynchronous collective's chain or hold collectives itself."""
        chain = next((found for name in instruction.operand_names if (found := self._chains.get(name))), None)
        callee = instruction.called[0][1]
        if chain is not None and callee.startswith(_STEP):
            self._chains[instruction.name] = chain
            self._operate(instruction)
            return
        if chain is not None and ends_chain(self._graph, instruction):
            self._sums.hbm_bytes += self._operations.transfer_bytes(instruction.shape)
            self._in_flight = {name: other for name, other in self._in_flight.items() if other is not chain}
            self._finish(chain)
            return
        branches = self._operations.branches_of(instruction)
        if branches:
            self._cores(instruction, branches)
            return
        self._operate(instruction)
        for key in self._priced.inside.get(callee, ()):
            self._transfer(key)

    def _cores(self, instruction: HloInstruction, branches: CoreBranches) -> None:
        """Runs a fusion with a part for each core: collectives on one overlap with computation on the other."""
        callee, begin_us = instruction.called[0][1], self._now_us
        ends_us: list[float] = []
        started: list[InFlight] = []
        for branch in branches:
            at_us = begin_us
            for inner in branch:
                key = (callee, inner.name)
                if key in self._priced.times:
                    self._read_by_transfer(inner)
                    found = self._started(key, is_started=False)
                    found.delayed(max(at_us - found.begin_us, 0.0))
                    started.append(found)
                    at_us = found.finish_us
                else:
                    at_us += self._operations.time_of(inner).time_us
            ends_us.append(at_us)
        cost = self._operate(instruction)
        for found in sorted(started, key=lambda transfer: transfer.finish_us):
            self._finish(found)
        rest_us = max(ends_us) - self._now_us
        if rest_us > _LEAST_US:  # computation after the collectives of the core that computes less
            rest = replace(cost, time_us=rest_us, flops=0, moved_bytes=0, hbm_bytes=0)
            self._record(Stretch(instruction, Unit.CORE, self._now_us, self._now_us + rest_us, cost=rest))

    # ---- communication

    def _collective(self, instruction: HloInstruction, key: CollectiveKey) -> None:
        self._read_by_transfer(instruction)
        if instruction.opcode == "fusion" and key in self._priced.asynchronous:
            self._chains[instruction.name] = self._in_flight[instruction.name] = self._started(key)
        elif key in self._priced.asynchronous and instruction.opcode.endswith(_STARTING_OPCODES):
            sent = self._in_flight[instruction.name] = self._started(key)
            rendezvous = instruction.frontend_attributes.get(_RENDEZVOUS) if instruction.opcode == "send" else None
            if rendezvous is not None:
                self._sent[rendezvous] = sent
        elif instruction.opcode == "custom-call" and self._priced.times[key] is None:
            self._communicating_kernel(instruction)
            self._transfer(key)
        else:
            self._sums.hbm_bytes += self._operations.transfer_bytes(instruction.shape)
            self._transfer(key)

    def _communicating_kernel(self, instruction: HloInstruction) -> None:
        """Runs a kernel for at least its stated cost, concurrently with a transfer of unknown time."""
        cost = self._operations.time_of(instruction)
        if cost.kernel is None and cost.basis is not TimeBasis.UNKNOWN:
            self._operate(instruction)
        else:
            self._sums.kernels |= {cost.kernel} if cost.kernel else set()

    def _read_by_transfer(self, instruction: HloInstruction) -> None:
        """Counts the memory that a transfer reads; the memory it writes is counted at its end."""
        transfer_bytes = self._operations.transfer_bytes
        self._sums.hbm_bytes += sum(transfer_bytes(operand.shape) for operand in instruction.operands)

    def _started(self, key: CollectiveKey, *, is_started: bool = True) -> InFlight:
        """A collective that begins now, or as soon as the links are free."""
        found, now_us = self._priced.times[key], self._now_us
        assert self._at is not None
        if found is None:
            return InFlight(start=self._at, unit=Unit.ICI, issued_us=now_us, key=key, is_started=is_started)
        late = [other for other in self._in_flight.values() if other.finish_us > now_us and other.meets(found)]
        beside = late[0] if len(late) == 1 and self._can_share(late[0], found) else None
        behind = None if beside is not None else max(late, key=lambda other: other.finish_us, default=None)
        started = InFlight(
            start=self._at,
            unit=Unit.DCN if found.is_between_slices else Unit.ICI,
            issued_us=now_us,
            time_us=found.time_us,
            key=key,
            transfer=found,
            is_started=is_started,
            behind=behind,
        )
        if beside is not None:
            self._side_by_side(beside, started)
        return started

    def _can_share(self, other: InFlight, found: NetworkTime) -> bool:
        """Returns whether two transfers run concurrently: they share only some links, and no third one is involved."""
        if other.transfer is None or self._priced.shared_part(found, other.transfer) == 1.0:
            return False
        others = (*other.beside, *((other.behind,) if other.behind is not None else ()))
        return all(transfer.finish_us <= self._now_us for transfer in others)

    def _side_by_side(self, one: InFlight, other: InFlight) -> None:
        """Makes two concurrent transfers slow each other by the parts that share links."""
        assert one.transfer is not None
        assert other.transfer is not None
        both_us = min(one.finish_us - self._now_us, other.transfer.time_us)
        shared = self._priced.shared_part
        one_later_us = both_us * shared(one.transfer, other.transfer)
        other.delayed(both_us * shared(other.transfer, one.transfer))
        one.delayed(one_later_us)
        one.beside.append(other)
        other.beside.append(one)

    def _transfer(self, key: CollectiveKey) -> None:
        """Runs a collective that the device waits for."""
        self._finish(self._started(key, is_started=False))

    def _done(self, instruction: HloInstruction) -> None:
        for name in instruction.operand_names[:1]:
            found = self._in_flight.pop(name, None)
            if found is None and name in self._received:
                found = self._sent.get(self._received[name])
            if found is not None:
                if found.key is not None:
                    self._sums.hbm_bytes += self._operations.transfer_bytes(instruction.shape)
                self._finish(found)

    def _receives(self, instruction: HloInstruction) -> bool:
        """Returns whether a `recv` is the other half of a transfer between slices that its `send` starts."""
        attributes = instruction.frontend_attributes
        if _RENDEZVOUS not in attributes or not any(name.startswith(_BETWEEN_SLICES) for name in attributes):
            return False
        self._received[instruction.name] = attributes[_RENDEZVOUS]
        return True

    def _restart(self, instruction: HloInstruction) -> None:
        """Starts an asynchronous call whose operands come late: it only begins here."""
        for name in instruction.operand_names[:1]:
            found = self._in_flight.pop(name, None)
            if found is not None:
                found.is_finished = found.key is not None
                begun = self._started(found.key) if found.key is not None else found
                begun.start = found.start
                self._in_flight[instruction.name] = begun

    def _finish(self, found: InFlight) -> None:
        """Waits for something that was started and that nothing has waited for yet."""
        if found.is_finished:
            return
        found.is_finished = True
        if found.unit in self._copies and not found.is_prefetch:
            times_us = self._copies[found.unit].times_us(found.start.name, self._now_us)
            found.begin_us, found.finish_us = times_us
        self._schedule.stretches.append(found.stretch(self._at, self._now_us))
        if found.is_prefetch:
            self._sums.prefetched_us += max(found.finish_us - self._now_us, 0.0)
        elif found.finish_us > self._now_us:
            for other, begin_us, end_us in found.waited_for(self._now_us):
                self._wait(other, begin_us, end_us)

    def _wait(self, found: InFlight, begin_us: float, end_us: float) -> None:
        found.exposed_us += end_us - begin_us
        self._record(
            Stretch(
                self._at,
                Unit.CORE,
                begin_us,
                end_us,
                cause=_CAUSES[found.unit],
                cost=found.cost,
                transfer=found.transfer,
                key=found.key,
                of=found.start,
                beside=found.thread,
            )
        )

    def _follow_chain(self, instruction: HloInstruction) -> None:
        chain = self._chains.get(instruction.operand_names[0]) if self._chains else None
        if chain is not None:
            self._chains[instruction.name] = chain

    # ---- copies and asynchronous calls

    def _start_copy(self, instruction: HloInstruction) -> None:
        """Starts a copy within the device's memory, or from or to the host; each of the three has its own queue.

        Source: a profile of v6e, in which copies in opposite directions run at once, each more slowly than alone.
        """
        copy = self._operations.copy_time(instruction)
        self._note_unknown(copy, f"{instruction.opcode} between host and device")
        is_prefetch = self._operations.is_prefetch(instruction)
        unit = find_copy_unit(copy)
        self._sums.hbm_bytes += copy.hbm_bytes
        if not is_prefetch:
            self._copies[unit].start(instruction.name, unit, copy.time_us, self._now_us)
        self._in_flight[instruction.name] = InFlight(
            start=instruction,
            unit=unit,
            issued_us=self._now_us,
            time_us=copy.time_us,
            cost=copy,
            is_prefetch=is_prefetch,
        )

    def _start_call(self, instruction: HloInstruction) -> None:
        """Starts an asynchronous call of a computation: a SparseCore's collective, or work on another thread."""
        called = [name for _, name in instruction.called]
        keys = [key for name in called for key in self._priced.inside.get(name, ())]
        if len(keys) == 1:
            self._read_by_transfer(instruction)
            self._in_flight[instruction.name] = self._started(keys[0])
            return
        if any(runs_on_host(self._graph.module.computation(name)) for name in called):
            self._start_on_host(instruction)
            return
        runs = tuple((self._sums_of(name), TimedRun(computation=name, times=1)) for name in called)
        sums = Sums()
        sums.add_stretch(Stretch(instruction, Unit.THREAD, 0.0, 0.0, runs=runs))
        self._in_flight[instruction.name] = InFlight(
            start=instruction,
            unit=Unit.THREAD,
            issued_us=self._now_us,
            time_us=sums.total_us,
            thread=sums,
            runs=runs,
        )

    def _start_on_host(self, instruction: HloInstruction) -> None:
        cost = self._operations.host_time(instruction)
        self._note_unknown(cost, f"{instruction.opcode} on the host")
        self._in_flight[instruction.name] = InFlight(
            start=instruction,
            unit=Unit.HOST,
            issued_us=self._now_us,
            time_us=cost.time_us,
            cost=cost,
        )


_CAUSES = {
    Unit.ICI: WaitCause.COLLECTIVE,
    Unit.DCN: WaitCause.COLLECTIVE,
    Unit.HBM: WaitCause.HBM,
    Unit.TO_HOST: WaitCause.HOST,
    Unit.FROM_HOST: WaitCause.HOST,
    Unit.HOST: WaitCause.HOST,
    Unit.THREAD: WaitCause.KERNEL,
}
"""The cause of a wait, by the unit that the core waits for."""


def find_copy_unit(copy: OperationTime) -> Unit:
    """The unit that carries out a copy."""
    if not copy.is_over_host:
        return Unit.HBM
    return Unit.TO_HOST if copy.is_to_host else Unit.FROM_HOST


def _render_label(instruction: HloInstruction) -> str:
    target = instruction.custom_call_target if instruction.opcode == "custom-call" else None
    if target is not None:
        return f"custom-call {target}"
    kind = instruction.attributes.get("kind") if instruction.opcode == "fusion" else None
    return instruction.opcode if kind is None else f"{instruction.opcode} {kind}"


_RUNNING_OPCODES = frozenset({"while", "conditional", "call"})
_MICROSECONDS = 1e6


class Walk:
    """Walks the computations of a module from ENTRY.

    Args:
        graph: The module.
        operations: Prices computing instructions.
        priced: Times of collectives.

    Attributes:
        schedules: One execution of each computation that was walked, by name.
    """

    def __init__(self, graph: HloGraph, operations: Operations, priced: PricedCollectives) -> None:
        self.graph = graph
        self.operations = operations
        self.priced = priced
        self.schedules: dict[str, Schedule] = {}

    def step(self) -> Sums:
        """The sums of one step of the program.

        Callers are walked after their callees, so that no nesting is too deep.
        """
        for computation in find_scheduled_computations(self.graph):
            self.sums_of(computation.name)
        entry = self.graph.module.entry
        sums = self.sums_of(entry.name)
        if isfinite(sums.total_us):
            self._make_possible(self.schedules[entry.name])
        return sums

    def sums_of(self, name: str) -> Sums:
        """The sums of one execution of a computation."""
        if name not in self.schedules:
            self.schedules[name] = Schedule()  # in case a computation in the text runs itself
            computation = self.graph.module.computation(name)
            self.schedules[name] = ComputationWalk(computation, self.operations, self.priced, self.sums_of).run()
        return self.schedules[name].sums

    def executions(self) -> dict[str, Counter[Unit]]:
        """Executions of each computation in one step, by the core and other threads."""
        found = defaultdict[str, Counter[Unit]](Counter)
        found[self.graph.module.entry.name][Unit.CORE] = 1
        for computation in self.graph.reachable:
            here = found[computation.name]
            for stretch in self._stretches(computation.name) if here else ():
                for _, run in stretch.runs if stretch.cause is None else ():
                    for unit, times in here.items():
                        runner = unit if stretch.unit is Unit.CORE else Unit.THREAD
                        found[run.computation][runner] += times * run.times
        return found

    def execution_bounds(self) -> dict[str, Bound]:
        """The bound of the executions of each computation."""
        found = defaultdict[str, Bound](lambda: Bound.EXACT)
        for computation in self.graph.reachable:
            for stretch in self._stretches(computation.name):
                for _, run in stretch.runs if stretch.cause is None else ():
                    found[run.computation] += found[computation.name] + run.bound
        return found

    def _stretches(self, name: str) -> list[Stretch]:
        return self.schedules[name].stretches if name in self.schedules else []

    def spans_of(self, name: str) -> Iterator[InstructionSpan]:
        """The time of the core at each instruction of a computation, including those that take no time."""
        stretches = self._stretches(name)
        started = {one.instruction.name: one for one in stretches if one.is_started and one.instruction is not None}
        core = [
            (one.instruction.name, one) for one in stretches if one.unit is Unit.CORE and one.instruction is not None
        ]
        now_us, index = 0.0, 0
        for instruction in self.graph.module.computation(name).instructions if stretches else ():
            begin_us, runs = now_us, []
            while index < len(core) and core[index][0] == instruction.name:
                now_us = core[index][1].end_us
                runs += [run for _, run in core[index][1].runs]
                index += 1
            yield InstructionSpan(instruction, begin_us, now_us, started.get(instruction.name), tuple(runs))

    def _make_possible(self, step: Schedule) -> None:
        """Extends the step if its bytes through memory or its FLOPs through the matrix units take longer.

        Data prefetched for the next step crosses memory concurrently with something else, but crosses it in every step.
        """
        chip, sums = self.operations.chip, step.sums
        hbm_bytes_per_s = chip.hbm_bytes_per_s / chip.devices_per_chip
        peak = chip.bf16_flops_per_s / chip.devices_per_chip
        for basis, seconds in (
            (TimeBasis.MEMORY, sums.hbm_bytes / hbm_bytes_per_s),
            (TimeBasis.ROOFLINE, sums.least_bf16_flops / peak),
        ):
            begin_us, end_us = sums.total_us, seconds * _MICROSECONDS
            if end_us > begin_us:
                cost = OperationTime(time_us=end_us - begin_us, basis=basis)
                limit = Stretch(None, Unit.CORE, begin_us, end_us, cause=WaitCause.LIMIT, cost=cost)
                step.stretches.append(limit)
                sums.add_stretch(limit)


def find_scheduled_computations(graph: HloGraph) -> Iterator[HloComputation]:
    """The computations that have an order of their own and are run by others, each before its callers."""
    for computation in reversed(graph.reachable):
        callers = (site.caller.opcode for site in graph.callers(computation.name))
        if any(opcode in _RUNNING_OPCODES or opcode.endswith("-start") for opcode in callers):
            yield computation
