"""Compiles that need not be done again: what the compiler made of a program, kept by the content of the program.

The key is the lowered program with the names of its functions, scopes and arguments but without its source places, the
compiler's options, the slice with the layout of the mesh on it, and the versions. What is kept takes its places from
the program as it is written now.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from hloscope.compiler import libtpu
from hloscope.compiler.model import Compiled, Program
from hloscope.compiler.relocating import (
    Locations,
    Places,
    locations_of,
    moved,
    moves_between,
    relocated_hlo,
)
from hloscope.store import Store
from hloscope.version import __version__

_KIND = "compile"
_HINT = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One compile as it is kept, with the places that its program had: each distinct stack once."""

    compiled: Compiled
    stacks: tuple[tuple[tuple[str, int, int], ...], ...]
    order: tuple[int, ...]


class CompileCache:
    """The compiles of a store.

    Args:
        store: Where they are kept; None keeps none.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store

    @property
    def keeps(self) -> bool:
        """Whether it keeps anything."""
        return self._store is not None

    def expects(self, target: str) -> bool:
        """Whether a target's last compile is still here, so that most likely no compiler is needed."""
        hint = None if self._store is None else self._store.get(_HINT, _hint_of(target))
        return hint is not None and self._store is not None and self._store.has(_KIND, hint.decode())

    def get(self, kept: Kept, target: str) -> Compiled | None:
        """What an earlier compile made of a program, its places as they are now; None where there is none.

        Args:
            kept: From `kept_as`.
            target: The user's name for the program, by which `expects` asks the next time.
        """
        body = None if self._store is None else self._store.get(_KIND, kept.key)
        found = None if body is None else _restored(body, kept.locations.places)
        if found is not None:
            self._remember(kept, target)
        return found

    def put(self, kept: Kept, target: str, compiled: Compiled) -> None:
        """Keeps what the compiler made of a program."""
        if self._store is not None:
            self._store.put(_KIND, kept.key, _packed(compiled, kept.locations.places))
            self._remember(kept, target)

    def _remember(self, kept: Kept, target: str) -> None:
        hint = _hint_of(target)
        if self._store is not None and self._store.get(_HINT, hint) != kept.key.encode():
            self._store.put(_HINT, hint, kept.key.encode())


def _hint_of(target: str) -> str:
    """What a target is called between two runs."""
    folder = ""
    with suppress(OSError):  # it may have been deleted
        folder = os.getcwd()
    return f"{folder} {target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a program is kept as.

    Attributes:
        key: Equal for equal programs.
        locations: Where its operations are written.
    """

    key: str
    locations: Locations


def kept_as(program: Program, text: str, located_text: str, versions: Mapping[str, str]) -> Kept:
    """What a program is kept as.

    Args:
        program: The program.
        text: Its StableHLO without source places.
        located_text: The same with them.
        versions: Of all that takes part.
    """
    locations = locations_of(located_text)
    parts = (
        text,
        repr(locations.names),
        hashlib.sha256(program.settings).hexdigest(),
        repr((program.slice.name, program.layout, sorted(program.options.items()))),
        repr((sorted(versions.items()), __version__, libtpu.build())),
        repr((flags_of_compiles().split(), os.environ.get("LIBTPU_INIT_ARGS", "").split())),
    )
    return Kept(key=" ".join(hashlib.sha256(part.encode()).hexdigest() for part in parts), locations=locations)


def flags_of_compiles() -> str:
    """The environment's XLA_FLAGS, without the number of simulated devices, which no compile depends on."""
    return re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", "")).strip()


def _packed(compiled: Compiled, places: Places) -> bytes:
    stacks: dict[tuple[tuple[str, int, int], ...], int] = {}
    order = tuple(stacks.setdefault(frames, len(stacks)) for frames in places)
    entry = _Entry(compiled=compiled, stacks=tuple(stacks), order=order)
    return zlib.compress(msgspec.msgpack.encode(entry), level=1)


def _restored(body: bytes, places: Places) -> Compiled | None:
    """What was kept, its places as they are now; None where these cannot be told, or the entry cannot be read."""
    try:
        entry = msgspec.msgpack.decode(zlib.decompress(body), type=_Entry)
        moves = moves_between(tuple(entry.stacks[index] for index in entry.order), places)
    except (zlib.error, msgspec.DecodeError, IndexError):
        return None
    compiled = entry.compiled
    if moves is None or all(old == new for old, new in moves.items()):
        return compiled if moves is not None else None
    text = relocated_hlo(compiled.text, moves)
    partitioned = None if compiled.partitioned is None else relocated_hlo(compiled.partitioned, moves)
    if text is None or (partitioned is None) != (compiled.partitioned is None):
        return None
    return replace(
        compiled,
        text=text,
        partitioned=partitioned,
        shardy=None if compiled.shardy is None else moved(compiled.shardy, moves),
        shardy_as_written=None if compiled.shardy_as_written is None else moved(compiled.shardy_as_written, moves),
    )
