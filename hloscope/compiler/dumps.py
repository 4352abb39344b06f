"""What the compiler writes down on its way: the module before Shardy's propagation, and the one just partitioned."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_OPTIONS: Mapping[str, Any] = {
    "xla_dump_hlo_as_text": True,
    "xla_dump_hlo_as_long_text": True,
    "xla_dump_hlo_pass_re": "shardy-xla|spmd-partitioning",
}
_PARTITIONED = re.compile(r"after_(tpu-)?spmd-partitioning\.")
_ALLOCATION = re.compile(r"^allocation \d+: size (?P<size>\d+)(?:, color (?P<color>\d+))?(?P<told>.*):$", re.MULTILINE)
_ROLES = {
    "parameter": "argument_size_in_bytes",
    "maybe-live-out": "output_size_in_bytes",
    "preallocated-temp": "temp_size_in_bytes",
}
_ROOM_BYTES = 1 << 20
_FINAL = ("*after_codegen.txt", "*after_optimizations.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumps:
    """Texts that one compile wrote; None where it wrote none.

    Attributes:
        before_propagation: The module that Shardy was about to propagate, in MLIR.
        partitioned: The HLO right after the partitioner, with the collectives as it put them.
        final: The HLO as it is run.
        memory_bytes: What the arrays take in a device's main memory, as far as the buffer assignment tells, by the
            field names of `jax.stages.Compiled.memory_analysis`; empty where there is none.
    """

    before_propagation: str | None = None
    partitioned: str | None = None
    final: str | None = None
    memory_bytes: Mapping[str, int] = field(default_factory=dict)


@contextmanager
def dump_folder(options: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Path | None]]:
    """Compiler options that make one compile write its dumps, and their folder, which lives as long as the block.

    A folder of its own for each compile, because XLA numbers the modules of a process. Users who give `xla_dump_to`
    themselves keep their dumps, and there is no folder.

    Source: XLA's debug options in xla.proto; a pass pattern selects the text before and after the passes it matches.
    """
    if "xla_dump_to" in options:
        yield dict(options), None
        return
    with tempfile.TemporaryDirectory(prefix="hloscope-", ignore_cleanup_errors=True) as folder:
        yield {**options, **_OPTIONS, "xla_dump_to": folder}, Path(folder)


def full_temporary_folder() -> str | None:
    """The folder for temporary files, if there is no room left in it."""
    folder = tempfile.gettempdir()
    try:
        return folder if shutil.disk_usage(folder).free < _ROOM_BYTES else None
    except OSError:
        return None


def read_dumps(folder: Path | None) -> Dumps:
    """The texts that matter, out of all that a compile wrote."""
    if folder is None:
        return Dumps()
    partitioned = [path for path in folder.glob("*.txt") if _PARTITIONED.search(path.name)]
    final = next((found for pattern in _FINAL if (found := sorted(folder.glob(pattern)))), [])
    return Dumps(
        before_propagation=_largest(folder.glob("shardy/*/01.before_propagation.mlir")),
        partitioned=_largest(partitioned),
        final=_largest(final),
        memory_bytes=_memory_bytes(_largest(folder.glob("*after_optimizations-buffer-assignment.txt")) or ""),
    )


def _memory_bytes(assignment: str) -> dict[str, int]:
    """Sums of a buffer assignment's allocations in the memory of color 0, the device's main one.

    Source: `BufferAllocation::ToString` of xla/service/buffer_assignment.cc.
    """
    found = dict.fromkeys(_ROLES.values(), 0)
    allocations = [one for one in _ALLOCATION.finditer(assignment) if one["color"] in (None, "0")]
    for allocation in allocations:
        roles = [role for role in _ROLES if role in allocation["told"]]
        for role in roles:
            found[_ROLES[role]] += int(allocation["size"])
        if len(roles) > 1 and "parameter" in roles:
            found["alias_size_in_bytes"] = found.get("alias_size_in_bytes", 0) + int(allocation["size"])
    return {"alias_size_in_bytes": 0, **found} if allocations else {}


def _largest(paths: Iterator[Path] | list[Path]) -> str | None:
    """The text of the largest file: a compile may also write dumps of small modules of its own."""
    found = max(paths, key=lambda path: path.stat().st_size, default=None)
    return None if found is None else found.read_text(encoding="utf-8", errors="replace")
