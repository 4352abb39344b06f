"""`send` and `recv`: between slices, between devices and with the host."""

from __future__ import annotations

import re

import pytest

from hloscope.analysis.groups import Placement
from hloscope.analysis.spellings import TargetGroups, parse_target
from hloscope.judge.evaluate import evaluate
from hloscope.judge.notation import parse_contract
from hloscope.model import Mesh, make_shapes
from hloscope.model.vocabulary import Bound, Kind, Link

MEGASCALE = '_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="r"'


def transfer(
    attributes: str, sent: str = "f32[4]", received: str = "f32[4]", host: str = "is_host_transfer=true, "
) -> str:
    tail = f"channel_id=1, {host}frontend_attributes={{{attributes}}}"
    return f"""
    %p = {sent} parameter(0)
    %t = token[] after-all()
    %send = ({sent}, u32[], token[]) send(%p, %t), {tail}
    %recv = ({received}, u32[], token[]) recv(%t), {tail}
    %send-done = token[] send-done(%send), {tail}
    %recv-done = ({received}, token[]) recv-done(%recv), {tail}
    ROOT %r = {received} get-tuple-element(%recv-done), index=0
    """


@pytest.fixture
def two_slices() -> Mesh:
    return Mesh(axis_names=("dcn", "data", "model"), axis_sizes=(2, 2, 4))


@pytest.mark.parametrize(
    ("transfer_type", "received", "kind", "payload", "wire"),
    [
        ("ALL_REDUCE", "f32[4]", Kind.ALL_REDUCE, 16, 16),
        ("ALL_GATHER", "f32[8]", Kind.ALL_GATHER, 32, 16),
        ("REDUCE_SCATTER", "f32[2]", Kind.REDUCE_SCATTER, 16, 8),
        ("ALL_TO_ALL", "f32[4]", Kind.ALL_TO_ALL, 16, 8),
    ],
)
def test_a_pair_between_slices_is_one_collective(analyze, two_slices, transfer_type, received, kind, payload, wire):
    attributes = f'{MEGASCALE},_xla_megascale_target="{{1,2}}x{{0:7}}",_xla_megascale_transfer_type="{transfer_type}"'
    [found] = analyze(transfer(attributes, received=received), mesh=two_slices).collectives
    assert (found.kind, found.link, found.axes, found.name) == (kind, Link.DCN, ("dcn",), "send")
    assert (found.payload_bytes, found.wire_bytes, found.group_size) == (payload, wire, 2)
    assert (found.asynchronous, found.groups[1]) == (True, (1, 9))


def test_one_to_one_is_a_permute(analyze, two_slices):
    order = (0, 1, 2, 3, 7, 6, 5, 4)
    pairs = ",".join(f"{{{s}0000{d}->{3 - s}0000{d}}}" for d in order for s in (1, 2))
    attributes = f'{MEGASCALE},_xla_megascale_target={{{pairs}}},_xla_megascale_transfer_type="ONE_TO_ONE"'
    devices = tuple(s * 100_000 + d for s in (1, 2) for d in order)
    placed = Placement((0,) * 8 + (1,) * 8, devices)
    [found] = analyze(transfer(attributes), mesh=two_slices, placement=placed).collectives
    assert (found.kind, found.link, found.axes) == (Kind.COLLECTIVE_PERMUTE, Link.DCN, ("dcn",))
    assert (found.payload_bytes, found.wire_bytes) == (16, 16)
    assert found.groups[8:12] == ((4, 12), (12, 4), (5, 13), (13, 5))


@pytest.mark.parametrize(
    ("rest", "unknown"),
    [
        (
            '_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="GOSSIP"',
            "'GOSSIP'",
        ),
        (
            '_xla_megascale_target="everyone",_xla_megascale_transfer_type="ALL_REDUCE"',
            "megascale target",
        ),
    ],
    ids=["type", "target"],
)
def test_what_is_not_understood_between_slices_is_opaque(says, analyze, two_slices, rest, unknown):
    analysis = analyze(transfer(f"{MEGASCALE},{rest}"), mesh=two_slices)
    [found] = analysis.collectives
    assert (found.kind, found.link, found.payload_bytes) == (Kind.OPAQUE, Link.DCN, None)
    [entry] = analysis.unmodelled
    assert re.findall("'GOSSIP'|megascale target", entry.what) == [unknown]
    assert "%send" in says(entry.what)


