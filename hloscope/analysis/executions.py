"""The executions of each computation per step, and its enclosing loops."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from hloscope.analysis.trip_counts import TripCount, find_trip_count
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import CallSite, HloGraph, reach_all
from hloscope.model import Unmodelled
from hloscope.model.vocabulary import Bound

_MOST_EXECUTIONS = 2**63 - 1
"""Largest count; nested loops may claim more."""
_CONTEXT_LIMIT = 64
"""Maximum number of contexts kept for one computation: calls in calls double them at every level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One way in which ENTRY comes to run a computation.

    Attributes:
        loops: Names of the enclosing `while` instructions, outermost first; if one context represents many, those that
        they have in common.
        trips: Trip count of each of them whenever it is reached; None for one that cannot be read.
        wrappers: The fusions and asynchronous starts that hold it inside the innermost loop or branch, outermost first,
            and the calls inside of these.
        executions: Executions per step.
        bound: Whether `executions` is exact or a bound.
    """

    loops: tuple[str, ...] = ()
    trips: tuple[int | None, ...] = ()
    wrappers: tuple[HloInstruction, ...] = ()
    executions: int = 1
    bound: Bound = Bound.EXACT

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The key of this place in the program: executions of contexts with equal keys add up."""
        return self.loops, tuple(wrapper.name for wrapper in self.wrappers)

    @property
    def form(self) -> tuple[bool, bool]:
        """The form that the wrappers give a collective inside: whether it is asynchronous, and in a fusion."""
        asynchronous = any(wrapper.opcode.endswith("-start") for wrapper in self.wrappers)
        return asynchronous, bool(self.wrappers) and self.wrappers[-1].opcode == "fusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Executions:
    """The contexts of every requested computation, and reports on what could not be read."""

    contexts: dict[str, tuple[Context, ...]]
    unmodelled: tuple[Unmodelled, ...]


def count_executions(graph: HloGraph, computations: Collection[str]) -> Executions:
    """Counts the executions of `computations`, starting from ENTRY.

    A body runs once per trip and its condition once more; a branch runs at most once; a fusion, a call and an
    asynchronous computation run once; any other caller runs a computation an unknown number of times. If the text is
    cut off before ENTRY, computations without callers are counted once, which is a lower bound.

    Args:
        graph: The module.
        computations: The computations to count; others are only visited on the way to them.

    Returns:
        The contexts by name, for `computations` that ENTRY reaches and those on the way to them.
    """
    wanted = set(reach_all(computations, lambda name: (site.caller.computation.name for site in graph.callers(name))))
    outermost = Context() if graph.entry is not None else Context(bound=Bound.AT_LEAST)
    found: dict[str, dict[object, Context]] = {
        computation.name: {"outermost": outermost} for computation in graph.module.outermost
    }
    unmodelled: list[Unmodelled] = []
    for computation in graph.reachable:
        if computation.name not in wanted:
            continue
        trips: dict[str, TripCount] = {}
        for site in graph.calls(computation.name):
            if site.callee not in wanted:
                continue
            if site.caller.opcode == "while" and site.caller.name not in trips:
                trips[site.caller.name] = find_trip_count(graph, site.caller)
                unmodelled.extend(_report_unread_trips(site.caller, trips[site.caller.name]))
            if site.caller.opcode not in ("while", "conditional", "call") and not _is_wrapper(site.caller.opcode):
                unmodelled.append(_report_unknown_runs(site))
            for context in list(found.get(computation.name, {}).values()):
                _add_context(found.setdefault(site.callee, {}), _enter(context, site, trips.get(site.caller.name)))
    contexts = {name: tuple(by_key.values()) for name, by_key in found.items() if name in wanted}
    return Executions(contexts=contexts, unmodelled=tuple(unmodelled))


def _add_context(contexts: dict[object, Context], new: Context) -> None:
    """Merges a context into the one with its key or, if there are too many, into one that represents the rest."""
    key: object = new.key
    if key not in contexts and len(contexts) >= _CONTEXT_LIMIT:
        key = new.form
    old = contexts.get(key)
    if old is not None:
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(old.loops, new.loops, strict=False))
        loops = tuple(name for name, _ in alike)
        both = zip(old.trips, new.trips, strict=False)
        executions, bound = _cap_executions(old.executions + new.executions, old.bound + new.bound)
        new = replace(
            old,
            loops=loops,
            trips=tuple(one if one == other else None for one, other in both)[: len(loops)],
            executions=executions,
            bound=bound,
        )
    contexts[key] = new


def _cap_executions(executions: int, bound: Bound) -> tuple[int, Bound]:
    """Caps a count that no device could ever reach, which makes it a lower bound."""
    return (executions, bound) if executions <= _MOST_EXECUTIONS else (_MOST_EXECUTIONS, bound + Bound.AT_LEAST)


def _enter(context: Context, site: CallSite, trips: TripCount | None) -> Context:
    """The context of a callee, for one context of its caller."""
    caller = site.caller
    if trips is not None:
        runs = _count_condition_runs(trips) if site.attribute == "condition" else trips
        executions, bound = _cap_executions(context.executions * runs.count, context.bound + runs.bound)
        return Context(
            loops=(*context.loops, caller.name),
            trips=(*context.trips, None if runs.bound in _EFFECT_OF_UNREAD else runs.count),
            executions=executions,
            bound=bound,
        )
    match caller.opcode:
        case "conditional":
            return replace(context, wrappers=(), bound=context.bound + Bound.AT_MOST)
        case "call" if not context.wrappers:
            return context
        case opcode if opcode == "call" or _is_wrapper(opcode):
            return replace(context, wrappers=(*context.wrappers, caller))
    return replace(context, wrappers=(), bound=Bound.UNKNOWN)


def _is_wrapper(opcode: str) -> bool:
    return opcode == "fusion" or opcode.endswith("-start")


def _report_unknown_runs(site: CallSite) -> Unmodelled:
    caller = site.caller
    return make_unmodelled(
        caller,
        f"%{caller.name} is a {caller.opcode} that calls %{site.callee}, which contains collectives",
        "how often it runs them is unknown: they are counted once, which is neither a lower nor an upper bound",
    )


def _count_condition_runs(trips: TripCount) -> TripCount:
    """The runs of a loop's condition: one more than its body, so at least one even if there may be no trip."""
    if trips.bound is Bound.UNKNOWN:
        return TripCount(count=1, bound=Bound.AT_LEAST)
    return TripCount(count=trips.count + 1, bound=trips.bound)


_EFFECT_OF_UNREAD = {
    Bound.AT_LEAST: "everything inside it is counted for one trip, which is a lower bound",
    Bound.UNKNOWN: "its body is counted for one trip, which is neither a lower nor an upper bound",
}


def make_unmodelled(instruction: HloInstruction, what: str, effect: str) -> Unmodelled:
    """An `Unmodelled` entry that refers to an instruction."""
    return Unmodelled(
        what=what,
        effect=effect,
        computation=instruction.computation.name,
        instruction=instruction.name,
        line=instruction.line,
    )


def _report_unread_trips(loop: HloInstruction, trips: TripCount) -> Iterator[Unmodelled]:
    effect = _EFFECT_OF_UNREAD.get(trips.bound)
    if effect is not None:
        yield make_unmodelled(loop, f"trip count of %{loop.name} cannot be read", effect)
    if trips.contradicted is not None:
        yield make_unmodelled(
            loop,
            f"XLA prints a known_trip_count of {trips.contradicted} for %{loop.name}, but its condition gives "
            f"{trips.count}",
            "the count from the condition is used, since the condition is what runs",
        )
