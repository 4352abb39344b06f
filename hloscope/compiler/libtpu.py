"""The libtpu of a compile, found without loading it."""

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


def find_package_version(package: str = "libtpu") -> str | None:
    """The version of the installed libtpu; None if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def find_libtpu_build() -> str | None:
    """The version and build of the libtpu that compiles, which `TPU_LIBRARY_PATH` may name; None without one.

    Two files with the same content have the same build, regardless of their location and time.
    """
    chosen = os.environ.get("TPU_LIBRARY_PATH")
    path = Path(chosen) if chosen else find_libtpu_file()
    with suppress(OSError):
        if path is not None:
            status = path.stat()
            return f"{find_package_version()} {_read_build_id(path, status.st_mtime_ns, status.st_size)}"
    return None


def find_libtpu_file() -> Path | None:
    """The library file of the installed package; None without one."""
    spec = find_spec("libtpu")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "libtpu.so"


@lru_cache(maxsize=4)
def _read_build_id(path: Path, _changed_ns: int, _size: int) -> str:
    """The build id that the linker wrote into a library; for one without it, a digest of the whole file."""
    with path.open("rb") as file:
        found = _find_gnu_build_id(file.read(1 << 16))
        file.seek(0)
        return found or hashlib.file_digest(file, "sha256").hexdigest()


def _find_gnu_build_id(head: bytes) -> str | None:
    """The build id in the first bytes of a 64-bit little-endian ELF file; None if it is not among them.

    Source: the ELF specification: a note's header is the sizes of its name and its content, its type, and its name.
    """
    found = _BUILD_ID.search(head) if head.startswith(b"\x7fELF\x02\x01") else None
    if found is None:
        return None
    size = int.from_bytes(found["size"], "little")
    body = head[found.end() : found.end() + size]
    return body.hex() if size and len(body) == size else None
