"""The number of workers on a machine: each takes a slot, a locked file, across all processes of a user.

The owner of a worker holds the lock while the worker runs a step. Between steps the slot is unlocked, and its file
names the process: another process that finds every slot taken ends that worker and takes its place.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from math import ceil
from pathlib import Path

from hloscope.base.calls import read_worker_count
from hloscope.compile.worker import make_process_name

BYTES_PER_WORKER = 2 << 30
"""The memory assumed for a process with JAX, libtpu and a compile of some size."""
BYTES_PER_TRACER = 1 << 30
"""The memory assumed for a process that imports a target and traces it."""
_POLL_S = 0.05


@dataclass(slots=True)
class Slot:
    """A place for one worker.

    Attributes:
        path: Its file, after which the worker's process is named.
        descriptor: Descriptor of the file, which is locked during a step.
        is_held: Whether it is locked now: from the taking of the slot to the end of the first step.
    """

    path: Path
    descriptor: int
    is_held: bool = True

    def give_to(self, process: int) -> None:
        """Notes the process that holds the slot."""
        with suppress(OSError):  # a full disk: while the worker is idle, others take the slot and leave it running
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, str(process).encode(), 0)

    def find_worker(self) -> int | None:
        """The process of the worker in this slot, which is idle if the slot can be locked; None without one."""
        with suppress(OSError, ValueError):
            process = int(os.pread(self.descriptor, 20, 0))
            if _is_in_slot(process, self.path):
                return process
        return None

    @contextmanager
    def in_use(self, is_alive: Callable[[], bool]) -> Iterator[None]:
        """Keeps other processes from ending the worker within the block.

        Args:
            is_alive: Whether the worker runs. Its slot is never held longer than it takes to end it, so there is
                nothing to wait for once it is gone.
        """
        while not self.is_held and is_alive():
            self.is_held = _try_lock(self.descriptor)
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
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Releases the slot."""
        self.rest()  # a forked child may have the descriptor too
        with suppress(OSError):
            os.close(self.descriptor)


def _is_in_slot(process: int, slot: Path) -> bool:
    """Returns whether a process is the worker in a slot, by its name or its command line; a zombie is not.

    Raises:
        OSError: There is no such process.
    """
    if not Path("/proc/self").exists():  # as on macOS
        command = ["ps", "-ww", "-o", "args=", "-p", str(process)]
        return os.fsencode(slot) in subprocess.run(command, capture_output=True, check=False).stdout.split()
    name, _, facts = Path(f"/proc/{process}/stat").read_text().partition(" (")[2].rpartition(") ")
    words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    return facts[:1] != "Z" and (name == make_process_name(str(slot)) or os.fsencode(slot) in words)


def count_slots() -> int:
    """The number of workers that fit in this machine's memory, or that of `HLOSCOPE_MAX_WORKERS`.

    In a control group, such as a container's, its limit counts.

    Raises:
        NotationError: `HLOSCOPE_MAX_WORKERS` is not a number of workers.
    """
    chosen = read_worker_count()
    if chosen is not None:
        return chosen
    machine = find_system_bytes("SC_PHYS_PAGES") or BYTES_PER_WORKER
    return max(1, min((machine, *(limit for limit, _ in _find_memory_limits()))) // BYTES_PER_WORKER)


def find_free_bytes(otherwise: int = BYTES_PER_WORKER) -> int:
    """The memory that processes may still take, here and in the control groups of this process.

    Args:
        otherwise: The free memory of a machine that does not report it.
    """
    free = find_system_bytes("SC_AVPHYS_PAGES") or otherwise
    with suppress(OSError, ValueError, IndexError):
        free = max(free, 1024 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]))
    return max(0, min((free, *(unused for _, unused in _find_memory_limits()))))


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


def _find_memory_limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group of this process that limits its memory, and the bytes of it that are not used.

    Reclaimable memory, such as cached files, does not count as used.
    """
    for folder, is_v2 in _find_group_folders("memory"):
        names = ("memory.max", "memory.current", "inactive_file")
        older = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used, given_back = names if is_v2 else older
        with suppress(OSError, ValueError):  # not visible in this container; `max` is no number
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            most, taken = int((folder / limit).read_text()), int((folder / used).read_text())
            yield most, most - taken + int(statistics.get(given_back, 0))


def count_cores() -> int:
    """The number of cores that this process may use, by its affinity and the quotas of its control groups."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min((own, *_find_quotas())))


def _find_quotas() -> Iterator[int]:
    """The cores, rounded up, that each control group of this process with a quota may use."""
    for folder, is_v2 in _find_group_folders("cpu"):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        with suppress(OSError, ValueError):  # not visible in this container; `max` is no number
            quota, period = (int(number) for name in names for number in (folder / name).read_text().split())
            if quota > 0 and period > 0:
                yield ceil(quota / period)


def find_system_bytes(pages: str) -> int | None:
    """The memory in `SC_PHYS_PAGES` or `SC_AVPHYS_PAGES`; None if the system does not report it."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def acquire_slot(wanted: Callable[[], bool], *, waits: bool = True) -> Slot | None:
    """Acquires a free slot, and waits for one if all are taken.

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
        for ends_idle, number in product((False, True), range(count_slots())):
            try:
                slot = _take_slot(folder / f"slot-{number}", ends_idle=ends_idle)
            except OSError:  # a full disk
                return None
            if slot is not None:
                return slot
        if not waits:
            raise BlockingIOError(errno.EAGAIN, "every slot has a worker that is busy")
        time.sleep(_POLL_S)
    return None


def _find_folder() -> Path | None:
    try:
        import fcntl  # noqa: F401

        folder = Path(tempfile.gettempdir()) / f"hloscope-slots-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except (ImportError, AttributeError, OSError):
        return None
    return folder if status.st_uid == os.getuid() and not folder.is_symlink() else None


def _take_slot(path: Path, *, ends_idle: bool) -> Slot | None:
    """The slot of a file; None if it has a worker, unless that is idle and `ends_idle`.

    Raises:
        OSError: There is no space for the file.
    """
    slot = Slot(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with ExitStack() as unless_taken:
        unless_taken.callback(os.close, slot.descriptor)
        if not _try_lock(slot.descriptor):
            return None
        idle = slot.find_worker()
        if idle is not None and not ends_idle:
            return None
        if idle is not None:
            with suppress(ProcessLookupError):
                os.kill(idle, signal.SIGKILL)
        unless_taken.pop_all()
    return slot


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
