"""The second level of the cache: entries that several machines share, at any address that fsspec can read.

`HLOSCOPE_REMOTE_CACHE` is the address, such as `s3://bucket/hloscope`, `sftp://host/cache`, `https://host/cache` or
`file:///mnt/cache`; `HLOSCOPE_REMOTE_CACHE_MODE=read` writes nothing there. Entries are JSON, and are believed only as
far as their seal holds: an HMAC under `HLOSCOPE_REMOTE_CACHE_KEY`, so that whoever has no key can neither make an entry
nor exchange two; without a key a checksum, and whoever may write there is trusted. A cache that is away, slow or full
of something else costs time and nothing more, and of that no more than a minute in each process: it is mentioned once,
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
"""The environment variable for a folder in which processes of one check leave what they found of the cache."""
_MODES = ("read", "read-write")
_FORMAT = 1
_LONGEST_S = 15.0
"""How long an answer is waited for."""
_MOST_LOST_S = 60.0
"""How long a process waits for answers that bring it nothing, all of them together."""
_LARGEST_BYTES = 256 << 20
"""No entry is as large; what is more is not read."""
_LEAST_KEY_BYTES = 16
_PASSWORD = re.compile(r"://[^/\s]*@")
_AWAY, _READ_ONLY = "away", "read-only"

_log = logging.getLogger("hloscope")
_silent = logging.NullHandler()
_TALKING = ("paramiko", "asyncio")
"""Loggers of clients that print a traceback for what is told here in a line, unless somebody handles what they say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An entry as it lies there."""

    format: int
    made_by: str
    kind: str
    seal: str
    body: bytes


@dataclass(slots=True)
class _State:
    """What this process knows of an address, whichever object asks.

    Attributes:
        away: Why it is not asked any more; None while it is.
        read_only: Whether writing there has failed.
        lost_s: How long was waited for answers that brought nothing.
        opened: Its file system and the folder in it, once they were asked for. fsspec keeps one for each thread, and
            every answer is waited for in a thread of its own.
    """

    away: str | None = None
    read_only: bool = False
    lost_s: float = 0.0
    opened: tuple[Any, str] | None = None


_states: dict[tuple[int, str], _State] = {}
"""By process, as connections are of the one that opened them, and address."""


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """Entries at an address.

    Attributes:
        url: The address of the folder.
        key: What entries are sealed with; None for a checksum.
        writes: Whether entries are put there.
    """

    url: str
    key: bytes | None = field(default=None, repr=False)
    writes: bool = True

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry of a key; None where there is none, or none that can be believed."""
        data = self._asked(lambda files, folder: files.cat_file(f"{folder}/{_name(kind, key)}"))
        return None if data is None or len(data) > _LARGEST_BYTES else self._unsealed(kind, key, data)

    def put(self, kind: str, key: str, body: bytes) -> None:
        """Puts an entry there, as far as that is possible."""
        if not self.writes or self._is_noted(_READ_ONLY):
            return
        data = self._sealed(kind, key, body)
        self._asked(lambda files, folder: _written(files, folder, _name(kind, key), data), writing=True)

    def reached(self) -> str | None:
        """Asks for nothing in particular; returns why nothing can be read, or None where it can."""
        self._asked(lambda files, folder: files.cat_file(f"{folder}/{_name('no', 'entry')}"))
        return self._state.away

    @property
    def _state(self) -> _State:
        return _states.setdefault((os.getpid(), self.url), _State())

    def _opened(self) -> tuple[Any, str]:
        state = self._state
        if state.opened is None:
            state.opened = _opened_address(self.url)
        return state.opened

    def _asked(self, ask: Callable[[Any, str], T], *, writing: bool = False) -> T | None:
        """An answer; None where there is none, after a word on why unless that is usual."""
        if self._is_noted(_AWAY):
            return None
        begun = time.monotonic()
        found: T | None = None
        try:
            found = _within(_LONGEST_S, lambda: ask(*self._opened()))
        except Exception as error:  # whatever a file system of anybody's raises
            if writing:
                self._cannot_be_written(_in_words(error))
            elif not isinstance(error, FileNotFoundError):
                self._give_up(_in_words(error))
        self._lose(time.monotonic() - begun if found is None else 0.0)
        return found

    def _lose(self, seconds: float) -> None:
        """Takes note of time that brought nothing; after too much of it the cache is left alone."""
        self._state.lost_s += seconds
        if self._state.lost_s > _MOST_LOST_S and self._state.away is None:
            self._give_up(f"it is slow: {self._state.lost_s:.0f} s were waited for answers that brought nothing")

    def _cannot_be_written(self, why: str) -> None:
        self._state.read_only = True
        if self.reached() is None and self._note(_READ_ONLY):
            _log.warning("hloscope: nothing can be written to the shared cache %s: %s", shown(self.url), why)

    def _give_up(self, why: str) -> None:
        self._state.away = why
        if self._note(_AWAY):
            _log.warning("hloscope: goes on without the shared cache %s: %s", shown(self.url), why)

    def _note(self, what: str) -> bool:
        """Leaves a note for the other processes of a check; returns whether it is the first such one."""
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
        """Whether this process, or another of its check, has found the cache to be so."""
        known = self._state.away is not None if what == _AWAY else self._state.read_only
        path = None if known else self._path_of_note(what)
        return known or (path is not None and path.exists())

    def _path_of_note(self, what: str) -> Path | None:
        folder = os.environ.get(NOTES)
        return None if not folder else Path(folder, f"{what}-{hashlib.sha256(self.url.encode()).hexdigest()}")

    def _sealed(self, kind: str, key: str, body: bytes) -> bytes:
        import msgspec

        seal, made_by = self._seal(kind, key, body), f"hloscope {__version__}"
        return msgspec.json.encode(_Entry(format=_FORMAT, made_by=made_by, kind=kind, seal=seal, body=body))

    def _unsealed(self, kind: str, key: str, data: bytes) -> bytes | None:
        """What an entry holds; None where it is damaged, another one, or sealed otherwise."""
        import msgspec

        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            entry = msgspec.json.decode(data, type=_Entry)
            expected = self._seal(kind, key, entry.body)
            if entry.format == _FORMAT and hmac.compare_digest(entry.seal.encode(), expected.encode()):
                return entry.body
        return None

    def _seal(self, kind: str, key: str, body: bytes) -> str:
        """Of the body and what it is kept under, so that an entry under another's name is none."""
        whole = b"\0".join((kind.encode(), key.encode(), body))
        if self.key is None:
            return f"sha256:{hashlib.sha256(whole).hexdigest()}"
        return f"hmac-sha256:{hmac.new(self.key, whole, hashlib.sha256).hexdigest()}"


