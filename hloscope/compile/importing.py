"""The user's modules by name: imported for hloscope alone, again after a file was edited, and removed afterwards."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import random
import re
import signal
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple, NoReturn

from hloscope.base.environment import find_cell, is_library
from hloscope.base.errors import ImmediateExit
from hloscope.compile.client import count_interruptions, note_interruption

# ---- the state of the process: one call at a time, and everything restored afterwards
#
# It comprises settings, environment, loggers, folder and path; signal handlers, warnings, hooks and random numbers.

_LOCK = threading.RLock()


_at_begin = threading.local()
"""The state at the start of this thread's call."""


@contextmanager
def isolate_call(*, of_a_block: bool = False) -> Iterator[None]:
    """Lets one thread at a time import, trace and compile, and undoes the changes of user code to the process.

    JAX's devices, settings and caches, Python's modules and its path belong to the whole process.

    Args:
        of_a_block: Whether the call is a block of the user's own script, which continues afterwards with its
            random numbers, handlers and hooks.
    """
    _at_begin.interruptions = count_interruptions()
    with _LOCK:
        raise_if_interrupted()
        before = read_process_state(_PARTS_OF_BLOCKS if of_a_block else _PARTS)
        try:
            yield
        except KeyboardInterrupt as error:
            note_interruption(error)
            raise
        finally:
            restore_process_state(before)


def raise_if_interrupted() -> None:
    """Ends the call of this thread if Ctrl-C was pressed since it began.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    if count_interruptions() != getattr(_at_begin, "interruptions", 0):
        raise KeyboardInterrupt


@contextmanager
def keep_streams() -> Iterator[None]:
    """Undoes the changes of user code to the standard streams; for the code alone, since all threads share them."""
    before = sys.stdin, sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


_exit = os._exit
_may_not_exit = threading.local()
"""Has the number of this process while this thread runs the user's code."""


@contextmanager
def refuse_exit() -> Iterator[None]:
    """Makes `os._exit` of the user's code raise in this thread; a process that the code forks may end."""
    before = os._exit, getattr(_may_not_exit, "process", None)
    os._exit, _may_not_exit.process = _refuse_exit, os.getpid()
    try:
        yield
    finally:
        os._exit, _may_not_exit.process = before


def _refuse_exit(status: int) -> NoReturn:
    """Stands for `os._exit`, also where the user's code has taken it for later, as with `from os import _exit`."""
    if getattr(_may_not_exit, "process", None) == os.getpid():
        raise ImmediateExit(status)
    _exit(status)


ProcessState = Mapping[str, Mapping[Any, Any]]
"""The parts of a process that user code may change: the values of each part by their own names."""


class _Part(NamedTuple):
    """A part of the process's state.

    Attributes:
        values: Returns its current values, by name.
        change: Sets one of them.
    """

    values: Callable[[], Mapping[Any, Any]]
    change: Callable[[Any, Any], object]


def _change_path(_: str, entries: tuple[str, ...]) -> None:
    sys.path[:] = entries


def _change_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _read_folder() -> dict[str, str]:
    with suppress(OSError):
        return {"": os.getcwd()}
    return {}  # there is none any more


def _change_folder(_: str, folder: str) -> None:
    with suppress(OSError):
        os.chdir(folder)


def _read_settings() -> dict[str, Any]:
    import jax

    return dict(jax.config.values)


def _change_setting(name: str, value: Any) -> None:
    import jax

    jax.config.update(name, value)


def _read_loggers() -> dict[logging.Logger, tuple[Any, ...]]:
    known = [logging.root, *logging.root.manager.loggerDict.values()]
    return {
        logger: (logger.level, tuple(logger.handlers), logger.propagate, logger.disabled)
        for logger in known
        if isinstance(logger, logging.Logger)
    }


def _change_logger(logger: logging.Logger, state: tuple[Any, ...]) -> None:
    level, handlers, logger.propagate, logger.disabled = state
    logger.setLevel(level)
    logger.handlers[:] = handlers


def _read_handlers() -> dict[int, Any]:
    found = {int(number): signal.getsignal(number) for number in signal.valid_signals()} if _is_main_thread() else {}
    return {number: handler for number, handler in found.items() if handler is not None}  # None is nothing of Python's


def _change_handler(number: int, handler: Any) -> None:
    if number == getattr(signal, "SIGALRM", None):
        signal.setitimer(signal.ITIMER_REAL, 0)  # it was for the handler that goes
    with suppress(OSError, ValueError):
        signal.signal(number, handler)


def _is_main_thread() -> bool:
    """Returns whether this is the main thread, which owns handlers and the user's random numbers; others keep them."""
    return threading.current_thread() is threading.main_thread()


def _change_warnings(_: str, state: tuple[Any, ...]) -> None:
    filters, warnings.showwarning = state
    in_use: Any = warnings.filters  # a list, which typeshed does not promise
    in_use[:] = filters
    with warnings.catch_warnings():  # whose end says that the filters are others
        pass


def _read_umask() -> dict[str, int]:
    """The permissions that new files do not get; asking Python would change the mask for a moment, in all threads."""
    with suppress(OSError):
        with open("/proc/self/status", encoding="utf-8") as status:
            found = _UMASK.search(status.read(_STATUS_BYTES))
        return {"": int(found[1], 8)} if found else {}
    return {}


_UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)
_STATUS_BYTES = 256


def _read_arguments() -> dict[str, tuple[list[str], tuple[str, ...]]]:
    found = getattr(sys, "argv", None)
    return {} if found is None else {"": (found, tuple(found))}


