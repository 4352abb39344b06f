"""Copies that run concurrently with the core, over time.

Between host and device they run one after the other in one direction, and concurrently in opposite directions, which
slows both. Within the device's memory they also run one after the other, with the bandwidth that computation leaves to
them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

from hloscope.analysis.model.timeline import Unit

_ROUNDED_US = 1e-9


@dataclass(slots=True)
class _Copy:
    """A queued copy, and its remaining microseconds at full pace."""

    name: str
    left_us: float


class HostCopies:
    """The copies in progress between host and device, over time.

    Args:
        pace: Pace of a copy while another one runs in the opposite direction, as a share of its pace alone.
    """

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._queues: dict[Unit, list[_Copy]] = {Unit.TO_HOST: [], Unit.FROM_HOST: []}
        self._begun_us: dict[str, float] = {}
        self._ended_us: dict[str, float] = {}
        self._now_us = 0.0

    def start(self, name: str, unit: Unit, time_us: float, now_us: float) -> None:
        """Queues a copy after those started earlier in the same direction.

        Args:
            name: Its name.
            unit: Its direction.
            time_us: Its time if it runs alone.
            now_us: The time of its start.
        """
        self._go_on(now_us)
        self._queues[unit].append(_Copy(name, time_us))

    def times_us(self, name: str, now_us: float) -> tuple[float, float]:
        """The begin and end of a copy, past or future, if it is waited for from now on."""
        self._go_on(now_us)
        self._go_on(inf, name)
        return self._begun_us[name], self._ended_us[name]

    def _go_on(self, until_us: float, awaited: str | None = None) -> None:
        """Advances the time to a point, or to the end of a copy."""
        while awaited not in self._ended_us:
            heads = [queue[0] for queue in self._queues.values() if queue]
            if not heads or self._now_us >= until_us:
                break
            for copy in heads:
                self._begun_us.setdefault(copy.name, self._now_us)
            pace = 1.0 if len(heads) == 1 else self._pace
            passed_us = min(until_us - self._now_us, min(copy.left_us for copy in heads) / pace)
            self._now_us += passed_us
            for copy in heads:
                copy.left_us -= passed_us * pace
            self._drop_ended()
        if awaited is None:
            self._now_us = max(self._now_us, until_us)

    def _drop_ended(self) -> None:
        for queue in self._queues.values():
            if queue and queue[0].left_us <= _ROUNDED_US:
                self._ended_us[queue.pop(0).name] = self._now_us


class MemoryCopies:
    """The queue of copies within the device's memory.

    Computation comes first: copies only get the bandwidth that it leaves, so that both together never move more bytes
    than the memory can.
    """

    def __init__(self) -> None:
        self._queue: deque[_Copy] = deque()
        self._begun_us: dict[str, float] = {}
        self._ended_us: dict[str, float] = {}
        self._now_us = 0.0

    def start(self, name: str, time_us: float, now_us: float) -> None:
        """Queues a copy after those started earlier.

        Args:
            name: Its name.
            time_us: Its time if it runs alone.
            now_us: The time of its start.
        """
        self.go_on(now_us)
        self._queue.append(_Copy(name, time_us))

    def go_on(self, until_us: float, pace: float = 1.0) -> None:
        """Advances the time.

        Args:
            until_us: The new time.
            pace: Pace of copies meanwhile, as a share of their pace alone.
        """
        while self._queue and pace > 0 and self._now_us < until_us:
            copy = self._queue[0]
            self._begun_us.setdefault(copy.name, self._now_us)
            passed_us = min(until_us - self._now_us, copy.left_us / pace)
            self._now_us += passed_us
            copy.left_us -= passed_us * pace
            if copy.left_us <= _ROUNDED_US:
                self._queue.popleft()
                self._ended_us[copy.name] = self._now_us
        self._now_us = max(self._now_us, until_us)

    def times_us(self, name: str, now_us: float) -> tuple[float, float]:
        """The begin and end of a copy, past or future, if it is waited for from now on."""
        self.go_on(now_us)
        if name not in self._ended_us:
            left_us = 0.0
            for copy in self._queue:
                begin_us = now_us + left_us
                left_us += copy.left_us
                if copy.name == name:
                    return self._begun_us.get(name, begin_us), now_us + left_us
        return self._begun_us[name], self._ended_us[name]
