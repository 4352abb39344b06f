"""The guard of the user's files and services: decides which calls may pass, and lists those that may not."""

from __future__ import annotations

import functools
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from types import FrameType, MethodType, ModuleType
from typing import Any, Literal, TypeVar

from hloscope.program.importing import is_library, shown_path
from hloscope.program.recording.overlay import Overlay, Path, lies_in
from hloscope.store import default_store

T = TypeVar("T")
Outcome = Literal["redirected", "refused", "skipped", "stood in for", "ran unseen"]
"""What became of a call: it was done in the scratch folder; it raised an error; it did nothing, and answered as if it
had; something that keeps nothing took its part; it went ahead, and hloscope cannot see what it wrote."""

_HOME = os.path.dirname(__file__)
_DOORS = frozenset(
    f"{_HOME}/{name}.py" for name in ("guard", "overlay", "file_doors", "library_doors", "checkpoints", "writes")
)
_RUNNER = f"{_HOME}/scripts.py"
"""Calls the script: a command of an installed package has no line of the user's."""
_PACKAGE = os.path.dirname(os.path.dirname(_HOME)) + "/"
_STANDARD = os.path.dirname(os.__file__) + "/"
_OF_JAX = ("jax/_src/compilation_cache.py", "jax/_src/lru_cache.py", "jax/_src/gfile_cache.py")
_ALWAYS_REAL = ("/dev/", "/proc/", "/sys/")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEntry:
    """Calls that would have changed something of the user's.

    Attributes:
        what: The function, as the user knows it: `open`, `os.remove`, `wandb.init`.
        destination: The path, address or command that it was given; empty where it has none.
        outcome: What became of it.
        went_to: The file in the scratch folder; None where nothing was written.
        place: The user's line, `train.py:31`, or the name of the thread where none of his lines runs.
        times: How often.
    """

    what: str
    destination: str
    outcome: Outcome
    went_to: str | None
    place: str
    times: int


class WriteLog:
    """The list of what did not go where it was to go.

    Args:
        scratch: The folder that holds what was redirected; removed when the recording ends.
        on_first_fake: What is done then.
    """

    def __init__(self, scratch: str, on_first_fake: Callable[[], None]) -> None:
        self.scratch = scratch
        self.faking_begins = on_first_fake
        """To be called right before the first output is faked: files that are open for writing are redirected then."""
        self._times: dict[tuple[Any, ...], int] = {}
        self._lock = threading.RLock()

    @property
    def entries(self) -> tuple[WriteEntry, ...]:
        """One for each function, destination, outcome and line, in the order in which they came first."""
        with self._lock:
            listed = list(self._times.items())
        names = ("what", "destination", "outcome", "went_to", "place")
        return tuple(WriteEntry(**dict(zip(names, key, strict=True)), times=times) for key, times in listed)

    def add(self, what: str, destination: str, outcome: Outcome, went_to: str | None, place: str) -> None:
        """Lists a call."""
        key = (what, destination, outcome, went_to, place)
        with self._lock:
            self._times[key] = self._times.get(key, 0) + 1


class FakedWriteError(PermissionError):
    """A write that can neither be redirected nor skipped would have harmed something of the user's."""


class _Inside(threading.local):
    on = False