@pytest.mark.parametrize("attributes", ['_xla_host_transfer_handler_name="pjrt_rendezvous"', 'other="1"'])
def test_transfers_with_the_host_are_none(analyze, attributes):
    analysis = analyze(transfer(attributes))
    assert (analysis.collectives, analysis.unmodelled) == ((), ())


def test_an_unknown_handler_is_opaque(says, analyze):
    analysis = analyze(transfer('_xla_host_transfer_handler_name="carrier_pigeon",_xla_host_transfer_rendezvous="1"'))
    assert {found.kind for found in analysis.collectives} == {Kind.OPAQUE}
    assert re.findall(r"carrier_pigeon|%send", says(analysis.unmodelled[0].what)) == ["carrier_pigeon", "%send"]


@pytest.mark.parametrize("pairs", ['"{{0,1},{1,2},{2,3},{3,0}}"', "{{0,1},{1,2},{2,3},{3,0}}"])
def test_point_to_point_between_devices_is_a_permute(analyze, pairs):
    [found] = analyze(transfer(f"_xla_send_recv_source_target_pairs={pairs}", host="")).collectives
    assert (found.kind, found.groups, found.link) == (
        Kind.COLLECTIVE_PERMUTE,
        ((0, 1), (1, 2), (2, 3), (3, 0)),
        Link.ICI,
    )


def test_transfers_between_the_same_devices_are_paired_by_their_channels(analyze):
    pairs = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2}}"}'
    entry = f"""
    %p = f32[4] parameter(0)
    %q = f32[8] parameter(1)
    %t = token[] after-all()
    %recv = (f32[4], u32[], token[]) recv(%t), channel_id=1, {pairs}
    %other = (f32[8], u32[], token[]) recv(%t), channel_id=2, {pairs}
    %alone = (f32[2], u32[], token[]) recv(%t), channel_id=3, {pairs}
    %send = (f32[4], u32[], token[]) send(%p, %t), channel_id=1, {pairs}
    %sends = (f32[8], u32[], token[]) send(%q, %t), channel_id=2, {pairs}
    ROOT %r = (f32[4], token[]) recv-done(%recv), channel_id=1
    """
    found = {one.name: (*one.operand_shapes, *one.result_shapes) for one in analyze(entry).collectives}
    assert found == {
        "send": make_shapes("f32[4]", "f32[4]"),
        "sends": make_shapes("f32[8]", "f32[8]"),
        "alone": make_shapes("f32[2]", "f32[2]"),
    }


def test_point_to_point_without_pairs_is_opaque(says, analyze):
    analysis = analyze(transfer('other="1"', host=""))
    assert [found.kind for found in analysis.collectives] == [Kind.OPAQUE, Kind.OPAQUE]
    assert re.findall(r"%send|devices", says(analysis.unmodelled[0].what)) == ["%send", "devices"]


BLOCKS = Placement((0, 0, 1, 1))
MIXED = Placement((0, 1, 0, 1))
DEVICES = Placement((0, 0, 1, 1), (100_001, 100_000, 200_000, 200_001))


@pytest.mark.parametrize(
    ("text", "kind", "placement", "groups", "device_ids"),
    [
        ("{1,2}x{0:1}", Kind.ALL_REDUCE, None, ((0, 2), (1, 3)), False),
        ("{0,1}x{0,1}", Kind.ALL_REDUCE, None, ((0, 2), (1, 3)), False),
        ("{1,2}x{0:1}", Kind.ALL_REDUCE, BLOCKS, ((0, 2), (1, 3)), False),
        ("{1,2}x{0:1}", Kind.ALL_REDUCE, MIXED, ((0, 1), (2, 3)), False),
        ("{1,2}x{0:1}", Kind.ALL_REDUCE, DEVICES, ((1, 2), (0, 3)), False),
        ("{1,2}x{0:3}", Kind.ALL_REDUCE, DEVICES, tuple((100_000 + d, 200_000 + d) for d in range(4)), True),
        ("{{100000,200000},{100001,200001}}", Kind.ALL_GATHER, None, ((0, 2), (1, 3)), False),
        ("{{100001,200001},{100000,200000}}", Kind.ALL_GATHER, BLOCKS, ((0, 2), (1, 3)), False),
        ("{{100001,200001},{100000,200000}}", Kind.ALL_GATHER, MIXED, ((0, 1), (2, 3)), False),
        ("{{100000,200001},{100001,200000}}", Kind.ALL_GATHER, BLOCKS, ((100_000, 200_001), (100_001, 200_000)), True),
        ("{{100000,100001},{200000,200001}}", Kind.ALL_TO_ALL, None, ((100_000, 100_001), (200_000, 200_001)), True),
        ("{{100000,200000}}", Kind.ALL_GATHER, None, ((100_000, 200_000),), True),
        ("{{100000,300000},{100001,300001}}", Kind.ALL_GATHER, None, ((0, 4), (1, 5)), False),
        ("{{100000,300000},{100001,300001}}", Kind.ALL_GATHER, BLOCKS, ((100_000, 300_000), (100_001, 300_001)), True),
        ("{{100000,200000},{100001,200001}}", Kind.ALL_GATHER, DEVICES, ((1, 2), (0, 3)), False),
        ("{{100000->200000}}", Kind.COLLECTIVE_PERMUTE, None, ((100_000, 200_000),), True),
        ("{{100000->200000}}", Kind.COLLECTIVE_PERMUTE, DEVICES, ((1, 2),), False),
        ("{{100000->200000},{100001->200001}}", Kind.COLLECTIVE_PERMUTE, None, ((0, 2), (1, 3)), False),
    ],
)
def test_megascale_targets(text, kind, placement, groups, device_ids):
    assert parse_target(text, kind, 2, placement) == TargetGroups(groups=groups, device_ids=device_ids)


