"""Copies between host and device: in one direction one after the other, in both at once, where each takes longer."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hloscope.analysis.model.timeline import Unit

_ROUNDED_US = 1e-9


@dataclass(slots=True)
class _Copy:
    """A copy in its queue, and what is left of it in microseconds alone."""

    name: str
    left_us: float


class HostCopies:
    """What is on its way between host and device, as time goes on.

    Args:
        pace: How fast a copy is while another one runs in the opposite direction, as a share of its pace alone.
    """

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._queues: dict[Unit, list[_Copy]] = {Unit.TO_HOST: [], Unit.FROM_HOST: []}
        self._begun_us: dict[str, float] = {}
        self._ended_us: dict[str, float] = {}
        self._now_us = 0.0

    def start(self, name: str, unit: Unit, time_us: float, now_us: float) -> None:
        """Puts a copy behind those that were started before it in the same direction.

        Args:
            name: Its name.
            unit: Its direction.
            time_us: What it takes alone.
            now_us: When it is started.
        """
        self._go_on(now_us)
        self._queues[unit].append(_Copy(name, time_us))

    def times_us(self, name: str, now_us: float) -> tuple[float, float]:
        """When a copy began and ended, or will have, if it is waited for from now on."""
        self._go_on(now_us)
        self._go_on(inf, name)
        return self._begun_us[name], self._ended_us[name]

    def _go_on(self, until_us: float, awaited: str | None = None) -> None:
        """Lets time pass until then, or until a copy has ended."""
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