class Guard:
    """Decides which calls pass, and puts what the doors replace in its place again.

    Args:
        has_faked: Whether an output was faked in this recording.
        is_faked: Whether an array is a faked one.
        scratch: A folder of its own.
    """

    def __init__(self, has_faked: Callable[[], bool], is_faked: Callable[[Any], bool], scratch: str) -> None:
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
        self._has_faked, self._is_live, self._is_beginning = has_faked, False, False
        self._inside = _Inside()
        self._frames = _frames_of_this_thread()
        store = default_store()
        kept = [scratch, *([] if store is None else [str(store.folder)])]
        self._real = {os.path.realpath(folder) for folder in kept}
        self._temporary = os.path.realpath(tempfile.gettempdir())

    def live(self) -> bool:
        """Whether anything was faked yet; at the first time, what is under way is seen to."""
        if self._is_live:
            return True
        if self._is_beginning or not self.is_on or not self._has_faked():
            return False
        self.begin()
        return self._is_live

    def was_live(self) -> bool:
        """Whether anything was faked, also when it is over."""
        return self._is_live

    def begin(self) -> None:
        """Takes outputs as faked from now on.

        What other threads write passes until it is done: a save that began before is waited for.
        """
        if not self._beginning.acquire(blocking=False):
            return
        try:
            if self.is_on and not self._is_live:
                self._is_beginning = True
                for see_to in self.at_first_fake:
                    self.apart(see_to)
                self._is_live = True
        finally:
            self._is_beginning = False
            self._beginning.release()

    def apart(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls a function of hloscope's own, which meets no door."""
        before, self._inside.on = self._inside.on, True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside.on = before

    def is_apart(self) -> bool:
        """Whether this thread is hloscope's for the moment, or the recording is over."""
        return self._inside.on or not self.is_on

    def seen(self, path: Path, dir_fd: int | None = None, *, follow: bool = True) -> Path | str:
        """Where a path is to be read: the path itself where nothing was redirected."""
        if not self.overlay.is_used or isinstance(path, int) or self.is_apart():
            return path
        with self.lock:
            try:
                name = self.overlay.name(path, dir_fd, follow=follow)
            except (OSError, ValueError, TypeError):
                return path
            place = self.overlay.place(name)
        return path if place == name and not self.overlay.is_lost(path, dir_fd) else place

    def target(self, path: Path, dir_fd: int | None = None, *, follow: bool = True) -> str | None:
        """The name of a path that may not be written; None where the call passes."""
        if self.is_apart() or isinstance(path, int) or not self.live():
            return None
        try:
            name = self.overlay.name(path, dir_fd, follow=follow)
        except (OSError, ValueError, TypeError):
            return None  # the real function says what is wrong with it
        if self.is_real(name) or self.is_ours():
            return None
        if self._is_made_by_tempfile(name):
            self._real.add(name)
            return None
        return name

    def is_real(self, name: str) -> bool:
        """Whether a name is the machine's, hloscope's or a cache's."""
        if name.startswith(_ALWAYS_REAL) or "/__pycache__/" in name or name.endswith("/__pycache__"):
            return True
        if any(lies_in(name, folder) for folder in [*self._real, *self.apart(_cache_of_jax)]):
            return True
        with suppress(OSError, ValueError):
            mode = self.apart(os.stat, self.overlay.place(name)).st_mode
            return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        return False

    def _is_made_by_tempfile(self, name: str) -> bool:
        if os.path.dirname(name) != self._temporary or self.overlay.exists(name):
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename in _DOORS:
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename == tempfile.__file__

    def is_ours(self) -> bool:
        """Whether the caller is hloscope, or JAX for its own cache."""
        return self._caller() is None

    def place(self) -> str:
        """The user's line that runs, or the name of the thread."""
        return self._caller() or f"thread {threading.current_thread().name}"

    def _caller(self) -> str | None:
        """The innermost line of the user's, empty where there is none; None where hloscope's is further inside."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            kind = _kind(frame.f_code.co_filename)
            if kind == "runner" or (kind == "hloscope" and frame in self._frames):
                return ""
            if kind == "user" or (kind != "door" and frame.f_globals.get("__name__") == "__main__"):
                return f"{self.apart(_shown, frame.f_code.co_filename)}:{frame.f_lineno}"
            if kind in ("hloscope", "cache"):
                return None
            frame = frame.f_back
        return ""

    def note(self, what: str, destination: object, outcome: Outcome, went_to: str | None = None) -> None:
        """Lists a call."""
        self.log.add(what, str(destination), outcome, went_to, self.place())

    def replace(self, holder: Any, name: str, replacement: Any) -> None:
        """Puts something in the place of an attribute until the recording ends."""
        before = vars(holder).get(name, _NONE)
        self.at_end.append(lambda: _put_back(holder, name, before, replacement))
        setattr(holder, name, replacement)

    def replace_in(self, table: dict[Any, Any], key: Any, replacement: Any) -> None:
        """Puts something in the place of a value of a table until the recording ends."""
        before, table[key] = table[key], replacement

        def put_back() -> None:
            if table.get(key) is replacement:
                table[key] = before

        self.at_end.append(put_back)

    def wrap(self, holder: Any, name: str, handle: Callable[..., Any], *, everywhere: bool = False) -> None:
        """Has calls of a function go through `handle(real, *args, **kwargs)` until the recording ends.

        What user code keeps of the replacement calls the real function afterwards.

        Args:
            holder: A module or a class.
            name: Of the function.
            handle: Called with the real function first.
            everywhere: Whether it is replaced in all modules that imported it by this name.
        """
        real = getattr(holder, name)
        if isinstance(holder, type):

            @functools.wraps(real)
            def door(*args: Any, **kwargs: Any) -> Any:
                return real(*args, **kwargs) if self.is_apart() else handle(real, *args, **kwargs)

            is_static = isinstance(vars(holder).get(name), staticmethod | classmethod)
            self.replace(holder, name, staticmethod(door) if is_static else door)
            return

        @functools.wraps(real)
        def function_door(guard: Guard, /, *args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs) if guard.is_apart() else handle(real, *args, **kwargs)

        fixed = MethodType(function_door, self)  # which takes no `self` as an attribute of a class, like a built-in one
        self.replace(holder, name, fixed)
        if everywhere:
            for module in list(sys.modules.values()):
                if module is not holder and isinstance(module, ModuleType) and vars(module).get(name) is real:
                    self.replace(module, name, fixed)
        for able in _ABLE:
            if real in able:
                able.add(fixed)
                self.at_end.append(partial(able.discard, fixed))

    def undo(self) -> None:
        """Ends it: everything is in its place again, in the reverse order; Ctrl-C waits until it is."""
        self._is_live = self._is_live or self._has_faked()
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


def _put_back(holder: Any, name: str, before: Any, replacement: Any) -> None:
    if vars(holder).get(name) is not replacement:
        return  # the user's own, put over it
    if before is _NONE:
        delattr(holder, name)
    else:
        setattr(holder, name, before)


_NONE = object()
_ABLE = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids)
"""Which of the functions of `os` take what."""


def runs_in_hloscope() -> bool:
    """Whether this thread is one of hloscope's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _kind(frame.f_code.co_filename) == "hloscope":
            return True
        frame = frame.f_back
    return False


def is_standard(file: str) -> bool:
    """Whether a source file is Python's own."""
    return file.startswith(("<frozen", _STANDARD)) and "-packages" not in file


def is_called_by_user() -> bool:
    """Whether the caller of a door is a line of the user's, rather than a library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _kind(frame.f_code.co_filename) == "door":
        frame = frame.f_back
    return frame is not None and (
        _kind(frame.f_code.co_filename) == "user" or frame.f_globals.get("__name__") == "__main__"
    )


@cache
def _kind(file: str) -> str:
    """Whose a source file is."""
    if file in _DOORS:
        return "door"
    if file == _RUNNER:
        return "runner"
    if file.startswith(_PACKAGE):
        return "hloscope"
    if file.endswith(_OF_JAX):
        return "cache"
    return "library" if is_library(file) else "user"


@cache
def _shown(file: str) -> str:
    return shown_path(file)


def _frames_of_this_thread() -> frozenset[FrameType]:
    """Those that were there before the recording: hloscope's among them run the script, and are not its writers."""
    found, frame = [], sys._getframe(1).f_back
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return frozenset(found)


def _cache_of_jax() -> list[str]:
    jax = sys.modules.get("jax")
    folder = getattr(getattr(jax, "config", None), "jax_compilation_cache_dir", None)
    return [os.path.realpath(folder)] if folder else []