@pytest.mark.parametrize("text", ["{{100000->200000}}", "", "{}", "everyone"])
def test_other_megascale_targets_cannot_be_read(text):
    assert parse_target(text, Kind.ALL_REDUCE, 2) is None


@pytest.mark.parametrize(
    ("transfer_type", "target", "about"),
    [
        ("ALL_REDUCE", "{1,1}x{0:7}", "target"),
        ("ALL_REDUCE", "{{100000,200000},{100000,200001}}", "target"),
        ("ALL_GATHER", "{1,2}x{0:7}", "shapes"),
        ("REDUCE_SCATTER", "{1,2}x{0:7}", "shapes"),
    ],
)
def test_what_contradicts_itself_between_slices_is_opaque(says, analyze, two_slices, transfer_type, target, about):
    attributes = f'{MEGASCALE},_xla_megascale_target="{target}",_xla_megascale_transfer_type="{transfer_type}"'
    found = analyze(transfer(attributes), mesh=two_slices)
    [item] = found.unmodelled
    assert re.findall("target|shapes|%send", says(item.what)) == [about, "%send"]
    assert (found.totals.wire_bytes, found.totals.bound) == (0, Bound.AT_LEAST)


def test_a_gather_between_slices_whose_result_is_nowhere_is_not_as_small_as_its_operand(analyze, two_slices):
    attributes = f'{MEGASCALE},_xla_megascale_target="{{1,2}}x{{0:7}}",_xla_megascale_transfer_type="ALL_GATHER"'
    lines = [line for line in transfer(attributes).splitlines() if "%recv" not in line]
    found = analyze("\n".join([*lines, "ROOT %r = f32[4] negate(%p)"]), mesh=two_slices)
    [item] = found.unmodelled
    assert re.findall("shapes|%send", item.what) == ["shapes", "%send"]


@pytest.mark.parametrize("pairs", ["{{0,11}}", "{{-1,2}}"])
def test_pairs_of_devices_that_there_are_not_are_opaque(says, analyze, pairs):
    found = analyze(transfer(f"_xla_send_recv_source_target_pairs={pairs}", host=""))
    [item] = found.unmodelled
    assert re.findall("pairs|%send", says(item.what)) == ["pairs", "%send"]
    assert found.totals.bound is Bound.AT_LEAST


@pytest.mark.parametrize("pairs", ["{}", '"{}"', '"{ }"'])
def test_no_pairs_are_nothing_that_moves(analyze, pairs):
    found = analyze(transfer(f"_xla_send_recv_source_target_pairs={pairs}", host=""))
    assert [(one.kind, one.wire_bytes) for one in found.collectives] == [(Kind.COLLECTIVE_PERMUTE, 0)]
    assert (found.totals.wire_bytes, found.totals.bound, found.unmodelled) == (0, Bound.EXACT, ())


def test_a_permute_without_pairs_moves_nothing(analyze):
    entry = "%p = f32[4] parameter(0)\nROOT %c = f32[4] collective-permute(%p), channel_id=1, source_target_pairs={}"
    found = analyze(entry)
    assert [(one.axes or (), one.wire_bytes) for one in found.collectives] == [((), 0)]
    assert evaluate(parse_contract("none"), found).breaches == ()
    assert (found.totals.wire_bytes, found.totals.bound, found.unmodelled) == (0, Bound.EXACT, ())
