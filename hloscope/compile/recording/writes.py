"""The guard's entry: no file or service of the user's is harmed while a script runs on faked outputs.

Faked values reach the user's files and services as text, bytes and numbers that look like real ones. So, from the first
faked output on, everything that the script writes goes to a scratch folder that mirrors the file system, and the script
finds it there again. What it removes or renames disappears for the script alone. Checkpoint libraries that write in C++
keep what they save in memory. Trackers are replaced by stand-ins from the start: a run on a company's server is harm,
too. Before the first fake all files are the script's own business. Functions that the script registered to run at exit
do not run once anything was faked, because that would be after the recording.

The functions that a script calls are replaced by doors, here and in `libraries` and `checkpoints`. A call that misses
them, because it was bound before or comes from C, is caught by Python's audit events and refused with
`FakedWriteError`. Python cannot remove an audit hook, so it stays and returns at once after the recording.

Neither catches:

* code outside of Python that opens files itself and has no door (OpenCV, Arrow's own writers, GNU dbm); nor does such
  code find what was redirected;
* other processes, whose start is listed; forked ones are guarded, but their lists are lost;
* what is sent over a socket, except by the trackers and stores that have doors;
* memory that was mapped to a file, and databases that were opened, before the first fake;
* descriptors of files that were opened for writing before the recording began; those opened during it are redirected at
  the first fake.
"""

from __future__ import annotations

import _io
import atexit
import builtins
import errno
import fcntl
import gc
import glob
import io
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from hloscope.base.errors import HloscopeError, Option, say
from hloscope.compile.recording.checkpoints import Blank, checkpoint_doors
from hloscope.compile.recording.guard import (
    FakedWriteError,
    Guard,
    WriteEntry,
    WriteLog,
    is_called_by_user,
    is_in_hloscope,
    is_standard,
    name_in_errors,
    opens_for_writing,
    walk_frames,
)
from hloscope.compile.recording.libraries import install_when_imported, tracker_doors, turn_off_trackers, writer_doors
from hloscope.compile.recording.overlay import Path, lies_in, make_os_error

__all__ = ["FakedWriteError", "WriteEntry", "WriteLog", "writes_guarded"]

_Real = Callable[..., Any]
_one = threading.Lock()


@contextmanager
def writes_guarded(
    is_faked: Callable[[Any], bool],
    *,
    blank: Blank,
    allow_writes: bool = False,
) -> Iterator[WriteLog]:
    """Guards the user's files and services until the block ends, however it ends.

    Args:
        is_faked: Whether an array, of JAX's or NumPy's, is a faked one.
        blank: Makes an array of a shape, a dtype and a sharding (None for NumPy's) without content, to restore a
            checkpoint that was not written.
        allow_writes: Lets everything be written; trackers are replaced all the same.

    Yields:
        The calls that were redirected or not carried out so far; it can be read afterwards, too. Its `faking_begins`
        has to be called before the first output is faked.

    Raises:
        HloscopeError: Another recording is in progress.
    """
    if not _one.acquire(blocking=False):
        raise HloscopeError("another recording is in progress in this process", fix="end it before starting this one")
    with ExitStack() as stack:
        stack.callback(_one.release)
        scratch = os.path.realpath(tempfile.mkdtemp(prefix="hloscope-"))
        stack.callback(_remove_scratch, scratch, os.getpid())
        guard = Guard(is_faked, scratch)
        files = _OpenFiles(guard)
        guard.at_first_fake.append(files.redirect)
        stack.callback(_net.leave, guard, set(threading.enumerate()))
        stack.callback(files.restore)
        stack.callback(guard.undo)
        doors = tracker_doors(guard)
        if not allow_writes:
            _FileDoors(guard, files).install()
            guard.wrap(atexit, "register", partial(_register, guard))
            doors += [*writer_doors(guard), *checkpoint_doors(guard, blank)]
            _net.enter(guard)
        turn_off_trackers(guard)
        install_when_imported(guard, doors)
        yield guard.log


def _remove_scratch(scratch: str, process: int) -> None:
    if os.getpid() == process:  # a forked process may end the recording, too
        shutil.rmtree(scratch, ignore_errors=True)


