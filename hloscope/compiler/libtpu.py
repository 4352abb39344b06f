"""The libtpu that a compile uses, found without loading it."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

_BUILD_ID = re.compile(rb"\x04\0\0\0(?P<size>.\0\0\0)\x03\0\0\0GNU\0", re.DOTALL)
"""The header of a note of type 3 by `GNU`."""


def version(package: str = "libtpu") -> str | None:
    """The version of the installed libtpu; None where there is none."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def build() -> str | None:
    """The version and the build of the libtpu that compiles, which `TPU_LIBRARY_PATH` may name; None without one.

    Two files of one content have one build, wherever and whenever they were put there.
    """
    chosen = os.environ.get("TPU_LIBRARY_PATH")
    path = Path(chosen) if chosen else installed()
    with suppress(OSError):
        if path is not None:
            status = path.stat()
            return f"{version()} {_build_of(path, status.st_mtime_ns, status.st_size)}"
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

    Source: the ELF specification: a note's header is the sizes of its name and of what it says, its type, and its name.
    """
    found = _BUILD_ID.search(head) if head.startswith(b"\x7fELF\x02\x01") else None
    if found is None:
        return None
    size = int.from_bytes(found["size"], "little")
    body = head[found.end() : found.end() + size]
    return body.hex() if size and len(body) == size else None
