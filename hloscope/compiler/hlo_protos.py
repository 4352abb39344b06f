"""Serialized HLO modules, as far as jaxlib drops of them what hloscope needs: groups of older XLA, and devices.

Source: xla/service/hlo.proto. `HloProto` holds the module as its field 1; a module its computations as field 3, these
their instructions as field 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hloscope.protobuf import WireError, field, fields, integers, message, raw_fields

NAME_TAG = b"\x0a"
"""Field 1 of a message, a length and bytes: the module's name in HloModuleProto, the module itself in HloProto."""

_COMPUTATIONS, _INSTRUCTIONS = 3, 2
_DEVICE_LIST, _IOTA_OF_LIST, _IOTA_LIST = 87, 2, 92
_OLD_GROUPS = re.compile(rb"\xba\x05[\x00-\x7f]\x12")
"""The tag of field 87, its length, and the tag of field 2 in it."""

_DEVICE_ASSIGNMENT, _OF_COMPUTATION, _DEVICE_IDS = 15, 3, 1
_ASSIGNMENT = 3


def module_of(data: bytes) -> bytes:
    """The bytes of HloModuleProto; HloProto holds them as its first field, where the other has a plain name.

    A name never begins with a line feed, which is how a module's first field begins.
    """
    if not data.startswith(NAME_TAG):
        return data
    digits = re.match(rb"[\x80-\xff]{0,9}[\x00-\x7f]?", data[1:11])
    encoded = digits[0] if digits else b""
    length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))
    inner = data[1 + len(encoded) :][:length]
    return inner if inner.startswith(NAME_TAG) and len(inner) == length else data


def as_read_today(module: bytes) -> bytes:
    """A module of any XLA as today's jaxlib reads it; bytes that are no module stay as they are.

    XLA of 2025 wrote groups such as `[4,2]<=[2,4]T(1,0)` into field 87 of an instruction, as its field 2; today's
    writes them into field 92 and no longer looks there: such a collective would seem to have one group of all.
    """
    if not _OLD_GROUPS.search(module):
        return module
    try:
        return _changed(module, _COMPUTATIONS, lambda found: _changed(found, _INSTRUCTIONS, _with_groups))
    except WireError:
        return module


def _changed(whole: bytes, wanted: int, change: Callable[[bytes], bytes]) -> bytes:
    """A message with its nested messages of one number changed."""
    return b"".join(
        field(number, change(value)) if number == wanted and isinstance(value, bytes) else raw
        for number, value, raw in raw_fields(whole)
    )


def _with_groups(instruction: bytes) -> bytes:
    found = dict(fields(instruction))
    listed = found.get(_DEVICE_LIST)
    iota = dict(fields(listed)).get(_IOTA_OF_LIST) if isinstance(listed, bytes) else None
    return instruction if iota is None or _IOTA_LIST in found else instruction + field(_IOTA_LIST, iota)


def hlo_proto(module: bytes, devices: Sequence[int], assignment: bytes = b"") -> bytes:
    """A serialized HloProto, as profiles hold it.

    Args:
        module: The serialized module.
        devices: The device of each partition, which jaxlib leaves out.
        assignment: A serialized BufferAssignmentProto; empty where there is none.
    """
    of_partitions = [(_OF_COMPUTATION, message([(_DEVICE_IDS, device)])) for device in devices]
    placed = message([(1, 1), (2, len(devices)), *of_partitions])
    whole: list[tuple[int, bytes]] = [(1, module + field(_DEVICE_ASSIGNMENT, placed))]
    return message([*whole, (_ASSIGNMENT, assignment)] if assignment else whole)


def devices_of(module: bytes) -> tuple[int, ...]:
    """The device of each partition, as the program was compiled for them; empty where the module does not say.

    Of several replicas nothing is told: they are no partitions.
    """
    try:
        said = next((value for number, value in fields(module) if number == _DEVICE_ASSIGNMENT), None)
        if not isinstance(said, bytes):
            return ()
        partitions = [value for number, value in fields(said) if number == _OF_COMPUTATION]
        ids = [integers(dict(fields(value)).get(_DEVICE_IDS, b"")) for value in partitions if isinstance(value, bytes)]
    except WireError:
        return ()
    return tuple(found[0] for found in ids) if all(len(found) == 1 for found in ids) else ()
