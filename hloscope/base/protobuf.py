"""Protocol buffers as stored in files: numbered fields of integers, fixed bytes and nested messages, both ways.

hloscope reads a dozen fields of XLA's and the profiler's messages, and no package that it needs ships their
descriptions: so a message is its fields by number, and its reader names the numbers and their source.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MOST_BITS = 70
"""A varint has ten bytes at most."""

WireValue = int | bytes
"""An integer, or the bytes of a string, a nested message or a fixed number."""


class WireError(ValueError):
    """Bytes that are not a message; states the position, and whether they end too early."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads the integer that begins at a position, and the position of its end.

    Raises:
        WireError: It does not end.
    """
    value = shift = 0
    while True:
        try:
            byte = data[at]
        except IndexError:
            raise WireError(f"it ends in the middle of a number at byte {at:,}") from None
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MOST_BITS:
            raise WireError(f"the number at byte {at:,} is too long")


def read_fields(data: bytes) -> Iterator[tuple[int, WireValue]]:
    """Reads the fields of a message in order, with their numbers.

    Raises:
        WireError: It is not a message, or is cut off.
    """
    return ((number, value) for number, value, _ in read_raw_fields(data))


def read_raw_fields(data: bytes) -> Iterator[tuple[int, WireValue, bytes]]:
    """Reads the same fields, each with all of its bytes.

    Raises:
        WireError: It is not a message, or is cut off.
    """
    at, end = 0, len(data)
    value: WireValue
    while at < end:
        begin = at
        key, at = read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise WireError(f"no field begins at byte {begin:,}")
        if wire_type == _VARINT:
            value, at = read_varint(data, at)
            yield number, value, data[begin:at]
            continue
        size, at = read_varint(data, at) if wire_type == _LENGTH else (_FIXED_SIZES.get(wire_type, -1), at)
        if size < 0:
            raise WireError(f"the field at byte {begin:,} is of an unknown kind")
        if at + size > end:
            raise WireError(f"field {number} at byte {at:,} extends {at + size - end:,} bytes beyond the end")
        value, at = data[at : at + size], at + size
        yield number, value, data[begin:at]


def read_at_path(message: bytes, path: tuple[int, ...]) -> Iterator[bytes]:
    """Reads the strings, or nested messages, at a path of field numbers, in order.

    Raises:
        WireError: It is not a message, or is cut off.
    """
    if not path:
        yield message
        return
    for number, value in read_fields(message):
        if number == path[0] and isinstance(value, bytes):
            yield from read_at_path(value, path[1:])


def change_at_path(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """A message with the strings, or nested messages, at a path of field numbers changed; all other bytes are kept.

    Raises:
        WireError: It is not a message, or is cut off.
    """
    if not path:
        return change(message)
    return b"".join(
        encode_field(number, change_at_path(value, path[1:], change))
        if number == path[0] and isinstance(value, bytes)
        else raw
        for number, value, raw in read_raw_fields(message)
    )


def to_signed(value: int) -> int:
    """The int64 value of a varint."""
    return value - (1 << 64) if value >> 63 else value


def read_packed_integers(value: WireValue) -> tuple[int, ...]:
    """Reads the integers of a repeated field, packed or one by one."""
    if isinstance(value, int):
        return (value,)
    found, at = [], 0
    while at < len(value):
        number, at = read_varint(value, at)
        found.append(number)
    return tuple(found)


def read_double(value: WireValue) -> float:
    """Reads the number in eight fixed bytes."""
    if isinstance(value, int) or len(value) != 8:
        raise WireError("a fixed number must have eight bytes")
    return float(struct.unpack("<d", value)[0])


def encode_field(number: int, value: int | float | str | bytes) -> bytes:
    """Encodes one field: an integer as a varint, a float as eight bytes, text and messages with their length."""
    if isinstance(value, float):
        return _encode_varint(number << 3 | _FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return _encode_varint(number << 3 | _VARINT) + _encode_varint(value & (1 << 64) - 1)
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return _encode_varint(number << 3 | _LENGTH) + _encode_varint(len(data)) + data


def encode_message(values: Iterable[tuple[int, int | float | str | bytes]]) -> bytes:
    """Encodes a message of fields in order."""
    return b"".join(encode_field(number, value) for number, value in values)


def _encode_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
