"""The on-disk cache: content-addressed, checksummed, atomic.

Everything here can be recreated, so that no problem with the cache is an error: an entry that cannot
be read, or differs from what was written, counts as missing. `HLOSCOPE_CACHE_DIR` names another folder than the
user's cache directory; `HLOSCOPE_CACHE_SIZE` limits its size; `HLOSCOPE_CACHE=0` disables it. Everything
else in the folder stays: only a file with the name and the first bytes of an entry is ever removed. A missing entry
may be in the shared cache.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from hloscope.base.calls import parse_capacity
from hloscope.base.errors import HloscopeError, NotationError, did_you_mean

# ---- the second level of the cache: entries that several machines share, at any address that fsspec can read
#
# `HLOSCOPE_REMOTE_CACHE` is the address, such as `s3://bucket/hloscope`, `sftp://host/cache`, `https://host/cache` or
# `file:///mnt/cache`; `HLOSCOPE_REMOTE_CACHE_MODE=read` writes nothing there. Entries are trusted only if their seal is
# valid: an HMAC under `HLOSCOPE_REMOTE_CACHE_KEY`, so that without the key one can neither make an entry nor exchange
# two; or a checksum without a key, which trusts every writer. A cache that is away, slow or full of other data costs
# time and nothing more, and at most a minute in each process: it is mentioned once, and left alone from then on.

T = TypeVar("T")

ADDRESS, MODE, KEY = "HLOSCOPE_REMOTE_CACHE", "HLOSCOPE_REMOTE_CACHE_MODE", "HLOSCOPE_REMOTE_CACHE_KEY"
"""Environment variables."""
NOTES = "HLOSCOPE_REMOTE_CACHE_NOTES"
"""The environment variable for a folder in which the processes of one check share notes about the cache."""
_MODES = ("read", "read-write")
_LONGEST_S = 15.0
"""The longest wait for an answer."""
_MOST_LOST_S = 60.0
"""The longest total wait of a process for answers that bring nothing."""
_LARGEST_BYTES = 256 << 20
"""The largest possible entry; no more is read."""
_LEAST_KEY_BYTES = 16
_PASSWORD = re.compile(r"://[^/\s]*@")
_AWAY, _READ_ONLY = "away", "read-only"

_log = logging.getLogger("hloscope")
_silent = logging.NullHandler()
_NOISY_LOGGERS = ("paramiko", "asyncio")
"""Loggers of clients that print a traceback for an error that hloscope reports in one line, unless it is handled."""


@dataclass(slots=True)
class _State:
    """The facts that this process knows about an address, shared by all objects.

    Attributes:
        away: Why it is no longer used; None while it is in use.
        read_only: Whether writing has failed.
        lost_s: The time spent waiting for answers that brought nothing.
        opened: Its file system and the folder in it, once opened. fsspec keeps one for each thread, and
            every answer is waited for in a thread of its own.
    """

    away: str | None = None
    read_only: bool = False
    lost_s: float = 0.0
    opened: tuple[Any, str] | None = None


_states: dict[tuple[int, str], _State] = {}
"""By process, because connections belong to the process that opened them, and address."""


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """Entries at an address.

    Attributes:
        url: The address of the folder.
        key: The key of the seals; None for a checksum.
        writes: Whether entries are written there.
    """

    url: str
    key: bytes | None = field(default=None, repr=False)
    writes: bool = True

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry of a key; None if missing or not trusted."""
        data = self._asked(lambda files, folder: files.cat_file(f"{folder}/{_make_entry_name(kind, key)}"))
        return None if data is None or len(data) > _LARGEST_BYTES else _unseal(kind, key, data, self.key)

    def put(self, kind: str, key: str, body: bytes) -> None:
        """Writes an entry there, if possible."""
        if not self.writes or self._is_noted(_READ_ONLY):
            return
        data = _seal(kind, key, body, self.key)
        self._asked(lambda files, folder: _write_entry(files, folder, _make_entry_name(kind, key), data), writing=True)

    def reached(self) -> str | None:
        """Tests the connection; returns why nothing can be read, or None if it works."""
        self._asked(lambda files, folder: files.cat_file(f"{folder}/{_make_entry_name('no', 'entry')}"))
        return self._state.away

    @property
    def _state(self) -> _State:
        return _states.setdefault((os.getpid(), self.url), _State())

    def _opened(self) -> tuple[Any, str]:
        state = self._state
        if state.opened is None:
            state.opened = _open_address(self.url)
        return state.opened

    def _asked(self, ask: Callable[[Any, str], T], *, writing: bool = False) -> T | None:
        """An answer; None without one, with a message about the reason unless that is usual."""
        if self._is_noted(_AWAY):
            return None
        begun = time.monotonic()
        found: T | None = None
        try:
            found = _run_within(_LONGEST_S, lambda: ask(*self._opened()))
        except Exception as error:  # any error of any file system
            if writing:
                self._cannot_be_written(_describe_error(error))
            elif not isinstance(error, FileNotFoundError):
                self._give_up(_describe_error(error))
        self._lose(time.monotonic() - begun if found is None else 0.0)
        return found

    def _lose(self, seconds: float) -> None:
        """Records lost time; after too much of it, the cache is no longer used."""
        self._state.lost_s += seconds
        if self._state.lost_s > _MOST_LOST_S and self._state.away is None:
            self._give_up(f"it is slow: {self._state.lost_s:.0f} s were waited for answers that brought nothing")

    def _cannot_be_written(self, why: str) -> None:
        self._state.read_only = True
        if self.reached() is None and self._note(_READ_ONLY):
            _log.warning("hloscope: nothing can be written to the shared cache %s: %s", hide_password(self.url), why)

    def _give_up(self, why: str) -> None:
        self._state.away = why
        if self._note(_AWAY):
            _log.warning("hloscope: goes on without the shared cache %s: %s", hide_password(self.url), why)

    def _note(self, what: str) -> bool:
        """Leaves a note for the other processes of a check; returns whether it is the first of its kind."""
        path = self._path_of_note(what)
        try:
            if path is not None:
                path.touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:  # the other processes find out for themselves
            pass
        return True

    def _is_noted(self, what: str) -> bool:
        """Returns whether this process, or another of its check, has noted this state of the cache."""
        known = self._state.away is not None if what == _AWAY else self._state.read_only
        path = None if known else self._path_of_note(what)
        return known or (path is not None and path.exists())

    def _path_of_note(self, what: str) -> Path | None:
        folder = os.environ.get(NOTES)
        return None if not folder else Path(folder, f"{what}-{hashlib.sha256(self.url.encode()).hexdigest()}")


