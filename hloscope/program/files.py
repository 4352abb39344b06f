"""Files of HLO: text, compressed text, and XLA's serialized protos. JAX's libraries are touched for protos only."""

from __future__ import annotations

import importlib
import importlib.util
import lzma
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hloscope.compiler.hlo_protos import NAME_TAG
from hloscope.errors import HloParseError, TargetError, caret_excerpt
from hloscope.units import format_bytes, format_capacity

_PLAIN_ENDINGS = (".hlo", ".txt", ".pb")
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ZSTD_MODULES = ("compression.zstd", "zstandard")
_MOST_BYTES = 1 << 30
"""What a compressed or serialized file may hold."""
_MOST_MEMORY = 1 << 30
"""What unpacking itself may take: a header of xz may ask for any amount."""
_GZIP = 31
"""What zlib calls the format of gzip."""
_COMPRESSED = re.compile(r"\.(gz|gzip|xz|zst|zstd)$", re.IGNORECASE)


def names_hlo(target: object) -> bool:
    """Whether a target is compiled already: a path, or text that ends as files of HLO do or names a file of no Python.

    Args:
        target: What the user gave: `step.hlo`, `many.hlo#step`, `dump.txt.gz`, `model.py:step`, a `Path` or a function.
    """
    if isinstance(target, Path):
        return target.suffix != ".py"
    if not isinstance(target, str):
        return False
    target, _ = split_module(target)
    plain = _COMPRESSED.sub("", target).lower()
    return plain.endswith(_PLAIN_ENDINGS) or (not target.endswith(".py") and Path(target).is_file())


def is_compressed(name: str) -> bool:
    """Whether a file's name says that it is compressed."""
    return _COMPRESSED.search(name) is not None


def is_proto(name: str) -> bool:
    """Whether a file's name says that it holds a serialized module."""
    return _COMPRESSED.sub("", name).endswith(".pb")


def split_module(target: str | Path) -> tuple[str, str | None]:
    """The file that a target names, and which of its modules: `many.hlo#step`; None for the one that it holds.

    A file whose own name holds the `#` is meant as it stands.
    """
    path, _, module = str(target).rpartition("#")
    return (path, module) if path and module and not Path(target).exists() else (str(target), None)


def read_hlo(path: str | Path) -> str:
    """The HLO text that a file holds: as text, compressed by gzip, xz or zstd, or as a serialized proto.

    Raises:
        TargetError: The file cannot be read or decompressed, is no text, or needs a package that is not installed.
        HloParseError: The text holds bytes that are not UTF-8; with line and column.
    """
    return decode_hlo(_bytes_of(path), name=str(path))


def unpacked(path: str | Path) -> bytes:
    """The bytes of a file that may be compressed by gzip, xz or zstd.

    Raises:
        TargetError: The file cannot be read or decompressed, or needs a package that is not installed.
    """
    data = _bytes_of(path)
    decompress = _decompression(data)
    return data if decompress is None else decompress(data, str(path))


