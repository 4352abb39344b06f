"""XLA dump folders (`xla_dump_to`): their final modules, and the other files of each.

XLA names a file by its module and by when it was written: `module_0092.jit_step.cl_933746096.after_codegen.txt` on TPU,
`….cpu_after_optimizations.txt` on CPUs, `….sm_8.0_gpu_after_optimizations.txt` on GPUs, each also as `.hlo.pb`; any of
them may have been compressed since. A dump holds dozens of other files for each module, of which listing it reads none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from hloscope.base.errors import Option, SliceError, TargetError, say
from hloscope.base.results import Brief
from hloscope.base.units import pluralize
from hloscope.model.capture import Mesh, ShardyModule
from hloscope.tpu.chips import find_chip_in_dump
from hloscope.tpu.slices import Slice

_FINAL = re.compile(
    r"(?P<stem>(?P<module>(?:.+\.)?module_(?P<number>\d+)\.(?P<name>.+?))(?:\.cl_\d+)?)"
    r"\.(?P<stage>after_codegen|(?P<on>[A-Za-z]\w*?(?:\.\d+\w*)?_)?after_optimizations)"
    r"\.(?P<ending>txt|hlo|pb|hlo\.pb)(?P<compressed>\.(?:gz|gzip|xz|zst|zstd))?"
)
"""Source: `FilenameFor` and `DumpHloModule` in xla/service/dump.cc; dumps of JAX 0.10 and 0.12 for TPU and CPU."""

_PLAIN = re.compile(r"(?P<name>.+?)\.(?P<ending>hlo|hlo\.txt|hlo\.pb)(?P<compressed>\.(?:gz|gzip|xz|zst|zstd))?")
"""HLO files that XLA did not name, for folders that hold no file named by XLA."""

_EARLIER = re.compile(r"(?:.+\.)?module_\d+\..+\.before_optimizations\.(?:txt|hlo\.pb|pb)")
_MODULES_OWN_FOLDER = re.compile(r"module_\d+\..+|shardy")
_DEEPEST = 4
"""The depth of nested folders: one for each process or each run."""
_MOST_NAMED = 8
"""The most modules that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DumpedModule(Brief):
    """One final module of a dump.

    Attributes:
        name: Name of the module, such as `jit_step`.
        number: The number that XLA gave it, as printed: `0092`; empty for files that XLA did not name.
        path: The file that holds it: as text if there is such a file, and after code generation, which shows most.
        file: The same path, relative to the dump's folder.
        platform: `tpu`, `gpu` or `cpu`, from the file's name; None if the name does not show it.
        size_bytes: Size of the file; None when it cannot be read.
        prefix: Number and name, as all its files' names have them: `module_0092.jit_step`.
        stem: The start of its files' names, before a dot: `module_0092.jit_step.cl_933746096`.
        on: The prefix of its stage: `cpu_`, `sm_8.0_gpu_`, and empty on TPU.
    """

    name: str
    number: str
    path: Path
    file: str
    platform: str | None
    size_bytes: int | None
    prefix: str
    stem: str
    on: str

    @property
    def label(self) -> str:
        """A name that is unique even if several modules share a name: `module_0092.jit_step`, with its folder."""
        return str(Path(self.file).parent / self.prefix)

    @property
    def names(self) -> frozenset[str]:
        """All names that identify the module."""
        number = {self.number, self.number.lstrip("0") or "0", f"module_{self.number}"} if self.number else set()
        return frozenset(
            {self.name, self.name.removeprefix("jit_"), self.label, self.prefix, self.file, self.path.name, *number}
        )

    def beside(self, ending: str) -> Path | None:
        """The file of the same module whose name has this ending in place of the stage; None if there is none."""
        path = self.path.with_name(f"{self.stem}.{ending}")
        return path if self.number and path.is_file() else None

    def matching(self, pattern: re.Pattern[str]) -> Path | None:
        """The largest text file of the same module whose name matches, or None. It searches the folder."""
        try:
            names = sorted(os.listdir(self.path.parent)) if self.number else []
        except OSError:
            return None
        own = (name for name in names if name.startswith(f"{self.stem}.") and name.endswith(".txt"))
        return max((self.path.with_name(name) for name in own if pattern.search(name)), key=_find_size, default=None)

    @property
    def as_jax_lowered_it(self) -> Path | None:
        """The module as JAX passed it to the compiler, in MLIR, from a subfolder, or None."""
        path = self.path.with_name(self.stem) / "module.mlir"
        return path if self.number and path.is_file() else None

    @property
    def before_propagation(self) -> Path | None:
        """The module before Shardy's propagation, in MLIR, if that pass was dumped, or None."""
        path = self.path.parent / "shardy" / self.prefix / "01.before_propagation.mlir"
        return path if self.number and path.is_file() else None


def _find_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


