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
from hloscope.search.candidates import MOST, pairs, triples
from hloscope.search.subject import Subject
from hloscope.tpu.slices import Slice

_BATCH = 12
_SIDE_BY_SIDE = 4
_LONGEST_S = 600.0
_CLEARLY = 0.95
"""Of the time: two changes that promise less than this part of what one promises may be worth a third."""
_SHARE = 0.4
"""Of the time that may be spent: what is not ranked by then is ranked last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A change and its estimate from Shardy's shardings.

    Attributes:
        change: The change.
        time_us: Estimate for comparing changes of one program, in microseconds; None if Shardy cannot propagate it.
    """

    change: Resharding
    time_us: float | None


def ranked(subject: Subject, changes: Sequence[Resharding], seconds: float) -> tuple[Ranked, ...]:
    """Changes, pairs of the best of them and triples of the best of these, what promises most first; none is dropped.

    Constraints and open results that cost to the last digit what the program costs as it is come after all others.

    Args:
        subject: The program.
        changes: The changes, the most direct first, which stands where nothing tells them apart.
        seconds: What all trials may take.
    """
    lowered = subject.lowered
    until = monotonic() + _SHARE * seconds
    module = lowered.bytecode
    as_it_is, *singles = _estimated(subject, module, (Resharding(), *changes), until)
    found: dict[Resharding, float | None] = dict(zip(changes, singles, strict=True))
    best = [change for change in _ordered(found) if found[change] is not None]
    best.sort(key=lambda change: not change.sizes)  # what is padded may need a partner
    more = pairs(best, found)[: MOST - len(found)]
    found.update(zip(more, _estimated(subject, module, more, until), strict=True))
    two = _better_pairs(found, set(more))
    more = triples(two, best, found)
    found.update(zip(more, _estimated(subject, module, more, until), strict=True))

    def is_late(change: Resharding) -> bool:
        """Whether it asks for nothing that is not so already, likely, or nothing is known of it."""
        return found[change] is None or (change.is_loose and found[change] == as_it_is)

    order = sorted(_ordered(found), key=is_late)
    return tuple(Ranked(change=change, time_us=found[change]) for change in order)


def _better_pairs(found: dict[Resharding, float | None], two: set[Resharding]) -> list[Resharding]:
    """Pairs that promise more than each single change, best first."""
    single = min((time for change, time in found.items() if time is not None and change not in two), default=0.0)
    return [change for change in _ordered(found) if change in two and (found[change] or single) < _CLEARLY * single]


def _ordered(found: dict[Resharding, float | None]) -> list[Resharding]:
    """Fastest first, then what asks and changes least; unknown last."""
    costs = [time for time in found.values() if time is not None]
    unknown = max(costs, default=0.0) + 1.0
    order = {change: number for number, change in enumerate(found)}

    def key(change: Resharding) -> tuple[bool, float, int, int, int, int]:
        time = found[change]
        shown = unknown if time is None else time
        return time is None, float(f"{shown:.2g}"), change.asks, change.widened, change.parts, order[change]

    return sorted(found, key=key)


def _estimated(subject: Subject, module: bytes, changes: Sequence[Resharding], until: float) -> list[float | None]:
    """What each change costs; None for what cannot be propagated, or not in time."""
    rates = rates_of(subject.lowered.slice)
    found = estimates_of(subject, changes, until, module)
    return [None if estimate is None else estimate.time_us(rates) for estimate in found]


def estimates_of(
    subject: Subject, changes: Sequence[Resharding], until: float, module: bytes | None = None
) -> list[Estimate | None]:
    """What Shardy makes of a program with each of several changes; None for what it cannot propagate, or not in time.

    Args:
        subject: The program.
        changes: The changes.
        until: When to stop, as `time.monotonic` counts.
        module: The program's bytecode, where it is at hand.
    """
    module = subject.lowered.bytecode if module is None else module
    found: list[Estimate | None] = [None] * len(changes)
    edits = {number: edit for number, change in enumerate(changes) if (edit := _edit(subject.lowered, change))}
    edits = {} if is_explicit(subject.lowered) else edits  # there shardings are part of the program's types
    batches = [list(edits)[at : at + _BATCH] for at in range(0, len(edits), _BATCH)]
    asked: deque[tuple[list[int], client.Question[list[Estimate | None]]]] = deque()
    try:
        while (batches or asked) and monotonic() < until:
            while batches and len(asked) < _SIDE_BY_SIDE:
                batch = batches.pop(0)
                asked.append((batch, _question(module, [edits[at] for at in batch], until)))
            batch, question = asked.popleft()
            answers = _answered(question, module, [edits[at] for at in batch], until)
            for number, estimate in zip(batch, answers, strict=True):
                found[number] = estimate
    finally:
        for _, question in asked:
            question.drop()
    for number, change in enumerate(changes):
        if number not in edits and monotonic() < until:
            found[number] = _of_retraced(subject, change, until)
    return found


def _question(module: bytes, edits: Sequence[ModuleEdit], until: float) -> client.Question[list[Estimate | None]]:
    left = min(until - monotonic(), _LONGEST_S)
    return client.Question(
        step.estimates, module, tuple(edits), doing="ranking changes with Shardy", timeout_s=max(left, 1.0)
    )


def _answered(
    question: client.Question[list[Estimate | None]], module: bytes, edits: Sequence[ModuleEdit], until: float
) -> list[Estimate | None]:
    """What a worker makes of several changes; one that ends the worker is told from the others by halving."""
    try:
        return question.answer()
    except CompilerDiedError:
        if len(edits) == 1:
            return [None]
        half = len(edits) // 2
        return [*_asked(module, edits[:half], until), *_asked(module, edits[half:], until)]
    except (HloscopeError, ValueError, RuntimeError):
        return [None] * len(edits)


def _asked(module: bytes, edits: Sequence[ModuleEdit], until: float) -> list[Estimate | None]:
    if until - monotonic() <= 0:
        return [None] * len(edits)
    return _answered(_question(module, edits, until), module, edits, until)


def _of_retraced(subject: Subject, change: Resharding, until: float) -> Estimate | None:
    """What a change costs that makes another program, which has to be traced."""
    try:
        program = lower_changed(subject.function, subject.lowered, change, store=subject.store)
    except HloscopeError:
        return None
    return _asked(program.bytecode, [ModuleEdit()], until)[0]


def _edit(lowered: Lowered, change: Resharding) -> ModuleEdit | None:
    """A change as one of the module; None where only a trace can make it."""
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
    """Whether shardings are part of the program's types, so that another one is another program."""
    mesh = lowered.mesh
    return mesh is None or any("explicit" in str(kind).lower() for kind in mesh.axis_types)


def rates_of(chosen: Slice) -> Rates:
    """What one device of a slice does in a second; it sends along one axis, both ways round where that is closed."""
    chip = chosen.chip
    if chip is None:
        return Rates(link_bytes=1e11, memory_bytes=1e12, flops=2e14)
    ways = 2 if any(chosen.wraparound()) else 1
    return Rates(
        link_bytes=chip.ici_bytes_per_s * ways / chip.devices_per_chip,
        memory_bytes=chip.hbm_bytes_per_s / chip.devices_per_chip,
        flops=chip.bf16_flops_per_s / chip.devices_per_chip,
    )
