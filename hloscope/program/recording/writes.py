"""Nothing of the user's is harmed while a script runs on faked outputs: the front door of the guard.

What is faked reaches the user's files and services as text, bytes and numbers that nothing tells from real ones. So
from the first faked output on, whatever the script writes goes to a scratch folder that mirrors the file system, where
the script itself finds it again; what it removes or renames is gone for the script alone; checkpoint libraries that
write in C++ keep what they save in memory. Trackers are stood in for from the beginning: a run on a company's server is
harm too. Before the first fake all files are the script's own business. What the script
registered to be done at exit is not done once anything was faked: that would be after the recording.

The doors (`file_doors`, `library_doors`, `checkpoints`) are what a script calls; what slips past them, because it was
bound before or is called from C, meets a net of Python's audit events, which refuses with `FakedWriteError`. The hook
of the net cannot be taken away again, as Python has it; after the recording it returns at once.

What neither catches:

* code outside of Python that opens files itself and has no door here (OpenCV, Arrow's own writers, GNU dbm); it does
  not find by its path what was redirected, either;
* other processes, whose start is listed; those that are forked are guarded, and their lists are lost;
* what is sent over a socket, but by the trackers and stores that have doors;
* memory that was mapped to a file, and databases that were opened, before the first fake;
* descriptors of files that were opened for writing before the recording began: those opened in it are redirected at the
  first fake.
"""

from __future__ import annotations

import atexit
import fcntl
import io
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

from hloscope.errors import HloscopeError
from hloscope.messages import Option, say
from hloscope.program.recording.checkpoints import Blank, checkpoint_doors
from hloscope.program.recording.file_doors import FileDoors, writes
from hloscope.program.recording.guard import (
    FakedWriteError,
    Guard,
    WriteEntry,
    WriteLog,
    is_called_by_user,
    is_standard,
    runs_in_hloscope,
)
from hloscope.program.recording.library_doors import LateDoors, tracker_doors, writer_doors
from hloscope.program.recording.overlay import Path, lies_in

__all__ = ["FakedWriteError", "WriteEntry", "WriteLog", "writes_guarded"]

_one = threading.Lock()
_UNSEEN = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"})
_PATHS: dict[str, tuple[tuple[int, int], ...]] = {
    "open": ((0, -1),),
    "sqlite3.connect": ((0, -1),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, -1),),
}
"""Audit events that change paths: where among their arguments each is, and the folder that it begins in."""
_EVENTS = _UNSEEN | set(_PATHS)


@contextmanager
def writes_guarded(
    has_faked: Callable[[], bool],
    is_faked: Callable[[Any], bool],
    *,
    blank: Blank | None = None,
    allow_writes: bool = False,
) -> Iterator[WriteLog]:
    """Guards the user's files and services until the end, whatever ends it.

    Args:
        has_faked: Whether an output was faked yet; called often.
        is_faked: Whether an array, of JAX's or NumPy's, is a faked one.
        blank: Makes an array of a shape, a dtype and a sharding (None for NumPy's) with nothing in it, for what is
            restored from a checkpoint that was not written; of zeros in memory when not given.
        allow_writes: Lets everything be written; trackers of runs are stood in for all the same.

    Yields:
        What did not go where it was to go, so far; readable afterwards too.

    Raises:
        HloscopeError: Another recording is guarded.
    """
    if not _one.acquire(blocking=False):
        raise HloscopeError("another recording is in progress in this process", fix="end it before starting this one")
    with ExitStack() as stack:
        stack.callback(_one.release)
        scratch = os.path.realpath(tempfile.mkdtemp(prefix="hloscope-"))
        stack.callback(_remove, scratch, os.getpid())
        files = _OpenFiles()
        guard = Guard(has_faked, is_faked, scratch)
        guard.at_first_fake.append(lambda: files.redirect(guard))
        known = set(threading.enumerate())
        stack.callback(_net.leave, guard, known)
        stack.callback(files.put_back, guard)
        stack.callback(guard.undo)
        doors = FileDoors(guard, files.note)
        late = tracker_doors(guard, doors)
        if not allow_writes:
            doors.install()
            guard.wrap(atexit, "register", lambda real, *args, **kwargs: _register(guard, real, *args, **kwargs))
            late += [*writer_doors(guard, doors), *checkpoint_doors(guard, blank)]
            _net.enter(guard)
        LateDoors(late).install(guard)
        yield guard.log


class _AtExit:
    """What the script has done when the process ends, unless outputs were faked: that is after the recording."""

    def __init__(self, guard: Guard, function: Callable[..., Any]) -> None:
        self._guard, self._function = guard, function

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._guard.is_on or not self._guard.was_live():
            self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self._function == other

    def __hash__(self) -> int:
        return hash(self._function)


