"""Whether a timeline adds up: its totals are counted again here from the intervals of its JSON, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hloscope.model import Analysis
from hloscope.model.timeline import Timeline

CAUSES = ("collective", "hbm", "host", "kernel", "limit")
NETWORK = ("ici", "dcn")


def close(value: float) -> Any:
    """As good as equal, for sums of many."""
    return pytest.approx(value, rel=1e-6, abs=1e-6)


def check_sums(timeline: Timeline, analysis: Analysis) -> None:
    """Fails where an interval is missing, stands twice, or is of another total."""
    document: Any = timeline.to_dict()
    assert Timeline.from_dict(document) == timeline
    by_name = {one["name"]: one for one in document["computations"]}
    for computation in by_name.values():
        check_order(computation)
    check_executions(document, by_name)
    times = Counter[str]()
    for computation in by_name.values():
        for interval in computation["intervals"]:
            times[kind_of(interval)] += executions(computation, interval) * (interval["end_us"] - interval["begin_us"])
    waits = document["waits"]
    assert times["computing"] == close(document["computing_us"])
    assert {cause: times[f"wait {cause}"] for cause in CAUSES} == {
        cause: close(waits[f"{cause}_us"]) for cause in CAUSES
    }
    assert document["computing_us"] + sum(waits.values()) == close(document["step_us"])
    assert times["network"] - waits["collective_us"] == close(document["hidden_us"])
    check_analysis(document, by_name, analysis)


def kind_of(interval: Any) -> str:
    """What an interval counts as."""
    if interval["wait"] is not None:
        return f"wait {interval['wait']}"
    if interval["unit"] in NETWORK:
        return "network"
    return "computing" if interval["unit"] == "core" and not interval["runs"] else "else"


def executions(computation: Any, interval: Any) -> int:
    """How often an interval comes in a step; on another thread only what is on its way counts."""
    beside = computation["executions_beside"] if interval["unit"] in NETWORK else 0
    return int(computation["executions"] + beside)


def check_order(computation: Any) -> None:
    """The intervals of the core follow each other from the beginning to the end."""
    now = 0.0
    for interval in computation["intervals"]:
        assert interval["begin_us"] <= interval["end_us"]
        if interval["unit"] == "core":
            assert interval["begin_us"] == close(now)
            now = interval["end_us"]
        if interval["wait"] is not None:
            assert interval["unit"] == "core"
    assert now == close(computation["time_us"])


def check_executions(document: Any, by_name: Any) -> None:
    """Each computation runs as often as those that run it make it run, and a loop takes as long as all its turns."""
    found = Counter({document["entry"]: 1})
    for computation in by_name.values():
        for interval in computation["intervals"]:
            if interval["unit"] == "core" and interval["runs"]:
                inner = sum(run["times"] * by_name[run["computation"]]["time_us"] for run in interval["runs"])
                assert interval["end_us"] - interval["begin_us"] == close(inner)
                for run in interval["runs"]:
                    found[run["computation"]] += run["times"] * computation["executions"]
    assert {name: one["executions"] for name, one in by_name.items()} == {name: found[name] for name in by_name}


def check_analysis(document: Any, by_name: Any, analysis: Analysis) -> None:
    """The analysis has the same times, and each collective is exposed as long as it is waited for."""
    time = analysis.time
    assert time is not None
    waits = document["waits"]
    others = sum(waits[f"{cause}_us"] for cause in CAUSES[1:])
    assert time.step_us == close(document["step_us"])
    assert time.exposed_us == close(waits["collective_us"])
    assert time.compute_us == close(document["computing_us"] + others)
    assert time.hidden_us == close(document["hidden_us"])
    exposed = sum((one.exposed_us or 0.0) * one.executions for one in analysis.collectives)
    if any(one.time_us is None for one in analysis.collectives):
        assert exposed <= waits["collective_us"] + 1e-6  # one with parts has no time where one of them has none
    elif all(one["executions"] + one["executions_beside"] for one in by_name.values()):
        assert exposed == close(waits["collective_us"])
    else:
        assert exposed >= waits["collective_us"] - 1e-6  # branches that may be taken instead have collectives too