class _AtExit:
    """A function that the script registered to run at exit; skipped once outputs were faked."""

    def __init__(self, guard: Guard, function: Callable[..., Any]) -> None:
        self._guard, self._function = guard, function

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._guard.is_on or not self._guard.was_live:
            self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self._function == other

    def __hash__(self) -> int:
        return hash(self._function)


def _register(guard: Guard, real: _Real, function: Any, *args: Any, **kwargs: Any) -> Any:
    real(_AtExit(guard, function) if is_called_by_user() else function, *args, **kwargs)
    return function


class _OpenFiles:
    """The files that the script opened for writing before anything was faked."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._opened: list[tuple[weakref.ref[Any] | int, str, str]] = []
        self._moved: list[tuple[int, int, str]] = []

    def remember(self, opened: Any, path: Path) -> None:
        """Adds a file object or a descriptor that the script opened, unless something has been faked."""
        if self._guard.was_live or self._guard.is_hloscopes():
            return
        with suppress(TypeError, OSError, ValueError):
            reference = opened if isinstance(opened, int) else weakref.ref(opened)
            self._opened.append((reference, os.path.realpath(os.fsdecode(path)), self._guard.find_place()))

    def _find_open(self) -> Iterator[tuple[Any, int, str, str]]:
        """(file object or descriptor, descriptor, path, user's line) of each file that is still open."""
        for reference, path, place in self._opened:
            opened = reference if isinstance(reference, int) else reference()
            with suppress(OSError, ValueError):
                descriptor = opened if isinstance(opened, int) else opened.fileno() if opened is not None else -1
                is_same = descriptor >= 0 and os.path.samestat(os.fstat(descriptor), os.stat(path))
                if is_same and fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR):
                    yield opened, descriptor, path, place

    def redirect(self) -> None:
        """Redirects the files that are still open to copies: the first output is about to be faked."""
        guard = self._guard
        for opened, descriptor, path, place in self._find_open():
            name = guard.overlay.resolve(path)
            if guard.is_real(name):
                continue
            with suppress(OSError, ValueError):
                if not isinstance(opened, int):
                    opened.flush()
                copy = guard.overlay.prepare(name, copied=True)
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

    def restore(self) -> None:
        """Directs the files to their own places again; what was written to the copies is lost."""
        for reference, *_ in self._opened if self._moved else ():
            opened = None if isinstance(reference, int) else reference()
            with suppress(OSError, ValueError):
                if isinstance(opened, io.IOBase):
                    opened.flush()
        for descriptor, kept, copy in self._moved:
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), os.stat(copy)):
                    os.dup2(kept, descriptor, inheritable=os.get_inheritable(descriptor))
            os.close(kept)
        self._moved.clear()


# The doors of Python's own functions for files. Reading costs one test until something has been written.

_READERS = "access chdir getxattr listxattr lstat pathconf readlink stat statvfs"
_ATTRIBUTES = "chflags chmod chown lchown removexattr setxattr utime"
_NOT_FOLLOWING = ("lstat", "readlink", "lchown")


