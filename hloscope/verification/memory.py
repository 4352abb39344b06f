"""Memory: what a run will need, from the compiler's figures, and what this machine has left."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

SHARE = 0.8
"""Of the free memory, what a run may take; the rest is for copies that the runtime makes."""

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes() -> int | None:
    """Memory that is free for a process, within the limits of a container; None when the system does not tell."""
    found = [count for count in (_of_the_machine(), *map(_of_a_container, _CGROUP_LIMITS)) if count is not None]
    return min(found, default=None)


def needed_bytes(program_bytes: Sequence[int | None], host_bytes: int) -> int:
    """What a run needs at most; at least, where a program's part is not known.

    Args:
        program_bytes: For each program, arguments, outputs and temporaries of all devices together; None where that is
            not known. They run one after the other.
        host_bytes: Inputs and outputs as NumPy arrays.
    """
    return max((count for count in program_bytes if count is not None), default=0) + host_bytes


def _of_the_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _of_another_system()
    kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes[0]) * 1024 if kibibytes else None


def _of_another_system() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _of_a_container(files: tuple[str, str]) -> int | None:
    try:
        limit, used = (Path(file).read_text(encoding="ascii").strip() for file in files)
    except OSError:
        return None
    return int(limit) - int(used) if limit.isdigit() and int(limit) < 2**60 else None
