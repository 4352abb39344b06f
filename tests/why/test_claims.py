"""Where a decision fell, and the constraint that would turn it there."""

from __future__ import annotations


def find_lost(explained, program):
    lost = [each for each in explained(f"claimed.py:{program}").decisions if each.is_lost]
    assert [(each.winner.name, each.loser.name) for each in lost] == [("D", "B")]
    return lost[0]


def test_axes_of_one_dimension_are_in_the_order_in_which_it_was_given_them(explained):
    place = find_lost(explained, "two_axes_of_the_batch").places[0]
    assert place.array == "x"
    assert place.sharding == (("dcn", "data"), (), ())


def test_a_dimension_that_has_the_axis_nowhere_has_a_place_where_it_could(explained):
    place = find_lost(explained, "microbatches").places[0]
    assert (place.array, place.shape) == ("x", (8, 128, 256))
    assert place.sharding == (("data",), (), ())
