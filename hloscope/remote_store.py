"""The second level of the cache: entries that several machines share, at any address that fsspec can read.

`HLOSCOPE_REMOTE_CACHE` is the address, such as `s3://bucket/hloscope`, `sftp://host/cache`, `https://host/cache` or
`file:///mnt/cache`; `HLOSCOPE_REMOTE_CACHE_MODE=read` writes nothing there. Entries are JSON, and are trusted only if
their seal is valid: an HMAC under `HLOSCOPE_REMOTE_CACHE_KEY`, so that without the key one can neither make an entry
nor exchange two; or a checksum without a key, which trusts every writer. A cache that is away, slow or full
of other data costs time and nothing more, and at most a minute in each process: it is mentioned once,
and left alone from then on.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from hloscope.errors import HloscopeError, NotationError, did_you_mean
from hloscope.version import __version__

T = TypeVar("T")

ADDRESS, MODE, KEY = "HLOSCOPE_REMOTE_CACHE", "HLOSCOPE_REMOTE_CACHE_MODE", "HLOSCOPE_REMOTE_CACHE_KEY"
"""Environment variables."""
NOTES = "HLOSCOPE_REMOTE_CACHE_NOTES"
"""The environment variable for a folder in which the processes of one check share notes about the cache."""
_MODES = ("read", "read-write")
_FORMAT = 1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _RemoteEntry:
    """An entry as stored at the address."""

    format: int
    made_by: str
    kind: str
    seal: str
    body: bytes


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
        return None if data is None or len(data) > _LARGEST_BYTES else self._unsealed(kind, key, data)

    def put(self, kind: str, key: str, body: bytes) -> None:
        """Writes an entry there, if possible."""
        if not self.writes or self._is_noted(_READ_ONLY):
            return
        data = self._sealed(kind, key, body)
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
        except Exception as error:  # whatever a file system of anybody's raises
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
        except OSError:  # the others find out for themselves
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

    def _sealed(self, kind: str, key: str, body: bytes) -> bytes:
        import msgspec

        seal, made_by = self._seal(kind, key, body), f"hloscope {__version__}"
        return msgspec.json.encode(_RemoteEntry(format=_FORMAT, made_by=made_by, kind=kind, seal=seal, body=body))

    def _unsealed(self, kind: str, key: str, data: bytes) -> bytes | None:
        """The content of an entry; None if damaged, of another key, or with another seal."""
        import msgspec

        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            entry = msgspec.json.decode(data, type=_RemoteEntry)
            expected = self._seal(kind, key, entry.body)
            if entry.format == _FORMAT and hmac.compare_digest(entry.seal.encode(), expected.encode()):
                return entry.body
        return None

    def _seal(self, kind: str, key: str, body: bytes) -> str:
        """The seal of the body and its key, so that an entry under another name is invalid."""
        whole = b"\0".join((kind.encode(), key.encode(), body))
        if self.key is None:
            return f"sha256:{hashlib.sha256(whole).hexdigest()}"
        return f"hmac-sha256:{hmac.new(self.key, whole, hashlib.sha256).hexdigest()}"


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
    return f"{kind}-{hashlib.sha256(key.encode()).hexdigest()}.json"


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
