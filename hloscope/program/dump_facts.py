"""The facts about a module in the other files of its dump: slice, mesh, memory, and earlier stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hloscope.compiler.shardy_model import ShardyModule
from hloscope.compiler.step import PARTITIONED, memory_of_assignment
from hloscope.errors import SliceError
from hloscope.program.capture import Mesh
from hloscope.program.dumps import DumpedModule
from hloscope.program.shardy_meshes import shardy_meshes
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
"""Of a file with settings."""
_HEADER_BYTES = 1 << 18
"""Where the meshes stand in the text of a module before optimization, and in MLIR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What lies beside a module in its dump, or is known of JAX's compiled program beside its text.

    Attributes:
        said_by: Who says so: `dump` or `compiled`.
        slice: What it was compiled for; None where the dump does not say.
        device_ids: The device of each partition; empty where the dump does not say.
        partitions: Partitions of the program; None where the dump does not say.
        meshes: Meshes of the program as JAX lowered it, with the user's names.
        memory_bytes: As `Compiled.memory_bytes`; of a dump without the code.
        partitioned: The module right after the partitioner; None where that pass was not dumped.
        before_propagation: The module that Shardy was about to propagate, in MLIR; None where it was not dumped.
        lowered: The module as JAX lowered it, in MLIR; None where it is not there.
        shardy: What Shardy makes of one of these; None where it was not, or could not be, asked.
        shardy_as_written: As `Compiled.shardy_as_written`.
        notes: What could not be found out, one sentence each.
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
        """The first mesh of so many devices."""
        return next((mesh for mesh in self.meshes if mesh.device_count == devices > 1), None)


def slice_of(module: DumpedModule) -> Slice | None:
    """The slice that a module was compiled for, as libtpu writes down beside it; None where it does not."""
    text = _text(module.beside("target_arguments.txt"), _MOST_BYTES)
    said = {(match["version"], match["variant"] or "", _edges(match)) for match in _ARGUMENTS.finditer(text)}
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


def _edges(match: re.Match[str]) -> tuple[int, ...]:
    """Chips along each axis: those of a host times the hosts."""
    host, hosts = dict(_EDGE.findall(match["host"])), dict(_EDGE.findall(match["hosts"]))
    return tuple(int(host.get(axis, 1)) * int(hosts.get(axis, 1)) for axis in "xyz")


def facts_beside(module: DumpedModule, *, on_the_way: bool = True) -> Beside:
    """What a dump says beside a module's text; what cannot be read is as if it were not there.

    Args:
        module: The module.
        on_the_way: Whether to read what it was before it was compiled, which reasons need.
    """
    options = _text(module.beside("execution_options.txt"), _MOST_BYTES)
    devices = tuple(int(device) for device in _DEVICE.findall(options))
    header = _text(module.as_jax_lowered_it, _HEADER_BYTES)
    partitions = _PARTITIONS.search(options) or _PARTITIONS.search(header)
    return Beside(
        slice=slice_of(module),
        device_ids=devices if sorted(devices) == list(range(len(devices))) else (),
        partitions=int(partitions[1] or partitions[2]) if partitions is not None else None,
        meshes=tuple(dict.fromkeys((*shardy_meshes(header), *_meshes_before(module)))),
        memory_bytes=memory_of_assignment(
            _text(module.beside(f"{module.on}after_optimizations-buffer-assignment.txt"))
        ),
        partitioned=(_text(module.matching(PARTITIONED)) or None) if on_the_way else None,
        before_propagation=(_text(module.before_propagation) or None) if on_the_way else None,
        lowered=(_text(module.as_jax_lowered_it) or None) if on_the_way else None,
    )


def _meshes_before(module: DumpedModule) -> Iterator[Mesh]:
    """The meshes that the module names before optimization, whose text alone keeps them where JAX's is not there."""
    return shardy_meshes(_text(module.beside("before_optimizations.txt"), _HEADER_BYTES))


def _text(path: Path | None, most: int = -1) -> str:
    """The text of a file, or its beginning; empty where there is none or it cannot be read."""
    if path is None:
        return ""
    try:
        with path.open("rb") as stream:
            return stream.read(most).decode("utf-8", errors="replace")
    except OSError:
        return ""
