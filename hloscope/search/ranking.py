"""Ranking of changes by Shardy's shardings alone, in milliseconds each, to decide which to compile first."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from hloscope.compiler import client, step
from hloscope.compiler.edits import ModuleEdit
from hloscope.compiler.estimates import Estimate, Rates
from hloscope.errors import CompilerDiedError, HloscopeError
from hloscope.program.change import Resharding
from hloscope.program.lowering import Lowered, lower_changed
from hloscope.search.candidates import MOST_CANDIDATES, combine_pairs, combine_triples
from hloscope.search.subject import SearchSubject
from hloscope.tpu.slices import Slice

_BATCH = 12
_SIDE_BY_SIDE = 4
_LONGEST_S = 600.0
_CLEARLY = 0.95
"""Two changes with less than this share of one change's time may be worth a third."""
_SHARE = 0.4
"""The share of the time limit for ranking: changes that are not ranked by then come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedChange:
    """A change and its estimate from Shardy's shardings.

    Attributes:
        change: The change.
        time_us: Estimate in microseconds, for comparing changes of one program; None if Shardy cannot propagate it.
    """

    change: Resharding
    time_us: float | None


def rank_changes(subject: SearchSubject, changes: Sequence[Resharding], seconds: float) -> tuple[RankedChange, ...]:
    """All changes, with pairs of the best and triples of the best pairs, the most promising first.

    Changes of constraints and open results whose cost exactly equals the program's come after all others.

    Args:
        subject: The program.
        changes: The changes, the most direct first; this order breaks ties.
        seconds: Time limit of all trials.
    """
    lowered = subject.lowered
    until = monotonic() + _SHARE * seconds
    module = lowered.bytecode
    as_it_is, *singles = _estimate_times(subject, module, (Resharding(), *changes), until)
    found: dict[Resharding, float | None] = dict(zip(changes, singles, strict=True))
    best = [change for change in _sort_by_estimate(found) if found[change] is not None]
    best.sort(key=lambda change: not change.sizes)  # what is padded may need a partner
    more = combine_pairs(best, found)[: MOST_CANDIDATES - len(found)]
    found.update(zip(more, _estimate_times(subject, module, more, until), strict=True))
    two = _find_better_pairs(found, set(more))
    more = combine_triples(two, best, found)
    found.update(zip(more, _estimate_times(subject, module, more, until), strict=True))

    def is_late(change: Resharding) -> bool:
        """Returns whether it asks for nothing that is not so already, likely, or nothing is known of it."""
        return found[change] is None or (change.is_loose and found[change] == as_it_is)

    order = sorted(_sort_by_estimate(found), key=is_late)
    return tuple(RankedChange(change=change, time_us=found[change]) for change in order)


def _find_better_pairs(found: dict[Resharding, float | None], two: set[Resharding]) -> list[Resharding]:
    """The pairs that promise more than each of their changes, best first."""
    single = min((time for change, time in found.items() if time is not None and change not in two), default=0.0)
    return [
        change for change in _sort_by_estimate(found) if change in two and (found[change] or single) < _CLEARLY * single
    ]


def _sort_by_estimate(found: dict[Resharding, float | None]) -> list[Resharding]:
    """Fastest first, then the least demanding and smallest; unknown last."""
    costs = [time for time in found.values() if time is not None]
    unknown = max(costs, default=0.0) + 1.0
    order = {change: number for number, change in enumerate(found)}

    def key(change: Resharding) -> tuple[bool, float, int, int, int, int]:
        time = found[change]
        shown = unknown if time is None else time
        return time is None, float(f"{shown:.2g}"), change.asks, change.widened, change.parts, order[change]

    return sorted(found, key=key)


def _estimate_times(
    subject: SearchSubject, module: bytes, changes: Sequence[Resharding], until: float
) -> list[float | None]:
    """The estimated time of each change; None if it cannot be propagated, or not in time."""
    rates = find_rates(subject.lowered.slice)
    found = estimate_changes(subject, changes, until, module)
    return [None if estimate is None else estimate.time_us(rates) for estimate in found]


def estimate_changes(
    subject: SearchSubject, changes: Sequence[Resharding], until: float, module: bytes | None = None
) -> list[Estimate | None]:
    """Estimates a program with each of several changes; None if it cannot be propagated, or not in time.

    Args:
        subject: The program.
        changes: The changes.
        until: The deadline, on the clock of `time.monotonic`.
        module: The program's bytecode, if already available.
    """
    module = subject.lowered.bytecode if module is None else module
    found: list[Estimate | None] = [None] * len(changes)
    edits = {
        number: edit for number, change in enumerate(changes) if (edit := _make_module_edit(subject.lowered, change))
    }
    edits = {} if is_explicit(subject.lowered) else edits  # there shardings are part of the program's types
    batches = [list(edits)[at : at + _BATCH] for at in range(0, len(edits), _BATCH)]
    asked: deque[tuple[list[int], client.Question[list[Estimate | None]]]] = deque()
    try:
        while (batches or asked) and monotonic() < until:
            while batches and len(asked) < _SIDE_BY_SIDE:
                batch = batches.pop(0)
                asked.append((batch, _ask_estimates(module, [edits[at] for at in batch], until)))
            batch, question = asked.popleft()
            answers = _collect_estimates(question, module, [edits[at] for at in batch], until)
            for number, estimate in zip(batch, answers, strict=True):
                found[number] = estimate
    finally:
        for _, question in asked:
            question.drop()
    for number, change in enumerate(changes):
        if number not in edits and monotonic() < until:
            found[number] = _estimate_retraced(subject, change, until)
    return found


def _ask_estimates(module: bytes, edits: Sequence[ModuleEdit], until: float) -> client.Question[list[Estimate | None]]:
    left = min(until - monotonic(), _LONGEST_S)
    return client.Question(
        step.estimate_edits, module, tuple(edits), doing="ranking changes with Shardy", timeout_s=max(left, 1.0)
    )


def _collect_estimates(
    question: client.Question[list[Estimate | None]], module: bytes, edits: Sequence[ModuleEdit], until: float
) -> list[Estimate | None]:
    """A worker's estimates of several changes; a change that ends the worker is isolated by halving."""
    try:
        return question.answer()
    except CompilerDiedError:
        if len(edits) == 1:
            return [None]
        half = len(edits) // 2
        return [*_estimate_batch(module, edits[:half], until), *_estimate_batch(module, edits[half:], until)]
    except (HloscopeError, ValueError, RuntimeError):
        return [None] * len(edits)