def _change_arguments(_: str, state: tuple[list[str], tuple[str, ...]]) -> None:
    sys.argv, entries = state
    sys.argv[:] = entries


def _read_hooks() -> dict[str, Any]:
    return {name: getattr(sys, name) for name in ("excepthook", "displayhook", "unraisablehook")}


def _read_random_numbers() -> dict[str, Any]:
    if not _is_main_thread():
        return {}
    numpy = sys.modules.get("numpy.random")
    states: dict[str, Any] = {"python": random.getstate()}
    if numpy is not None:
        kind, keys, *others = numpy.get_state()
        states["numpy"] = (kind, tuple(keys.tolist()), *others)
    return states


def _change_random_numbers(whose: str, state: Any) -> None:
    if whose == "python":
        random.setstate(state)
    else:
        sys.modules["numpy.random"].set_state(state)


_PARTS = {
    "path": _Part(lambda: {"": tuple(sys.path)}, _change_path),
    "environment": _Part(lambda: dict(os.environ), _change_variable),
    "folder": _Part(_read_folder, _change_folder),
    "settings": _Part(_read_settings, _change_setting),
    "loggers": _Part(_read_loggers, _change_logger),
    "silenced": _Part(lambda: {"": logging.root.manager.disable}, lambda _, level: logging.disable(level)),
    "handlers": _Part(_read_handlers, _change_handler),
    "warnings": _Part(lambda: {"": (tuple(warnings.filters), warnings.showwarning)}, _change_warnings),
    "umask": _Part(_read_umask, lambda _, mask: os.umask(mask)),
    "arguments": _Part(_read_arguments, _change_arguments),
    "hooks": _Part(_read_hooks, lambda name, hook: setattr(sys, name, hook)),
    "recursion": _Part(lambda: {"": sys.getrecursionlimit()}, lambda _, limit: sys.setrecursionlimit(limit)),
    "random numbers": _Part(_read_random_numbers, _change_random_numbers),
}
_PARTS_OF_BLOCKS = ("path", "environment", "folder", "settings", "loggers", "silenced")
_PARTS_OF_MODULES = ("path", "environment", "settings", "recursion")
"""The parts that modules change on import, which are changed again whenever the modules are used again."""
_PARTS_WITH_NONE = ("environment", "settings")
"""The parts in which None counts: a variable that did not exist. What has come since in any other part may stay."""
PARTS_OF_ISOLATED_MODULES = (*_PARTS_OF_BLOCKS, "recursion")
"""The parts that are restored when modules are no longer used; the others stay until the call ends, for traces."""


def read_process_state(parts: Container[str] = _PARTS) -> ProcessState:
    """The current state of the process."""
    return {name: part.values() for name, part in _PARTS.items() if name in parts}


def restore_process_state(before: ProcessState) -> None:
    """Restores an earlier state of the process."""
    for name, values in before.items():
        _apply_changes(name, _find_differences(_PARTS[name].values(), values))


def find_changes_since(before: ProcessState) -> ProcessState:
    """The changes that modules made on import: additions to the path, variables and settings."""
    now = read_process_state(_PARTS_OF_MODULES)
    added = tuple(entry for entry in now["path"][""] if entry not in before["path"][""])
    return {"path": {"": added}, **{name: _find_differences(before[name], now[name]) for name in _PARTS_OF_MODULES[1:]}}


def repeat_changes(made: ProcessState) -> None:
    """Repeats the changes when the modules are used again."""
    sys.path[:0] = [entry for entry in made["path"][""] if entry not in sys.path]
    for name in _PARTS_OF_MODULES[1:]:
        _apply_changes(name, made[name])


def _apply_changes(part: str, changes: Mapping[Any, Any]) -> None:
    for name, value in changes.items():
        if value is not None or part in _PARTS_WITH_NONE:
            _PARTS[part].change(name, value)


def _find_differences(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, Any]:
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return changed | {name: None for name in before if name not in after}


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
        self._insides = tuple(folder.rstrip(os.sep) + os.sep for folder in self.folders)
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
        with self.entered(), keep_streams(), refuse_exit():
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
        if top in _SHARED_MODULES or not (top in tops or file.startswith(self._insides)):
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
        own = _list_own_files()
        return {name: sys.modules.pop(name) for name, file in own if self.covers(name, file, tops)}


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


def enter_modules_of(function: Callable[..., Any]) -> AbstractContextManager[None]:
    """Lets a function that was imported by its name import modules while it is called."""
    known = next((world for world in _isolated.values() if world.functions.get(id(function)) is function), None)
    return nullcontext() if known is None else known.entered()


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
        with suppress(Exception):  # some modules make their attributes up
            return str(next(iter(getattr(module, "__path__", ())), "")) or None
    return None


_libraries: dict[str, weakref.ref[ModuleType]] = {}
"""The modules that were found in a library, by name: most of thousands, asked for their files once."""


def _list_own_files() -> list[tuple[str, str]]:
    """The names of imported modules that belong to no library, with their source files."""
    found = []
    for name, module in list(sys.modules.items()):
        known = _libraries.get(name)
        if known is not None and known() is module:
            continue
        file = _find_source_file(module)
        if file is not None and is_library(file):
            with suppress(TypeError):  # some packages put an object of another kind into the table
                _libraries[name] = weakref.ref(module)
        elif file is not None:
            found.append((name, file))
    return found


def _read_stamp(file: str) -> _Stamp | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def format_path(filename: str) -> str:
    """A path as the user would write it: a notebook's cell, or relative to the current directory if below it."""
    cell = find_cell(filename)
    if cell is not None:
        return cell
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except ValueError:
        return filename
