"""The user's modules by name: imported for hloscope alone, again after a file was edited, and removed afterwards."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from hloscope.cells import find_cell
from hloscope.program.surroundings import (
    PARTS_OF_ISOLATED_MODULES,
    ProcessState,
    find_changes_since,
    keep_streams,
    read_process_state,
    repeat_changes,
    restore_process_state,
)

_SHARED_MODULES = frozenset({"__main__", "__mp_main__", "hloscope", "jax", "jaxlib", "numpy"})
"""Modules that exist once in a process."""

_Stamp = tuple[int, int, int]


class IsolatedModules:
    """The modules of one folder, separate from those that the user has imported.

    Attributes:
        folders: The folders that are searched before all others.
        modules: The imported modules, by name.
        functions: The functions taken from them, by identity.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self.folders = tuple(dict.fromkeys(folders))
        self.modules: dict[str, ModuleType] = {}
        self.functions: dict[int, Callable[..., Any]] = {}
        self._asked_for: set[str] = set()
        self._conditions: Hashable = None
        self._stamps: dict[str, _Stamp | None] = {}
        self._changes: ProcessState | None = None
        self._is_entered = False

    def import_module(self, name: str, conditions: Hashable) -> ModuleType:
        """Imports a module, again if a file was edited since or if it would see other conditions."""
        self._asked_for.add(name.partition(".")[0])
        if conditions != self._conditions or any(_read_stamp(file) != stamp for file, stamp in self._stamps.items()):
            self.modules, self.functions, self._stamps, self._changes = {}, {}, {}, None
            self._conditions = conditions
        importlib.invalidate_caches()
        with self.entered(), keep_streams():
            return importlib.import_module(name)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes Python find these modules in place of the user's own modules of the same names."""
        if self._is_entered:
            yield
            return
        before, finder = read_process_state(PARTS_OF_ISOLATED_MODULES), _Finder(self)
        aside = self._taken_out()
        sys.modules.update(self.modules)
        sys.path[:] = [*self.folders, *(entry for entry in sys.path if entry not in self.folders)]
        sys.meta_path.insert(0, finder)
        self._is_entered = True
        try:
            if self._changes is not None:
                repeat_changes(self._changes)
            yield
        finally:
            self._is_entered = False
            sys.meta_path.remove(finder)
            self._changes = find_changes_since(before)
            self.modules = self._taken_out()
            sys.modules.update(aside)
            restore_process_state(before)

    def covers(self, name: str, file: str, tops: Set[str]) -> bool:
        """Returns whether a module is the user's and is, or could be, found in these folders.

        Args:
            name: Its name.
            file: Its source file.
            tops: The names that can be imported from these folders, from `top_names`.
        """
        top = name.partition(".")[0]
        if top in _SHARED_MODULES or not (top in tops or any(_is_below(file, folder) for folder in self.folders)):
            return False
        return not is_library(file)

    def top_names(self) -> Set[str]:
        """The names that can be imported from the folders, and those that were requested."""
        there = {entry for folder in self.folders if os.path.isdir(folder) for entry in os.listdir(folder)}
        return self._asked_for | {entry.removesuffix(".py") for entry in there}

    def note(self, file: str) -> None:
        """Remembers the state of a file before it is read."""
        self._stamps[file] = _read_stamp(file)
        _reads[file] += 1

    def _taken_out(self) -> dict[str, ModuleType]:
        """Takes the modules that this world covers out of Python's table."""
        tops = self.top_names()
        places = [(name, _find_source_file(module)) for name, module in list(sys.modules.items())]
        return {name: sys.modules.pop(name) for name, place in places if place and self.covers(name, place, tops)}


_isolated: dict[Hashable, IsolatedModules] = {}
_reads: Counter[str] = Counter()
"""The number of times each file was imported here."""


def import_isolated(
    name: str, folders: Sequence[str], together: Hashable, conditions: Hashable
) -> tuple[ModuleType, IsolatedModules]:
    """Imports a module of the user's, again if a file was edited since.

    Args:
        name: Its dotted name.
        folders: Where to look first.
        together: The key of the functions that share its modules, and the settings that these make.
        conditions: The conditions that its import may depend on: the devices, the mesh, the environment.
    """
    world = _isolated.setdefault((tuple(folders), together), IsolatedModules(folders))
    return world.import_module(name, conditions), world


def find_imported_files() -> dict[str, str]:
    """The file of each module that was imported here, by module name."""
    modules = ((name, module) for world in _isolated.values() for name, module in world.modules.items())
    return {name: file for name, module in modules if (file := _find_source_file(module)) is not None}


def was_imported_by_user(file: str) -> bool:
    """Returns whether a file is a module that the calling process has imported itself."""
    return any(_find_source_file(module) == file for module in list(sys.modules.values()))


def was_imported_here(file: str) -> bool:
    """Returns whether a file was imported here more than once."""
    return _reads[file] > 1


@contextmanager
def enter_modules_of(function: Callable[..., Any]) -> Iterator[None]:
    """Lets a function that was imported by its name import modules while it is called."""
    known = next((world for world in _isolated.values() if world.functions.get(id(function)) is function), None)
    with contextlib.nullcontext() if known is None else known.entered():
        yield


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and reads isolated modules from their source."""

    def __init__(self, world: IsolatedModules) -> None:
        self._world = world

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if found is None or type(found.loader) is not importlib.machinery.SourceFileLoader or found.origin is None:
            return found
        if self._world.covers(name, found.origin, self._world.top_names()):
            found.loader = _SourceLoader(self._world, name, found.origin)
        return found


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Reads a module from its source: Python's cached bytecode misses an edit of the same length in the same second."""

    def __init__(self, world: IsolatedModules, name: str, file: str) -> None:
        super().__init__(name, file)
        self._world = world

    def get_code(self, fullname: str) -> CodeType | None:
        self._world.note(self.path)
        return self.source_to_code(self.get_data(self.path), self.path)


def _find_source_file(module: ModuleType | None) -> str | None:
    """The source file of a module; None if it is not Python source."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file if file.endswith(".py") else None
    if file is None:
        with contextlib.suppress(Exception):  # some modules make their attributes up
            return str(next(iter(getattr(module, "__path__", ())), "")) or None
    return None


def _read_stamp(file: str) -> _Stamp | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _is_below(file: str, folder: str) -> bool:
    return file.startswith(folder.rstrip(os.sep) + os.sep)


_OWN = str(Path(__file__).parent.parent)
_STANDARD = str(Path(contextlib.__file__).parent)


def is_library(filename: str) -> bool:
    """Returns whether a source file belongs to Python, a package or hloscope."""
    return (
        filename.startswith(("<frozen", _OWN, _STANDARD)) or "site-packages" in filename or "dist-packages" in filename
    )


def format_path(filename: str) -> str:
    """A path as the user would write it: a notebook's cell, or relative to the current directory if below it."""
    cell = find_cell(filename)
    if cell is not None:
        return cell
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except ValueError:
        return filename
