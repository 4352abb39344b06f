"""Quoted strings of HLO text."""

from __future__ import annotations

import re

_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_CONTROL = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def unquote(text: str) -> str:
    """The value of a quoted string: C escapes undone, octal bytes read as UTF-8.

    XLA prints every byte outside ASCII as an octal escape. An escape that C does not know stands for its character.
    """
    body = text[1:-1]
    if "\\" not in body:
        return body
    return _ESCAPE.sub(_unescape, body.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, character = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    return _CONTROL.get(character, character)
