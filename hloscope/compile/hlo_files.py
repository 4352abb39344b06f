"""Files of HLO: text, compressed text, and XLA's serialized protos. Only protos need JAX's libraries."""

from __future__ import annotations

import importlib
import importlib.util
import lzma
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hloscope.base.errors import HloParseError, TargetError, format_excerpt
from hloscope.base.protobuf import (
    WireError,
    change_at_path,
    encode_field,
    encode_message,
    read_at_path,
    read_fields,
    read_packed_integers,
    read_varint,
)
from hloscope.base.units import format_bytes, format_capacity

# ---- serialized HLO modules: the parts that jaxlib drops and hloscope needs, which are groups of older XLA, and
# devices
#
# Source: xla/service/hlo.proto. `HloProto` holds the module as its field 1; a module its computations as field 3,
# these their instructions as field 2.

NAME_TAG = b"\x0a"
"""Field 1 of a message, with length and bytes: the name in HloModuleProto, the module in HloProto."""

_COMPUTATIONS, _INSTRUCTIONS = 3, 2
_DEVICE_LIST, _IOTA_OF_LIST, _IOTA_LIST = 87, 2, 92
_OLD_GROUPS = re.compile(rb"\xba\x05[\x00-\x7f]\x12")
"""The tag of field 87, its length, and the tag of field 2 in it."""

_DEVICE_ASSIGNMENT, _OF_COMPUTATION, _DEVICE_IDS = 15, 3, 1
_ASSIGNMENT = 3


def extract_module(data: bytes) -> bytes:
    """The bytes of HloModuleProto; HloProto holds them as its first field, which is a plain name in HloModuleProto.

    A name never begins with a line feed, as a module's first field does.
    """
    if not data.startswith(NAME_TAG):
        return data
    try:
        length, begin = read_varint(data, len(NAME_TAG))
    except WireError:
        return data
    inner = data[begin : begin + length]
    return inner if inner.startswith(NAME_TAG) and len(inner) == length else data


def upgrade_module(module: bytes) -> bytes:
    """A module of any XLA in the form that today's jaxlib reads; bytes that are not a module are kept.

    XLA of 2025 wrote groups such as `[4,2]<=[2,4]T(1,0)` into field 87 of an instruction, as its field 2; today's
    writes them into field 92 and no longer looks there: such a collective would seem to have one group of all.
    """
    if not _OLD_GROUPS.search(module):
        return module
    try:
        return change_at_path(module, (_COMPUTATIONS, _INSTRUCTIONS), _upgrade_groups)
    except WireError:
        return module


def _upgrade_groups(instruction: bytes) -> bytes:
    found = dict(read_fields(instruction))
    listed = found.get(_DEVICE_LIST)
    iota = dict(read_fields(listed)).get(_IOTA_OF_LIST) if isinstance(listed, bytes) else None
    return instruction if iota is None or _IOTA_LIST in found else instruction + encode_field(_IOTA_LIST, iota)


def make_hlo_proto(module: bytes, devices: Sequence[int], assignment: bytes = b"") -> bytes:
    """A serialized HloProto, in the form of profiles.

    Args:
        module: The serialized module.
        devices: The device of each partition, which jaxlib omits.
        assignment: A serialized BufferAssignmentProto; empty without one.
    """
    of_partitions = [(_OF_COMPUTATION, encode_message([(_DEVICE_IDS, device)])) for device in devices]
    placed = encode_message([(1, 1), (2, len(devices)), *of_partitions])
    whole: list[tuple[int, bytes]] = [(1, module + encode_field(_DEVICE_ASSIGNMENT, placed))]
    return encode_message([*whole, (_ASSIGNMENT, assignment)] if assignment else whole)


def read_device_ids(module: bytes) -> tuple[int, ...]:
    """The device of each partition that the program was compiled for; empty if the module does not record them.

    Modules with several replicas give nothing: replicas are not partitions.
    """
    try:
        partitions = read_at_path(module, (_DEVICE_ASSIGNMENT, _OF_COMPUTATION))
        ids = [read_packed_integers(dict(read_fields(value)).get(_DEVICE_IDS, b"")) for value in partitions]
    except WireError:
        return ()
    return tuple(found[0] for found in ids) if all(len(found) == 1 for found in ids) else ()


