"""Axes of a mesh on the links of a slice."""

import pytest

from hloscope.hardware import parse_slice
from hloscope.hardware.axis_links import axis_links
from hloscope.hardware.torus import Torus


def rows(columns, count):
    return [list(range(row * columns, (row + 1) * columns)) for row in range(count)]


def test_an_axis_along_a_row_uses_the_links_of_its_rows_alone():
    found = axis_links(Torus.of(parse_slice("v5e:4x4")), rows(4, 4))
    assert (found.torus_axes, found.hops, found.back_hops, found.is_closed) == ((0,), 1, 3, False)
    assert found.links[:, 1].sum() == 0
    assert found.links[:, 0, 0].sum() == 3 * 4


def test_a_whole_axis_of_a_pod_is_a_closed_ring():
    found = axis_links(Torus.of(parse_slice("v5e:16x16")), rows(16, 16))
    assert (found.hops, found.back_hops, found.is_closed) == (1, 1, True)
    assert found.links[:, 0].all()


def test_a_block_is_one_ring_over_both_axes():
    found = axis_links(Torus.of(parse_slice("v5e:2x4")), [range(8)])
    assert (found.torus_axes, found.hops, found.is_closed) == ((0, 1), 1, True)


def test_the_devices_of_a_chip_need_no_links():
    found = axis_links(Torus.of(parse_slice("tpu7x:2x2x1")), [(0, 1), (2, 3), (4, 5), (6, 7)])
    assert (found.torus_axes, found.hops) == ((), 0)
    assert not found.links.any()


def test_a_pair_is_no_ring():
    assert not axis_links(Torus.of(parse_slice("v5e:2x4")), [(0, 1), (2, 3)]).is_closed


@pytest.mark.parametrize("groups", [[], [(3,)]])
def test_what_connects_nothing_uses_no_links(groups):
    found = axis_links(Torus.of(parse_slice("v5e:2x4")), groups)
    assert (found.hops, found.is_closed, found.links.any()) == (0, False, False)
