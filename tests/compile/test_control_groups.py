"""How many processes run at once inside a container: what its control groups allow, of version 1 and of version 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hloscope.compile import client, slots
from hloscope.compile.slots import BYTES_PER_TRACER, BYTES_PER_WORKER

GIB = 1 << 30
NO_LIMIT_V1 = 9223372036854771712
"""What version 1 has where nobody set a limit."""


class Machine:
    """A machine of 32 cores and 64 GiB, whose files on control groups are made up."""

    def __init__(self, folder: Path) -> None:
        self._groups, self._own = folder / "groups", folder / "own"

    def is_in(self, *lines: str) -> None:
        self._own.write_text("".join(f"{line}\n" for line in lines))

    def has(self, group: str, **files: object) -> None:
        folder = self._groups / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name.replace("__", ".")).write_text(f"{value}\n")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setattr(slots, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(slots, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(slots, "find_system_bytes", lambda _: 64 * GIB)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    monkeypatch.delenv("HLOSCOPE_MAX_WORKERS", raising=False)
    return made


def test_a_machine_without_control_groups(machine):
    assert (slots.find_free_bytes(), slots.count_cores(), slots.count_slots()) == (64 * GIB, 32, 32)


def test_version_2(machine):
    machine.is_in("0::/job/step")
    machine.has("job", memory__max=20 * GIB, memory__current=7 * GIB, memory__stat=f"anon 5\ninactive_file {GIB}")
    machine.has("job/step", memory__max="max", memory__current=GIB, memory__stat="", cpu__max="max 100000")
    machine.has("job", cpu__max="250000 100000")
    assert slots.find_free_bytes() == 14 * GIB  # what files that were read take can be given back
    assert slots.count_slots() == 10
    assert slots.count_cores() == 3
    assert client.count_useful_workers(40) == 3
    assert client.count_useful_workers(40, each_bytes=BYTES_PER_TRACER + BYTES_PER_WORKER) == 3
    machine.has("job", memory__current=15 * GIB)
    assert client.count_useful_workers(40, each_bytes=BYTES_PER_TRACER + BYTES_PER_WORKER) == 2
    machine.has("job", memory__current=22 * GIB)
    assert slots.find_free_bytes() == 0
    assert client.count_useful_workers(40) == 1


def test_version_1(machine):
    machine.is_in("11:memory:/docker/abc", "7:cpu,cpuacct:/docker/abc", "3:cpuset:/docker/abc")
    machine.has("memory", memory__limit_in_bytes=NO_LIMIT_V1, memory__usage_in_bytes=GIB, memory__stat="cache 1")
    assert slots.find_free_bytes() == 64 * GIB
    # As seen from inside: the container's own group is mounted as the root.
    usage = {"memory__usage_in_bytes": 5 * GIB, "memory__stat": f"cache 9\ntotal_inactive_file {GIB}"}
    machine.has("memory", memory__limit_in_bytes=8 * GIB, **usage)
    machine.has("cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert (slots.find_free_bytes(), slots.count_slots(), slots.count_cores()) == (4 * GIB, 4, 32)
    assert client.count_useful_workers(40) == 2
    machine.has("cpu", cpu__cfs_quota_us=50000)
    assert (slots.count_cores(), client.count_useful_workers(40)) == (1, 1)


def test_files_that_cannot_be_read_limit_nothing(machine):
    machine.is_in("0::/")
    machine.has("", memory__max="a lot", memory__current="?", memory__stat="", cpu__max="100000 0")
    assert (slots.find_free_bytes(), slots.count_cores()) == (64 * GIB, 32)
