"""Instructions that libtpu packs into the configuration of others, with their names: protobuf in base64."""

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


def renamed(text: str, new_name: Callable[[str], str]) -> str:
    """HLO text with other names in the instructions that are packed in it; what cannot be read stays."""

    def again(match: re.Match[str]) -> str:
        packed = _renamed(match["packed"], _NAMES[match["what"]], new_name)
        return f'"original_{match["what"]}":"{packed}"'

    return _PACKED.sub(again, text)


def _renamed(packed: str, path: tuple[int, ...], new_name: Callable[[str], str]) -> str:
    try:
        message = base64.b64decode(packed, validate=True)
        changed = _changed(message, path, lambda name: new_name(name.decode()).encode())
    except (binascii.Error, IndexError, UnicodeDecodeError, ValueError):
        return packed
    return packed if changed == message else base64.b64encode(changed).decode()


def _changed(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """A message with the string or the messages at a path of field numbers changed.

    Raises:
        ValueError: It is no message.
        IndexError: It ends too soon.
    """
    if not path:
        return change(message)
    made, at = bytearray(), 0
    while at < len(message):
        start = at
        key, at = _number(message, at)
        if key & 7 == _SIZED:
            size, at = _number(message, at)
            body, at = message[at : at + size], at + size
            if key >> 3 == path[0]:
                body = _changed(body, path[1:], change)
                made += _bytes_of(key) + _bytes_of(len(body)) + body
                continue
        else:
            at = _end(message, at, key & 7)
        made += message[start:at]
    return bytes(made)


def _end(message: bytes, at: int, kind: int) -> int:
    if kind == _VARINT:
        return _number(message, at)[1]
    if kind not in (_EIGHT_BYTES, _FOUR_BYTES):
        raise ValueError(f"no field has the kind {kind}")
    return at + (8 if kind == _EIGHT_BYTES else 4)


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and where it ends."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1


def _bytes_of(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(made) + bytes([value])
