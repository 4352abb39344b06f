"""Executions of each computation per step, and the loops around it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from hloscope.analysis.model import Unmodelled
from hloscope.analysis.opcodes import unsupported
from hloscope.analysis.trip_counts import TripCount, trip_count
from hloscope.analysis.vocabulary import Bound
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import CallSite, HloGraph, reached

_MOST_EXECUTIONS = 2**63 - 1
"""What is counted; nested loops may claim more."""
_CONTEXT_LIMIT = 64
"""Contexts that one computation keeps apart: calls in calls double them at every level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One way in which ENTRY comes to run a computation.

    Attributes:
        loops: Names of the `while` instructions around it, outermost first; those that all have in common, where one
            context stands for many.
        trips: How often each of them runs it each time it is reached; None for one that cannot be read.
        wrappers: The fusions and asynchronous starts that hold it inside the innermost loop or branch, outermost first,
            and the calls inside of these.
        executions: Runs per step.
        bound: How `executions` relates to the truth.
    """

    loops: tuple[str, ...] = ()
    trips: tuple[int | None, ...] = ()
    wrappers: tuple[HloInstruction, ...] = ()
    executions: int = 1
    bound: Bound = Bound.EXACT

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Contexts with one key are one place in the program; their executions add up."""
        return self.loops, tuple(wrapper.name for wrapper in self.wrappers)

    @property
    def form(self) -> tuple[bool, bool]:
        """What the wrappers say about a collective inside: asynchronous, and held by a fusion."""
        asynchronous = any(wrapper.opcode.endswith("-start") for wrapper in self.wrappers)
        return asynchronous, bool(self.wrappers) and self.wrappers[-1].opcode == "fusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Executions:
    """The contexts of every computation asked for, and what could not be read on the way."""

    contexts: dict[str, tuple[Context, ...]]
    unmodelled: tuple[Unmodelled, ...]


def count_executions(graph: HloGraph, computations: Collection[str], *, reads_trips: bool = True) -> Executions:
    """Walks from ENTRY to `computations` and counts.

    A body runs once per trip and its condition once more; a branch runs at most once; a fusion, a call and an
    asynchronous computation run once; whatever else calls a computation runs it an unknown number of times. Where the
    text is cut off before ENTRY, what no other computation calls is counted once, which is a lower bound.

    Args:
        graph: The module.
        computations: The computations to reach; others are only walked on the way to them.
        reads_trips: Whether the trips of loops are read; else they are not known, and nothing is said of that.

    Returns:
        The contexts by name, for `computations` that ENTRY reaches and for what lies between.
    """
    wanted = set(reached(computations, lambda name: (site.caller.computation.name for site in graph.callers(name))))
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
            if site.caller.opcode == "while" and not reads_trips:
                trips[site.caller.name] = TripCount(count=1, bound=Bound.UNKNOWN)
            elif site.caller.opcode == "while" and site.caller.name not in trips:
                trips[site.caller.name] = trip_count(graph, site.caller)
                unmodelled.extend(_unread(site.caller, trips[site.caller.name]))
            if not _runs_as_known(site.caller.opcode):
                unmodelled.append(_run_by_chance(site))
            for context in list(found.get(computation.name, {}).values()):
                _add(found.setdefault(site.callee, {}), _enter(context, site, trips.get(site.caller.name)))
    contexts = {name: tuple(by_key.values()) for name, by_key in found.items() if name in wanted}
    return Executions(contexts=contexts, unmodelled=tuple(unmodelled))


def _add(contexts: dict[object, Context], new: Context) -> None:
    """Adds a context to the one with its key, or, where there are too many, to one that stands for the rest."""
    key: object = new.key
    if key not in contexts and len(contexts) >= _CONTEXT_LIMIT:
        key = new.form
    old = contexts.get(key)
    if old is not None:
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(old.loops, new.loops, strict=False))
        loops = tuple(name for name, _ in alike)
        both = zip(old.trips, new.trips, strict=False)
        executions, bound = _capped(old.executions + new.executions, old.bound + new.bound)
        new = replace(
            old,
            loops=loops,
            trips=tuple(one if one == other else None for one, other in both)[: len(loops)],
            executions=executions,
            bound=bound,
        )
    contexts[key] = new


def _capped(executions: int, bound: Bound) -> tuple[int, Bound]:
    """A count that no device lives to see is a lower bound."""
    return (executions, bound) if executions <= _MOST_EXECUTIONS else (_MOST_EXECUTIONS, bound + Bound.AT_LEAST)


def _enter(context: Context, site: CallSite, trips: TripCount | None) -> Context:
    """The context of a callee, for one context of its caller."""
    caller = site.caller
    if trips is not None:
        runs = _runs_of_condition(trips) if site.attribute == "condition" else trips
        executions, bound = _capped(context.executions * runs.count, context.bound + runs.bound)
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
        case opcode if opcode == "call" or _wraps(opcode):
            return replace(context, wrappers=(*context.wrappers, caller))
    return replace(context, wrappers=(), bound=Bound.UNKNOWN)


def _wraps(opcode: str) -> bool:
    return opcode == "fusion" or opcode.endswith("-start")


def _runs_as_known(opcode: str) -> bool:
    """Whether it is known how often an instruction runs what it calls."""
    return opcode in ("while", "conditional", "call") or _wraps(opcode)


def _run_by_chance(site: CallSite) -> Unmodelled:
    caller = site.caller
    return unsupported(
        caller,
        f"%{caller.name} is a {caller.opcode} that calls %{site.callee}, which contains collectives",
        "how often it runs them is unknown: they are counted once, which is neither a lower nor an upper bound",
    )


def _runs_of_condition(trips: TripCount) -> TripCount:
    """A condition runs once more than its body, so at least once also where there may be no trip."""
    if trips.bound is Bound.UNKNOWN:
        return TripCount(count=1, bound=Bound.AT_LEAST)
    return TripCount(count=trips.count + 1, bound=trips.bound)


_EFFECT_OF_UNREAD = {
    Bound.AT_LEAST: "everything inside it is counted for one trip, which is a lower bound",
    Bound.UNKNOWN: "its body is counted for one trip, which is neither a lower nor an upper bound",
}


def _unread(loop: HloInstruction, trips: TripCount) -> Iterator[Unmodelled]:
    effect = _EFFECT_OF_UNREAD.get(trips.bound)
    if effect is not None:
        yield unsupported(loop, f"trip count of %{loop.name} cannot be read", effect)
    if trips.contradicted is not None:
        yield unsupported(
            loop,
            f"XLA prints a known_trip_count of {trips.contradicted} for %{loop.name}, but its condition gives "
            f"{trips.count}",
            "the count from the condition is used, since the condition is what runs",
        )
