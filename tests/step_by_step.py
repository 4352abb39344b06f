"""A step as it goes by, from the JSON of its timeline and nothing else: traces and profiles are held against it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

CORE = "core"


class Told(NamedTuple):
    """An interval at its place in the step."""

    computation: str
    interval: Any
    begin_us: float
    end_us: float
    beside: bool

    @property
    def is_on_core(self) -> bool:
        """Whether the core is at it, or waits."""
        return self.interval["unit"] == CORE and not self.beside


def told(document: Any) -> list[Told]:
    """All intervals of a step, as often as they come."""
    computations = {one["name"]: one for one in document["computations"]}
    return list(_computation(document["entry"], 0.0, computations, beside=False))


def _computation(name: str, at_us: float, computations: Any, *, beside: bool) -> Iterator[Told]:
    for interval in computations[name]["intervals"] if name in computations else ():
        begin_us, end_us = (at_us + interval[key] for key in ("begin_us", "end_us"))
        yield Told(name, interval, begin_us, end_us, beside)
        for number in range(max((run["times"] for run in interval["runs"]), default=0)):
            for run in interval["runs"]:
                if number < run["times"]:
                    inside = beside or interval["unit"] != CORE
                    yield from _computation(run["computation"], begin_us, computations, beside=inside)
                    begin_us += computations[run["computation"]]["time_us"]


def per_step(document: Any, field: str, *, unit: str) -> int:
    """What all intervals of a unit that do not run others have of something, each as often as it comes."""
    return sum(
        (one["executions"] + one["executions_beside"]) * interval[field]
        for one in document["computations"]
        for interval in one["intervals"]
        if interval["unit"] == unit and interval[field] is not None
    )
