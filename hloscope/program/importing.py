"""The user's modules by name: imported for hloscope alone, again when a file was edited, out of the way afterwards."""

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

from hloscope.cells import cell_of
from hloscope.program.surroundings import (
    OF_WORLDS,
    Surroundings,
    made_since,
    make_again,
    restore,
    streams_kept,
    surroundings,
)

_OURS = frozenset({"__main__", "__mp_main__", "hloscope", "jax", "jaxlib", "numpy"})
"""Modules that there is one of in a process."""

_Stamp = tuple[int, int, int]


class World:
    """The modules of one folder, apart from those that the user imported himself.

    Attributes:
        folders: Where they are imported from, before all other places.
        modules: Those that are imported, by name.
        functions: Those that were taken from them, by identity.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self.folders = tuple(dict.fromkeys(folders))
        self.modules: dict[str, ModuleType] = {}
        self.functions: dict[int, Callable[..., Any]] = {}
        self._asked_for: set[str] = set()
        self._conditions: Hashable = None
        self._stamps: dict[str, _Stamp | None] = {}
        self._changes: Surroundings | None = None
        self._is_entered = False

    def import_module(self, name: str, conditions: Hashable) -> ModuleType:
        """Imports a module, again where a file was edited since, or where it would see something else."""
        self._asked_for.add(name.partition(".")[0])
        if conditions != self._conditions or any(_stamp(file) != stamp for file, stamp in self._stamps.items()):
            self.modules, self.functions, self._stamps, self._changes = {}, {}, {}, None
            self._conditions = conditions
        importlib.invalidate_caches()
        with self.entered(), streams_kept():
            return importlib.import_module(name)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Lets Python find these modules in place of the user's own of the same names."""
        if self._is_entered:
            yield
            return
        before, finder = surroundings(OF_WORLDS), _Finder(self)
        aside = self._taken_out()
        sys.modules.update(self.modules)
        sys.path[:] = [*self.folders, *(entry for entry in sys.path if entry not in self.folders)]
        sys.meta_path.insert(0, finder)
        self._is_entered = True
        try:
            if self._changes is not None:
                make_again(self._changes)
            yield
        finally:
            self._is_entered = False
            sys.meta_path.remove(finder)
            self._changes = made_since(before)
            self.modules = self._taken_out()
            sys.modules.update(aside)
            restore(before)

    def covers(self, name: str, file: str, tops: Set[str]) -> bool:
        """Whether a module is the user's, and is or could be found in these folders.

        Args:
            name: Its name.
            file: Where it is from.
            tops: What these folders have to import, as `top_names` says.
        """
        top = name.partition(".")[0]
        if top in _OURS or not (top in tops or any(_is_below(file, folder) for folder in self.folders)):
            return False
        return not is_library(file)

    def top_names(self) -> Set[str]:
        """Names that the folders have, and those that were asked for."""
        there = {entry for folder in self.folders if os.path.isdir(folder) for entry in os.listdir(folder)}
        return self._asked_for | {entry.removesuffix(".py") for entry in there}

    def note(self, file: str) -> None:
        """Remembers the state of a file that is about to be read."""
        self._stamps[file] = _stamp(file)
        _reads[file] += 1

    def _taken_out(self) -> dict[str, ModuleType]:
        """Takes the modules that this world covers out of Python's table."""
        tops = self.top_names()
        places = [(name, _place(module)) for name, module in list(sys.modules.items())]
        return {name: sys.modules.pop(name) for name, place in places if place and self.covers(name, place, tops)}


_worlds: dict[Hashable, World] = {}
_reads: Counter[str] = Counter()
"""How often each file was imported here."""


def imported(name: str, folders: Sequence[str], together: Hashable, conditions: Hashable) -> tuple[ModuleType, World]:
    """A module of the user's, imported again where a file was edited since.

    Args:
        name: Its dotted name.
        folders: Where to look first.
        together: What it shares modules, and the settings that they make, with.
        conditions: What it may look at when it is imported: the devices, the mesh, the environment.
    """
    world = _worlds.setdefault((tuple(folders), together), World(folders))
    return world.import_module(name, conditions), world


def imported_files() -> dict[str, str]:
    """The file of each module that was imported here, by its name."""
    modules = ((name, module) for world in _worlds.values() for name, module in world.modules.items())
    return {name: file for name, module in modules if (file := _place(module)) is not None}


def was_imported_by_user(file: str) -> bool:
    """Whether a file is a module of the process that hloscope was called in."""
    return any(_place(module) == file for module in list(sys.modules.values()))


def was_imported_here(file: str) -> bool:
    """Whether a file was imported here more than once."""
    return _reads[file] > 1


@contextmanager
def modules_of(function: Callable[..., Any]) -> Iterator[None]:
    """Lets a function that was imported by its name import what it needs while it is called."""
    known = next((world for world in _worlds.values() if world.functions.get(id(function)) is function), None)
    with contextlib.nullcontext() if known is None else known.entered():
        yield


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and has those of a world read from their source."""

    def __init__(self, world: World) -> None:
        self._world = world

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if found is None or type(found.loader) is not importlib.machinery.SourceFileLoader or found.origin is None:
            return found
        if self._world.covers(name, found.origin, self._world.top_names()):
            found.loader = _FromSource(self._world, name, found.origin)
        return found


class _FromSource(importlib.machinery.SourceFileLoader):
    """Reads a module from its source: Python's kept bytecode misses an edit of the same length in the same second."""

    def __init__(self, world: World, name: str, file: str) -> None:
        super().__init__(name, file)
        self._world = world

    def get_code(self, fullname: str) -> CodeType | None:
        self._world.note(self.path)
        return self.source_to_code(self.get_data(self.path), self.path)


def _place(module: ModuleType | None) -> str | None:
    """Where a module is from; None for what is not Python source."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file if file.endswith(".py") else None
    if file is None:
        with contextlib.suppress(Exception):  # some modules make their attributes up
            return str(next(iter(getattr(module, "__path__", ())), "")) or None
    return None


def _stamp(file: str) -> _Stamp | None:
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
    """Whether a source file is Python's, a package's or hloscope's own."""
    return (
        filename.startswith(("<frozen", _OWN, _STANDARD)) or "site-packages" in filename or "dist-packages" in filename
    )


def shown_path(filename: str) -> str:
    """A path as the user would write it: a notebook's cell, or relative to the current directory when it lies below."""
    cell = cell_of(filename)
    if cell is not None:
        return cell
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except ValueError:
        return filename