def _bytes_of(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TargetError(
            f"{path} cannot be read", why=error.strerror or str(error), fix="check the path and its permissions"
        ) from None


def _decompression(data: bytes) -> Callable[[bytes, str], bytes] | None:
    return next((way for mark, way in _COMPRESSIONS.items() if data.startswith(mark)), None)


def decode_hlo(data: bytes, *, name: str) -> str:
    """The HLO text in the bytes of a file or a pipe.

    Args:
        data: What `read_hlo` would find in the file.
        name: The file's name, for errors and to recognise protos (`.pb`, also compressed).

    Raises:
        TargetError: As for `read_hlo`.
        HloParseError: As for `read_hlo`.
    """
    decompress = _decompression(data)
    said = name.endswith(".pb") if decompress is None else is_proto(name)
    if decompress is not None:
        data = decompress(data, name)
    return _decode_plain(data, name, as_proto=said)


def _decode_plain(data: bytes, name: str, *, as_proto: bool) -> str:
    if as_proto or _looks_like_a_proto(data):
        return _proto_text(data, name)
    if data.startswith(_UTF16_MARKS):
        raise TargetError(
            f"{name} is UTF-16 text, but HLO must be UTF-8", fix=f"iconv -f UTF-16 -t UTF-8 {name} > converted.hlo"
        )
    data = data.removeprefix(_UTF8_MARK)
    if b"\x00" in data:
        raise _byte_error(data, data.index(b"\x00"), name, "is not text: it contains a NUL byte")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"invalid byte 0x{data[error.start]:02X}"
        raise _byte_error(data, error.start, name, f"is not UTF-8 text: {byte}") from None


def _byte_error(data: bytes, offset: int, name: str, what: str) -> HloParseError:
    """An error that points at one byte."""
    start = data.rfind(b"\n", 0, offset) + 1
    end = data.find(b"\n", offset)
    before = data[start:offset].decode("utf-8", "replace")
    after = data[offset : len(data) if end < 0 else end].decode("utf-8", "replace").replace("\x00", "\ufffd")
    line, column = data.count(b"\n", 0, offset) + 1, len(before) + 1
    return HloParseError(
        f"{name} {what}",
        line=line,
        column=column,
        where=f"{name}:{line}:{column}",
        excerpt=caret_excerpt(before + after, column),
        fix="use the text as XLA wrote it; the name of a serialized module must end in .pb",
    )


class _Zstandard:
    """A stream of zstd, through the package `zstandard`, which knows no limit by itself."""

    _STEP = 1 << 10
    """Bytes read at once: a block of a few bytes may stand for 128 KiB."""

    def __init__(self, zstandard: Any) -> None:
        self._stream = zstandard.ZstdDecompressor().decompressobj()
        self.eof = False
        self.unused_data = b""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """The beginning of what the stream holds; may be longer by what one step stands for."""
        found = bytearray()
        for start in range(0, len(data), self._STEP):
            found += self._stream.decompress(data[start : start + self._STEP])
            if self._stream.eof:
                self.eof = True
                self.unused_data = self._stream.unused_data + data[start + self._STEP :]
            if self.eof or len(found) > max_length:
                break
        return bytes(found)


def _unzstd(data: bytes, name: str) -> bytes:
    for module in _ZSTD_MODULES:
        try:
            zstd = importlib.import_module(module)
        except ImportError:
            continue
        make = zstd.ZstdDecompressor if module == "compression.zstd" else partial(_Zstandard, zstd)
        return _inflated(data, name, kind="zstd", make=make, error=zstd.ZstdError)
    raise TargetError(
        f"{name} is compressed with zstd, which cannot be read here",
        why="Python has zstd in its standard library from 3.14 on",
        fix="pip install zstandard, or decompress the file: zstd -d",
    )


def _inflated(data: bytes, name: str, *, kind: str, make: Callable[[], Any], error: type[Exception]) -> bytes:
    """All streams of a file, one behind the other, as long as they hold no more than `_MOST_BYTES` together.

    Args:
        data: The file.
        name: Its name, for errors.
        kind: The format, for errors.
        make: Makes a stream with `decompress(data, most)`, `eof` and `unused_data`, as zlib, lzma and zstd have it.
        error: What that raises.
    """
    parts: list[bytes] = []
    room, size = _MOST_BYTES, len(data)
    while data:
        stream = make()
        try:
            parts.append(stream.decompress(data, room + 1))
        except error as damage:
            raise _damaged(name, kind, damage) from None
        room -= len(parts[-1])
        if room < 0:
            raise _too_large(name, f"its {format_bytes(size)} decompress to more than {format_capacity(_MOST_BYTES)}")
        if not stream.eof:
            raise _damaged(name, kind, EOFError("the compressed data is cut off"))
        data = stream.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _too_large(name: str, why: str) -> TargetError:
    return TargetError(
        f"{name} is too large to decompress",
        why=f"{why}: likely it is damaged, or crafted to exhaust memory",
        fix="if it is genuine, decompress it and use the module's text",
    )


def _damaged(name: str, kind: str, error: Exception) -> TargetError:
    fix = "get the file again, or decompress it to see what it contains"
    return TargetError(f"{name} cannot be decompressed as {kind}", why=str(error), fix=fix)


_COMPRESSIONS: Mapping[bytes, Callable[[bytes, str], bytes]] = {
    b"\x1f\x8b": partial(_inflated, kind="gzip", make=partial(zlib.decompressobj, wbits=_GZIP), error=zlib.error),
    b"\xfd7zXZ\x00": partial(
        _inflated, kind="xz", make=partial(lzma.LZMADecompressor, memlimit=_MOST_MEMORY), error=lzma.LZMAError
    ),
    b"\x28\xb5\x2f\xfd": _unzstd,
}
"""How a file is unpacked, by the bytes that it begins with."""


def _looks_like_a_proto(data: bytes) -> bool:
    """Whether bytes begin like a module's proto: a name's field, and bytes that no text has."""
    return data.startswith(NAME_TAG) and b"\x00" in data and not data.lstrip().startswith(b"HloModule")


def _proto_text(data: bytes, name: str) -> str:
    """The text of an HloModuleProto, or of the module in an HloProto."""
    if len(data) > _MOST_BYTES:
        raise _too_large(name, f"a module of {format_bytes(len(data))} is more than {format_capacity(_MOST_BYTES)}")
    if importlib.util.find_spec("jaxlib") is None:
        raise TargetError(
            f"reading {name}, a serialized module, needs jaxlib",
            why="jaxlib is not installed",
            fix="pip install jaxlib, or use the module's text",
        )
    from hloscope.compiler import client, hlo_protos

    module = hlo_protos.as_read_today(hlo_protos.module_of(data))
    try:
        return with_partitions(client.proto_text(module, name), len(hlo_protos.devices_of(module)))
    except ValueError as error:
        raise TargetError(
            f"{name} is not a serialized HLO module that jaxlib can read",
            why=str(error),
            fix="use an HloModuleProto or HloProto, such as XLA's dumps named *.hlo.pb, or the module's text",
        ) from None


def with_partitions(text: str, partitions: int | None) -> str:
    """A text whose header says how many partitions it has, which jaxlib does not print of serialized modules.

    Args:
        text: The text.
        partitions: Their number, as something else says it; None or 0 where nothing does.
    """
    header, end, rest = text.partition("\n")
    if not partitions or partitions < 2 or not header.startswith("HloModule ") or "num_part" in header:
        return text
    return f"{header}, num_partitions={partitions}{end}{rest}"
