"""The module as a graph: which computation calls which, seen from ENTRY; and what a value in it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from hloscope.hlo import HloComputation, HloInstruction, HloModule

_Item = TypeVar("_Item", bound=Hashable)


class CallSite(NamedTuple):
    """One edge of the call graph.

    Attributes:
        caller: The instruction that calls.
        attribute: The attribute that names the callee, such as `body`, `calls` or `branch_computations`.
        position: Its place among the callees that `attribute` names; the branch number for a conditional, where the
            true computation is branch 0 and the false one branch 1.
        callee: The name of the called computation.
    """

    caller: HloInstruction
    attribute: str
    position: int
    callee: str


class Value(NamedTuple):
    """A value, or one element of a tuple.

    Attributes:
        instruction: The instruction that makes it.
        path: Tuple indices into the instruction's result, outermost first; empty for the whole result.
    """

    instruction: HloInstruction
    path: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """What distinguishes this value from all others of the module."""
        return self.instruction.computation.name, self.instruction.name, self.path


class HloGraph:
    """The call graph of a module.

    Attributes:
        module: The module it was made from.
        entry: Where the program starts; None where the text is cut off before it.
        reachable: The computations that ENTRY reaches, each one after all of its callers; without ENTRY those that the
            outermost computations reach, which are all there are.
        prints_sources: Whether the text says where the user wrote something; if not, there is nothing to search for.
    """

    __slots__ = ("_callers", "_calls", "entry", "module", "prints_sources", "reachable")

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.entry = entry_of(module)
        self.prints_sources = module.mentions("stack_frame_id=") or module.mentions("source_file=")
        self._calls: dict[str, tuple[CallSite, ...]] = {}
        self._callers: dict[str, list[CallSite]] = {}
        self.reachable: tuple[HloComputation, ...] = self._walk()
        for computation in self.reachable:
            for site in self._calls[computation.name]:
                self._callers.setdefault(site.callee, []).append(site)

    def calls(self, computation: str) -> tuple[CallSite, ...]:
        """The calls that a computation makes, in text order; empty when ENTRY does not reach it."""
        return self._calls.get(computation, ())

    def callers(self, computation: str) -> tuple[CallSite, ...]:
        """The calls that reach a computation, from computations that ENTRY reaches."""
        return tuple(self._callers.get(computation, ()))

    def only_caller(self, computation: str) -> HloInstruction | None:
        """The one instruction that calls a computation; None when there are several or none."""
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
        calling = (instruction for instruction in computation.calling if may_call(instruction.opcode))
        self._calls[computation.name] = tuple(site for instruction in calling for site in call_sites(instruction))
        return self._calls[computation.name]


def entry_of(module: HloModule) -> HloComputation | None:
    """The computation in which the program starts; None where the text is cut off before it."""
    return next((computation for computation in module.outermost if computation.is_entry), None)


def may_call(opcode: str) -> bool:
    """Whether an instruction that names a computation runs it.

    The `-update` and `-done` of an asynchronous operation may repeat `calls=`, but only its start runs the callee.
    """
    return not opcode.endswith(("-done", "-update"))


def call_sites(instruction: HloInstruction) -> list[CallSite]:
    """The calls that one instruction makes, in the order of its attributes."""
    called = instruction.called
    attributes = [attribute for attribute, _ in called]
    return [
        CallSite(
            instruction, attribute, attributes[:number].count(attribute) + (attribute == "false_computation"), callee
        )
        for number, (attribute, callee) in enumerate(called)
    ]


def reached(first: Iterable[_Item], following: Callable[[_Item], Iterable[_Item]]) -> Iterator[_Item]:
    """Everything that leads on from some items, themselves included, each once and in no order."""
    pending = list(first)
    seen = set(pending)
    while pending:
        item = pending.pop()
        yield item
        new = set(following(item)) - seen
        seen |= new
        pending.extend(new)
