"""Serialized modules of other XLAs than the one that is installed."""

from __future__ import annotations

import re

import pytest
from jaxlib import _hlo

from hloscope.base.protobuf import WireError, encode_field, encode_message, read_fields, read_raw_fields, to_signed
from hloscope.compile.hlo_files import decode_hlo, extract_module, read_device_ids, upgrade_module

TEXT = """HloModule m, is_scheduled=true, num_partitions=8
%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
ENTRY %main (p: f32[16]) -> f32[16] {
  %p = f32[16] parameter(0)
  %a = f32[16] all-reduce(%p), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=%sum
  ROOT %b = f32[16] all-reduce(%a), channel_id=2, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=%sum
}
"""  # noqa: E501


def serialized() -> bytes:
    return _hlo.hlo_module_from_text(TEXT).as_serialized_hlo_module_proto()


def as_xla_of_2025_wrote_it() -> bytes:
    """The module with the groups of %a in field 87, as its field 2, where today's jaxlib writes field 92."""

    def instruction(value: bytes) -> bytes:
        return b"".join(
            encode_field(87, encode_field(2, inner)) if number == 92 else raw
            for number, inner, raw in read_raw_fields(value)
        )

    def computation(value: bytes) -> bytes:
        return b"".join(
            encode_field(2, instruction(inner)) if number == 2 else raw for number, inner, raw in read_raw_fields(value)
        )

    changed = (
        encode_field(3, computation(value)) if number == 3 else raw
        for number, value, raw in read_raw_fields(serialized())
    )
    return b"".join(changed)


def groups_in(module: bytes) -> list[str]:
    text = decode_hlo(module, name="m.hlo.pb")
    return re.findall(r"replica_groups=(\S+),", text)


def test_groups_of_an_older_xla_are_read():
    old, whole = as_xla_of_2025_wrote_it(), ["[4,2]<=[2,4]T(1,0)", "{{0,1,2,3},{4,5,6,7}}"]
    assert _hlo.HloModule.from_serialized_hlo_module_proto(old).to_string().count("replica_groups={},") == 1
    new = serialized()
    assert groups_in(old) == groups_in(new) == whole
    assert upgrade_module(new) == new


def test_the_header_says_the_partitions_of_the_device_assignment():
    partitions = b"".join(encode_field(3, encode_field(1, bytes([number]))) for number in (3, 2, 1, 0))
    module = serialized() + encode_field(15, encode_field(1, 1) + encode_field(2, 4) + partitions)
    assert read_device_ids(module) == (3, 2, 1, 0)
    assert decode_hlo(module, name="m.pb").splitlines()[0].endswith(", num_partitions=4")
    assert read_device_ids(extract_module(encode_field(1, module))) == (3, 2, 1, 0)
    assert "num_partitions" not in decode_hlo(serialized(), name="m.pb").splitlines()[0]


def test_replicas_are_no_partitions():
    replicas = encode_field(
        15, encode_field(1, 2) + encode_field(2, 1) + encode_field(3, encode_field(1, bytes([0, 1])))
    )
    assert read_device_ids(serialized() + replicas) == ()


def test_fields_are_read_as_they_are_written():
    written = encode_message([(1, 300), (2, "name"), (3, 0.5), (4, b"\x00"), (5, -7)])
    numbers = dict(read_fields(written))
    assert (numbers[1], numbers[2], numbers[4], to_signed(numbers[5])) == (300, b"name", b"\x00", -7)
    assert numbers[3] == bytes([0, 0, 0, 0, 0, 0, 0xE0, 0x3F])
    assert b"".join(raw for _, _, raw in read_raw_fields(written)) == written


@pytest.mark.parametrize("data", [b"\x0a\x05abc", b"\x08\x80", b"\x09\x00", b"\x00\x01", b"\x0b"])
def test_bytes_that_are_no_message(data):
    with pytest.raises(WireError):
        list(read_fields(data))
