"""The runs of one program, by operation: executions, durations and waits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import median_low

from hloscope.profiles.model import Device, Event, ProfiledOperation, Run

_MICROSECOND_PS = 1e6
_SEEN_US = 1.0
"""What a device waits less for than this has likely ended before."""

_LAYOUT = re.compile(r"\{[^{}]*\}")
_HEAD = re.compile(r"%?[\w.\-]+ = (?P<shape>\(.*?\)|\S+) (?P<opcode>[a-z][\w\-]*)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOfProgram:
    """One run on one device, added up by operation.

    Attributes:
        run: The run.
        alone_ps: The time of each operation by its name, without that of operations inside it, all executions together.
        counts: How often each ran.
    """

    run: Run
    alone_ps: Mapping[str, int]
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All runs of one program, on all devices.

    Attributes:
        program: Its name and number in the profile.
        runs: The runs.
        devices: The devices on which it ran.
    """

    program: str
    runs: tuple[RunOfProgram, ...]
    devices: tuple[Device, ...] = field(repr=False)

    @cached_property
    def operations(self) -> dict[str, ProfiledOperation]:
        """The operations by their names, in the order in which they first began."""
        events = chain.from_iterable(found.run.operations for found in self.runs)
        return {event.operation.name: event.operation for event in reversed(list(events))}

    @cached_property
    def median_run(self) -> RunOfProgram:
        """The run that took the median time; of an even number the lower one."""
        middle = median_low(found.run.duration_ps for found in self.runs)
        return next(found for found in self.runs if found.run.duration_ps == middle)

    @property
    def durations_us(self) -> list[float]:
        """How long each run took."""
        return [found.run.duration_us for found in self.runs]

    @property
    def total_us(self) -> float:
        """What all runs took together, on one device."""
        return sum(self.durations_us) / len(self.devices)

    def time_us(self, name: str) -> float:
        """What an operation takes in one run: the median over all."""
        return median_low(found.alone_ps.get(name, 0) for found in self.runs) / _MICROSECOND_PS

    def executions(self, name: str) -> float:
        """How often an operation runs in one run, on average."""
        return sum(found.counts.get(name, 0) for found in self.runs) / len(self.runs)


def observed_programs(devices: Sequence[Device]) -> tuple[Observed, ...]:
    """The programs that ran, the one that took most time first."""
    runs: dict[str, list[RunOfProgram]] = {}
    on: dict[str, list[Device]] = {}
    for device in devices:
        for run in device.runs:
            runs.setdefault(run.program, []).append(_added_up(run))
            if device not in on.setdefault(run.program, []):
                on[run.program].append(device)
    found = (Observed(program=name, runs=tuple(each), devices=tuple(on[name])) for name, each in runs.items())
    return tuple(sorted(found, key=lambda each: each.total_us, reverse=True))


def _added_up(run: Run) -> RunOfProgram:
    """The times of a run's operations; what runs inside another, as in a loop, is taken off that."""
    alone: dict[str, int] = {}
    counts: dict[str, int] = {}
    around: list[Event] = []
    for event in run.operations:
        while around and around[-1].end_ps <= event.begin_ps:
            around.pop()
        name = event.operation.name
        alone[name] = alone.get(name, 0) + event.duration_ps
        counts[name] = counts.get(name, 0) + 1
        if around and event.end_ps <= around[-1].end_ps:
            alone[around[-1].operation.name] -= event.duration_ps
        if event.duration_ps:
            around.append(event)
    return RunOfProgram(run=run, alone_ps=alone, counts=counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """One execution of something that was started and waited for.

    Attributes:
        flight_us: From its start to the end of what waited for it, or to where what was before it was there.
        waited_us: What the device waited.
        is_exact: Whether both its beginning and its end were seen; else `flight_us` is at most.
    """

    flight_us: float
    waited_us: float
    is_exact: bool


def waits_of(observed: Observed, starts: Mapping[str, str], queues: Mapping[str, str]) -> dict[str, list[Waited]]:
    """Each execution of what was started and waited for, by the name of the start.

    Args:
        observed: The runs.
        starts: By the name of what waits, the start.
        queues: Starts whose transfers are carried out one after the other in the order of the starts, by their queue.
    """
    found: dict[str, list[Waited]] = {}
    for each in observed.runs:
        for name, waited in _waits_of_run(each.run, starts, queues):
            found.setdefault(name, []).append(waited)
    return found


def _waits_of_run(run: Run, starts: Mapping[str, str], queues: Mapping[str, str]) -> Iterator[tuple[str, Waited]]:
    """What was waited for in one run.

    What is waited for ends when the wait does, and so has all that was before it in its queue. Of the rest nobody sees
    when it ends, nor when what was behind it begins.
    """
    wanted = set(starts.values())
    begun: dict[str, int] = {}
    before: dict[str, list[str]] = {}
    on_the_way: dict[str, list[str]] = {}
    seen_end_ps: dict[str, int] = {}
    for event in run.operations:
        name = event.operation.name
        if name in wanted:
            begun[name] = event.begin_ps
            seen_end_ps.pop(name, None)
            waiting = on_the_way.setdefault(queues.get(name, name), [])
            before[name] = [other for other in waiting if other != name]
            waiting.append(name)
        start = starts.get(name)
        if start is None or start not in begun:
            continue
        is_end_seen = event.duration_us > _SEEN_US
        ahead = before.pop(start)
        since_ps = max([begun.pop(start), *(seen_end_ps[other] for other in ahead if other in seen_end_ps)])
        if is_end_seen:
            seen_end_ps[start] = event.end_ps
        waiting = on_the_way[queues.get(start, start)]
        on_the_way[queues.get(start, start)] = [other for other in waiting if other != start]
        yield (
            start,
            Waited(
                flight_us=max(event.end_ps - since_ps, event.duration_ps) / _MICROSECOND_PS,
                waited_us=event.duration_us,
                is_exact=is_end_seen and all(other in seen_end_ps for other in ahead),
            ),
        )


def durations_us(observed: Observed) -> dict[str, list[float]]:
    """Each execution of each operation, in microseconds, by its name."""
    found: dict[str, list[float]] = {}
    for each in observed.runs:
        for event in each.run.operations:
            found.setdefault(event.operation.name, []).append(event.duration_us)
    return found


def printed_form(operation: ProfiledOperation) -> tuple[str, str] | None:
    """The shape without layouts and the opcode, as far as the profile has an operation's line; else None."""
    head = _HEAD.match(operation.text)
    if head is None:
        return None
    shape = head["shape"]
    while _LAYOUT.search(shape):
        shape = _LAYOUT.sub("", shape)
    return shape.replace(" ", ""), head["opcode"]
