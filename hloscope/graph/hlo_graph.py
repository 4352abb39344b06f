"""Which computation calls which, from which instruction, seen from ENTRY."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.hlo import HloComputation, HloInstruction, HloModule

_CALLING_OPCODES = frozenset({"fusion", "while", "conditional", "call", "custom-call", "async-start", "reduce", "sort"})
_LEAF_OPCODES = frozenset({
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "copy", "convert", "broadcast", "reshape",
    "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "iota", "select", "compare",
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "negate", "exponential", "log", "tanh", "rsqrt",
    "power", "and", "or", "not", "xor", "dot", "convolution", "copy-start", "slice-start", "collective-permute-start",
    "collective-permute", "all-gather", "all-to-all", "partition-id", "replica-id",
})  # fmt: skip
"""The opcodes most common in compiled text that name no computation; a shortcut, not a list of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
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


class HloGraph:
    """The call graph of a module.

    Attributes:
        module: The module it was made from.
        reachable: The computations that ENTRY reaches, each one after all of its callers.
    """

    __slots__ = ("_callers", "_calls", "_prints_sources", "module", "reachable")

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._calls: dict[str, tuple[CallSite, ...]] = {}
        self._callers: dict[str, list[CallSite]] = {}
        self._prints_sources: bool | None = None
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

    @property
    def prints_sources(self) -> bool:
        """Whether any instruction prints where the user wrote it; text without it needs no search for one."""
        if self._prints_sources is None:
            everything = (one for computation in self.reachable for one in computation.instructions)
            self._prints_sources = any(one.stack_frame_id or one.source_file for one in everything)
        return self._prints_sources

    def only_caller(self, computation: str) -> HloInstruction | None:
        """The one instruction that calls a computation; None when there are several or none."""
        callers = {(site.caller.computation.name, site.caller.name): site.caller for site in self.callers(computation)}
        return next(iter(callers.values())) if len(callers) == 1 else None

    def _walk(self) -> tuple[HloComputation, ...]:
        """Depth-first from ENTRY without recursion; the reverse of the order of leaving puts callers first."""
        left: list[HloComputation] = []
        stack = [(self.module.entry, iter(self._sites_of(self.module.entry)))]
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
        for instruction in computation.instructions:
            if may_call(instruction.opcode):
                sites.extend(call_sites(instruction))
        self._calls[computation.name] = tuple(sites)
        return self._calls[computation.name]


def may_call(opcode: str) -> bool:
    """Whether instructions with this opcode can call a computation.

    The `-update` and `-done` of an asynchronous operation may repeat `calls=`, but only its start runs the callee.
    """
    if opcode in _LEAF_OPCODES:
        return False
    return opcode in _CALLING_OPCODES or not opcode.endswith(("-done", "-update"))


def call_sites(instruction: HloInstruction) -> list[CallSite]:
    """The calls that one instruction makes, in the order of its attributes."""
    seen: dict[str, int] = {}
    sites = []
    for attribute, callee in instruction.called:
        position = seen.get(attribute, 1 if attribute == "false_computation" else 0)
        seen[attribute] = position + 1
        sites.append(CallSite(caller=instruction, attribute=attribute, position=position, callee=callee))
    return sites
