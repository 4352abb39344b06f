"""The on-disk cache: content-addressed, checksummed, atomic.

What is kept here can always be made again, so nothing that goes wrong with the cache is an error: an entry that cannot
be read, or does not hold what was written, is one that is not there. `HLOSCOPE_CACHE_DIR` names another folder than the
user's cache directory; `HLOSCOPE_CACHE=0` keeps nothing.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 64 << 20
"""All entries together; beyond it those that were not used for the longest time go."""

_MAGIC = b"hloscope cache 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


class Store:
    """A folder of entries.

    Writers never wait for each other: each writes a file of its own and renames it, so that a reader finds a whole
    entry or none, and of two writers the later one stays.

    Args:
        folder: Made when the first entry is written.
        most_bytes: What the entries may take together.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry of a key; None where there is none or it is damaged."""
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        body = data[start:]
        if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _digest(kind, key, body):
            _remove(path)
            return None
        _touch(path)
        return body

    def has(self, kind: str, key: str) -> bool:
        """Whether there is an entry of a key, which may turn out to be damaged."""
        return self._path(kind, key).exists()

    def put(self, kind: str, key: str, body: bytes) -> bool:
        """Keeps an entry; returns whether that worked."""
        if len(body) > self._most_bytes:
            return False
        path = self._path(kind, key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(8).hex()}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(_MAGIC + _digest(kind, key, body) + body)
            temporary.replace(path)
        except OSError:
            _remove(temporary)
            return False
        self._shrink()
        return True

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()}"

    def _shrink(self) -> None:
        """Removes the entries that were used the longest time ago, until the rest fit."""
        files = sorted(_files(self.folder), reverse=True)
        total = 0
        for _, size, path in files:
            total += size
            if total > self._most_bytes:
                _remove(path)


def default_store() -> Store | None:
    """The user's store; None where the environment turns it off or the machine has no place for it."""
    if os.environ.get("HLOSCOPE_CACHE") == "0":
        return None
    chosen = os.environ.get("HLOSCOPE_CACHE_DIR")
    if chosen:
        return Store(Path(chosen))
    from platformdirs import user_cache_path

    try:
        return Store(user_cache_path("hloscope", appauthor=False))
    except (OSError, RuntimeError):  # no home directory
        return None


def _digest(kind: str, key: str, body: bytes) -> bytes:
    """Of the body and what it was kept under, so that a renamed file is a damaged one."""
    return hashlib.sha256(f"{kind}\0{key}\0".encode() + body).digest()


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """(time of last use, size, path) of every entry, also of those that a killed writer left half-written."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime, status.st_size, Path(entry.path)))
    return found


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
