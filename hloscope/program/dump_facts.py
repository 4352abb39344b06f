"""The facts about a module in the other files of its dump: slice, mesh, memory, and earlier stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hloscope.compiler.shardy_model import ShardyModule
from hloscope.compiler.step import PARTITIONED_DUMP, sum_assignment_memory
from hloscope.errors import SliceError
from hloscope.program.capture import Mesh
from hloscope.program.dumps import DumpedModule
from hloscope.program.shardy_meshes import find_shardy_meshes
from hloscope.tpu.chips import find_chip_in_dump
from hloscope.tpu.slices import Slice

_ARGUMENTS = re.compile(
    r'tpu_topology_args \{\s*version: TPU_VERSION_(?P<version>\w+)(?:\s*variant: "(?P<variant>\w*)")?'
    r"[^{}]*chips_per_host_bounds \{(?P<host>[^{}]*)\}\s*host_bounds \{(?P<hosts>[^{}]*)\}"
)
_EDGE = re.compile(r"\b([xyz]): (\d+)")
_DEVICE = re.compile(r"computation_devices \{\s*replica_device_ids: (\d+)\s*\}")
_PARTITIONS = re.compile(r"^num_partitions: (\d+)$|\bmhlo\.num_partitions = (\d+)\b", re.MULTILINE)
_MOST_BYTES = 1 << 20
"""The largest settings file that is read."""
_HEADER_BYTES = 1 << 18
"""The part of a module's text, before optimization or in MLIR, that holds the meshes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """The facts about a module from the other files of its dump, or from JAX's compiled program.

    Attributes:
        said_by: The source of the facts: `dump` or `compiled`.
        slice: The slice it was compiled for; None if the dump does not name it.
        device_ids: The device of each partition; empty if unknown.
        partitions: The number of partitions of the program; None if unknown.
        meshes: Meshes of the program as JAX lowered it, with the user's names.
        memory_bytes: As `CompiledProgram.memory_bytes`; without the code for a dump.
        partitioned: The module right after the partitioner; None if that pass was not dumped.
        before_propagation: The module before Shardy's propagation, in MLIR; None if it was not dumped.
        lowered: The module as JAX lowered it, in MLIR; None if missing.
        shardy: Shardy's output for one of these; None if Shardy was not, or could not be, asked.
        shardy_as_written: As `CompiledProgram.shardy_as_written`.
        notes: The facts that could not be determined, one sentence each.
    """

    said_by: str = "dump"
    slice: Slice | None = None
    device_ids: tuple[int, ...] = ()
    partitions: int | None = None
    meshes: tuple[Mesh, ...] = ()
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    partitioned: str | None = None
    before_propagation: str | None = None
    lowered: str | None = None
    shardy: ShardyModule | None = None
    shardy_as_written: ShardyModule | None = None
    notes: tuple[str, ...] = ()

    def mesh_of(self, devices: int) -> Mesh | None:
        """The first mesh with this number of devices, or None."""
        return next((mesh for mesh in self.meshes if mesh.device_count == devices > 1), None)


def find_dumped_slice(module: DumpedModule) -> Slice | None:
    """The slice that a module was compiled for, from libtpu's file in the dump, or None if there is none."""
    text = _read_text(module.beside("target_arguments.txt"), _MOST_BYTES)
    said = {
        (match["version"], match["variant"] or "", _count_chips_per_axis(match)) for match in _ARGUMENTS.finditer(text)
    }
    if len(said) != 1:  # slices of several kinds, or nothing that is understood
        return None
    (version, variant, edges), slices = said.pop(), max(text.count("slice_info {"), 1)
    chip = find_chip_in_dump(f"{version} {variant}".strip())
    if chip is None:
        return None
    try:
        return Slice(chip=chip, shape=edges[: chip.torus_dimensions], slice_count=slices)
    except SliceError:
        return None


def _count_chips_per_axis(match: re.Match[str]) -> tuple[int, ...]:
    """The chips along each axis: those of a host times the number of hosts."""
    host, hosts = dict(_EDGE.findall(match["host"])), dict(_EDGE.findall(match["hosts"]))
    return tuple(int(host.get(axis, 1)) * int(hosts.get(axis, 1)) for axis in "xyz")


def read_module_facts(module: DumpedModule, *, on_the_way: bool = True) -> ModuleFacts:
    """Reads the facts about a module from the other files of its dump; unreadable files count as missing.

    Args:
        module: The module.
        on_the_way: Whether to read the earlier stages of the module, which reasons need.
    """
    options = _read_text(module.beside("execution_options.txt"), _MOST_BYTES)
    devices = tuple(int(device) for device in _DEVICE.findall(options))
    header = _read_text(module.as_jax_lowered_it, _HEADER_BYTES)
    partitions = _PARTITIONS.search(options) or _PARTITIONS.search(header)
    return ModuleFacts(
        slice=find_dumped_slice(module),
        device_ids=devices if sorted(devices) == list(range(len(devices))) else (),
        partitions=int(partitions[1] or partitions[2]) if partitions is not None else None,
        meshes=tuple(dict.fromkeys((*find_shardy_meshes(header), *_find_earlier_meshes(module)))),
        memory_bytes=sum_assignment_memory(
            _read_text(module.beside(f"{module.on}after_optimizations-buffer-assignment.txt"))
        ),
        partitioned=(_read_text(module.matching(PARTITIONED_DUMP)) or None) if on_the_way else None,
        before_propagation=(_read_text(module.before_propagation) or None) if on_the_way else None,
        lowered=(_read_text(module.as_jax_lowered_it) or None) if on_the_way else None,
    )


def _find_earlier_meshes(module: DumpedModule) -> Iterator[Mesh]:
    """The meshes in the module before optimization: only its text keeps them if JAX's own module is missing."""
    return find_shardy_meshes(_read_text(module.beside("before_optimizations.txt"), _HEADER_BYTES))


def _read_text(path: Path | None, most: int = -1) -> str:
    """The text of a file, or its beginning; empty if there is none or it cannot be read."""
    if path is None:
        return ""
    try:
        with path.open("rb") as stream:
            return stream.read(most).decode("utf-8", errors="replace")
    except OSError:
        return ""
