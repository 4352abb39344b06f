"""The limit on workers per machine, across all processes of a user: each worker takes a slot, a locked file.

A worker holds the lock of its slot itself, so that the slot is free when the worker is gone, however it ended. While it
runs a step its owner holds a second lock; a process that finds every slot taken ends a worker that is idle.
"""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

BYTES_PER_WORKER = 2 << 30
"""The memory assumed for a process with JAX, libtpu and a compile of some size."""
BYTES_PER_TRACER = 1 << 30
"""The memory assumed for a process that imports a target and traces it."""
_POLL_S = 0.05
_COMMAND = b"hloscope.compiler.worker"


@dataclass(slots=True)
class Slot:
    """A place for one worker.

    Attributes:
        life: Descriptor of the file whose lock the worker inherits; None afterwards.
        busy: Descriptor of the file that is locked during a step.
        is_held: Whether it is locked now: from the taking of the slot to the end of the first step.
    """

    life: int | None
    busy: int
    is_held: bool = True

    def given_to(self, process: int) -> None:
        """Notes the process that holds the slot, and leaves it to that process."""
        with suppress(OSError):  # a full disk: nobody will end the worker while it is idle
            os.ftruncate(self.busy, 0)
            os.pwrite(self.busy, str(process).encode(), 0)
        self.close_life()

    def close_life(self) -> None:
        """Closes this process's descriptor of the lock."""
        if self.life is not None:
            os.close(self.life)
            self.life = None

    @contextmanager
    def in_use(self, is_alive: Callable[[], bool]) -> Iterator[None]:
        """Keeps other processes from ending the worker within the block.

        Args:
            is_alive: Whether the worker runs. Its slot is never held longer than it takes to end it, so there is
                nothing to wait for once it is gone.
        """
        while not self.is_held and is_alive():
            self.is_held = _try_lock(self.busy)
            if not self.is_held:
                time.sleep(_POLL_S)
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """Lets other processes end the worker, which is idle."""
        import fcntl

        self.is_held = False
        with suppress(OSError):
            fcntl.flock(self.busy, fcntl.LOCK_UN)

    def close(self) -> None:
        """Releases the slot."""
        self.close_life()
        with suppress(OSError):
            os.close(self.busy)


def count_slots() -> int:
    """The number of workers that fit in this machine's memory, or that of `HLOSCOPE_MAX_WORKERS`."""
    chosen = os.environ.get("HLOSCOPE_MAX_WORKERS", "")
    if chosen.isdecimal() and int(chosen) > 0:
        return int(chosen)
    return max(1, _find_memory_bytes() // BYTES_PER_WORKER)


def _find_memory_bytes() -> int:
    """The memory of this machine, or of the control group of this process, such as a container's."""
    machine = find_system_bytes("SC_PHYS_PAGES") or BYTES_PER_WORKER
    return min((machine, *(group.limit for group in _find_memory_groups())))


def find_free_bytes() -> int:
    """The memory that processes may still take, here and in the control groups of this process."""
    free = find_system_bytes("SC_AVPHYS_PAGES") or BYTES_PER_WORKER
    with suppress(OSError, ValueError, IndexError):
        free = max(free, 1024 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]))
    return max(0, min((free, *(group.limit - group.used for group in _find_memory_groups()))))


class _MemoryGroup(NamedTuple):
    """A control group with a limit; bytes. Reclaimable memory, such as cached files, does not count as used."""

    limit: int
    used: int


_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def _find_group_folders(controller: str) -> Iterator[tuple[Path, bool]]:
    """The control groups of this process that have limits, from its own up to the root; whether they are v2."""
    with suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, kinds, own = line.split(":", 2)
            if kinds and controller not in kinds.split(","):
                continue
            root = _GROUPS / controller if kinds else _GROUPS
            folder = root / own.lstrip("/")
            yield from ((place, not kinds) for place in (folder, *folder.parents) if place.is_relative_to(root))


