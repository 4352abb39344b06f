"""XLA dump folders (`xla_dump_to`): their final modules, and the other files of each.

XLA names a file by its module and by when it was written: `module_0092.jit_step.cl_933746096.after_codegen.txt` on TPU,
`….cpu_after_optimizations.txt` on CPUs, `….sm_8.0_gpu_after_optimizations.txt` on GPUs, each also as `.hlo.pb`; any of
them may have been compressed since. A dump holds dozens of other files for each module, of which listing it reads none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from hloscope.errors import TargetError
from hloscope.messages import Option, say
from hloscope.shown import Brief
from hloscope.units import pluralize

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

    @cached_property
    def _of_name(self) -> dict[str, list[DumpedModule]]:
        found: dict[str, list[DumpedModule]] = {}
        for module in self.modules:
            for name in module.names:
                found.setdefault(name, []).append(module)
        return found

    def named(self, name: str) -> DumpedModule:
        """The module with a name: its own, with or without `jit_`, its number, or its file.

        Raises:
            TargetError: There is no such module, or several.
        """
        found = self._of_name.get(name.strip(), [])
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


def is_folder(target: object) -> bool:
    """Returns whether a target is a folder: only dumps are named by one."""
    return isinstance(target, str | Path) and bool(str(target)) and Path(target).is_dir()


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
    chosen = _choose_best_files(_match_files(files, _FINAL)) or _choose_best_files(_match_files(files, _PLAIN))
    if not chosen:
        raise _make_no_modules_error(root, files, notes)
    modules = [_make_module(match, path, root) for match, path in chosen]
    modules.sort(key=lambda module: (-1 if module.size_bytes is None else module.size_bytes, module.file), reverse=True)
    return Dump(folder=root, modules=tuple(modules), notes=tuple(notes))


_Found = tuple[re.Match[str], Path]


def _match_files(files: Iterable[Path], pattern: re.Pattern[str]) -> Iterator[_Found]:
    for path in files:
        match = pattern.fullmatch(path.name)
        if match is not None:
            yield match, path


def _choose_best_files(found: Iterable[_Found]) -> list[_Found]:
    """The most informative file of each module, the quickest to read first; an empty file only if it is alone."""
    best: dict[tuple[Path, str], tuple[tuple[bool, bool, bool, bool], _Found]] = {}
    for match, path in found:
        groups = match.groupdict()
        rank = (
            _find_size(path) <= 0,
            groups.get("stage", "after_codegen") != "after_codegen",
            "pb" in groups["ending"],
            groups["compressed"] is not None,
        )
        key = (path.parent, groups.get("module") or groups["name"])
        if key not in best or rank < best[key][0]:
            best[key] = rank, (match, path)
    return [chosen for _, chosen in best.values()]


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
    seen: set[tuple[int, int]] = set()
    waiting = [(folder, 0)]
    while waiting:
        here, depth = waiting.pop()
        try:
            status = here.stat()
            entries = sorted(os.scandir(here), key=attrgetter("name"))
        except OSError as error:
            if here == folder:
                raise TargetError(
                    f"the folder {folder} cannot be read", why=error.strerror, fix="check its permissions"
                ) from None
            notes.append(f"the folder {here.relative_to(folder)} cannot be read: {error.strerror}")
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            if not entry.is_dir():
                if entry.is_file() or entry.is_symlink():  # no pipes, on which reading would wait for ever
                    yield Path(entry.path)
            elif not _MODULES_OWN_FOLDER.fullmatch(entry.name) and depth < _DEEPEST:
                waiting.append((Path(entry.path), depth + 1))


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
    count = (
        f"it contains {pluralize(len(files), 'file')}, none with the name that XLA gives a final module"
        if files
        else None
    )
    why = "; ".join([count or "it is empty", *notes])
    return TargetError(f"{folder} contains no compiled module", why=why, fix=fix)