class _FileDoors:
    """The doors of Python's own functions for files."""

    def __init__(self, guard: Guard, files: _OpenFiles) -> None:
        self._guard, self._overlay, self._files = guard, guard.overlay, files

    def install(self) -> None:
        """Replaces the functions until the guard's recording ends."""
        wrap = self._guard.wrap
        bound = _find_tables(builtins.open)
        for module in (builtins, io, _io):
            wrap(module, "open", self._open)
        for table, key in bound:
            self._guard.replace(table, key, io.open)
        for name, handle in self._doors_of_os():
            if hasattr(os, name):
                wrap(os, name, handle)
        wrap(shutil, "rmtree", self._rmtree)
        globber = getattr(glob, "_StringGlobber", None)  # Python 3.13 binds `os.scandir` when it imports this
        if globber is not None:
            self._guard.replace(globber, "scandir", staticmethod(os.scandir))
        self._guard.at_end.append(self._leave_mirror)

    def _doors_of_os(self) -> Iterator[tuple[str, _Real]]:
        """(name, handler) for each function of `os`."""
        overlay = self._overlay
        yield from ((name, partial(self._read, name)) for name in _READERS.split())
        yield from ((name, partial(self._change_attributes, name)) for name in _ATTRIBUTES.split())
        yield from ((name, partial(self._move, f"os.{name}")) for name in ("rename", "replace"))
        yield from ((name, lambda real: self._hide_mirror(real())) for name in ("getcwd", "getcwdb"))
        yield from ((name, partial(self._alter, "os.remove", overlay.remove, False)) for name in ("remove", "unlink"))
        yield "rmdir", partial(self._alter, "os.rmdir", overlay.rmdir, False)
        yield "mkdir", partial(self._alter, "os.mkdir", overlay.mkdir, True)
        yield "truncate", partial(self._write, "os.truncate", True)
        yield "mkfifo", partial(self._write, "os.mkfifo", False)
        yield "link", self._link
        yield "symlink", self._symlink
        yield "listdir", self._listdir
        yield "scandir", self._scandir
        yield "open", self._os_open

    def _hide_mirror(self, folder: Any) -> Any:
        name = self._overlay.make_absolute(folder)
        return os.fsencode(name) if isinstance(folder, bytes) else name

    def _leave_mirror(self) -> None:
        """Changes to the folder that the script believes to be in, or to the nearest one that exists."""
        name = self._overlay.make_absolute(".")
        if lies_in(os.path.realpath("."), self._guard.mirror):
            while not os.path.isdir(name):
                name = os.path.dirname(name)
            os.chdir(name)

    def _open(self, real: _Real, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int):
            return real(file, mode, *args, **kwargs)
        if not opens_for_writing(mode):
            return real(self._guard.find_readable(file) if self._overlay.is_used else file, mode, *args, **kwargs)
        if (len(args) > 5 or kwargs.get("opener") is not None) and self._guard.apart(os.path.isdir, file):
            return real(file, mode, *args, **kwargs)  # as `tempfile` does, whose opener makes a file in the folder
        self._check_new(file, "x" in mode)
        place = self._guard.redirect("open", file, copied=not set(mode) & set("wx"))
        opened = name_in_errors(file, real, file if place is None else place, mode, *args, **kwargs)
        if place is None:
            self._files.remember(opened, file)
        return opened

    def _os_open(self, real: _Real, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not opens_for_writing(None, flags):
            place = self._guard.find_readable(path, dir_fd)
            return int(real(place, flags, mode, dir_fd=dir_fd if place is path else None))
        self._check_new(path, bool(flags & os.O_EXCL), dir_fd)
        name = self._guard.find_guarded(path, dir_fd)
        if name is not None and not flags & os.O_CREAT and not self._overlay.exists(name):
            raise make_os_error(errno.ENOENT, path)
        copied = not flags & os.O_TRUNC
        redirected = None if name is None else self._guard.redirect("os.open", path, copied=copied, dir_fd=dir_fd)
        # The audit event does not have `dir_fd`, so the net could not decide about it.
        opened = int(self._guard.apart(real, redirected or path, flags, mode, dir_fd=None if redirected else dir_fd))
        if redirected is None:
            self._files.remember(opened, path)
        return opened

    def _check_new(self, path: Path, is_new: bool, dir_fd: int | None = None) -> None:
        name = self._guard.find_guarded(path, dir_fd, follow=False) if is_new else None
        if name is not None and self._overlay.exists(name):
            raise make_os_error(errno.EEXIST, path)

    def _read(self, name: str, real: _Real, path: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._overlay.is_used:
            return real(path, *args, **kwargs)
        follow = name not in _NOT_FOLLOWING and kwargs.get("follow_symlinks", True)
        place = self._guard.find_readable(path, kwargs.get("dir_fd"), follow=follow)
        if place is path:
            return real(path, *args, **kwargs)
        kwargs.pop("dir_fd", None)
        return name_in_errors(path, real, place, *args, **kwargs)

    def _write(self, what: str, copied: bool, real: _Real, path: Any, *args: Any, **kwargs: Any) -> Any:
        place = self._guard.redirect(what, path, copied=copied, dir_fd=kwargs.get("dir_fd"))
        if place is not None:
            kwargs.pop("dir_fd", None)
        return real(place or path, *args, **kwargs)

    def _list(self, path: Any) -> list[str] | None:
        """The entries of a folder that lies in two places; None for other folders, which the real function lists."""
        if isinstance(path, int) or not self._overlay.is_used:
            return None
        path = "." if path is None else path
        with self._guard.lock:
            name = self._overlay.resolve(path)
            return self._guard.change(path, self._overlay.listdir, name) if self._overlay.is_merged(name) else None

    def _listdir(self, real: _Real, path: Any = None) -> Any:
        names = self._list(path)
        if names is None:
            return real(path)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _scandir(self, real: _Real, path: Any = None) -> Any:
        names = self._list(path)
        return real(path) if names is None else _Entries("." if path is None else os.fspath(path), names)

    def _change_attributes(self, name: str, real: _Real, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Changes what lies above. What lies below would have to be copied for it, so that is skipped."""
        follow = name not in _NOT_FOLLOWING and kwargs.get("follow_symlinks", True)
        guarded = self._guard.find_guarded(path, kwargs.get("dir_fd"), follow=follow)
        if guarded is None:
            return real(path, *args, **kwargs)
        above = self._overlay.above(guarded)
        if self._guard.apart(os.path.lexists, above):
            kwargs.pop("dir_fd", None)
            return real(above, *args, **kwargs)
        if not self._overlay.exists(guarded):
            raise make_os_error(errno.ENOENT, path)
        self._guard.note(f"os.{name}", guarded, "skipped")
        return None

    def _change(
        self, what: str, path: Any, change: _Real, *names: str, made: str | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        """Changes the overlay, and lists what the call made and what of the user's it would have removed."""
        with self._guard.lock:
            skipped = [name for name in lost if self._overlay.is_below(name)]
            self._guard.change(path, change, *names)
        if made is not None:
            self._guard.note(what, made, "redirected", self._overlay.above(made))
        for name in skipped:
            self._guard.note(what, name, "skipped")

    def _rmtree(self, real: _Real, path: Any, ignore_errors: bool = False, *args: Any, **kwargs: Any) -> None:
        name = self._guard.find_guarded(path, kwargs.get("dir_fd"), follow=False)
        if name is None:
            real(path, ignore_errors, *args, **kwargs)
            return
        try:
            self._change("shutil.rmtree", path, self._overlay.rmtree, name, lost=(name,))
        except OSError as error:
            told = kwargs.get("onexc") or kwargs.get("onerror") or (args[0] if args else None)
            if told is not None:
                told(os.lstat, path, error if kwargs.get("onexc") else sys.exc_info())
            elif not ignore_errors:
                raise

    def _alter(self, what: str, change: _Real, makes: bool, real: _Real, path: Any, *args: Any, **kwargs: Any) -> None:
        """Makes or removes what has a name."""
        name = self._guard.find_guarded(path, kwargs.get("dir_fd"), follow=False)
        if name is None:
            real(path, *args, **kwargs)
        else:
            self._change(what, path, change, name, made=name if makes else None, lost=() if makes else (name,))

    def _link(self, real: _Real, src: Any, dst: Any, **kwargs: Any) -> None:
        name = self._guard.find_guarded(dst, kwargs.get("dst_dir_fd"), follow=False)
        if name is None:
            real(self._guard.find_readable(src, kwargs.get("src_dir_fd")), dst, **kwargs)
            return
        old = self._overlay.resolve(src, kwargs.get("src_dir_fd"))
        self._change("os.link", dst, self._overlay.link, old, name, made=name)

    def _symlink(self, real: _Real, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        make = partial(self._overlay.symlink, os.fsdecode(src))
        self._alter("os.symlink", make, True, partial(real, src), dst, *args, **kwargs)

    def _move(self, what: str, real: _Real, src: Any, dst: Any, **kwargs: Any) -> None:
        old = self._guard.find_guarded(src, kwargs.get("src_dir_fd"), follow=False)
        new = self._guard.find_guarded(dst, kwargs.get("dst_dir_fd"), follow=False)
        if old is None and new is None:
            real(src, dst, **kwargs)
        elif old is None:
            assert new is not None
            self._change(what, dst, self._overlay.take_in, os.fsdecode(src), new, made=new, lost=(new,))
        elif new is None:
            self._change(what, src, self._overlay.give_out, old, os.fsdecode(dst), lost=(old,))
        else:
            self._change(what, src, self._overlay.rename, old, new, made=new, lost=(old, new))


def _find_tables(function: object) -> list[tuple[dict[Any, Any], Any]]:
    """The (table, key) pairs that hold a function, because modules or default arguments bound it."""
    known = [vars(module) for module in (builtins, io, _io)]
    # The tables of classes are left alone: Python remembers what it looked up in them.
    tables = [table for table in gc.get_referrers(function) if type(table) is dict and "__module__" not in table]
    return [
        (table, key)
        for table in tables
        if not any(table is one for one in known)
        for key in [key for key, value in table.items() if value is function]
    ]


class _Entries(closing[Any]):
    """The answer of `os.scandir` for a folder that lies in two places."""

    def __init__(self, folder: Any, names: list[str]) -> None:
        encoded = map(os.fsencode, names) if isinstance(folder, bytes) else names
        self._entries = (_Entry(folder, name) for name in encoded)
        super().__init__(self._entries)
        self.close = self._entries.close

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)


class _Entry:
    """An entry of such a folder, which answers as an `os.DirEntry` does."""

    def __init__(self, folder: Any, name: Any) -> None:
        self.name, self.path = name, os.path.join(folder, name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self.path).st_ino

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_junction(self) -> bool:
        return False


# The net: audit events of calls that miss the doors.

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
"""Audit events that change paths: the positions of each path and of the folder that it starts in; -1 if it has none."""
_EVENTS = _UNSEEN | set(_PATHS)


class _Net:
    """The audit hook, which is added once and ignores everything while nothing is guarded."""

    def __init__(self) -> None:
        self.guard: Guard | None = None
        self.left: dict[int, frozenset[FrameType]] = {}
        self._is_added = False

    def enter(self, guard: Guard) -> None:
        """Starts to watch for a guard."""
        if not self._is_added:
            sys.addaudithook(_hear)
            self._is_added = True
        self.guard = guard

    def leave(self, guard: Guard, known: set[threading.Thread]) -> None:
        """Stops watching, except for work with faked arrays that other threads began during the recording."""
        if self.guard is guard and guard.was_live:
            threads = {thread.ident for thread in threading.enumerate() if thread not in known}
            running = {number: top for number, top in sys._current_frames().items() if number in threads}
            self.left = {number: _find_work(top) for number, top in running.items()}
        self.guard = None

    def is_left(self) -> bool:
        """Whether this thread still does what it did when a recording ended, rather than a pool's next task."""
        before = self.left.get(threading.get_ident())
        if before is None:
            return False
        if before & _find_work(sys._getframe(1)):
            return not is_in_hloscope()
        del self.left[threading.get_ident()]
        return False


def _find_work(top: FrameType) -> frozenset[FrameType]:
    """The frames of a thread outside Python's own modules, which wait in pools and loops."""
    files = (__file__, walk_frames.__code__.co_filename)
    return frozenset(
        frame
        for frame in walk_frames(top)
        if not is_standard(frame.f_code.co_filename) and frame.f_code.co_filename not in files
    )


_net = _Net()


def _hear(event: str, args: tuple[Any, ...]) -> None:
    """Handles an event of the process; a plain function, which Python calls fastest."""
    if event not in _EVENTS:
        return
    guard = _net.guard
    if guard is None:
        changes = event in _PATHS and (event != "open" or opens_for_writing(*args[1:3]))
        if changes and _net.left and _net.is_left():
            raise FakedWriteError(_explain(args[_PATHS[event][0][0]]))
    elif event in _UNSEEN:
        if not guard.is_apart() and guard.takes_over():
            guard.note(event, _join_command(args), "ran unseen")
    elif event != "open" or opens_for_writing(*args[1:3]):
        for path, folder in _PATHS[event]:
            _refuse(guard, event, args[path], args[folder] if folder > 0 else None)


def _refuse(guard: Guard, what: str, path: Any, folder: int | None) -> None:
    if guard.is_apart() or path is None or isinstance(path, int) or path in ("", ":memory:", b""):
        return
    if lies_in(os.fsdecode(path), guard.log.scratch):
        return
    name = guard.find_guarded(path, None if folder == -1 else folder)
    if name is None or (what == "open" and guard.apart(os.path.isdir, name)):
        return
    guard.note(what, name, "refused")
    raise FakedWriteError(_explain(name))


def _explain(path: object) -> str:
    return say(
        f"{path} was not written: outputs are placeholders in this recording, so what is derived from them is "
        "meaningless; `",
        Option("allow-writes"),
        "` permits it",
    )


def _join_command(args: tuple[Any, ...]) -> str:
    words = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else args[:1]
    return " ".join(os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else str(word) for word in words)