def say_whom_it_trusts(store: RemoteStore) -> None:
    """Says, where entries have no key, that whoever may write them is believed."""
    if store.key is None:
        _log.warning(
            "hloscope: whoever may write to the shared cache %s is believed; with a key, %s, only who has it",
            shown(store.url),
            KEY,
        )


def remote_store() -> RemoteStore | None:
    """The cache that the environment names; None for none.

    Raises:
        HloscopeError: Its settings are written wrongly, or what reads its address is not installed.
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
        raise NotationError(f"{ADDRESS}={shown(url)} is at no kind of place that fsspec knows", fix=fix)
    mode = os.environ.get(MODE, "").strip() or "read-write"
    if mode not in _MODES:
        raise NotationError(f"{MODE}={mode!r} is neither read nor read-write", fix=f"write {MODE}=read")
    key = os.environ.get(KEY, "").strip().encode()
    if 0 < len(key) < _LEAST_KEY_BYTES:
        why = f"it has {len(key)} bytes, which can be guessed"
        raise NotationError(f"{KEY} is too short", why=why, fix="openssl rand -hex 32 makes a good one")
    return RemoteStore(url, key or None, mode == "read-write")


def shown(url: str) -> str:
    """An address without the password in it."""
    scheme, mark, rest = url.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def _name(kind: str, key: str) -> str:
    return f"{kind}-{hashlib.sha256(key.encode()).hexdigest()}.json"


def _written(files: Any, folder: str, name: str, data: bytes) -> bool:
    """Writes a file, in a folder that is made where there is none; no bucket is made, which some paths begin with."""
    try:
        files.pipe_file(f"{folder}/{name}", data)
    except FileNotFoundError:
        if not folder.startswith("/"):
            raise
        files.makedirs(folder, exist_ok=True)
        files.pipe_file(f"{folder}/{name}", data)
    return True


def _opened_address(url: str) -> tuple[Any, str]:
    """The file system of an address, and the folder in it."""
    import fsspec

    for name in _TALKING:
        logging.getLogger(name).addHandler(_silent)
    files, folder = fsspec.core.url_to_fs(url)
    return files, folder.rstrip("/")


def _within(seconds: float, run: Callable[[], T]) -> T:
    """What a call returns, in a thread that nobody waits for longer.

    Raises:
        TimeoutError: It takes longer.
        Exception: Whatever the call raises.
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


def _in_words(error: BaseException) -> str:
    """What an error says in one line, without the password of an address."""
    words = " ".join(str(error).split()) or "it says nothing more"
    return f"{type(error).__name__}: {_PASSWORD.sub('://', words)[:300]}"
