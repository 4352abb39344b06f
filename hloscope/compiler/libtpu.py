"""Which libtpu a compile is done by, without loading it."""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3


def version() -> str | None:
    """The version of the installed libtpu; None where there is none."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("libtpu")
    return None


def build() -> str | None:
    """The version and the build of the libtpu that compiles, which `TPU_LIBRARY_PATH` may name; None without one.

    Two files of one content have one build, wherever and whenever they were put there.
    """
    chosen = os.environ.get("TPU_LIBRARY_PATH")
    path = Path(chosen) if chosen else installed()
    if path is None:
        return None
    try:
        status = path.stat()
        return f"{version()} {_build_of(path, status.st_mtime_ns, status.st_size)}"
    except OSError:
        return None


def installed() -> Path | None:
    """The library of the installed package; None where there is none."""
    spec = find_spec("libtpu")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "libtpu.so"


@lru_cache(maxsize=4)
def _build_of(path: Path, _changed_ns: int, _size: int) -> str:
    """The identification that the linker wrote into a library; of one without it, a digest of the whole."""
    with path.open("rb") as file:
        found = _gnu_build_id(file.read(1 << 16))
        file.seek(0)
        return found or hashlib.file_digest(file, "sha256").hexdigest()


def _gnu_build_id(head: bytes) -> str | None:
    """The build id in the first bytes of a 64-bit little-endian ELF file; None where it is not among them.

    Source: the ELF specification; program headers of type PT_NOTE, notes of the name `GNU`.
    """
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    (offset,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    with suppress(struct.error):
        for number in range(count):
            kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", head, offset + number * size)
            if kind == _PT_NOTE:
                found = _note(head[start : start + length])
                if found is not None:
                    return found
    return None


def _note(notes: bytes) -> str | None:
    position = 0
    while position + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, position)
        name = position + 12
        body = name + (name_size + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and notes[name : name + name_size] == b"GNU\0":
            return notes[body : body + size].hex()
        position = body + (size + 3) // 4 * 4
    return None
