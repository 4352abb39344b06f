"""The doors of Python's own functions for files: what they write goes to the scratch folder, and is read there.

Reading passes through with one look at whether anything was written yet.
"""

from __future__ import annotations

import _io
import builtins
import errno
import gc
import glob
import io
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from typing import Any

from hloscope.program.recording.guard import Guard
from hloscope.program.recording.overlay import Path, failure, lies_in

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READING = ("r", "rb", "rt")
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_READERS = "access chdir getxattr listdir listxattr lstat pathconf readlink scandir stat statvfs".split()
_NOT_FOLLOWING = ("lstat", "readlink", "lchown")
_OF_FILES = "chflags chmod chown lchown removexattr setxattr utime".split()
_Real = Callable[..., Any]


def writes(mode: object, flags: object) -> bool:
    """Whether a file that is opened so may be written."""
    if isinstance(flags, int):
        return bool(flags & _WRITING) and not (_NAMELESS and flags & _NAMELESS == _NAMELESS)
    return isinstance(mode, str) and mode not in _READING and any(letter in mode for letter in "wax+")


class FileDoors:
    """The doors, which stay while a guard is on.

    Args:
        guard: Decides what passes.
        noted: Told of every file that is opened for writing while nothing is faked yet, and of the user's line.
    """

    def __init__(self, guard: Guard, noted: Callable[[Any, Path, str], None]) -> None:
        self._guard, self._overlay, self._noted = guard, guard.overlay, noted

    def install(self) -> None:
        """Puts them up."""
        wrap = self._guard.wrap
        bound = _tables_with(builtins.open)
        for module in (builtins, io, _io):
            wrap(module, "open", self._open)
        for table, key in bound:
            self._guard.replace_in(table, key, io.open)
        for name, handle in self._of_os():
            if hasattr(os, name):
                wrap(os, name, handle)
        wrap(shutil, "rmtree", self._rmtree)
        for module in (sqlite3, sqlite3.dbapi2):
            wrap(module, "connect", self._connect)
        globber = getattr(glob, "_StringGlobber", None)  # of Python 3.13, which binds it when it is imported
        if globber is not None:
            self._guard.replace(globber, "scandir", staticmethod(os.scandir))
        self._guard.at_end.append(self._leave_mirror)

    def _of_os(self) -> Iterator[tuple[str, _Real]]:
        yield from ((name, self._reader(name)) for name in _READERS)
        yield from ((name, self._attributes(name)) for name in _OF_FILES)
        yield from ((name, self._moving(name)) for name in ("rename", "replace"))
        yield from ((name, lambda real: self._working_folder(real())) for name in ("getcwd", "getcwdb"))
        changing = ("remove", "unlink", "rmdir", "mkdir", "truncate", "link", "symlink", "mkfifo")
        yield from ((name, getattr(self, f"_{name}")) for name in changing)
        yield "open", self._os_open

    def _working_folder(self, folder: Any) -> Any:
        name = self._overlay.absolute(folder)
        return os.fsencode(name) if isinstance(folder, bytes) else name

    def _leave_mirror(self) -> None:
        """Goes where the script believes to be, or as near as there is a folder."""
        name = self._overlay.absolute(".")
        if lies_in(os.path.realpath("."), self._guard.mirror):
            while not os.path.isdir(name):
                name = os.path.dirname(name)
            os.chdir(name)

    def redirected(self, what: str, path: Path, *, copied: bool, dir_fd: int | None = None) -> str | None:
        """The place to write a path; None where it may be written as it is."""
        name = self._guard.target(path, dir_fd)
        if name is None:
            return None
        if not self._overlay.is_folder(os.path.dirname(name)):
            raise failure(errno.ENOENT, path)
        with self._guard.lock:
            place = self._guard.apart(self._overlay.written, name, copied=copied)
        if not lies_in(os.fsdecode(path), self._guard.mirror):
            self._guard.note(what, name, "redirected", place)
        return place

    def _open(self, real: _Real, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int):
            return real(file, mode, *args, **kwargs)
        if not writes(mode, None):
            return real(self._guard.seen(file) if self._overlay.is_used else file, mode, *args, **kwargs)
        if (len(args) > 5 or kwargs.get("opener") is not None) and self._guard.apart(os.path.isdir, file):
            return real(file, mode, *args, **kwargs)  # as `tempfile` does, whose opener makes a file in it
        self._check_new(file, "x" in mode)
        place = self.redirected("open", file, copied=not set(mode) & set("wx"))
        opened = _named_as(file, real, file if place is None else place, mode, *args, **kwargs)
        if place is None:
            self._remember(opened, file)
        return opened

    def _remember(self, opened: Any, path: Any) -> None:
        if not self._guard.was_live() and not self._guard.is_ours():
            self._noted(opened, path, self._guard.place())

    def _os_open(self, real: _Real, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not writes(None, flags):
            place = self._guard.seen(path, dir_fd)
            return int(real(place, flags, mode, dir_fd=dir_fd if place is path else None))
        self._check_new(path, bool(flags & os.O_EXCL), dir_fd)
        name = self._guard.target(path, dir_fd)
        if name is not None and not flags & os.O_CREAT and not self._overlay.exists(name):
            raise failure(errno.ENOENT, path)
        redirected = self.redirected("os.open", path, copied=not flags & os.O_TRUNC, dir_fd=dir_fd) if name else None
        # The net hears nothing of `dir_fd`, and this is decided.
        opened = int(self._guard.apart(real, redirected or path, flags, mode, dir_fd=None if redirected else dir_fd))
        if redirected is None:
            self._remember(opened, path)
        return opened

    def _check_new(self, path: Path, is_new: bool, dir_fd: int | None = None) -> None:
        name = self._guard.target(path, dir_fd, follow=False) if is_new else None
        if name is not None and self._overlay.exists(name):
            raise failure(errno.EEXIST, path)

    def _reader(self, name: str) -> _Real:
        guard = self._guard
        if name in ("listdir", "scandir"):
            return self._listdir if name == "listdir" else self._scandir

        def read(real: _Real, path: Any, *args: Any, **kwargs: Any) -> Any:
            if not guard.overlay.is_used:
                return real(path, *args, **kwargs)
            follow = name not in _NOT_FOLLOWING and kwargs.get("follow_symlinks", True)
            place = guard.seen(path, kwargs.get("dir_fd"), follow=follow)
            if place is path:
                return real(path, *args, **kwargs)
            kwargs.pop("dir_fd", None)
            return _named_as(path, real, place, *args, **kwargs)

        return read

    def _folder(self, path: Any) -> str | None:
        """The name of a folder that does not lie in one place only; None where the real function lists it."""
        if path is None or isinstance(path, int) or not self._overlay.is_used:
            return None
        name = self._overlay.name(path)
        above = self._overlay.above(name)
        is_touched = self._guard.apart(os.path.lexists, above) or self._overlay.place(name) != name
        return name if is_touched or self._overlay.hides_in(name) else None

    def _names_in(self, path: Any) -> list[str] | None:
        """What a folder holds that does not lie in one place only; None for all others."""
        with self._guard.lock:
            name = self._folder("." if path is None else path)
            return None if name is None else _named_as(path, self._guard.apart, self._overlay.listdir, name)

    def _listdir(self, real: _Real, path: Any = None) -> Any:
        names = self._names_in(path)
        if names is None:
            return real(path)
        return [os.fsencode(each) for each in names] if isinstance(path, bytes) else names

    def _scandir(self, real: _Real, path: Any = None) -> Any:
        names = self._names_in(path)
        return real(path) if names is None else _Entries("." if path is None else os.fspath(path), names)

    def _attributes(self, name: str) -> _Real:
        def change(real: _Real, path: Any, *args: Any, **kwargs: Any) -> Any:
            follow = name not in _NOT_FOLLOWING and kwargs.get("follow_symlinks", True)
            target = self._guard.target(path, kwargs.get("dir_fd"), follow=follow)
            if target is None:
                return real(path, *args, **kwargs)
            above = self._overlay.above(target)
            if self._guard.apart(os.path.lexists, above):
                kwargs.pop("dir_fd", None)
                return real(above, *args, **kwargs)
            if not self._overlay.exists(target):
                raise failure(errno.ENOENT, path)
            self._guard.note(f"os.{name}", target, "skipped")
            return None

        return change

    def _changing(self, what: str, change: Callable[[str], None], name: str, path: Any) -> None:
        """Changes what lies above, and lists what should have happened below."""
        was_below = self._overlay.is_below(name)
        with self._guard.lock:
            _named_as(path, self._guard.apart, change, name)
        if was_below:
            self._guard.note(what, name, "skipped")

    def _remove(self, real: _Real, path: Any, *, dir_fd: int | None = None) -> None:
        name = self._guard.target(path, dir_fd, follow=False)
        if name is None:
            real(path, dir_fd=dir_fd)
        else:
            self._changing("os.remove", self._overlay.remove, name, path)

    _unlink = _remove

    def _rmdir(self, real: _Real, path: Any, *, dir_fd: int | None = None) -> None:
        name = self._guard.target(path, dir_fd, follow=False)
        if name is None:
            real(path, dir_fd=dir_fd)
        else:
            self._changing("os.rmdir", self._overlay.rmdir, name, path)

    def _rmtree(self, real: _Real, path: Any, ignore_errors: bool = False, *args: Any, **kwargs: Any) -> None:
        name = self._guard.target(path, kwargs.get("dir_fd"), follow=False)
        if name is None:
            real(path, ignore_errors, *args, **kwargs)
            return
        try:
            self._changing("shutil.rmtree", self._overlay.rmtree, name, path)
        except OSError as error:
            told = kwargs.get("onexc") or kwargs.get("onerror") or (args[0] if args else None)
            if told is not None:
                told(os.lstat, path, error if kwargs.get("onexc") else sys.exc_info())
            elif not ignore_errors:
                raise

    def _mkdir(self, real: _Real, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name = self._guard.target(path, dir_fd, follow=False)
        if name is None:
            real(path, mode, dir_fd=dir_fd)
            return
        with self._guard.lock:
            _named_as(path, self._guard.apart, self._overlay.mkdir, name)
        self._guard.note("os.mkdir", name, "redirected", self._overlay.above(name))

    def _truncate(self, real: _Real, path: Any, length: int) -> None:
        real(self.redirected("os.truncate", path, copied=True) or path, length)

    def _mkfifo(self, real: _Real, path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        place = self.redirected("os.mkfifo", path, copied=False, dir_fd=dir_fd)
        real(place or path, mode, dir_fd=None if place else dir_fd)

    def _link(self, real: _Real, src: Any, dst: Any, **kwargs: Any) -> None:
        name = self._guard.target(dst, kwargs.get("dst_dir_fd"), follow=False)
        if name is None:
            real(self._guard.seen(src, kwargs.get("src_dir_fd")), dst, **kwargs)
            return
        old = self._overlay.name(src, kwargs.get("src_dir_fd"))
        _named_as(dst, self._guard.apart, self._overlay.link, old, name)
        self._guard.note("os.link", name, "redirected", self._overlay.above(name))

    def _symlink(self, real: _Real, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        name = self._guard.target(dst, kwargs.get("dir_fd"), follow=False)
        if name is None:
            real(src, dst, *args, **kwargs)
            return
        _named_as(dst, self._guard.apart, self._overlay.symlink, os.fsdecode(src), name)
        self._guard.note("os.symlink", name, "redirected", self._overlay.above(name))

    def _moving(self, what: str) -> _Real:
        def move(real: _Real, src: Any, dst: Any, **kwargs: Any) -> None:
            fds = kwargs.get("src_dir_fd"), kwargs.get("dst_dir_fd")
            old, new = (self._guard.target(path, fd, follow=False) for path, fd in zip((src, dst), fds, strict=True))
            if old is None and new is None:
                real(src, dst, **kwargs)
                return
            with self._guard.lock:
                self._move(f"os.{what}", src, old, dst, new)

        return move

    def _move(self, what: str, src: Any, old: str | None, dst: Any, new: str | None) -> None:
        overlay, apart = self._overlay, self._guard.apart
        skipped = [name for name in (old, new) if name is not None and overlay.is_below(name)]
        if old is None:
            assert new is not None
            _named_as(dst, apart, overlay.take_in, os.fsdecode(src), new)
        elif new is None:
            _named_as(src, apart, overlay.give_out, old, os.fsdecode(dst))
        else:
            _named_as(src, apart, overlay.rename, old, new)
        if new is not None:
            self._guard.note(what, new, "redirected", overlay.above(new))
        for name in skipped:
            self._guard.note(what, name, "skipped")

    def _connect(self, real: _Real, database: Any, *args: Any, **kwargs: Any) -> Any:
        text = os.fsdecode(database)
        if text in ("", ":memory:") or kwargs.get("uri"):
            return real(database, *args, **kwargs)
        return real(self.redirected("sqlite3.connect", text, copied=True) or database, *args, **kwargs)


def _tables_with(function: object) -> list[tuple[dict[Any, Any], Any]]:
    """Where a function was bound when a module was imported: the names of modules, and tables of theirs."""
    known = [vars(module) for module in (builtins, io, _io)]
    # The tables of classes are Python's own affair: it remembers what it looked up in them.
    tables = [table for table in gc.get_referrers(function) if type(table) is dict and "__module__" not in table]
    return [
        (table, key)
        for table in tables
        if not any(table is one for one in known)
        for key in [key for key, value in table.items() if value is function]
    ]


def _named_as(path: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function, whose error speaks of the path that the user gave."""
    try:
        return function(*args, **kwargs)
    except OSError as error:
        if error.filename is not None:
            error.filename = path
        raise


class _Entries:
    """What `os.scandir` answers for a folder that lies in two places."""

    def __init__(self, folder: Any, names: list[str]) -> None:
        encoded = map(os.fsencode, names) if isinstance(folder, bytes) else names
        self._entries = iter([_Entry(folder, name) for name in encoded])

    def __iter__(self) -> Iterator[_Entry]:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _Entry:
    """An entry of it, which answers as an `os.DirEntry` does."""

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
