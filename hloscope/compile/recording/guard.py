"""The guard of the user's files and services: decides which calls may pass, and lists those that may not."""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from types import FrameType, ModuleType
from typing import Any, Literal, TypeVar

from hloscope.base.environment import is_library
from hloscope.base.store import open_default_store
from hloscope.compile.importing import format_path
from hloscope.compile.recording.overlay import Overlay, Path, lies_in, make_os_error

T = TypeVar("T")
Outcome = Literal["redirected", "refused", "skipped", "stood in for", "ran unseen"]
"""The outcome of a call: done in the scratch folder; raised an error; did nothing, and answered as if it had; handled
by a stand-in that keeps nothing; or carried out, with writes that hloscope cannot see."""

_HOME = os.path.dirname(__file__)
_DOORS = frozenset(f"{_HOME}/{name}.py" for name in ("guard", "overlay", "writes", "libraries", "checkpoints"))
_RUNNER = f"{_HOME}/scripts.py"
"""Calls the script: a command of an installed package has no line of the user's own."""
_PACKAGE = os.path.dirname(os.path.dirname(_HOME)) + "/"
_STANDARD = os.path.dirname(os.__file__) + "/"
_CACHES_OF_JAX = ("jax/_src/compilation_cache.py", "jax/_src/lru_cache.py", "jax/_src/gfile_cache.py")
_ALWAYS_REAL = ("/dev/", "/proc/", "/sys/")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_ABSENT = object()
_CAPABILITIES = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids)
"""The functions of `os` that take certain arguments."""


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """Calls that would have changed something of the user's.

    Attributes:
        what: The function, as the user knows it: `open`, `os.remove`, `wandb.init`.
        destination: The path, address or command that it was given; empty if none.
        outcome: The outcome of the call.
        went_to: The file in the scratch folder; None if nothing was written.
        place: The user's line, `train.py:31`, or the name of the thread if none of the user's lines runs in it.
        times: Number of calls.
    """

    what: str
    destination: str
    outcome: Outcome
    went_to: str | None
    place: str
    times: int = 0


class WriteLog:
    """The calls that were redirected or not carried out.

    Args:
        scratch: The folder that holds what was redirected; removed when the recording ends.
        begin_faking: Called right before the first output is faked, to redirect files that are open for writing.
    """

    def __init__(self, scratch: str, begin_faking: Callable[[], None]) -> None:
        self.scratch = scratch
        self.faking_begins = begin_faking
        self._times: Counter[WriteEntry] = Counter()
        self._lock = threading.RLock()

    @property
    def entries(self) -> tuple[WriteEntry, ...]:
        """One entry per function, destination, outcome and line, in the order of their first calls."""
        with self._lock:
            return tuple(replace(entry, times=times) for entry, times in self._times.items())

    def add(self, what: str, destination: str, outcome: Outcome, went_to: str | None, place: str) -> None:
        """Lists a call."""
        with self._lock:
            self._times[WriteEntry(what, destination, outcome, went_to, place)] += 1


class FakedWriteError(PermissionError):
    """A write that can neither be redirected nor skipped would have harmed something of the user's."""


class _Inside(threading.local):
    on = False