def _register(guard: Guard, real: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    real(_AtExit(guard, function) if is_called_by_user() else function, *args, **kwargs)
    return function


def _remove(scratch: str, process: int) -> None:
    if os.getpid() == process:  # a forked one may end the recording too
        shutil.rmtree(scratch, ignore_errors=True)


class _OpenFiles:
    """Files that the script opened for writing before anything was faked."""

    def __init__(self) -> None:
        self._opened: list[tuple[weakref.ref[Any] | int, str, str]] = []
        self._moved: list[tuple[int, int, str]] = []

    def note(self, opened: Any, path: Path, place: str) -> None:
        """Remembers one: a file object, or a descriptor; and the user's line."""
        with suppress(TypeError, OSError, ValueError):
            reference = opened if isinstance(opened, int) else weakref.ref(opened)
            self._opened.append((reference, os.path.realpath(os.fsdecode(path)), place))

    def _still_open(self) -> Iterator[tuple[Any, int, str, str]]:
        """(the file or its descriptor, the descriptor, path, the user's line)."""
        for reference, path, place in self._opened:
            opened = reference if isinstance(reference, int) else reference()
            with suppress(OSError, ValueError):
                descriptor = opened if isinstance(opened, int) else opened.fileno() if opened is not None else -1
                is_same = descriptor >= 0 and os.path.samestat(os.fstat(descriptor), os.stat(path))
                if is_same and fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR):
                    yield opened, descriptor, path, place

    def redirect(self, guard: Guard) -> None:
        """Has those that are still open go on in copies: the first output is faked now."""
        for opened, descriptor, path, place in self._still_open():
            name = guard.overlay.name(path)
            if guard.is_real(name):
                continue
            with suppress(OSError, ValueError):
                if not isinstance(opened, int):
                    opened.flush()
                copy = guard.overlay.written(name, copied=True)
                self._swap(descriptor, copy)
                guard.log.add("a file that was open", name, "redirected", copy, place)

    def _swap(self, descriptor: int, copy: str) -> None:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        other = os.open(copy, flags & (os.O_ACCMODE | os.O_APPEND))
        with suppress(OSError):
            os.lseek(other, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        self._moved.append((descriptor, os.dup(descriptor), copy))
        os.dup2(other, descriptor, inheritable=os.get_inheritable(descriptor))
        os.close(other)

    def put_back(self, guard: Guard) -> None:
        """Has them go on where they were, without what was written meanwhile."""
        for reference, *_ in self._opened:
            opened = None if isinstance(reference, int) else reference()
            with suppress(OSError, ValueError, AttributeError):
                if isinstance(opened, io.IOBase) and self._moved:
                    opened.flush()
        for descriptor, kept, copy in self._moved:
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), os.stat(copy)):
                    os.dup2(kept, descriptor, inheritable=os.get_inheritable(descriptor))
            os.close(kept)
        self._moved.clear()


class _Net:
    """The audit hook, which is added once; nothing is looked at while no recording is guarded."""

    def __init__(self) -> None:
        self.guard: Guard | None = None
        self.left: dict[int, frozenset[FrameType]] = {}
        self._is_added = False

    def enter(self, guard: Guard) -> None:
        """Watches for a guard."""
        if not self._is_added:
            sys.addaudithook(_heard)
            self._is_added = True
        self.guard = guard

    def leave(self, guard: Guard, known: set[threading.Thread]) -> None:
        """Watches no longer, but for what other threads still do that began meanwhile, with faked arrays in hand."""
        if self.guard is guard and guard.was_live():
            threads = {thread.ident for thread in threading.enumerate() if thread not in known}
            running = {number: top for number, top in sys._current_frames().items() if number in threads}
            self.left = {number: _work(top) for number, top in running.items()}
        self.guard = None

    def is_left(self) -> bool:
        """Whether this thread still does what it did when a recording ended; a pool's may do something else by now."""
        before = self.left.get(threading.get_ident())
        if before is None:
            return False
        if before & _work(sys._getframe(1)):
            return not runs_in_hloscope()
        del self.left[threading.get_ident()]
        return False


def _work(top: FrameType) -> frozenset[FrameType]:
    """The frames of a thread that are not of Python's own modules, which wait in pools and loops."""
    found: list[FrameType] = []
    frame: FrameType | None = top
    while frame is not None:
        if not is_standard(frame.f_code.co_filename) and frame.f_code.co_filename != __file__:
            found.append(frame)
        frame = frame.f_back
    return frozenset(found)


_net = _Net()


def _heard(event: str, args: tuple[Any, ...]) -> None:
    """Called for every event of the process: a plain function, which Python calls fastest."""
    if event not in _EVENTS:
        return
    guard = _net.guard
    if guard is None:
        changes = event in _PATHS and (event != "open" or writes(*args[1:3]))
        if changes and _net.left and _net.is_left():
            raise FakedWriteError(_words(args[_PATHS[event][0][0]]))
    elif event in _UNSEEN:
        if not guard.is_apart() and guard.live() and not guard.is_ours():
            guard.note(event, _command(args), "ran unseen")
    elif event != "open" or writes(*args[1:3]):
        for path, folder in _PATHS[event]:
            _refuse(guard, event, args[path], args[folder] if folder > 0 else None)


def _refuse(guard: Guard, what: str, path: Any, folder: int | None) -> None:
    if guard.is_apart() or path is None or isinstance(path, int) or path in ("", ":memory:", b""):
        return
    if lies_in(os.fsdecode(path), guard.log.scratch):
        return
    name = guard.target(path, None if folder == -1 else folder)
    if name is None or (what == "open" and guard.apart(os.path.isdir, name)):
        return
    guard.note(what, name, "refused")
    raise FakedWriteError(_words(name))


def _words(path: object) -> str:
    return say(
        f"{path} was not written: outputs are placeholders in this recording, so what is derived from them is "
        "meaningless; `",
        Option("allow-writes"),
        "` permits it",
    )


def _command(args: tuple[Any, ...]) -> str:
    words = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else args[:1]
    return " ".join(os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else str(word) for word in words)