def _estimate_batch(module: bytes, edits: Sequence[ModuleEdit], until: float) -> list[Estimate | None]:
    if until - monotonic() <= 0:
        return [None] * len(edits)
    return _collect_estimates(_ask_estimates(module, edits, until), module, edits, until)


def _estimate_retraced(subject: SearchSubject, change: Resharding, until: float) -> Estimate | None:
    """The estimate of a change that makes another program, which must be traced."""
    try:
        program = lower_changed(subject.function, subject.lowered, change, store=subject.store)
    except HloscopeError:
        return None
    return _estimate_batch(program.bytecode, [ModuleEdit()], until)[0]


def _make_module_edit(lowered: Lowered, change: Resharding) -> ModuleEdit | None:
    """A change as an edit of the module; None if only a trace can make it."""
    if change.sizes:
        return None
    place = {index: number for number, index in enumerate(lowered.seen.kept)}
    return ModuleEdit(
        arguments=tuple(
            (place[leaf.index], leaf.after)
            for leaf in change.arguments
            if leaf.index in place and leaf.after is not None
        ),
        results=tuple((leaf.index, leaf.after) for leaf in change.results),
        argument_count=len(lowered.seen.kept),
        result_count=len(lowered.seen.result_avals),
        constraints=change.edits,
    )


def is_explicit(lowered: Lowered) -> bool:
    """Returns whether shardings are part of the program's types, so that another sharding makes another program."""
    mesh = lowered.mesh
    return mesh is None or any("explicit" in str(kind).lower() for kind in mesh.axis_types)


def find_rates(chosen: Slice) -> Rates:
    """The rates of one device of a slice; it sends along one axis, in both directions if that axis is closed."""
    chip = chosen.chip
    if chip is None:
        return Rates(link_bytes=1e11, memory_bytes=1e12, flops=2e14)
    ways = 2 if any(chosen.wraparound()) else 1
    return Rates(
        link_bytes=chip.ici_bytes_per_s * ways / chip.devices_per_chip,
        memory_bytes=chip.hbm_bytes_per_s / chip.devices_per_chip,
        flops=chip.bf16_flops_per_s / chip.devices_per_chip,
    )
