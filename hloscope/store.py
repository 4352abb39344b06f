"""The on-disk cache: content-addressed, checksummed, atomic.

Everything here can be recreated, so that no problem with the cache is an error: an entry that cannot
be read, or differs from what was written, counts as missing. `HLOSCOPE_CACHE_DIR` names another folder than the
user's cache directory; `HLOSCOPE_CACHE_SIZE` limits its size; `HLOSCOPE_CACHE=0` disables it. Everything
else in the folder stays: only a file with the name and the first bytes of an entry is ever removed. A missing entry
may be in `hloscope.remote_store`.
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
from hloscope.remote_store import RemoteStore, open_remote_store

MOST_BYTES = 1 << 30
"""All entries together, unless `HLOSCOPE_CACHE_SIZE` says otherwise; beyond it those that were not used for the longest
time go.
"""
COMPILE = "compile"
"""The kind of an entry with the compiler's output for a program."""
SHARED = frozenset({COMPILE, "tried", "figures"})
"""The kinds of entries that other machines can use too."""

_MAGIC = b"hloscope cache 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_ENTRY = re.compile(r"[\w-]+-[0-9a-f]{64}")
_UNFINISHED = re.compile(rf"\.{_ENTRY.pattern}\.[0-9]+\.[0-9a-f]{{16}}")
_LONGEST_WRITE_S = 3600
"""An older file that never got its name is from a writer that was killed."""


compile_sources: Counter[str] = Counter()
"""The number of this process's compiles by source: `cache`, `shared cache`, or `compiler`."""
_unchecked_bytes: Counter[Path] = Counter()
"""The bytes that this process has written to a folder since it last measured the folder's size."""


class Store:
    """A folder of entries.

    Writers never wait for each other: each writes a file of its own and renames it, so that a reader finds a whole
    entry or none, and of two writers the later one stays.

    Args:
        folder: Made when the first entry is written.
        most_bytes: The size limit of all entries together.
        remote: The store for entries that are missing in the folder, which also receives new ones.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES, remote: RemoteStore | None = None) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self.remote = remote

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry of a key; None if missing or damaged."""
        found, source = self._get(kind, key), "cache"
        if found is None and self.remote is not None and kind in SHARED:
            found, source = self.remote.get(kind, key), "shared cache"
            if found is not None:
                self._put(kind, key, found)
        if kind == COMPILE:
            compile_sources["compiler" if found is None else source] += 1
        return found

    def _get(self, kind: str, key: str) -> bytes | None:
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        body = data[start:]
        if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _compute_digest(kind, key, body):
            _remove_own(path)
            return None
        _touch(path)
        return body

    def has(self, kind: str, key: str) -> bool:
        """Returns whether there is an entry for a key, which may turn out to be damaged."""
        return self._path(kind, key).exists()

    def put(self, kind: str, key: str, body: bytes) -> bool:
        """Stores an entry; returns whether that succeeded in the folder."""
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
            temporary.write_bytes(_MAGIC + _compute_digest(kind, key, body) + body)
            temporary.replace(path)
        except OSError:
            _remove_own(temporary)
            return False
        self._shrink_at_times(len(body))
        return True

    def contents(self) -> tuple[int, int]:
        """The number of entries, and their total bytes."""
        sizes = [size for _, size, path in _find_files(self.folder) if not _UNFINISHED.fullmatch(path.name)]
        return len(sizes), sum(sizes)

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()}"

    def _shrink_at_times(self, written: int) -> None:
        """Measures the folder after a process's first entry, and each time that it has added a small share."""
        is_first = self.folder not in _unchecked_bytes
        _unchecked_bytes[self.folder] += written
        if is_first or _unchecked_bytes[self.folder] > self.most_bytes // 64:
            _unchecked_bytes[self.folder] = 0
            self._shrink()

    def _shrink(self) -> None:
        """Removes the files of killed writers, and the entries unused for the longest time, until the rest fit."""
        total = 0
        for used, size, path in sorted(_find_files(self.folder), reverse=True):
            if _UNFINISHED.fullmatch(path.name):
                if time.time() - used > _LONGEST_WRITE_S:
                    _remove_own(path)
                continue
            total += size
            if total > self.most_bytes:
                _remove_own(path)


def open_default_store() -> Store | None:
    """The user's store; None if the environment disables it or the machine has no place for it.

    Raises:
        HloscopeError: A setting of the environment for it is invalid.
    """
    if os.environ.get("HLOSCOPE_CACHE") == "0":
        return None
    chosen = os.environ.get("HLOSCOPE_CACHE_DIR")
    folder = Path(chosen) if chosen else _find_user_folder()
    return None if folder is None else Store(folder, most_bytes=_read_most_bytes(), remote=open_remote_store())


def _find_user_folder() -> Path | None:
    from platformdirs import user_cache_path

    try:
        return user_cache_path("hloscope", appauthor=False)
    except (OSError, RuntimeError):  # no home directory
        return None


def _read_most_bytes() -> int:
    text = os.environ.get("HLOSCOPE_CACHE_SIZE", "").strip()
    found = capacity(text) if text else MOST_BYTES
    if found is None:
        raise NotationError(f"HLOSCOPE_CACHE_SIZE={text!r} is not a size", fix="write it as 512MiB, 2GB or 10GiB")
    return found


def _compute_digest(kind: str, key: str, body: bytes) -> bytes:
    """A digest of the body and its key, so that a renamed file counts as damaged."""
    return hashlib.sha256(f"{kind}\0{key}\0".encode() + body).digest()


def _find_files(folder: Path) -> list[tuple[float, int, Path]]:
    """The time of last use, size and path of every file with the name of an entry, or of an unfinished one."""
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
    """Removes a file that begins like an entry, even if unfinished; any other file is not ours, whatever its name."""
    with suppress(OSError):
        if path.is_symlink() or not path.is_file():
            return
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if _MAGIC.startswith(start):
            path.unlink(missing_ok=True)
