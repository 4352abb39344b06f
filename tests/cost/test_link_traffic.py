"""What crosses each link in a step."""

import numpy as np
import pytest
from cost_examples import HEADER
from test_network import GRID, IDEAL, ONE_WAY, RING_OF_8, TWO_WAY, network

import hloscope
from hloscope.cost.link_traffic import sum_link_traffic
from hloscope.cost.network import UNPRINTED_ALGORITHM, NetworkTransfer
from hloscope.model.vocabulary import Bound, Kind

PAYLOAD = 1_000_000
ROWS = tuple(tuple(x + 16 * y for x in range(16)) for y in range(16))
KINDS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL)


def bytes_of(net, kind, groups, algorithm=UNPRINTED_ALGORITHM):
    found = net.time_of(NetworkTransfer(kind=kind, groups=groups, payload_bytes=PAYLOAD, algorithm=algorithm))
    return found, found.loads * found.each_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", [UNPRINTED_ALGORITHM, ONE_WAY, TWO_WAY, GRID])
@pytest.mark.parametrize(("name", "groups"), [("v5e:2x4", RING_OF_8), ("v5e:16x16", ROWS), ("v5p:4x4x4", (range(64),))])
def test_the_busiest_link_sets_the_time(kind, algorithm, name, groups):
    """Phases that several axes go through one after the other take as long as the slowest, so then rather more."""
    net = network(name, IDEAL)
    found, link_bytes = bytes_of(net, kind, tuple(map(tuple, groups)), algorithm)
    pace = found.bandwidth_us * net.chip.ici_bytes_per_s / 1e6
    assert link_bytes.max() <= pace * 1.000001
    assert link_bytes.max() >= pace * 0.6
    assert ((link_bytes > 0) == found.links).all()


def test_a_ring_moves_what_its_devices_send_over_one_link_each():
    found, link_bytes = bytes_of(network("v5e:16x16"), Kind.ALL_GATHER, ROWS, TWO_WAY)
    sent = PAYLOAD * 15 / 16
    assert link_bytes.sum() == pytest.approx(256 * sent)
    assert set(np.round(link_bytes, 6)) == {0.0, round(sent / 2, 6)}
    assert found.loads_bound is Bound.EXACT


def test_a_gather_over_all_axes_brings_every_device_the_rest():
    """Over each link of a closed torus of one ring an axis, and in all as much as arrives everywhere."""
    for name, count in (("v5e:16x16", 256), ("v5p:4x4x4", 64)):
        _, link_bytes = bytes_of(network(name), Kind.ALL_GATHER, (tuple(range(count)),), GRID)
        assert link_bytes.sum() == pytest.approx(count * PAYLOAD * (count - 1) / count)


def test_of_very_large_exchanges_only_the_busiest_link_is_known():
    found, _ = bytes_of(network("v5e:16x16"), Kind.ALL_TO_ALL, (tuple(range(256)),))
    assert found.loads_bound is Bound.EXACT
    large, _ = bytes_of(network("v5p:8x8x8"), Kind.ALL_TO_ALL, (tuple(range(512)),))
    assert large.loads_bound is Bound.AT_MOST


LOOP = f"""{HEADER}

%body (b: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {{
  %b = (s32[], f32[1024,1024]) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[1024,1024] get-tuple-element(%b), index=1
  %moved = f32[1024,1024] collective-permute(%x), source_target_pairs={{{{0,1}},{{1,0}}}}, channel_id=1
  ROOT %t = (s32[], f32[1024,1024]) tuple(%next, %moved)
}}

%cond (c: (s32[], f32[1024,1024])) -> pred[] {{
  %c = (s32[], f32[1024,1024]) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(3)
  ROOT %less = pred[] compare(%j, %n), direction=LT
}}

ENTRY %main {{
  %p = f32[1024,1024] parameter(0)
  %zero = s32[] constant(0)
  %begin = (s32[], f32[1024,1024]) tuple(%zero, %p)
  ROOT %w = (s32[], f32[1024,1024]) while(%begin), condition=%cond, body=%body
}}
"""


def traffic_of(text, slice="v5e:2x4", **options):
    found = hloscope.analyze_text(text, slice=slice, **options)
    return sum_link_traffic(found.evidence.program, found.evidence.module(), found)


def test_loops_are_counted():
    found = traffic_of(LOOP, mesh={"X": 8})
    first, second = found.bytes_between(0, 0)
    assert (first, second) == (3 * 4 * 1024**2, 3 * 4 * 1024**2)
    assert found.link_bytes.sum() == first + second
    assert (found.busiest_bytes(0, 0), found.busiest_bytes(1, 0)) == (first, 0.0)
    assert (found.bound, found.unpriced) == (Bound.EXACT, ())


def test_what_nothing_tells_the_way_of_is_named():
    text = LOOP.replace(
        "collective-permute(%x), source_target_pairs={{0,1},{1,0}}, channel_id=1",
        "all-reduce(%x), replica_groups={{0,99}}, channel_id=1, to_apply=%add",
    ).replace(
        "%body (b",
        "%add (l: f32[], r: f32[]) -> f32[] {\n  %l = f32[] parameter(0)\n  %r = f32[] parameter(1)\n"
        "  ROOT %s = f32[] add(%l, %r)\n}\n\n%body (b",
    )
    found = traffic_of(text)
    assert found.unpriced == ("moved",)
    assert found.bound in (Bound.AT_LEAST, Bound.UNKNOWN)


def test_without_chips_there_are_no_links():
    assert traffic_of(LOOP, slice="cpu:8") is None