def warn_without_key(store: RemoteStore) -> None:
    """Warns, if entries have no key, that all writers are trusted."""
    if store.key is None:
        _log.warning(
            "hloscope: whoever may write to the shared cache %s is believed; with a key, %s, only who has it",
            hide_password(store.url),
            KEY,
        )


def open_remote_store() -> RemoteStore | None:
    """Opens the cache that the environment names, or None.

    Raises:
        HloscopeError: Its settings are invalid, or the package for its address is not installed.
    """
    url = os.environ.get(ADDRESS, "").strip().rstrip("/")
    if not url:
        return None
    if find_spec("fsspec") is None:
        raise HloscopeError(f"{ADDRESS} needs fsspec", fix="pip install 'hloscope[remote]', or unset it")
    import fsspec

    protocol = url.partition("://")[0] if "://" in url else "file"
    known = fsspec.available_protocols()
    if protocol not in known:
        likely = ("s3", "gs", "https", "sftp", "file")
        fix = did_you_mean(protocol, known, f"use one that fsspec knows: {', '.join(likely)}")
        raise NotationError(f"{ADDRESS}={hide_password(url)} is at no kind of place that fsspec knows", fix=fix)
    mode = os.environ.get(MODE, "").strip() or "read-write"
    if mode not in _MODES:
        raise NotationError(f"{MODE}={mode!r} is neither read nor read-write", fix=f"write {MODE}=read")
    key = os.environ.get(KEY, "").strip().encode()
    if 0 < len(key) < _LEAST_KEY_BYTES:
        why = f"it has {len(key)} bytes, which can be guessed"
        raise NotationError(f"{KEY} is too short", why=why, fix="openssl rand -hex 32 makes a good one")
    return RemoteStore(url, key or None, mode == "read-write")