@dataclass(frozen=True, kw_only=True)
class Dump:
    """A folder with final modules.

    Attributes:
        folder: The folder.
        modules: Its final modules, the largest first; those that cannot be read last.
        notes: The parts that could not be read, one sentence each.
    """

    folder: Path
    modules: tuple[DumpedModule, ...]
    notes: tuple[str, ...] = ()

    def named(self, name: str) -> DumpedModule:
        """The module with a name: its own, with or without `jit_`, its number, or its file.

        Raises:
            TargetError: There is no such module, or several.
        """
        found = [module for module in self.modules if name.strip() in module.names]
        exact = [module for module in found if module.name == name.strip()] or found
        if len(exact) == 1:
            return exact[0]
        labels = [module.label for module in exact or self.modules]
        listed = ", ".join(labels[:_MOST_NAMED]) + (
            f" and {len(labels) - _MOST_NAMED} more" if len(labels) > _MOST_NAMED else ""
        )
        if exact:
            raise TargetError(
                f"{len(exact)} modules in {self.folder} are named {name}",
                why=f"they are {listed}",
                fix=say("name one of these, such as ", Option("only", exact[0].label)),
            )
        raise TargetError(
            f"no module in {self.folder} is named {name}", why=f"it contains {listed}", fix="name one of them"
        )


def find_dumped_module(path: str | Path) -> DumpedModule | None:
    """The module in a file, identified by the file's name; None if the name is not one that XLA gives in a dump."""
    file = Path(path)
    match = _FINAL.fullmatch(file.name)
    return None if match is None else _make_module(match, file, file.parent)


def read_dump(folder: str | Path) -> Dump:
    """Reads the list of final modules in a folder and its subfolders, from the files' names and sizes.

    Raises:
        TargetError: The folder cannot be read, or holds no final module.
    """
    notes: list[str] = []
    root, files = Path(folder), list(_find_files(Path(folder), notes))
    chosen = _choose_best_files(files, _FINAL) or _choose_best_files(files, _PLAIN)
    if not chosen:
        raise _make_no_modules_error(root, files, notes)
    modules = [_make_module(match, path, root) for match, path in chosen]
    modules.sort(key=lambda module: (-1 if module.size_bytes is None else module.size_bytes, module.file), reverse=True)
    return Dump(folder=root, modules=tuple(modules), notes=tuple(notes))


def _choose_best_files(files: Iterable[Path], pattern: re.Pattern[str]) -> list[tuple[re.Match[str], Path]]:
    """The most informative file of each module, the quickest to read first; an empty file only if it is alone."""

    def rank(found: tuple[re.Match[str], Path]) -> tuple[bool, ...]:
        match, path = found
        is_early = match.groupdict().get("stage", "after_codegen") != "after_codegen"
        return _find_size(path) <= 0, is_early, "pb" in match["ending"], match["compressed"] is not None

    best: dict[tuple[Path, str], tuple[re.Match[str], Path]] = {}
    matches = [(match, path) for path in files if (match := pattern.fullmatch(path.name)) and _can_be_read(path)]
    for match, path in sorted(matches, key=rank):
        best.setdefault((path.parent, match.groupdict().get("module") or match["name"]), (match, path))
    return list(best.values())


def _can_be_read(path: Path) -> bool:
    """Returns whether a file is not a pipe, on which reading would wait for ever."""
    return path.is_file() or path.is_symlink()


def _make_module(match: re.Match[str], path: Path, root: Path) -> DumpedModule:
    groups, size = match.groupdict(), _find_size(path)
    return DumpedModule(
        name=groups["name"],
        number=groups.get("number") or "",
        path=path,
        file=str(path.relative_to(root)),
        platform=_find_platform(groups),
        size_bytes=None if size < 0 else size,
        prefix=groups.get("module") or groups["name"],
        stem=groups.get("stem") or groups["name"],
        on=groups.get("on") or "",
    )


def _find_platform(groups: dict[str, str | None]) -> str | None:
    """The platform of a final module, from its file's name: on TPU nothing precedes the stage."""
    if not groups.get("number"):
        return None
    on = groups.get("on") or ""
    return "gpu" if "gpu" in on else "cpu" if "cpu" in on else None if on else "tpu"


