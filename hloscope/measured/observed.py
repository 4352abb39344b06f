"""The runs of one program, by operation: executions, durations and waits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import median_low

from hloscope.profiles.model import DeviceRun, ProfiledDevice, ProfiledOperation, ProfileEvent

_MICROSECOND_PS = 1e6
_SEEN_US = 1.0
"""A shorter wait means that the operation has likely ended before."""

_LAYOUT = re.compile(r"\{[^{}]*\}")
_HEAD = re.compile(r"%?[\w.\-]+ = (?P<shape>\(.*?\)|\S+) (?P<opcode>[a-z][\w\-]*)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedRun:
    """One run on one device, summed by operation.

    Attributes:
        run: The run.
        alone_ps: The total time of each operation by its name, without that of operations inside it.
        counts: The number of executions of each.
    """

    run: DeviceRun
    alone_ps: Mapping[str, int]
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ObservedProgram:
    """All runs of one program, on all devices.

    Attributes:
        program: Its name and number in the profile.
        runs: The runs.
        devices: The devices on which it ran.
    """

    program: str
    runs: tuple[SummedRun, ...]
    devices: tuple[ProfiledDevice, ...] = field(repr=False)

    @cached_property
    def operations(self) -> dict[str, ProfiledOperation]:
        """The operations by name, in the order of their first begin."""
        events = chain.from_iterable(found.run.operations for found in self.runs)
        return {event.operation.name: event.operation for event in reversed(list(events))}

    @cached_property
    def median_run(self) -> SummedRun:
        """The run with the median time; the lower one of an even number."""
        middle = median_low(found.run.duration_ps for found in self.runs)
        return next(found for found in self.runs if found.run.duration_ps == middle)

    @property
    def durations_us(self) -> list[float]:
        """The duration of each run."""
        return [found.run.duration_us for found in self.runs]

    @property
    def total_us(self) -> float:
        """The total time of all runs, on one device."""
        return sum(self.durations_us) / len(self.devices)

    def time_us(self, name: str) -> float:
        """The time of an operation in one run: the median over all runs."""
        return median_low(found.alone_ps.get(name, 0) for found in self.runs) / _MICROSECOND_PS

    def executions(self, name: str) -> float:
        """The average number of executions of an operation in one run."""
        return sum(found.counts.get(name, 0) for found in self.runs) / len(self.runs)


def find_observed_programs(devices: Sequence[ProfiledDevice]) -> tuple[ObservedProgram, ...]:
    """The programs that ran, the one with the most time first."""
    runs: dict[str, list[SummedRun]] = {}
    on: dict[str, list[ProfiledDevice]] = {}
    for device in devices:
        for run in device.runs:
            runs.setdefault(run.program, []).append(_sum_run(run))
            if device not in on.setdefault(run.program, []):
                on[run.program].append(device)
    found = (ObservedProgram(program=name, runs=tuple(each), devices=tuple(on[name])) for name, each in runs.items())
    return tuple(sorted(found, key=lambda each: each.total_us, reverse=True))


def _sum_run(run: DeviceRun) -> SummedRun:
    """The times of a run's operations; the time of operations inside another, as in a loop, is subtracted from it."""
    alone: dict[str, int] = {}
    counts: dict[str, int] = {}
    around: list[ProfileEvent] = []
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
    return SummedRun(run=run, alone_ps=alone, counts=counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWait:
    """One execution of an asynchronous operation.

    Attributes:
        flight_us: The time from its start to the end of its wait, or from the end of the transfer before it.
        waited_us: The time that the device waited.
        is_exact: Whether both its begin and its end were seen; otherwise `flight_us` is an upper bound.
    """

    flight_us: float
    waited_us: float
    is_exact: bool


def find_waits(
    observed: ObservedProgram, starts: Mapping[str, str], queues: Mapping[str, str]
) -> dict[str, list[ObservedWait]]:
    """Each execution of asynchronous operations, by the name of the start.

    Args:
        observed: The runs.
        starts: The start by the name of the operation that waits.
        queues: The queue of starts whose transfers are carried out one after the other in the order of the starts.
    """
    found: dict[str, list[ObservedWait]] = {}
    for each in observed.runs:
        for name, waited in _find_waits_of_run(each.run, starts, queues):
            found.setdefault(name, []).append(waited)
    return found


def _find_waits_of_run(
    run: DeviceRun, starts: Mapping[str, str], queues: Mapping[str, str]
) -> Iterator[tuple[str, ObservedWait]]:
    """The waits of one run.

    A transfer ends with its wait, and so has everything before it in its queue. For the rest, the profile does not show
    the end, nor the begin of the transfer behind it.
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
            ObservedWait(
                flight_us=max(event.end_ps - since_ps, event.duration_ps) / _MICROSECOND_PS,
                waited_us=event.duration_us,
                is_exact=is_end_seen and all(other in seen_end_ps for other in ahead),
            ),
        )


def collect_durations_us(observed: ObservedProgram) -> dict[str, list[float]]:
    """The duration of each execution of each operation, in microseconds, by its name."""
    found: dict[str, list[float]] = {}
    for each in observed.runs:
        for event in each.run.operations:
            found.setdefault(event.operation.name, []).append(event.duration_us)
    return found


def parse_printed_form(operation: ProfiledOperation) -> tuple[str, str] | None:
    """The shape without layouts and the opcode, if the profile has an operation's line; otherwise None."""
    head = _HEAD.match(operation.text)
    if head is None:
        return None
    shape = head["shape"]
    while _LAYOUT.search(shape):
        shape = _LAYOUT.sub("", shape)
    return shape.replace(" ", ""), head["opcode"]