def hide_password(url: str) -> str:
    """An address without its password."""
    scheme, mark, rest = url.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def _make_entry_name(kind: str, key: str) -> str:
    return f"{kind}-{hashlib.sha256(key.encode()).hexdigest()}"


def _seal(kind: str, key: str, body: bytes, secret: bytes | None = None) -> bytes:
    """The file of an entry: a head, an HMAC or, without a secret, a digest of the body with its key, and the body."""
    whole = f"{kind}\0{key}\0".encode() + body
    sealed = hashlib.sha256(whole).digest() if secret is None else hmac.digest(secret, whole, "sha256")
    return _MAGIC + sealed + body


def _unseal(kind: str, key: str, data: bytes, secret: bytes | None = None) -> bytes | None:
    """The content of an entry's file; None if it is damaged, of another key, or sealed otherwise."""
    body = data[len(_MAGIC) + hashlib.sha256().digest_size :]
    return body if hmac.compare_digest(data, _seal(kind, key, body, secret)) else None


def _write_entry(files: Any, folder: str, name: str, data: bytes) -> bool:
    """Writes a file, and makes its folder if necessary; makes no buckets, which are the start of some paths."""
    try:
        files.pipe_file(f"{folder}/{name}", data)
    except FileNotFoundError:
        if not folder.startswith("/"):
            raise
        files.makedirs(folder, exist_ok=True)
        files.pipe_file(f"{folder}/{name}", data)
    return True


def _open_address(url: str) -> tuple[Any, str]:
    """The file system of an address, and the folder in it."""
    import fsspec

    for name in _NOISY_LOGGERS:
        logging.getLogger(name).addHandler(_silent)
    files, folder = fsspec.core.url_to_fs(url)
    return files, folder.rstrip("/")


def _run_within(seconds: float, run: Callable[[], T]) -> T:
    """The result of a call in a thread, with a time limit.

    Raises:
        TimeoutError: It takes longer.
        Exception: Any exception of the call.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            found.append(run())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=call, name="hloscope-remote-cache", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"there was no answer for {seconds:.0f} s")
    return found[0]


def _describe_error(error: BaseException) -> str:
    """An error in one line, without the password of an address."""
    words = " ".join(str(error).split()) or "it says nothing more"
    return f"{type(error).__name__}: {_PASSWORD.sub('://', words)[:300]}"


MOST_BYTES = 1 << 30
"""The size limit of all entries together, unless `HLOSCOPE_CACHE_SIZE` sets another; beyond it, the entries unused for
the longest time are removed.
"""
COMPILE = "compile"
"""The kind of an entry with the compiler's output for a program."""
SHARED = frozenset({COMPILE, "tried", "figures"})
"""The kinds of entries that other machines can use too."""

_MAGIC = b"hloscope cache 1\n"
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
        body = _unseal(kind, key, data)
        if body is None:
            _remove_own(path)
            return None
        with suppress(OSError):
            os.utime(path)
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
            temporary.write_bytes(_seal(kind, key, body))
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
        return self.folder / _make_entry_name(kind, key)

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
    found = parse_capacity(text) if text else MOST_BYTES
    if found is None:
        raise NotationError(f"HLOSCOPE_CACHE_SIZE={text!r} is not a size", fix="write it as 512MiB, 2GB or 10GiB")
    return found


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


def _remove_own(path: Path) -> None:
    """Removes a file that begins like an entry, even if unfinished; any other file is not ours, whatever its name."""
    with suppress(OSError):
        if path.is_symlink() or not path.is_file():
            return
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if _MAGIC.startswith(start):
            path.unlink(missing_ok=True)