class Guard:
    """Decides which calls pass, replaces functions, and restores them when the recording ends.

    Args:
        is_faked: Whether an array is a faked one.
        scratch: A folder of its own.
    """

    def __init__(self, is_faked: Callable[[Any], bool], scratch: str) -> None:
        self.is_faked = is_faked
        self.is_on = True
        self.mirror = os.path.join(scratch, "files")
        os.mkdir(self.mirror)
        self.overlay = Overlay(self.mirror)
        self.log = WriteLog(scratch, self.begin)
        self.lock = threading.RLock()
        self._beginning = threading.Lock()
        self.at_first_fake: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], object]] = []
        self.was_live = False
        """Whether anything has been faked and prepared for, even if the recording is over."""
        self._inside = _Inside()
        # hloscope's frames among these run the script; they do not write for hloscope.
        self._frames = frozenset(walk_frames(sys._getframe(1)))
        store = open_default_store()
        kept = [scratch, *([] if store is None else [str(store.folder)])]
        self._real = {os.path.realpath(folder) for folder in kept}
        self._temporary = os.path.realpath(tempfile.gettempdir())

    def begin(self) -> None:
        """Treats outputs as faked from now on.

        Writes of other threads pass until the preparations are done: they wait for saves that began before.
        """
        if not self._beginning.acquire(blocking=False):
            return
        try:
            if self.is_on and not self.was_live:
                for prepare in self.at_first_fake:
                    self.apart(prepare)
                self.was_live = True
        finally:
            self._beginning.release()

    def apart(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls a function of hloscope's own, for which nothing is guarded."""
        before, self._inside.on = self._inside.on, True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside.on = before

    def is_apart(self) -> bool:
        """Whether this thread runs a function of hloscope's own, or the recording is over."""
        return self._inside.on or not self.is_on

    def takes_over(self) -> bool:
        """Whether a write of the caller must not go where it is meant to go."""
        return self.was_live and not self.is_hloscopes()

    def find_readable(self, path: Path, dir_fd: int | None = None, *, follow: bool = True) -> Path | str:
        """The place to read a path; the path itself if nothing in it was redirected."""
        if not self.overlay.is_used or isinstance(path, int) or self.is_apart():
            return path
        with self.lock:
            try:
                name = self.overlay.resolve(path, dir_fd, follow=follow)
            except (OSError, ValueError, TypeError):
                return path
            place = self.overlay.locate(name)
        return path if place == name and not self.overlay.starts_above(path, dir_fd) else place

    def find_guarded(self, path: Path, dir_fd: int | None = None, *, follow: bool = True) -> str | None:
        """The name of a path that must not be written; None if the call may pass."""
        if self.is_apart() or isinstance(path, int) or not self.was_live:
            return None
        try:
            name = self.overlay.resolve(path, dir_fd, follow=follow)
        except (OSError, ValueError, TypeError):
            return None  # the real function reports what is wrong with it
        if self.is_real(name) or self.is_hloscopes():
            return None
        if self._is_made_by_tempfile(name):
            self._real.add(name)
            return None
        return name

    def is_real(self, name: str) -> bool:
        """Whether a name belongs to the machine, to hloscope or to a cache."""
        if name.startswith(_ALWAYS_REAL) or "/__pycache__/" in name or name.endswith("/__pycache__"):
            return True
        if any(lies_in(name, folder) for folder in [*self._real, *self.apart(_find_caches_of_jax)]):
            return True
        with suppress(OSError, ValueError):
            mode = self.apart(os.stat, self.overlay.locate(name)).st_mode
            return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        return False

    def _is_made_by_tempfile(self, name: str) -> bool:
        if os.path.dirname(name) != self._temporary or self.overlay.exists(name):
            return False
        caller = next(_walk_callers(), None)
        return caller is not None and caller.f_code.co_filename == tempfile.__file__

    def redirect(self, what: str, path: Path, *, copied: bool, dir_fd: int | None = None) -> str | None:
        """The place to write a path; None if the path may be written as it is.

        Args:
            what: The function that writes, for the list.
            path: Any path.
            copied: Whether to keep the present content.
            dir_fd: The folder that a relative path starts in; None for the working folder.

        Raises:
            OSError: The folder of the file is missing.
        """
        name = self.find_guarded(path, dir_fd)
        if name is None:
            return None
        if not self.overlay.is_folder(os.path.dirname(name)):
            raise make_os_error(errno.ENOENT, path)
        place = self.change(None, partial(self.overlay.prepare, copied=copied), name)
        if not lies_in(os.fsdecode(path), self.mirror):
            self.note(what, name, "redirected", place)
        return place

    def change(self, path: Any, change: Callable[..., T], *names: str) -> T:
        """Changes or lists the overlay, with errors that name the path that the user gave; None to leave them."""
        with self.lock:
            changed: T = name_in_errors(path, self.apart, change, *names)
            return changed

    def is_hloscopes(self) -> bool:
        """Whether the caller is hloscope, or JAX for its own cache."""
        return self._find_caller() is None

    def find_place(self) -> str:
        """The user's line that runs, or the name of the thread."""
        return self._find_caller() or f"thread {threading.current_thread().name}"

    def _find_caller(self) -> str | None:
        """The user's innermost line, empty if there is none; None if hloscope's own code is further inside."""
        for frame in _walk_callers():
            kind = _classify(frame.f_code.co_filename)
            if kind == "runner" or (kind == "hloscope" and frame in self._frames):
                return ""
            if _is_users(frame):
                return f"{self.apart(_shorten, frame.f_code.co_filename)}:{frame.f_lineno}"
            if kind in ("hloscope", "cache"):
                return None
        return ""

    def note(self, what: str, destination: object, outcome: Outcome, went_to: str | None = None) -> None:
        """Lists a call."""
        self.log.add(what, str(destination), outcome, went_to, self.find_place())

    def replace(self, holder: Any, name: Any, replacement: Any) -> None:
        """Replaces an attribute, or a value of a mapping, until the recording ends."""
        is_table = isinstance(holder, MutableMapping)
        table: Mapping[Any, Any] = holder if is_table else vars(holder)
        put = holder.__setitem__ if is_table else partial(setattr, holder)
        before = table.get(name, _ABSENT)

        def restore() -> None:
            if table.get(name) != replacement:
                return  # the user has replaced it again
            if before is not _ABSENT:
                put(name, before)
            elif is_table:
                del holder[name]
            else:
                delattr(holder, name)

        self.at_end.append(restore)
        put(name, replacement)

    def wrap(self, holder: Any, name: str, handle: Callable[..., Any], *, everywhere: bool = False) -> None:
        """Routes calls of a function through `handle(real, *args, **kwargs)` until the recording ends.

        A replacement that user code keeps calls the real function afterwards.

        Args:
            holder: A module or a class.
            name: Name of the function.
            handle: Called with the real function first.
            everywhere: Whether to replace it in all modules that imported it by this name.
        """
        real = getattr(holder, name)

        @functools.wraps(real)
        def door(*args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs) if self.is_apart() else handle(real, *args, **kwargs)

        if isinstance(holder, type) and not isinstance(vars(holder).get(name), staticmethod | classmethod):
            self.replace(holder, name, door)
            return
        # A class that holds a built-in function does not bind it, and neither does it bind a static method.
        fixed = staticmethod(door)
        self.replace(holder, name, fixed)
        if everywhere:
            self.replace_imported(holder, name, real, fixed)
        for capable in _CAPABILITIES:
            if real in capable:
                capable.add(fixed)
                self.at_end.append(partial(capable.discard, fixed))

    def replace_imported(self, home: Any, name: str, real: Any, replacement: Any) -> None:
        """Replaces what other modules imported from a module by its own name."""
        for module in list(sys.modules.values()):
            if module is not home and isinstance(module, ModuleType) and vars(module).get(name) is real:
                self.replace(module, name, replacement)

    def undo(self) -> None:
        """Ends the guard and restores everything, in the reverse order; Ctrl-C takes effect afterwards."""
        self.is_on, stopped = False, None
        while self.at_end:
            try:
                with suppress(Exception):
                    self.at_end[-1]()
                self.at_end.pop()
            except KeyboardInterrupt as error:
                stopped = error
        self._frames = frozenset()
        if stopped is not None:
            raise stopped


def opens_for_writing(mode: object, flags: object = None) -> bool:
    """Whether a file that is opened with a mode, or with flags of `os.open`, can be written."""
    if isinstance(flags, int):
        return bool(flags & _WRITING) and not (_NAMELESS and flags & _NAMELESS == _NAMELESS)
    return isinstance(mode, str) and mode not in ("r", "rb", "rt") and any(letter in mode for letter in "wax+")


def name_in_errors(path: Any, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Calls a function, whose errors name the path that the user gave; None to leave them."""
    try:
        return function(*args, **kwargs)
    except OSError as error:
        if error.filename is not None and path is not None:
            error.filename = path
        raise


def is_in_hloscope() -> bool:
    """Whether this thread runs code of hloscope's."""
    return any(_classify(frame.f_code.co_filename) == "hloscope" for frame in walk_frames(sys._getframe()))


def is_standard(file: str) -> bool:
    """Whether a source file belongs to Python's own library."""
    return file.startswith(("<frozen", _STANDARD)) and "-packages" not in file


def is_called_by_user() -> bool:
    """Whether the user's code, rather than a library, called the function that was replaced."""
    caller = next(_walk_callers(), None)
    return caller is not None and _is_users(caller)


def walk_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _walk_callers() -> Iterator[FrameType]:
    """The frames of this thread outside the guard, innermost first."""
    return (frame for frame in walk_frames(sys._getframe(1)) if frame.f_code.co_filename not in _DOORS)


def _is_users(frame: FrameType) -> bool:
    return _classify(frame.f_code.co_filename) == "user" or frame.f_globals.get("__name__") == "__main__"


@cache
def _classify(file: str) -> str:
    """The owner of a source file."""
    if file in _DOORS:
        return "door"
    if file == _RUNNER:
        return "runner"
    if file.startswith(_PACKAGE):
        return "hloscope"
    if file.endswith(_CACHES_OF_JAX):
        return "cache"
    return "library" if is_library(file) else "user"


_shorten = cache(format_path)


def _find_caches_of_jax() -> list[str]:
    jax = sys.modules.get("jax")
    folder = getattr(getattr(jax, "config", None), "jax_compilation_cache_dir", None)
    return [os.path.realpath(folder)] if folder else []
