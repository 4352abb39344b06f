"""The call graph of a module, from ENTRY, and the values in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from hloscope.hlo.ir import HloComputation, HloInstruction, HloModule

_Item = TypeVar("_Item", bound=Hashable)


class CallSite(NamedTuple):
    """An edge of the call graph.

    Attributes:
        caller: The calling instruction.
        attribute: The attribute that names the callee, such as `body`, `calls` or `branch_computations`.
        position: Index among the callees that `attribute` names; for a conditional the branch number, where the true
            computation is branch 0 and the false one is branch 1.
        callee: Name of the called computation.
    """

    caller: HloInstruction
    attribute: str
    position: int
    callee: str


class Value(NamedTuple):
    """A value, or one element of a tuple.

    Attributes:
        instruction: The instruction that produces it.
        path: Tuple indices into the instruction's result, outermost first; empty for the whole result.
    """

    instruction: HloInstruction
    path: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """A key that is unique within the module."""
        return self.instruction.computation.name, self.instruction.name, self.path


class HloGraph:
    """The call graph of a module.

    Attributes:
        module: The module.
        entry: The entry computation; None if the text is truncated before it.
        reachable: Computations reachable from ENTRY, each one after all of its callers; without ENTRY, those reachable
            from the outermost computations, which are all of them.
        prints_sources: Whether the text has source locations.
        dependencies: What searches have found out about values, by value and the fusions around it.
    """

    __slots__ = ("_callers", "_calls", "dependencies", "entry", "module", "prints_sources", "reachable")

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.entry = find_entry(module)
        self.prints_sources = module.mentions("stack_frame_id=") or module.mentions("source_file=")
        self.dependencies: dict[tuple[Value, tuple[HloInstruction, ...]], Any] = {}
        self._calls: dict[str, tuple[CallSite, ...]] = {}
        self._callers: dict[str, list[CallSite]] = {}
        self.reachable: tuple[HloComputation, ...] = self._walk()
        for computation in self.reachable:
            for site in self._calls[computation.name]:
                self._callers.setdefault(site.callee, []).append(site)

    def calls(self, computation: str) -> tuple[CallSite, ...]:
        """Returns the calls that a computation makes, in text order; empty if it is unreachable from ENTRY."""
        return self._calls.get(computation, ())

    def callers(self, computation: str) -> tuple[CallSite, ...]:
        """Returns the calls of a computation from computations reachable from ENTRY."""
        return tuple(self._callers.get(computation, ()))

    def only_caller(self, computation: str) -> HloInstruction | None:
        """Returns the only instruction that calls a computation; None if there are several or none."""
        callers = {site.caller for site in self._callers.get(computation, ())}
        return callers.pop() if len(callers) == 1 else None

    def _walk(self) -> tuple[HloComputation, ...]:
        """Depth-first without recursion; the reverse of the order of leaving puts callers first."""
        left: list[HloComputation] = []
        for outermost in reversed(self.module.outermost):
            stack = [(outermost, iter(self._sites_of(outermost)))]
            while stack:
                computation, pending = stack[-1]
                site = next(pending, None)
                if site is None:
                    left.append(computation)
                    stack.pop()
                elif site.callee not in self._calls:
                    callee = self.module.computation(site.callee)
                    stack.append((callee, iter(self._sites_of(callee))))
        return tuple(reversed(left))

    def _sites_of(self, computation: HloComputation) -> tuple[CallSite, ...]:
        sites: list[CallSite] = []
        for instruction in computation.calling:
            if may_call(instruction.opcode):
                sites += find_call_sites(instruction)
        found = self._calls[computation.name] = tuple(sites)
        return found


def find_call_graph(module: HloModule) -> HloGraph:
    """Returns the call graph of a module, which is made once for all stages of an analysis."""
    if module.graph is None:
        module.graph = HloGraph(module)
    found: HloGraph = module.graph
    return found


def find_entry(module: HloModule) -> HloComputation | None:
    """Returns the entry computation; None if the text is truncated before it."""
    return next((computation for computation in module.outermost if computation.is_entry), None)


def may_call(opcode: str) -> bool:
    """Returns whether an instruction that names a computation runs it.

    The `-update` and `-done` of an asynchronous operation may repeat `calls=`, but only its start runs the callee.
    """
    return not opcode.endswith(("-done", "-update"))


def find_call_sites(instruction: HloInstruction) -> list[CallSite]:
    """Returns the calls that one instruction makes, in the order of its attributes."""
    called = instruction.called
    if len(called) == 1:  # such as a fusion, of which a program has very many
        ((attribute, callee),) = called
        return [CallSite(instruction, attribute, int(attribute == "false_computation"), callee)]
    attributes = [attribute for attribute, _ in called]
    return [
        CallSite(
            instruction, attribute, attributes[:number].count(attribute) + (attribute == "false_computation"), callee
        )
        for number, (attribute, callee) in enumerate(called)
    ]


def reach_all(first: Iterable[_Item], following: Callable[[_Item], Iterable[_Item]]) -> Iterator[_Item]:
    """Returns everything reachable from some items, including themselves, without duplicates and in no order."""
    pending = list(first)
    seen = set(pending)
    while pending:
        item = pending.pop()
        yield item
        new = set(following(item)) - seen
        seen |= new
        pending.extend(new)