_PLAIN_ENDINGS = (".hlo", ".txt", ".pb")
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ZSTD_MODULES = ("compression.zstd", "zstandard")
_MOST_BYTES = 1 << 30
"""The most bytes that a compressed or serialized file may hold."""
_MOST_MEMORY = 1 << 30
"""The most memory that decompression may take: a header of xz may ask for any amount."""
_STEP_BYTES = 1 << 12
"""Bytes that are decompressed at once: a few of them may stand for 128 KiB, so that a step may make 128 MiB."""
_GZIP = 31
"""zlib's number for the gzip format."""
_COMPRESSED = re.compile(r"\.(gz|gzip|xz|zst|zstd)$", re.IGNORECASE)


def is_hlo_target(target: object) -> bool:
    """Returns whether a target is already compiled: a path, or text that names an HLO file or another non-Python file.

    Args:
        target: The user's target: `step.hlo`, `many.hlo#step`, `dump.txt.gz`, `model.py:step`, a `Path` or a function.
    """
    if isinstance(target, Path):
        return target.suffix != ".py"
    if not isinstance(target, str):
        return False
    target, _ = split_module(target)
    plain = _COMPRESSED.sub("", target).lower()
    return plain.endswith(_PLAIN_ENDINGS) or (not target.endswith(".py") and os.path.isfile(target))


def is_compressed(name: str) -> bool:
    """Returns whether a file's name ends like that of a compressed file."""
    return _COMPRESSED.search(name) is not None


def is_proto(name: str) -> bool:
    """Returns whether a file's name ends like that of a serialized module."""
    return _COMPRESSED.sub("", name).endswith(".pb")


def split_module(target: str | Path) -> tuple[str, str | None]:
    """The file that a target names, and the name of a module in it: `many.hlo#step`; None for the only module.

    An existing file whose own name holds the `#` is taken literally.
    """
    path, _, module = str(target).rpartition("#")
    return (path, module) if path and module and not os.path.exists(target) else (str(target), None)


def read_hlo(path: str | Path) -> str:
    """Reads the HLO text in a file: plain text, compressed by gzip, xz or zstd, or a serialized proto.

    Raises:
        TargetError: The file cannot be read or decompressed, is not text, or needs a package that is not installed.
        HloParseError: The text holds bytes that are not UTF-8; with line and column.
    """
    return decode_hlo(_read_bytes(path), name=str(path))


def read_unpacked(path: str | Path) -> bytes:
    """Reads the bytes of a file that may be compressed by gzip, xz or zstd.

    Raises:
        TargetError: The file cannot be read or decompressed, or needs a package that is not installed.
    """
    data = _read_bytes(path)
    decompress = _find_decompression(data)
    return data if decompress is None else decompress(data, str(path))


def _read_bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TargetError(
            f"{path} cannot be read", why=error.strerror or str(error), fix="check the path and its permissions"
        ) from None


def _find_decompression(data: bytes) -> Callable[[bytes, str], bytes] | None:
    return next((way for mark, way in _COMPRESSIONS.items() if data.startswith(mark)), None)


def decode_hlo(data: bytes, *, name: str) -> str:
    """Decodes the HLO text in the bytes of a file or a pipe.

    Args:
        data: The content that `read_hlo` would read from the file.
        name: The file's name, for errors and to recognise protos (`.pb`, also compressed).

    Raises:
        TargetError: As for `read_hlo`.
        HloParseError: As for `read_hlo`.
    """
    decompress = _find_decompression(data)
    said = name.endswith(".pb") if decompress is None else is_proto(name)
    if decompress is not None:
        data = decompress(data, name)
    return _decode_plain(data, name, as_proto=said)


def _decode_plain(data: bytes, name: str, *, as_proto: bool) -> str:
    if as_proto or _looks_like_a_proto(data):
        return _read_proto_text(data, name)
    if data.startswith(_UTF16_MARKS):
        raise TargetError(
            f"{name} is UTF-16 text, but HLO must be UTF-8", fix=f"iconv -f UTF-16 -t UTF-8 {name} > converted.hlo"
        )
    data = data.removeprefix(_UTF8_MARK)
    if b"\x00" in data:
        raise _make_byte_error(data, data.index(b"\x00"), name, "is not text: it contains a NUL byte")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"invalid byte 0x{data[error.start]:02X}"
        raise _make_byte_error(data, error.start, name, f"is not UTF-8 text: {byte}") from None


def _make_byte_error(data: bytes, offset: int, name: str, what: str) -> HloParseError:
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
        excerpt=format_excerpt(before + after, column),
        fix="use the text as XLA wrote it; the name of a serialized module must end in .pb",
    )


