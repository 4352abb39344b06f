"""Instructions that libtpu packs, with their names, into the configuration of others: protobuf in base64."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable

_PACKED = re.compile(r'"original_(?P<what>instruction|to_apply)":"(?P<packed>[A-Za-z0-9+/]+=*)"')
_NAMES = {"instruction": (7, 2), "to_apply": (2, 7, 2)}
"""`HloInstructionProto.metadata`, `OpMetadata.op_name`, and the same in `HloComputationProto.instructions`.

Source: XLA's service/hlo.proto and xla_data.proto.
"""
_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5


def rename_packed(text: str, new_name: Callable[[str], str]) -> str:
    """HLO text with other names in its packed instructions; unreadable ones are kept."""

    def again(match: re.Match[str]) -> str:
        packed = _rename_one(match["packed"], _NAMES[match["what"]], new_name)
        return f'"original_{match["what"]}":"{packed}"'

    return _PACKED.sub(again, text)


def _rename_one(packed: str, path: tuple[int, ...], new_name: Callable[[str], str]) -> str:
    try:
        message = base64.b64decode(packed, validate=True)
        changed = _change_at_path(message, path, lambda name: new_name(name.decode()).encode())
    except (binascii.Error, IndexError, UnicodeDecodeError, ValueError):
        return packed
    return packed if changed == message else base64.b64encode(changed).decode()


def _change_at_path(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """A message with the string or the messages at a path of field numbers changed.

    Raises:
        ValueError: It is not a message.
        IndexError: It ends too soon.
    """
    if not path:
        return change(message)
    made, at = bytearray(), 0
    while at < len(message):
        start = at
        key, at = _read_number(message, at)
        if key & 7 == _SIZED:
            size, at = _read_number(message, at)
            body, at = message[at : at + size], at + size
            if key >> 3 == path[0]:
                body = _change_at_path(body, path[1:], change)
                made += _encode_number(key) + _encode_number(len(body)) + body
                continue
        else:
            at = _find_end(message, at, key & 7)
        made += message[start:at]
    return bytes(made)


def _find_end(message: bytes, at: int, kind: int) -> int:
    if kind == _VARINT:
        return _read_number(message, at)[1]
    if kind not in (_EIGHT_BYTES, _FOUR_BYTES):
        raise ValueError(f"no field has the kind {kind}")
    return at + (8 if kind == _EIGHT_BYTES else 4)


def _read_number(message: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits per byte, lowest first, and the position of its end."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1


def _encode_number(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(made) + bytes([value])