def _find_memory_groups() -> Iterator[_MemoryGroup]:
    """The control groups of this process that limit its memory."""
    for folder, is_v2 in _find_group_folders("memory"):
        names = ("memory.max", "memory.current", "inactive_file")
        older = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        found = _read_memory_group(folder, *(names if is_v2 else older))
        if found is not None:
            yield found


def count_cores() -> int:
    """The number of cores that this process may use, by its affinity and the quotas of its control groups."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = (_read_quota(folder, is_v2) for folder, is_v2 in _find_group_folders("cpu"))
    return max(1, min((own, *(ceil(quota) for quota in quotas if quota is not None))))


def _read_quota(folder: Path, is_v2: bool) -> float | None:
    """The cores that a control group may use; None if it is not visible in this container, or has no quota."""
    names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        quota, period = (int(number) for name in names for number in (folder / name).read_text().split())
    except (OSError, ValueError):  # `max` is no number
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read_memory_group(folder: Path, limit: str, used: str, given_back: str) -> _MemoryGroup | None:
    """One control group; None if it is not visible in this container, or has no limit."""
    try:
        most = int((folder / limit).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return _MemoryGroup(most, int((folder / used).read_text()) - int(statistics.get(given_back, 0)))
    except (OSError, ValueError):  # `max` is no number
        return None


def find_system_bytes(pages: str) -> int | None:
    """The memory in `SC_PHYS_PAGES` or `SC_AVPHYS_PAGES`; None if the system does not report it."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def acquire_slot(wanted: Callable[[], bool], *, waits: bool = True) -> Slot | None:
    """Acquires a free slot, waiting if there is none.

    Args:
        wanted: Returns whether the slot is still wanted.
        waits: Whether to wait for a slot.

    Returns:
        The slot; None if the system has no file locks, or no place for the files: then nothing is counted.

    Raises:
        BlockingIOError: Every slot has a busy worker, and `waits` is False.
    """
    folder = _find_folder()
    while folder is not None and wanted():
        for number in range(count_slots()):
            try:
                slot = _take_slot(folder / f"slot-{number}")
            except OSError:  # a full disk
                return None
            if slot is not None:
                return slot
        if any(_end_idle_worker(folder / f"slot-{number}") for number in range(count_slots())):
            continue
        if not waits:
            raise BlockingIOError(errno.EAGAIN, "every slot has a worker that is busy")
        time.sleep(_POLL_S)
    return None


def _find_folder() -> Path | None:
    try:
        import fcntl  # noqa: F401

        folder = Path(tempfile.gettempdir()) / f"hloscope-workers-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except (ImportError, AttributeError, OSError):
        return None
    return folder if status.st_uid == os.getuid() and not folder.is_symlink() else None


def _take_slot(path: Path) -> Slot | None:
    """The slot of a file with both its locks; None if another worker has it, or another process is looking at it.

    Raises:
        OSError: There is no space for the file.
    """
    descriptors = []
    with ExitStack() as unless_taken:
        for file in (str(path), f"{path}.busy"):
            descriptors.append(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            unless_taken.callback(os.close, descriptors[-1])
            if not _try_lock(descriptors[-1]):
                return None
        unless_taken.pop_all()
    life, busy = descriptors
    return Slot(life=life, busy=busy)


def _try_lock(descriptor: int) -> bool:
    """Locks a file unless it is already locked.

    Raises:
        OSError: The system cannot lock it.
    """
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_idle_worker(path: Path) -> bool:
    """Ends the worker of a slot if it is idle."""
    try:
        busy = os.open(f"{path}.busy", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        process = int(os.pread(busy, 20, 0)) if _try_lock(busy) else 0
        if not process or _COMMAND not in Path(f"/proc/{process}/cmdline").read_bytes():
            return False
        os.kill(process, signal.SIGKILL)
        time.sleep(_POLL_S)
    except (OSError, ValueError):
        return False
    finally:
        os.close(busy)
    return True
