"""A view of the file system in which everything that is written lies in a folder apart, as union mounts have it.

A path of the user's has two places: *above*, in the folder that mirrors the file system, and *below*, where it really
is. What is above hides what is below; what was removed or moved is remembered in a table. Nothing below ever changes.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat

# The real ones, whatever takes their places in `os` later.
_getcwd, _listdir, _lstat, _mkdir, _readlink, _remove, _rename, _stat, _symlink = (
    os.getcwd, os.listdir, os.lstat, os.mkdir, os.readlink, os.remove, os.rename, os.stat, os.symlink,
)  # fmt: skip
_MOST_LINKS = 40

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def lies_in(path: str, folder: str) -> bool:
    """Whether a path is a folder or something in it; both are absolute."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def failure(code: int, path: object) -> OSError:
    """The error that the operating system reports for a path."""
    return OSError(code, os.strerror(code), path)


class Overlay:
    """The view; whoever changes it, or reads it while others may, holds a lock of theirs.

    A *name* is a user's path: absolute, without links in its folders. Methods that take names change nothing below.

    Args:
        root: The folder that mirrors the file system; there, and empty.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.is_used = False
        self._below: dict[str, str | None] = {}
        self._folders: dict[str, str] = {}
        self._filled: set[str] = set()
        self._trees: set[str] = set()

    def absolute(self, path: Path, dir_fd: int | None = None) -> str:
        """A path as the user means it, also where it was read off a file that lies above."""
        text = os.fsdecode(path)
        if not text.startswith("/"):
            folder = _getcwd() if dir_fd is None else _readlink(f"/proc/self/fd/{dir_fd}")
            text = f"{folder}/{text}"
        return text[len(self.root) :] or "/" if lies_in(text, self.root) else text

    def is_lost(self, path: Path, dir_fd: int | None) -> bool:
        """Whether a path begins in a folder above, where what lies below is not found by it."""
        if os.fsdecode(path).startswith("/"):
            return False
        return lies_in(_getcwd() if dir_fd is None else _readlink(f"/proc/self/fd/{dir_fd}"), self.root)

    def name(self, path: Path, dir_fd: int | None = None, *, follow: bool = True) -> str:
        """The name of a path.

        Args:
            path: Any path.
            dir_fd: The folder that it begins in.
            follow: Whether a link that it ends in is followed.

        Raises:
            OSError: Its links go round in circles, or there is no working folder.
        """
        return self._resolved(self.absolute(path, dir_fd), follow, 0)

    def _resolved(self, path: str, follow: bool, links: int) -> str:
        folder, _, last = path.rstrip("/").rpartition("/")
        if not last:
            return "/"
        if last in (".", ".."):
            return self._folder(path, links)
        name = f"{self._folder(folder, links).rstrip('/')}/{last}"
        return (self._followed(name, links) or name) if follow else name

    def _followed(self, name: str, links: int) -> str | None:
        """What a link leads to; None where it is none."""
        try:
            place = self.place(name)
            if not stat.S_ISLNK(_lstat(place).st_mode):
                return None
            target = _readlink(place)
        except OSError:
            return None
        if links > _MOST_LINKS:
            raise failure(errno.ELOOP, name)
        return self._resolved(os.path.join(os.path.dirname(name), target), True, links + 1)

    def _folder(self, path: str, links: int) -> str:
        known = self._folders.get(path)
        if known is not None:
            return known
        name = ""
        for part in path.split("/"):
            if part == "..":
                name = name.rpartition("/")[0]
            elif part not in ("", "."):
                name = f"{name}/{part}"
                name = (self._followed(name, links) or name).rstrip("/")
        if len(self._folders) > 10_000:
            self._folders.clear()
        self._folders[path] = name = name or "/"
        return name

    def above(self, name: str) -> str:
        """Where a name lies once it was written."""
        return self.root + name

    def below(self, name: str) -> str | None:
        """Where a name lies that was not written; None where it was removed."""
        if not self._below:
            return name
        head = name
        while head:
            if head in self._below:
                moved = self._below[head]
                return None if moved is None else moved + name[len(head) :]
            head = head.rpartition("/")[0]
        return name

    def place(self, name: str) -> str:
        """Where a name lies; where nothing lies, a place with nothing."""
        if not self.is_used:
            return name
        if self._may_be_above(name):
            above = self.above(name)
            if _is_there(above):
                return above
        below = self.below(name)
        return self.above(name) if below is None else below

    def _may_be_above(self, name: str) -> bool:
        """Whether something may have been written by a name, as far as the table of folders says."""
        if name.rpartition("/")[0] in self._filled:
            return True
        return bool(self._trees) and any(lies_in(name, tree) for tree in tuple(self._trees))

    def holds_tree(self, name: str) -> None:
        """Notes that folders are made above by others."""
        self.is_used = True
        self._trees.add(name)
        while name:
            name = name.rpartition("/")[0]
            self._filled.add(name)

    def exists(self, name: str) -> bool:
        """Whether something has a name."""
        return _is_there(self.place(name))

    def is_folder(self, name: str) -> bool:
        """Whether a folder has a name."""
        return _is_folder(self.place(name))

    def is_below(self, name: str) -> bool:
        """Whether something has a name that is not of this view's making."""
        below = self.below(name)
        return below is not None and _is_there(below)

    def hides_in(self, name: str) -> bool:
        """Whether something right in a folder was removed, or moved there."""
        return any(path.rpartition("/")[0] == name.rstrip("/") for path in list(self._below))

    def listdir(self, name: str) -> list[str]:
        """What a folder holds.

        Raises:
            OSError: It is none.
        """
        place, below = self.place(name), self.below(name)
        listed = dict.fromkeys(_listdir(place))
        if below is not None and below != place and _is_folder(below):
            listed |= dict.fromkeys(_listdir(below))
        prefix = name.rstrip("/") + "/"
        inside = {path[len(prefix) :]: path for path in list(self._below) if path.startswith(prefix)}
        listed |= dict.fromkeys(last for last, path in inside.items() if "/" not in last and self.exists(path))
        return [last for last in listed if last not in inside or self.exists(prefix + last)]

    def written(self, name: str, *, copied: bool = False) -> str:
        """The place for a name that is about to be written: its folder is there if the user sees one.

        Args:
            name: Of the file.
            copied: Whether what it holds so far is kept.
        """
        above, below = self.above(name), self.below(name)
        self._make_folder(os.path.dirname(name))
        if below is None or _is_there(above):
            return above
        if _is_folder(below):
            self._make_folder(name)
        elif copied and _is_there(below):
            _copy(below, above)
        return above

    def _make_folder(self, name: str) -> None:
        self.is_used = True
        above = self.above(name)
        if not _is_there(above):
            if not self.is_folder(name):
                return
            self._make_folder(os.path.dirname(name))
            _mkdir(above)
        self._filled.add(name.rstrip("/"))

    def mkdir(self, name: str) -> None:
        """Makes a folder.

        Raises:
            OSError: Something has its name, or the folder that it is to be in is missing.
        """
        if self.exists(name):
            raise failure(errno.EEXIST, name)
        _mkdir(self.written(name))

    def remove(self, name: str) -> None:
        """Removes a file.

        Raises:
            OSError: There is none.
        """
        if not self.exists(name):
            raise failure(errno.ENOENT, name)
        if self.is_folder(name) and not stat.S_ISLNK(_lstat(self.place(name)).st_mode):
            raise failure(errno.EISDIR, name)
        self._clear(name)

    def rmdir(self, name: str) -> None:
        """Removes an empty folder.

        Raises:
            OSError: It is no folder, or not empty.
        """
        if self.listdir(name):
            raise failure(errno.ENOTEMPTY, name)
        self._clear(name)

    def rmtree(self, name: str) -> None:
        """Removes a folder and what it holds.

        Raises:
            OSError: It is none.
        """
        self.listdir(name)
        self._clear(name)

    def _clear(self, name: str) -> None:
        _clear_place(self.above(name))
        self._forget(name)
        if self.is_below(name):
            self._below[name] = None
        self.is_used = True

    def _forget(self, name: str) -> None:
        for known in [path for path in list(self._below) if lies_in(path, name)]:
            del self._below[known]
        self._folders.clear()

    def rename(self, old: str, new: str) -> None:
        """Moves a file or a folder, in place of what had the new name.

        Raises:
            OSError: There is none, or the new name is another kind's, or of a folder that holds something.
        """
        if not self.exists(old):
            raise failure(errno.ENOENT, old)
        if old == new:
            return
        self._check_replaceable(old, new)
        below = self.below(old) if self.is_below(old) else None
        moved = [(path, place) for path, place in self._below.items() if path.startswith(old + "/")]
        above = self.written(new)
        _clear_place(above)
        self._forget(new)
        if _is_there(self.above(old)):
            _rename(self.above(old), above)
            self._trees.add(new)
        self._clear(old)
        self._below[new] = below
        self._below |= {new + path[len(old) :]: place for path, place in moved}

    def _check_replaceable(self, old: str, new: str) -> None:
        is_folder = self.is_folder(old)
        if lies_in(new, old):
            raise failure(errno.EINVAL, new)
        if not self.is_folder(os.path.dirname(new)):
            raise failure(errno.ENOENT, new)
        if self.exists(new) and self.is_folder(new) != is_folder:
            raise failure(errno.ENOTDIR if is_folder else errno.EISDIR, new)
        if is_folder and self.exists(new) and self.listdir(new):
            raise failure(errno.ENOTEMPTY, new)

    def take_in(self, path: str, name: str) -> None:
        """Moves a file or a folder of another part of the file system here."""
        above = self.written(name)
        _clear_place(above)
        self._forget(name)
        shutil.move(path, above)
        self._trees.add(name)
        if self.is_below(name):
            self._below[name] = None

    def give_out(self, name: str, path: str) -> None:
        """Moves what has a name to another part of the file system; what is below is copied."""
        _copy(self.place(name), path)
        self._clear(name)

    def link(self, old: str, new: str) -> None:
        """Gives what has a name another one: a copy, since what lies below may not be written through it."""
        if self.exists(new):
            raise failure(errno.EEXIST, new)
        _copy(self.place(old), self.written(new))
        self._trees.add(new)

    def symlink(self, target: str, name: str) -> None:
        """Makes a symbolic link.

        Raises:
            OSError: Something has its name.
        """
        if self.exists(name):
            raise failure(errno.EEXIST, name)
        _symlink(target, self.written(name))
        self._folders.clear()


def _is_there(place: str) -> bool:
    try:
        _lstat(place)
    except (OSError, ValueError):
        return False
    return True


def _is_folder(place: str) -> bool:
    try:
        return stat.S_ISDIR(_stat(place).st_mode)
    except (OSError, ValueError):
        return False


def _copy(source: str, place: str) -> None:
    if _is_folder(source):
        shutil.copytree(source, place, symlinks=True)
        return
    room, size = shutil.disk_usage(os.path.dirname(place)).free, _stat(source).st_size
    if size > room // 2:
        raise failure(errno.ENOSPC, source)
    shutil.copy2(source, place)


def _clear_place(place: str) -> None:
    if not _is_there(place):
        return
    if stat.S_ISDIR(_lstat(place).st_mode):
        shutil.rmtree(place)
    else:
        _remove(place)
