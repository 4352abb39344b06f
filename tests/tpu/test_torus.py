"""Coordinates, routes and rings of a slice's chips."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.tpu import parse_slice
from hloscope.tpu.torus import Torus, find_axis_links, order_ring

GRIDS = st.lists(st.integers(1, 5), min_size=1, max_size=3).flatmap(
    lambda shape: st.builds(
        Torus,
        shape=st.just(tuple(shape)),
        wraparound=st.tuples(*[st.booleans()] * len(shape)),
        devices_per_chip=st.integers(1, 2),
    )
)


def line(length, *, closed=False):
    return Torus(shape=(length,), wraparound=(closed,))


def test_devices_are_numbered_as_libtpu_numbers_them():
    torus = Torus.of(parse_slice("tpu7x:2x2x1"))
    assert [torus.coordinates(device) for device in range(4)] == [(0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0)]
    assert Torus.of(parse_slice("v5e:2x4")).coordinates(5) == (1, 2)


@given(GRIDS)
def test_every_chip_has_a_place_of_its_own(torus):
    places = [torus.coordinates(device) for device in range(0, torus.device_count, torus.devices_per_chip)]
    assert set(places) == set(product(*map(range, torus.shape)))
    assert len(places) == len(set(places))


@pytest.mark.parametrize(("name", "hosts", "chips"), [("v5e:2x4", 2, 4), ("v5p:4x4x4", 16, 4), ("v5e:1x2", 1, 2)])
def test_a_host_has_a_block_of_chips(name, hosts, chips):
    torus = Torus.of(parse_slice(name))
    found = Counter(torus.host_of(device) for device in range(torus.device_count))
    assert (len(found), set(found.values())) == (hosts, {chips})


def test_a_line_is_walked_the_whole_way_and_a_ring_the_shorter_way():
    assert (line(4).longest_way([(0, 3)]), line(4, closed=True).longest_way([(0, 3)])) == (3, 1)
    assert line(4).link_loads([(0, 3)])[:, 0, 0].tolist() == [1, 1, 1, 0]
    closed = line(4, closed=True).link_loads([(0, 3)])
    assert closed[:, 0, 1].tolist() == [1, 0, 0, 0]
    assert closed[:, 0, 0].sum() == 0


def test_a_transfer_half_way_round_a_ring_takes_both_ways():
    loads = line(4, closed=True).link_loads([(0, 2)])
    assert loads[:, 0, 0].tolist() == [0.5, 0.5, 0, 0]
    assert loads[:, 0, 1].tolist() == [0.5, 0, 0, 0.5]


def test_the_first_axis_is_walked_first():
    torus = Torus(shape=(2, 2), wraparound=(False, False))
    loads = torus.link_loads([(0, 3)])
    assert loads[0, 0, 0] == 1
    assert loads[1, 1, 0] == 1
    assert loads.sum() == 2


def test_cores_of_one_chip_share_its_links():
    torus = Torus(shape=(2,), wraparound=(False,), devices_per_chip=2)
    assert torus.link_loads([(0, 2), (1, 3)]).max() == 2
    assert torus.link_loads([(0, 1)]).max() == 0


@given(GRIDS, st.data())
def test_the_links_of_a_route_are_as_many_as_its_hops(torus, data):
    ends = st.integers(0, torus.device_count - 1)
    source, target = data.draw(ends), data.draw(ends)
    loads = torus.link_loads([(source, target)])
    assert loads.sum() == pytest.approx(torus.longest_way([(source, target)]))
    assert np.all(loads >= 0)


@given(GRIDS, st.data())
def test_wraparound_is_never_further(torus, data):
    ends = st.integers(0, torus.device_count - 1)
    source, target = data.draw(ends), data.draw(ends)
    closed = Torus(shape=torus.shape, wraparound=(True,) * len(torus.shape), devices_per_chip=torus.devices_per_chip)
    assert closed.longest_way([(source, target)]) <= torus.longest_way([(source, target)])


@pytest.mark.parametrize("name", ["v5e:2x2", "v5e:2x4", "v5e:4x8", "v5p:2x2x2", "v5p:4x4x4", "v4:2x2x4"])
def test_a_block_with_an_even_edge_is_a_ring_of_single_hops(name):
    torus = Torus.of(parse_slice(name))
    order = order_ring(torus, range(torus.device_count))
    assert sorted(order) == list(range(torus.device_count))
    assert {torus.longest_way([pair]) for pair in zip(order, (*order[1:], order[0]), strict=True)} == {1}


@given(GRIDS, st.data())
def test_a_ring_holds_every_device_once(torus, data):
    group = data.draw(st.sets(st.integers(0, torus.device_count - 1), min_size=1))
    assert sorted(order_ring(torus, tuple(group))) == sorted(group)


def test_a_line_is_walked_from_end_to_end():
    torus = Torus.of(parse_slice("v5e:4x8"))
    at = {torus.coordinates(device): device for device in range(torus.device_count)}
    group = [at[2, y] for y in (3, 1, 0, 2)]
    assert [torus.coordinates(device) for device in order_ring(torus, group)] == [(2, 0), (2, 1), (2, 2), (2, 3)]


def rows(columns, count):
    return [list(range(row * columns, (row + 1) * columns)) for row in range(count)]


def test_an_axis_along_a_row_uses_the_links_of_its_rows_alone():
    found = find_axis_links(Torus.of(parse_slice("v5e:4x4")), rows(4, 4))
    assert (found.torus_axes, found.hops, found.back_hops, found.is_closed) == ((0,), 1, 3, False)
    assert found.links[:, 1].sum() == 0
    assert found.links[:, 0, 0].sum() == 3 * 4


def test_a_whole_axis_of_a_pod_is_a_closed_ring():
    found = find_axis_links(Torus.of(parse_slice("v5e:16x16")), rows(16, 16))
    assert (found.hops, found.back_hops, found.is_closed) == (1, 1, True)
    assert found.links[:, 0].all()


def test_a_block_is_one_ring_over_both_axes():
    found = find_axis_links(Torus.of(parse_slice("v5e:2x4")), [range(8)])
    assert (found.torus_axes, found.hops, found.is_closed) == ((0, 1), 1, True)


def test_the_devices_of_a_chip_need_no_links():
    found = find_axis_links(Torus.of(parse_slice("tpu7x:2x2x1")), [(0, 1), (2, 3), (4, 5), (6, 7)])
    assert (found.torus_axes, found.hops) == ((), 0)
    assert not found.links.any()


def test_a_pair_is_no_ring():
    assert not find_axis_links(Torus.of(parse_slice("v5e:2x4")), [(0, 1), (2, 3)]).is_closed


@pytest.mark.parametrize("groups", [[], [(3,)]])
def test_what_connects_nothing_uses_no_links(groups):
    found = find_axis_links(Torus.of(parse_slice("v5e:2x4")), groups)
    assert (found.hops, found.is_closed, found.links.any()) == (0, False, False)
