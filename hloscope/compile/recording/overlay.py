"""A view of the file system that keeps every change in a separate folder, as union mounts do.

A path has two places: *above*, in the folder that mirrors the file system, and *below*, where it really is. Whatever is
above hides whatever is below. A table remembers what was removed or moved. Nothing below ever changes.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat

# The real functions: the guard replaces them in `os` while a recording runs.
_getcwd, _listdir, _lstat, _mkdir, _readlink, _remove, _rename, _stat, _symlink = (
    os.getcwd, os.listdir, os.lstat, os.mkdir, os.readlink, os.remove, os.rename, os.stat, os.symlink,
)  # fmt: skip
_MAX_LINKS = 40
_MAX_KNOWN_FOLDERS = 10_000

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def lies_in(path: str, folder: str) -> bool:
    """Whether a path is a folder or something in it; both are absolute."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def make_os_error(code: int, path: object) -> OSError:
    """The error that the operating system reports for a path."""
    return OSError(code, os.strerror(code), path)


class Overlay:
    """The view. Callers that change it, or that read it while others may change it, hold a lock of their own.

    A *name* is a path as the user sees it: absolute, without links in its folders.

    Args:
        root: An empty folder, which will mirror the file system.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.is_used = False
        self._below: dict[str, str | None] = {}
        """Where removed and moved names lie below; None if nowhere."""
        self._folders: dict[str, str] = {}

    def make_absolute(self, path: Path, dir_fd: int | None = None) -> str:
        """The absolute path as the user means it, even if it was read off a file above."""
        text = os.fsdecode(path)
        if not text.startswith("/"):
            text = f"{_find_start(dir_fd)}/{text}"
        return text[len(self.root) :] or "/" if lies_in(text, self.root) else text

    def starts_above(self, path: Path, dir_fd: int | None) -> bool:
        """Whether a relative path starts in a folder above, from where it does not lead to what is below."""
        return not os.fsdecode(path).startswith("/") and lies_in(_find_start(dir_fd), self.root)

    def resolve(self, path: Path, dir_fd: int | None = None, *, follow: bool = True) -> str:
        """The name of a path.

        Args:
            path: Any path.
            dir_fd: The folder that a relative path starts in; None for the working folder.
            follow: Whether to follow a link at the end of the path.

        Raises:
            OSError: The path has a cycle of links, or there is no working folder.
        """
        return self._resolve(self.make_absolute(path, dir_fd), follow, 0)

    def _resolve(self, path: str, follow: bool, links: int) -> str:
        folder, _, last = path.rstrip("/").rpartition("/")
        if not last:
            return "/"
        if last in (".", ".."):
            return self._resolve_folder(path, links)
        name = f"{self._resolve_folder(folder, links).rstrip('/')}/{last}"
        return (self._follow(name, links) or name) if follow else name

    def _follow(self, name: str, links: int) -> str | None:
        """The name that a link leads to; None if `name` is not a link."""
        try:
            place = self.locate(name)
            if not stat.S_ISLNK(_lstat(place).st_mode):
                return None
            target = _readlink(place)
        except OSError:
            return None
        if links > _MAX_LINKS:
            raise make_os_error(errno.ELOOP, name)
        return self._resolve(os.path.join(os.path.dirname(name), target), True, links + 1)

    def _resolve_folder(self, path: str, links: int) -> str:
        known = self._folders.get(path)
        if known is not None:
            return known
        name = ""
        for part in path.split("/"):
            if part == "..":
                name = name.rpartition("/")[0]
            elif part not in ("", "."):
                name = f"{name}/{part}"
                name = (self._follow(name, links) or name).rstrip("/")
        if len(self._folders) > _MAX_KNOWN_FOLDERS:
            self._folders.clear()
        self._folders[path] = name = name or "/"
        return name

    def above(self, name: str) -> str:
        """The place of a name once it has been written."""
        return self.root + name

    def below(self, name: str) -> str | None:
        """The place of a name that has not been written; None if it was removed."""
        head = name if self._below else ""
        while head:
            if head in self._below:
                moved = self._below[head]
                return None if moved is None else moved + name[len(head) :]
            head = head.rpartition("/")[0]
        return name

    def locate(self, name: str) -> str:
        """The place where a name is to be read; a place that holds nothing if nothing has the name."""
        if not self.is_used:
            return name
        above, below = self.above(name), self.below(name)
        return above if below is None or _exists(above) else below

    def exists(self, name: str) -> bool:
        """Whether something has a name."""
        return _exists(self.locate(name))

    def is_folder(self, name: str) -> bool:
        """Whether a folder has a name."""
        return _is_folder(self.locate(name))

    def is_below(self, name: str) -> bool:
        """Whether a name leads to something of the user's, which was there before."""
        below = self.below(name)
        return below is not None and _exists(below)

    def is_merged(self, name: str) -> bool:
        """Whether a folder differs from what lies below, so that no single place lists it."""
        if _exists(self.above(name)) or self.below(name) != name:
            return True
        return any(path.rpartition("/")[0] == name.rstrip("/") for path in list(self._below))

    def listdir(self, name: str) -> list[str]:
        """The entries of a folder.

        Raises:
            OSError: It is not a folder.
        """
        place, below = self.locate(name), self.below(name)
        listed = dict.fromkeys(_listdir(place))
        if below is not None and below != place and _is_folder(below):
            listed |= dict.fromkeys(_listdir(below))
        prefix = name.rstrip("/") + "/"
        inside = {path[len(prefix) :]: path for path in list(self._below) if path.startswith(prefix)}
        listed |= dict.fromkeys(last for last, path in inside.items() if "/" not in last and self.exists(path))
        return [last for last in listed if last not in inside or self.exists(prefix + last)]

    def prepare(self, name: str, *, copied: bool = False) -> str:
        """The place to write a name; its folder is made there if the user sees one.

        Args:
            name: Name of the file.
            copied: Whether to keep the present content.
        """
        above, below = self.above(name), self.below(name)
        self._mirror_folder(os.path.dirname(name))
        if below is None or _exists(above):
            return above
        if _is_folder(below):
            self._mirror_folder(name)
        elif copied and _exists(below):
            _copy(below, above)
        return above

    def _mirror_folder(self, name: str) -> None:
        self.is_used = True
        if not _exists(self.above(name)) and self.is_folder(name):
            self._mirror_folder(os.path.dirname(name))
            _mkdir(self.above(name))

    def mkdir(self, name: str) -> None:
        """Makes a folder.

        Raises:
            OSError: The name is taken, or its folder is missing.
        """
        self._check_free(name)
        _mkdir(self.prepare(name))

    def make_folders(self, name: str) -> None:
        """Makes an empty folder and all folders that it lies in, instead of what has the name."""
        if self.is_folder(name):
            self.rmtree(name)
        self.is_used = True
        os.makedirs(self.above(name), exist_ok=True)

    def remove(self, name: str) -> None:
        """Removes a file.

        Raises:
            OSError: There is no such file.
        """
        self._check_exists(name)
        if self.is_folder(name) and not stat.S_ISLNK(_lstat(self.locate(name)).st_mode):
            raise make_os_error(errno.EISDIR, name)
        self._clear(name)

    def rmdir(self, name: str) -> None:
        """Removes an empty folder.

        Raises:
            OSError: It is not a folder, or not empty.
        """
        if self.listdir(name):
            raise make_os_error(errno.ENOTEMPTY, name)
        self._clear(name)

    def rmtree(self, name: str) -> None:
        """Removes a folder and what it holds.

        Raises:
            OSError: It is not a folder.
        """
        self.listdir(name)
        self._clear(name)

    def _check_exists(self, name: str) -> None:
        if not self.exists(name):
            raise make_os_error(errno.ENOENT, name)

    def _check_free(self, name: str) -> None:
        if self.exists(name):
            raise make_os_error(errno.EEXIST, name)

    def _clear(self, name: str) -> None:
        _delete(self.above(name))
        self._forget(name)
        if self.is_below(name):
            self._below[name] = None
        self.is_used = True

    def _forget(self, name: str) -> None:
        for known in [path for path in list(self._below) if lies_in(path, name)]:
            del self._below[known]
        self._folders.clear()

    def rename(self, old: str, new: str) -> None:
        """Moves a file or a folder, replacing what had the new name.

        Raises:
            OSError: There is nothing to move, or the new name is taken by another kind or by a folder with content.
        """
        self._check_exists(old)
        if old == new:
            return
        self._check_replaceable(old, new)
        below = self.below(old) if self.is_below(old) else None
        moved = [(path, place) for path, place in self._below.items() if path.startswith(old + "/")]
        above = self._prepare_empty(new)
        if _exists(self.above(old)):
            _rename(self.above(old), above)
        self._clear(old)
        self._below[new] = below
        self._below |= {new + path[len(old) :]: place for path, place in moved}

    def _check_replaceable(self, old: str, new: str) -> None:
        is_folder = self.is_folder(old)
        if lies_in(new, old):
            raise make_os_error(errno.EINVAL, new)
        if not self.is_folder(os.path.dirname(new)):
            raise make_os_error(errno.ENOENT, new)
        if self.exists(new) and self.is_folder(new) != is_folder:
            raise make_os_error(errno.ENOTDIR if is_folder else errno.EISDIR, new)
        if is_folder and self.exists(new) and self.listdir(new):
            raise make_os_error(errno.ENOTEMPTY, new)

    def _prepare_empty(self, name: str) -> str:
        above = self.prepare(name)
        _delete(above)
        self._forget(name)
        return above

    def take_in(self, path: str, name: str) -> None:
        """Moves a file or a folder from a part of the file system that is not guarded to a name."""
        shutil.move(path, self._prepare_empty(name))
        if self.is_below(name):
            self._below[name] = None

    def give_out(self, name: str, path: str) -> None:
        """Moves a file or a folder to a part of the file system that is not guarded; what is below is copied."""
        _copy(self.locate(name), path)
        self._clear(name)

    def link(self, old: str, new: str) -> None:
        """Gives a file a second name. It is a copy: a hard link would let writes reach the file below.

        Raises:
            OSError: The new name is taken.
        """
        self._check_free(new)
        _copy(self.locate(old), self.prepare(new))

    def symlink(self, target: str, name: str) -> None:
        """Makes a symbolic link.

        Raises:
            OSError: The name is taken.
        """
        self._check_free(name)
        _symlink(target, self.prepare(name))
        self._folders.clear()


def _find_start(dir_fd: int | None) -> str:
    """The folder that a relative path starts in."""
    return _getcwd() if dir_fd is None else _readlink(f"/proc/self/fd/{dir_fd}")


def _exists(place: str) -> bool:
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
        raise make_os_error(errno.ENOSPC, source)
    shutil.copy2(source, place)


def _delete(place: str) -> None:
    if not _exists(place):
        return
    if stat.S_ISDIR(_lstat(place).st_mode):
        shutil.rmtree(place)
    else:
        _remove(place)