def _decompress_zstd(data: bytes, name: str) -> bytes:
    for module in _ZSTD_MODULES:
        try:
            zstd = importlib.import_module(module)
        except ImportError:
            continue

        def make(zstd: Any = zstd) -> Any:
            made = zstd.ZstdDecompressor()
            return made.decompressobj() if hasattr(made, "decompressobj") else made

        return _decompress_streams(data, name, kind="zstd", make=make, error=zstd.ZstdError)
    raise TargetError(
        f"{name} is compressed with zstd, which cannot be read here",
        why="Python has zstd in its standard library from 3.14 on",
        fix="pip install zstandard, or decompress the file: zstd -d",
    )


def _decompress_streams(data: bytes, name: str, *, kind: str, make: Callable[[], Any], error: type[Exception]) -> bytes:
    """Decompresses all streams of a file in order, up to `_MOST_BYTES` in total.

    Args:
        data: The file.
        name: Its name, for errors.
        kind: The format, for errors.
        make: Makes a stream with `decompress(data)`, `eof` and `unused_data`, as in zlib, lzma and zstd.
        error: The exception that the stream raises.
    """
    parts: list[bytes] = []
    room, stream = _MOST_BYTES, make()
    for start in range(0, len(data), _STEP_BYTES):
        piece = data[start : start + _STEP_BYTES]
        while piece:
            if stream.eof:  # another one may follow, after zeros
                piece = piece.lstrip(b"\0")
                stream = make() if piece else stream
                continue
            try:
                parts.append(stream.decompress(piece))
            except error as damage:
                raise _make_damaged_error(name, kind, damage) from None
            room -= len(parts[-1])
            if room < 0:
                size, most = format_bytes(len(data)), format_capacity(_MOST_BYTES)
                raise _make_too_large_error(name, f"its {size} decompress to more than {most}")
            piece = stream.unused_data if stream.eof else b""
    if not stream.eof:
        raise _make_damaged_error(name, kind, EOFError("the compressed data is cut off"))
    return b"".join(parts)


def _make_too_large_error(name: str, why: str) -> TargetError:
    return TargetError(
        f"{name} is too large to decompress",
        why=f"{why}: likely it is damaged, or crafted to exhaust memory",
        fix="if it is genuine, decompress it and use the module's text",
    )


def _make_damaged_error(name: str, kind: str, error: Exception) -> TargetError:
    fix = "get the file again, or decompress it to see what it contains"
    return TargetError(f"{name} cannot be decompressed as {kind}", why=str(error), fix=fix)


_COMPRESSIONS: Mapping[bytes, Callable[[bytes, str], bytes]] = {
    b"\x1f\x8b": partial(
        _decompress_streams, kind="gzip", make=partial(zlib.decompressobj, wbits=_GZIP), error=zlib.error
    ),
    b"\xfd7zXZ\x00": partial(
        _decompress_streams, kind="xz", make=partial(lzma.LZMADecompressor, memlimit=_MOST_MEMORY), error=lzma.LZMAError
    ),
    b"\x28\xb5\x2f\xfd": _decompress_zstd,
}
"""The decompression function for each sequence of first bytes."""


def _looks_like_a_proto(data: bytes) -> bool:
    """Returns whether bytes begin like a module's proto: the field of a name, and bytes that no text has."""
    return data.startswith(NAME_TAG) and b"\x00" in data and not data.lstrip().startswith(b"HloModule")


def _read_proto_text(data: bytes, name: str) -> str:
    """The text of an HloModuleProto, or of the module in an HloProto."""
    if len(data) > _MOST_BYTES:
        raise _make_too_large_error(
            name, f"a module of {format_bytes(len(data))} is more than {format_capacity(_MOST_BYTES)}"
        )
    if importlib.util.find_spec("jaxlib") is None:
        raise TargetError(
            f"reading {name}, a serialized module, needs jaxlib",
            why="jaxlib is not installed",
            fix="pip install jaxlib, or use the module's text",
        )
    from hloscope.compile import client

    module = upgrade_module(extract_module(data))
    try:
        return add_partition_count(client.convert_proto_to_text(module, name), len(read_device_ids(module)))
    except ValueError as error:
        raise TargetError(
            f"{name} is not a serialized HLO module that jaxlib can read",
            why=str(error),
            fix="use an HloModuleProto or HloProto, such as XLA's dumps named *.hlo.pb, or the module's text",
        ) from None


def add_partition_count(text: str, partitions: int | None) -> str:
    """Adds the number of partitions to the header of a text; jaxlib does not print it for serialized modules.

    Args:
        text: The text.
        partitions: The number of partitions, from another source; None or 0 if unknown.
    """
    header, end, rest = text.partition("\n")
    if not partitions or partitions < 2 or not header.startswith("HloModule ") or "num_part" in header:
        return text
    return f"{header}, num_partitions={partitions}{end}{rest}"
