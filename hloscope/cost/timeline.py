"""The schedule as a timeline: what a step adds up to, each computation being walked once however often it runs.

The order of the text is the order of execution, as it is for a scheduled module.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.trip_counts import trip_count
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.operations import Basis, Operations, OperationTime, runs_on_host
from hloscope.cost.records import InFlight, Key, Priced, Span, Sums
from hloscope.graph import HloGraph
from hloscope.hlo import HloComputation, HloInstruction

RUNS = frozenset({"while", "conditional", "call"})
LOCAL_STARTS = frozenset({"copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"})
_STEP = "async_collective_fusion"
_ENDS_CHAIN = "AsyncCollectiveDone"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_BETWEEN_SLICES = "_xla_megascale"
_BEGINS = ("-start", "send")
_LATE = frozenset({"call-update", "async-update"})


class Timeline:
    """Walks the computations of a module from ENTRY.

    Args:
        graph: The module.
        operations: Prices what computes.
        priced: Prices what communicates.
        spans: Is given, by computation, when the device is at each instruction; None keeps nothing.
    """

    def __init__(
        self,
        graph: HloGraph,
        operations: Operations,
        priced: Priced,
        spans: dict[str, list[Span]] | None = None,
    ) -> None:
        self.graph = graph
        self.operations = operations
        self.priced = priced
        self.spans = spans
        self._walked: dict[str, Sums] = {}

    def step(self) -> Sums:
        """One step of the program.

        What runs other computations is walked after them, so that no nesting is too deep.
        """
        for computation in scheduled(self.graph):
            self.sums_of(computation.name)
        total = Sums()
        for computation in self.graph.module.outermost:
            total.add(self.sums_of(computation.name))
        return total

    def sums_of(self, name: str) -> Sums:
        """One execution of a computation."""
        if name not in self._walked:
            self._walked[name] = Sums()  # for text in which a computation runs itself
            self._walked[name] = _Walk(self, self.graph.module.computation(name)).run()
        return self._walked[name]


def scheduled(graph: HloGraph) -> Iterator[HloComputation]:
    """The computations that have an order of their own and are run by others, each before what runs it."""
    for computation in reversed(graph.reachable):
        callers = (site.caller.opcode for site in graph.callers(computation.name))
        if any(opcode in RUNS or opcode.endswith("-start") for opcode in callers):
            yield computation


def ends_chain(graph: HloGraph, fusion: HloInstruction) -> bool:
    """Whether a fusion only waits for an asynchronous collective that other fusions have driven."""
    inside = graph.module.computation(fusion.called[0][1]).instructions
    return any(inner.opcode == "custom-call" and inner.custom_call_target == _ENDS_CHAIN for inner in inside)


class _Walk:
    """The walk over one computation.

    Collectives and copies that are started run beside what is scheduled until they are waited for. Copies share the
    memory, one after the other; collectives that use the same links wait for each other. Nothing is assumed to run on
    across the edge of a loop.

    Args:
        timeline: The walk over the module.
        computation: The computation.
    """

    def __init__(self, timeline: Timeline, computation: HloComputation) -> None:
        self._timeline = timeline
        self._priced = timeline.priced
        self._computation = computation
        self._sums = Sums()
        self._now_us = 0.0
        self._free_us: dict[tuple[bool, bool], float] = {}
        self._in_flight: dict[str, InFlight] = {}
        self._chains: dict[str, InFlight] = {}
        self._sent: dict[str, InFlight] = {}
        self._received: dict[str, str] = {}

    def run(self) -> Sums:
        """What happens from the first instruction to the last."""
        spans = None if self._timeline.spans is None else self._timeline.spans.setdefault(self._computation.name, [])
        for instruction in self._computation.instructions:
            begin_us = self._now_us
            self._visit(instruction)
            if spans is not None:
                spans.append(Span(instruction, begin_us, self._now_us, self._in_flight.get(instruction.name)))
        for name in list(self._in_flight):
            self._finish(self._in_flight.pop(name))
        return self._sums

    def _visit(self, instruction: HloInstruction) -> None:
        opcode = instruction.opcode
        if opcode == "get-tuple-element":
            self._follow_chain(instruction)
        elif opcode in ("parameter", "constant", "bitcast", "tuple"):
            return
        elif opcode in LOCAL_STARTS:
            self._start_copy(instruction)
        elif opcode.endswith("-done"):
            self._done(instruction)
        elif opcode == "recv" and self._receives(instruction):
            return
        elif opcode in _LATE:
            self._restart(instruction)
        elif (self._computation.name, instruction.name) in self._priced.times:
            self._collective(instruction, (self._computation.name, instruction.name))
        elif instruction.called:
            self._call(instruction)
        else:
            self._operate(instruction)

    # ---- what computes

    def _operate(self, instruction: HloInstruction) -> OperationTime:
        cost = self._timeline.operations.time_of(instruction)
        if cost.basis is not Basis.FREE:
            self._sums.add_operation(cost)
            self._note_unknown(cost, f"kernel {cost.kernel}" if cost.kernel else _label(instruction))
            self._now_us += cost.time_us
        return cost

    def _note_unknown(self, cost: OperationTime, label: str) -> None:
        """Notes what is priced without knowing what it does; the host and kernels take at least what they are given."""
        if cost.basis is Basis.UNKNOWN:
            self._sums.add_unknown(label, cost.time_us, cost.moved_bytes)
            self._sums.bound += Bound.AT_LEAST if cost.is_over_host or cost.kernel else Bound.EXACT
            self._sums.kernels |= {cost.kernel} if cost.kernel else set()

    def _call(self, instruction: HloInstruction) -> None:
        match instruction.opcode:
            case "while":
                self._loop(instruction)
            case "conditional":
                self._branch(instruction)
            case "call":
                for _, name in instruction.called:
                    self._run(self._timeline.sums_of(name), 1, Bound.EXACT)
            case "fusion":
                self._fusion(instruction)
            case opcode if opcode.endswith("-start"):
                self._start_call(instruction)
            case _:
                self._operate(instruction)

    def _run(self, sums: Sums, times: int, bound: Bound) -> None:
        self._sums.add(sums, times)
        self._sums.bound += bound
        self._now_us += times * sums.total_us

    def _branch(self, instruction: HloInstruction) -> None:
        """A conditional takes at most as long as its longest branch, unless one holds what cannot be priced."""
        branches = [self._timeline.sums_of(name) for _, name in instruction.called]
        longest = max(branches, key=lambda sums: sums.total_us)
        self._run(longest, 1, Bound.AT_MOST if longest.total_us > 0 else Bound.EXACT)
        for branch in branches:
            if branch is not longest:
                self._sums.add_costs(branch)
                self._sums.add_doubts(branch)

    def _loop(self, instruction: HloInstruction) -> None:
        trips = trip_count(self._timeline.graph, instruction)
        for attribute, name in instruction.called:
            times = trips.count + 1 if attribute == "condition" else trips.count
            self._run(self._timeline.sums_of(name), times, trips.bound)

    def _fusion(self, instruction: HloInstruction) -> None:
        """A fusion, which may be a link of an asynchronous collective's chain or hold collectives of its own."""
        chain = next((found for name in instruction.operand_names if (found := self._chains.get(name))), None)
        callee = instruction.called[0][1]
        if chain is not None and callee.startswith(_STEP):
            self._chains[instruction.name] = chain
            self._operate(instruction)
            return
        if chain is not None and ends_chain(self._timeline.graph, instruction):
            self._sums.hbm_bytes += self._timeline.operations.transfer_bytes(instruction.shape)
            self._in_flight = {name: other for name, other in self._in_flight.items() if other is not chain}
            self._finish(chain)
            return
        self._operate(instruction)
        for key in self._priced.inside.get(callee, ()):
            self._transfer(key)

    # ---- what communicates

    def _collective(self, instruction: HloInstruction, key: Key) -> None:
        self._read_by_transfer(instruction)
        if instruction.opcode == "fusion" and key in self._priced.asynchronous:
            self._chains[instruction.name] = self._in_flight[instruction.name] = self._started(key)
        elif key in self._priced.asynchronous and instruction.opcode.endswith(_BEGINS):
            sent = self._in_flight[instruction.name] = self._started(key)
            rendezvous = instruction.frontend_attributes.get(_RENDEZVOUS) if instruction.opcode == "send" else None
            if rendezvous is not None:
                self._sent[rendezvous] = sent
        elif instruction.opcode == "custom-call" and self._priced.times[key] is None:
            self._communicating_kernel(instruction)
            self._transfer(key)
        else:
            self._sums.hbm_bytes += self._timeline.operations.transfer_bytes(instruction.shape)
            self._transfer(key)

    def _communicating_kernel(self, instruction: HloInstruction) -> None:
        """A kernel takes at least what is said of it, beside a transfer that nothing tells of."""
        cost = self._timeline.operations.time_of(instruction)
        if cost.kernel is None and cost.basis is not Basis.UNKNOWN:
            self._operate(instruction)
        else:
            self._sums.kernels |= {cost.kernel} if cost.kernel else set()

    def _read_by_transfer(self, instruction: HloInstruction) -> None:
        """Counts what a transfer takes from memory; what it writes there is counted where it ends."""
        transfer_bytes = self._timeline.operations.transfer_bytes
        self._sums.hbm_bytes += sum(transfer_bytes(operand.shape) for operand in instruction.operands)

    def _started(self, key: Key) -> InFlight:
        found = self._priced.times[key]
        if found is None:
            return InFlight(finish_us=self._now_us, key=key)
        late = [other for other in self._in_flight.values() if other.finish_us > self._now_us and other.meets(found)]
        behind = max(late, key=lambda other: other.finish_us, default=None)
        begin = self._now_us if behind is None else behind.finish_us
        return InFlight(finish_us=begin + found.time_us, key=key, transfer=found, behind=behind)

    def _transfer(self, key: Key) -> None:
        """A collective that the device waits for."""
        self._finish(self._started(key))

    def _done(self, instruction: HloInstruction) -> None:
        for name in instruction.operand_names[:1]:
            found = self._in_flight.pop(name, None)
            if found is None and name in self._received:
                found = self._sent.get(self._received[name])
            if found is not None:
                if found.key is not None:
                    self._sums.hbm_bytes += self._timeline.operations.transfer_bytes(instruction.shape)
                self._finish(found)

    def _receives(self, instruction: HloInstruction) -> bool:
        """Whether a `recv` is the other half of a transfer between slices, which its `send` starts."""
        attributes = instruction.frontend_attributes
        if _RENDEZVOUS not in attributes or not any(name.startswith(_BETWEEN_SLICES) for name in attributes):
            return False
        self._received[instruction.name] = attributes[_RENDEZVOUS]
        return True

    def _restart(self, instruction: HloInstruction) -> None:
        """An asynchronous call whose operands come late: it only begins here."""
        for name in instruction.operand_names[:1]:
            found = self._in_flight.pop(name, None)
            if found is not None:
                found.is_finished = found.key is not None
                begun = self._started(found.key) if found.key is not None else found
                self._in_flight[instruction.name] = begun

    def _finish(self, found: InFlight) -> None:
        if found.is_finished:
            return
        found.is_finished = True
        waited = max(found.finish_us - self._now_us, 0.0)
        if found.key is not None:
            found.expose(self._now_us)
            self._sums.add_collective(found.key, found.transfer, found.exposed_us)
        self._now_us += waited
        if found.is_prefetch:
            self._now_us -= waited
            self._sums.prefetched_us += waited
        elif found.cost is not None:
            self._sums.add_wait(found.cost, waited)
        elif found.beside is not None:
            total_us = found.beside.total_us
            self._sums.add(found.beside, share=waited / total_us if total_us > 0 else 0.0)

    def _follow_chain(self, instruction: HloInstruction) -> None:
        chain = self._chains.get(instruction.operand_names[0]) if self._chains else None
        if chain is not None:
            self._chains[instruction.name] = chain

    # ---- copies and asynchronous calls

    def _start_copy(self, instruction: HloInstruction) -> None:
        """A copy within the device's memory, or from or to the host; each of the three has its own queue.

        Source: a profile of v6e, in which copies in opposite directions run at once.
        """
        copy = self._timeline.operations.copy_time(instruction)
        self._note_unknown(copy, f"{instruction.opcode} between host and device")
        is_prefetch = "cross_program_prefetch_index" in instruction.attributes
        queue = (copy.is_over_host, copy.is_to_host)
        begin = max(self._now_us, self._free_us.get(queue, 0.0))
        self._sums.hbm_bytes += copy.hbm_bytes
        if not is_prefetch:
            self._free_us[queue] = begin + copy.time_us
        self._in_flight[instruction.name] = InFlight(finish_us=begin + copy.time_us, cost=copy, is_prefetch=is_prefetch)

    def _start_call(self, instruction: HloInstruction) -> None:
        """An asynchronous call of a computation: a collective of the SparseCore, or work on another thread."""
        called = [name for _, name in instruction.called]
        keys = [key for name in called for key in self._priced.inside.get(name, ())]
        if len(keys) == 1:
            self._read_by_transfer(instruction)
            self._in_flight[instruction.name] = self._started(keys[0])
            return
        if any(runs_on_host(self._timeline.graph.module.computation(name)) for name in called):
            self._start_on_host(instruction)
            return
        sums = Sums()
        for name in called:
            sums.add(self._timeline.sums_of(name))
        self._in_flight[instruction.name] = InFlight(finish_us=self._now_us + sums.total_us, beside=sums)

    def _start_on_host(self, instruction: HloInstruction) -> None:
        cost = self._timeline.operations.host_time(instruction)
        self._note_unknown(cost, f"{instruction.opcode} on the host")
        self._in_flight[instruction.name] = InFlight(finish_us=self._now_us + cost.time_us, cost=cost)


def _label(instruction: HloInstruction) -> str:
    target = instruction.custom_call_target if instruction.opcode == "custom-call" else None
    if target is not None:
        return f"custom-call {target}"
    kind = instruction.attributes.get("kind") if instruction.opcode == "fusion" else None
    return instruction.opcode if kind is None else f"{instruction.opcode} {kind}"
