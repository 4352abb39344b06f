"""Serialized HLO modules: the parts that jaxlib drops and hloscope needs, which are groups of older XLA, and devices.

Source: xla/service/hlo.proto. `HloProto` holds the module as its field 1; a module its computations as field 3, these
their instructions as field 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hloscope.protobuf import (
    WireError,
    encode_field,
    encode_message,
    read_fields,
    read_packed_integers,
    read_raw_fields,
)

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
    digits = re.match(rb"[\x80-\xff]{0,9}[\x00-\x7f]?", data[1:11])
    encoded = digits[0] if digits else b""
    length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))
    inner = data[1 + len(encoded) :][:length]
    return inner if inner.startswith(NAME_TAG) and len(inner) == length else data


def upgrade_module(module: bytes) -> bytes:
    """A module of any XLA in the form that today's jaxlib reads; bytes that are not a module are kept.

    XLA of 2025 wrote groups such as `[4,2]<=[2,4]T(1,0)` into field 87 of an instruction, as its field 2; today's
    writes them into field 92 and no longer looks there: such a collective would seem to have one group of all.
    """
    if not _OLD_GROUPS.search(module):
        return module
    try:
        return _change_nested(
            module, _COMPUTATIONS, lambda found: _change_nested(found, _INSTRUCTIONS, _upgrade_groups)
        )
    except WireError:
        return module


def _change_nested(whole: bytes, wanted: int, change: Callable[[bytes], bytes]) -> bytes:
    """A message with its nested messages of one field number changed."""
    return b"".join(
        encode_field(number, change(value)) if number == wanted and isinstance(value, bytes) else raw
        for number, value, raw in read_raw_fields(whole)
    )


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
        said = next((value for number, value in read_fields(module) if number == _DEVICE_ASSIGNMENT), None)
        if not isinstance(said, bytes):
            return ()
        partitions = [value for number, value in read_fields(said) if number == _OF_COMPUTATION]
        ids = [
            read_packed_integers(dict(read_fields(value)).get(_DEVICE_IDS, b""))
            for value in partitions
            if isinstance(value, bytes)
        ]
    except WireError:
        return ()
    return tuple(found[0] for found in ids) if all(len(found) == 1 for found in ids) else ()