def _find_files(folder: Path, notes: list[str]) -> Iterator[Path]:
    """The files in a folder and its subfolders, except the folders that XLA makes for one module; each folder once."""

    def note(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise TargetError(
                f"the folder {folder} cannot be read", why=error.strerror, fix="check its permissions"
            ) from None
        notes.append(f"the folder {Path(error.filename).relative_to(folder)} cannot be read: {error.strerror}")

    seen: set[tuple[int, int]] = set()
    for here, folders, names in os.walk(folder, onerror=note, followlinks=True):
        status, depth = os.stat(here), len(Path(here).relative_to(folder).parts)
        is_deeper = depth < _DEEPEST and (status.st_dev, status.st_ino) not in seen
        folders[:] = sorted(name for name in folders if is_deeper and not _MODULES_OWN_FOLDER.fullmatch(name))
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from (Path(here, name) for name in sorted(names))


def _make_no_modules_error(folder: Path, files: Sequence[Path], notes: Sequence[str]) -> TargetError:
    """The error that explains why a folder cannot be analyzed."""
    earlier = sum(_EARLIER.fullmatch(path.name) is not None for path in files)
    fix = (
        "name a folder written with XLA_FLAGS=--xla_dump_to=DIR or the compiler option xla_dump_to=DIR, or write "
        "FILE.py:FUNCTION"
    )
    if earlier:
        return TargetError(
            f"{folder} contains no compiled module",
            why=f"it contains {pluralize(earlier, 'module')} before optimization: the compile failed or was stopped, "
            "or the final modules were left out of the dump",
            fix="dump again, and let the compile finish",
        )
    count = f"it contains {pluralize(len(files), 'file')}, none with the name that XLA gives a final module"
    why = "; ".join([count if files else "it is empty", *notes])
    return TargetError(f"{folder} contains no compiled module", why=why, fix=fix)


# ---- meshes as Shardy prints them, in the attributes of HLO text and in MLIR

_MESH = re.compile(
    r"(?:#sdy\.mesh|\bsdy\.mesh @[\w.$-]+ =\s*)"
    r"<\[(?P<axes>[^\]]*)\](?:\s*,\s*device_ids\s*=\s*\[(?P<ids>[^\]]*)\])?\s*>"
)
_AXIS = re.compile(r'\\?"(?P<name>(?:[^"\\]|\\.)+?)\\?"\s*=\s*(?P<size>\d+)')


def find_shardy_meshes(text: str) -> Iterator[Mesh]:
    """The meshes in a text, in order, without axis types and without meshes that have no axes."""
    for match in _MESH.finditer(text):
        ids = tuple(map(int, re.findall(r"\d+", match["ids"] or "")))
        yield from make_named_mesh(_parse_axes(match), ids or None)


def count_shardy_mesh_devices(text: str) -> list[int]:
    """The number of devices of each mesh in a text, including meshes that cannot be used."""
    return [prod(size for _, size in _parse_axes(match)) for match in _MESH.finditer(text)]


def make_named_mesh(axes: Sequence[tuple[str, int]], ids: tuple[int, ...] | None) -> Iterator[Mesh]:
    """A mesh of named axes, unless there are no axes or two have the same name.

    Args:
        axes: Names and sizes, major first.
        ids: The partition at each position; None for 0, 1, 2, …
    """
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    if not axes or len(set(names)) != len(names):
        return
    if ids is not None and (ids == tuple(range(prod(sizes))) or len(ids) != prod(sizes)):
        ids = None
    yield Mesh(axis_names=names, axis_sizes=sizes, partition_ids=ids)


def _parse_axes(match: re.Match[str]) -> list[tuple[str, int]]:
    return [(axis["name"], int(axis["size"])) for axis in _AXIS.finditer(match["axes"])]


# ---- the facts about a module in the other files of its dump: slice, mesh, memory, and earlier stages

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
    from hloscope.compile.stages import PARTITIONED_DUMP, sum_assignment_memory

    options = _read_text(module.beside("execution_options.txt"), _MOST_BYTES)
    devices = tuple(int(device) for device in _DEVICE.findall(options))
    header = _read_text(module.as_jax_lowered_it, _HEADER_BYTES)
    # only the text before optimization keeps the meshes if JAX's own module is missing
    earlier = _read_text(module.beside("before_optimizations.txt"), _HEADER_BYTES)
    partitions = _PARTITIONS.search(options) or _PARTITIONS.search(header)
    return ModuleFacts(
        slice=find_dumped_slice(module),
        device_ids=devices if sorted(devices) == list(range(len(devices))) else (),
        partitions=int(partitions[1] or partitions[2]) if partitions is not None else None,
        meshes=tuple(dict.fromkeys((*find_shardy_meshes(header), *find_shardy_meshes(earlier)))),
        memory_bytes=sum_assignment_memory(
            _read_text(module.beside(f"{module.on}after_optimizations-buffer-assignment.txt"))
        ),
        partitioned=(_read_text(module.matching(PARTITIONED_DUMP)) or None) if on_the_way else None,
        before_propagation=(_read_text(module.before_propagation) or None) if on_the_way else None,
        lowered=(_read_text(module.as_jax_lowered_it) or None) if on_the_way else None,
    )


def _read_text(path: Path | None, most: int = -1) -> str:
    """The text of a file, or its beginning; empty if there is none or it cannot be read."""
    if path is None:
        return ""
    try:
        with path.open("rb") as stream:
            return stream.read(most).decode("utf-8", errors="replace")
    except OSError:
        return ""
