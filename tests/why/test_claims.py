"""Where a decision fell, and the constraint that would turn it there."""

from __future__ import annotations

import pytest

from hloscope.model.decision import DecisionKind
from hloscope.model.reason import DimensionRole


def find_lost(explained, program):
    """The lost decision of most bytes; others are of the same dimensions in the gradient's own values."""
    lost = [each for each in explained(f"claimed.py:{program}").decisions if each.is_lost]
    assert {each.loser.name for each in lost} == {"B"}
    return next(each for each in lost if each.winner.name == "D")


def test_axes_of_one_dimension_are_in_the_order_in_which_it_was_given_them(explained):
    place = find_lost(explained, "two_axes_of_the_batch").places[0]
    assert place.array == "x"
    assert place.sharding == (("dcn", "data"), (), ())


def test_a_dimension_that_has_the_axis_nowhere_has_a_place_where_it_could(explained):
    place = find_lost(explained, "microbatches").places[0]
    assert (place.array, place.shape) == ("x", (8, 128, 256))
    assert place.sharding == (("data",), (), ())


def test_the_value_that_a_loop_begins_with_is_the_place_where_its_carry_is_sharded_otherwise(explained):
    place = find_lost(explained, "entered_loop").places[0]
    assert (place.array, place.operation, place.shape) == ("x", "dot_general", (32, 128, 256))
    assert place.sharding == (("data",), (), ())


def test_operations_of_one_expression_are_places_of_their_own(explained):
    places = find_lost(explained, "taken").places
    assert "gather" in [place.operation for place in places]


def test_roles_are_those_of_a_training_step_alone(explained):
    (lost,) = [each for each in explained("claimed.py:decoding").decisions if each.is_lost]
    assert (lost.winner.name, lost.loser.name) == ("B", "D")
    assert (lost.winner.role, lost.loser.role) == (None, None)
    trained = find_lost(explained, "taken")
    assert (trained.winner.role, trained.loser.role) == (DimensionRole.FEATURES, DimensionRole.BATCH)


@pytest.mark.tpu_compiler
def test_a_decision_is_lost_although_one_of_its_operations_does_not_say_what_else_it_would_send(explained):
    lost = find_lost(explained, "two_towers")
    claims = [
        one.reason.claims for one in explained("claimed.py:two_towers").collectives if one.name in lost.collectives
    ]
    assert None in [claim.other_bytes for of_one in claims for claim in of_one]
    assert lost.other_bytes < lost.wire_bytes / 2


@pytest.mark.tpu_compiler
def test_an_operation_without_a_rule_makes_a_dimension_whole(explained):
    (decision,) = explained("claimed.py:best").decisions
    assert (decision.kind, decision.axis, decision.loser.name) == (DecisionKind.MADE_WHOLE, "model", "V")
    assert decision.operations == ("top_k",)
