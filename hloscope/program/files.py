"""Files of HLO: text, compressed text, and XLA's serialized protos. JAX's libraries are touched for protos only."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

from hloscope.errors import HloParseError, TargetError, caret_excerpt

_PLAIN_ENDINGS = (".hlo", ".txt", ".pb")
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ZSTD_MODULES = ("compression.zstd", "zstandard")
_COMPRESSION_FIX = "get the file again, or decompress it to see what it holds"
_PROTO_ENDING = ".pb"
_NAME_TAG = b"\x0a"
"""Field 1 of a message, a length and bytes: the module's name in HloModuleProto, the module itself in HloProto."""


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
    name = target.lower()
    for _, suffixes, _ in _COMPRESSIONS:
        name = next((name.removesuffix(one) for one in suffixes if name.endswith(one)), name)
    return name.endswith(_PLAIN_ENDINGS) or (not target.endswith(".py") and Path(target).is_file())


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
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TargetError(
            f"{path} cannot be read", why=error.strerror or str(error), fix="check the path and its permissions"
        ) from None
    return decode_hlo(data, name=str(path))


def decode_hlo(data: bytes, *, name: str) -> str:
    """The HLO text in the bytes of a file or a pipe.

    Args:
        data: What `read_hlo` would find in the file.
        name: The file's name, for errors and to tell protos (`.pb`, also compressed).

    Raises:
        TargetError: As for `read_hlo`.
        HloParseError: As for `read_hlo`.
    """
    for mark, suffixes, decompress in _COMPRESSIONS:
        if data.startswith(mark):
            inner = name
            for suffix in suffixes:
                inner = inner.removesuffix(suffix)
            return _decode_plain(decompress(data, name), name, is_proto=inner.endswith(_PROTO_ENDING))
    return _decode_plain(data, name, is_proto=name.endswith(_PROTO_ENDING))


def _decode_plain(data: bytes, name: str, *, is_proto: bool) -> str:
    if is_proto or _looks_like_a_proto(data):
        return _proto_text(data, name)
    if data.startswith(_UTF16_MARKS):
        raise TargetError(
            f"{name} is UTF-16 text, and HLO is read as UTF-8", fix=f"iconv -f UTF-16 -t UTF-8 {name} > converted.hlo"
        )
    data = data.removeprefix(_UTF8_MARK)
    if b"\x00" in data:
        raise _byte_error(data, data.index(b"\x00"), name, "is no text: it holds a NUL byte")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02X} cannot be read"
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
        fix="give the text as XLA wrote it; a serialized module's name must end in .pb",
    )


def _gunzip(data: bytes, name: str) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(name, "gzip", error) from None


def _unxz(data: bytes, name: str) -> bytes:
    try:
        return lzma.decompress(data)
    except (lzma.LZMAError, EOFError) as error:
        raise _damaged(name, "xz", error) from None


def _unzstd(data: bytes, name: str) -> bytes:
    for module in _ZSTD_MODULES:
        try:
            zstd = importlib.import_module(module)
        except ImportError:
            continue
        # One frame need not say how large it is, so `zstandard` is asked for a stream.
        decompress = getattr(zstd, "decompress", None) if module == "compression.zstd" else _streamed(zstd)
        try:
            return bytes(decompress(data))  # type: ignore[misc]
        except (zstd.ZstdError, EOFError) as error:
            raise _damaged(name, "zstd", error) from None
    raise TargetError(
        f"{name} is compressed by zstd, and nothing here can read that",
        why="Python has zstd in its standard library from 3.14 on",
        fix="pip install zstandard, or decompress the file: zstd -d",
    )


def _streamed(zstandard: object) -> Callable[[bytes], bytes]:
    def decompress(data: bytes) -> bytes:
        reader = zstandard.ZstdDecompressor().decompressobj()  # type: ignore[attr-defined]
        found: bytes = reader.decompress(data)
        if not reader.eof:
            raise EOFError("the compressed data ends too early")
        return found

    return decompress


def _damaged(name: str, kind: str, error: Exception) -> TargetError:
    return TargetError(f"{name} cannot be decompressed as {kind}", why=str(error), fix=_COMPRESSION_FIX)


_COMPRESSIONS: tuple[tuple[bytes, tuple[str, ...], Callable[[bytes, str], bytes]], ...] = (
    (b"\x1f\x8b", (".gz", ".gzip"), _gunzip),
    (b"\xfd7zXZ\x00", (".xz",), _unxz),
    (b"\x28\xb5\x2f\xfd", (".zst", ".zstd"), _unzstd),
)


def _looks_like_a_proto(data: bytes) -> bool:
    """Whether bytes begin like a module's proto: a name's field, and bytes that no text has."""
    return data.startswith(_NAME_TAG) and b"\x00" in data and not data.lstrip().startswith(b"HloModule")


def _proto_text(data: bytes, name: str) -> str:
    """The text of an HloModuleProto, or of the module in an HloProto."""
    if importlib.util.find_spec("jaxlib") is None:
        raise TargetError(
            f"{name} is a serialized module, which only jaxlib can read",
            why="jaxlib is not installed",
            fix="pip install jaxlib, or give the module's text",
        )
    from hloscope.compiler import client

    try:
        return client.proto_text(_module_of(data), name)
    except ValueError as error:
        raise TargetError(
            f"{name} is no serialized HLO module that jaxlib can read",
            why=str(error),
            fix="give an HloModuleProto or HloProto, such as XLA's dumps named *.hlo.pb, or the module's text",
        ) from None


def _module_of(data: bytes) -> bytes:
    """The bytes of HloModuleProto; HloProto holds them as its first field, where the other has a plain name.

    Source: xla/service/hlo.proto. A name never begins with a line feed, which is how a module's first field begins.
    """
    if not data.startswith(_NAME_TAG):
        return data
    length, shift, position = 0, 0, 1
    while position < min(len(data), 11):
        byte = data[position]
        length |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if byte < 0x80:
            break
    inner = data[position : position + length]
    return inner if inner.startswith(_NAME_TAG) and len(inner) == length else data
