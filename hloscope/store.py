"""The on-disk cache: content-addressed, checksummed, atomic.

What is kept here can always be made again, so nothing that goes wrong with the cache is an error: an entry that cannot
be read, or does not hold what was written, is one that is not there. `HLOSCOPE_CACHE_DIR` names another folder than the
user's cache directory; `HLOSCOPE_CACHE_SIZE` says how large it may grow; `HLOSCOPE_CACHE=0` keeps nothing. Whatever
else lies in the folder stays there: only a file with the name and the first bytes of an entry is ever removed. What is
not here may be in `hloscope.remote_store`.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from hloscope.errors import NotationError
from hloscope.given import capacity
from hloscope.remote_store import RemoteStore, remote_store

MOST_BYTES = 1 << 30
"""All entries together, unless `HLOSCOPE_CACHE_SIZE` says otherwise; beyond it those that were not used for the longest
time go.
"""
COMPILE = "compile"
"""The kind of an entry that holds what the compiler made of a program."""
SHARED = frozenset({COMPILE, "tried", "figures"})
"""The kinds that other machines can use too."""

_MAGIC = b"hloscope cache 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_ENTRY = re.compile(r"[\w-]+-[0-9a-f]{64}")
_UNFINISHED = re.compile(rf"\.{_ENTRY.pattern}\.[0-9]+\.[0-9a-f]{{16}}")
_LONGEST_WRITE_S = 3600
"""A file that is older, and was never given its name, is of a writer that was killed."""


sources: Counter[str] = Counter()
"""Where this process had compiles from, and how many: `cache`, `shared cache`, or `compiler`."""
_unlooked: Counter[Path] = Counter()
"""Bytes that this process wrote to a folder since it last looked how much is there."""


class Store:
    """A folder of entries.

    Writers never wait for each other: each writes a file of its own and renames it, so that a reader finds a whole
    entry or none, and of two writers the later one stays.

    Args:
        folder: Made when the first entry is written.
        most_bytes: What the entries may take together.
        remote: Where entries are looked for that are not in the folder, and where new ones go as well.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES, remote: RemoteStore | None = None) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self.remote = remote

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry of a key; None where there is none or it is damaged."""
        found, source = self._get(kind, key), "cache"
        if found is None and self.remote is not None and kind in SHARED:
            found, source = self.remote.get(kind, key), "shared cache"
            if found is not None:
                self._put(kind, key, found)
        if kind == COMPILE:
            sources["compiler" if found is None else source] += 1
        return found

    def _get(self, kind: str, key: str) -> bytes | None:
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        body = data[start:]
        if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _digest(kind, key, body):
            _remove_own(path)
            return None
        _touch(path)
        return body

    def has(self, kind: str, key: str) -> bool:
        """Whether there is an entry of a key, which may turn out to be damaged."""
        return self._path(kind, key).exists()

    def put(self, kind: str, key: str, body: bytes) -> bool:
        """Keeps an entry; returns whether that worked in the folder."""
        if self.remote is not None and kind in SHARED:
            self.remote.put(kind, key, body)
        return self._put(kind, key, body)

    def _put(self, kind: str, key: str, body: bytes) -> bool:
        if len(body) > self.most_bytes:
            return False
        path = self._path(kind, key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(8).hex()}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(_MAGIC + _digest(kind, key, body) + body)
            temporary.replace(path)
        except OSError:
            _remove_own(temporary)
            return False
        self._shrink_at_times(len(body))
        return True

    def contents(self) -> tuple[int, int]:
        """How many entries there are, and their bytes together."""
        sizes = [size for _, size, path in _files(self.folder) if not _UNFINISHED.fullmatch(path.name)]
        return len(sizes), sum(sizes)

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()}"

    def _shrink_at_times(self, written: int) -> None:
        """Looks how much there is after a process's first entry, and each time that it has added a little share."""
        is_first = self.folder not in _unlooked
        _unlooked[self.folder] += written
        if is_first or _unlooked[self.folder] > self.most_bytes // 64:
            _unlooked[self.folder] = 0
            self._shrink()

    def _shrink(self) -> None:
        """Removes what killed writers left, and the entries that were used the longest time ago, until the rest fit."""
        total = 0
        for used, size, path in sorted(_files(self.folder), reverse=True):
            if _UNFINISHED.fullmatch(path.name):
                if time.time() - used > _LONGEST_WRITE_S:
                    _remove_own(path)
                continue
            total += size
            if total > self.most_bytes:
                _remove_own(path)


def default_store() -> Store | None:
    """The user's store; None where the environment turns it off or the machine has no place for it.

    Raises:
        HloscopeError: The environment says something of it that cannot be read.
    """
    if os.environ.get("HLOSCOPE_CACHE") == "0":
        return None
    chosen = os.environ.get("HLOSCOPE_CACHE_DIR")
    folder = Path(chosen) if chosen else _users_folder()
    return None if folder is None else Store(folder, most_bytes=_most_bytes(), remote=remote_store())


def _users_folder() -> Path | None:
    from platformdirs import user_cache_path

    try:
        return user_cache_path("hloscope", appauthor=False)
    except (OSError, RuntimeError):  # no home directory
        return None


def _most_bytes() -> int:
    text = os.environ.get("HLOSCOPE_CACHE_SIZE", "").strip()
    found = capacity(text) if text else MOST_BYTES
    if found is None:
        raise NotationError(f"HLOSCOPE_CACHE_SIZE={text!r} is not a size", fix="write it as 512MiB, 2GB or 10GiB")
    return found


def _digest(kind: str, key: str, body: bytes) -> bytes:
    """Of the body and what it was kept under, so that a renamed file is a damaged one."""
    return hashlib.sha256(f"{kind}\0{key}\0".encode() + body).digest()


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """(time of last use, size, path) of every file that has the name of an entry, or of one that is being written."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if not (_ENTRY.fullmatch(entry.name) or _UNFINISHED.fullmatch(entry.name)):
                    continue
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime, status.st_size, Path(entry.path)))
    return found


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _remove_own(path: Path) -> None:
    """Removes a file that begins as entries do, as far as it was written; any other is not ours, whatever its name."""
    with suppress(OSError):
        if path.is_symlink() or not path.is_file():
            return
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if _MAGIC.startswith(start):
            path.unlink(missing_ok=True)
