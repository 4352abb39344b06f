"""Collectives that are easily put down to the wrong array, the wrong operation or the wrong reason."""

from __future__ import annotations

import pytest

from hloscope.analysis.model import ReasonKind
from hloscope.why.advice import advice
from hloscope.why.notation import equations

pytestmark = pytest.mark.tpu_compiler


def reasons(found):
    return {(one.kind.value, one.axes): one for one in found.collectives}


def notation(one):
    return equations(one.reason, one.kind)


def test_a_reduction_of_several_arrays_leaves_parts_of_all_of_them(explained):
    found = explained("easily_mistaken.py:largest").collectives
    assert [one.reason.kind for one in found] == [ReasonKind.PARTIAL_SUM] * len(found)
    assert all("holds a partial result" in one.why and "dimension 1 (4096)" in one.why for one in found)


def test_a_reversed_dimension_has_no_edges_to_speak_of(explained):
    (one,) = explained("easily_mistaken.py:turned_around").collectives
    assert "needs other devices' elements along dimension 1 (512) of `rows[64, 512_Y]`" in one.why
    assert not any("edges" in change for change in advice(one.reason))


def test_an_array_that_is_needed_along_another_dimension_is_not_needed_whole(explained):
    (one,) = explained("easily_mistaken.py:batched").collectives
    assert one.why.startswith("`a[8_Y, 64, 32]` is sharded along dimension 0 (8) over Y, and `dot_general` (")
    assert one.why.endswith(
        "needs it along dimension 1 (64) instead, because output result asks for P(None, 'Y', None): all-to-all over Y"
    )


def test_another_order_of_axes_is_told_as_one_and_each_sum_by_its_own_axis(explained):
    found = explained("easily_mistaken.py:axes_in_another_order")
    by = reasons(found)
    permute, scatter, total = (
        by["collective-permute", ("X", "Y")],
        by["reduce-scatter", ("X",)],
        by["all-reduce", ("Y",)],
    )
    assert "needs it over these axes in the order Y, X: collective-permute over X, Y" in permute.why
    assert notation(permute)[1] == "Out[64, 256] {U_(Y,X)} = x[64, 512_(Y,X)] *_512 w[512_(Y,X), 256]"
    assert notation(scatter)[1] == "Out[64_X, 256] = ReduceScatter_X(Out[64, 256] {U_X})"
    assert notation(total)[1] == "Out[64, 256] = AllReduce_Y(Out[64, 256] {U_Y})"


def test_what_a_shard_map_hands_out_is_not_its_operand(explained):
    found = explained("easily_mistaken.py:after_a_shard_map").collectives
    (one,) = [one for one in found if one.reason.kind is not ReasonKind.AUTHORED]
    assert (one.reason.kind, one.reason.moved.sharding) == (ReasonKind.REQUESTED_OUTPUT, (("X",), ("Y",)))
    assert one.reason.moved.shape == (64, 256)


def test_a_reshard_in_explicit_mode_is_a_constraint_with_its_line(explained):
    (one,) = explained("easily_mistaken.py:resharded").collectives
    assert one.reason.kind is ReasonKind.CONSTRAINT
    assert one.why.startswith("the sharding constraint P(None, 'Y') (easily_mistaken.py:")


def test_a_sum_that_left_its_loop_is_not_in_every_iteration(explained):
    by = reasons(explained("easily_mistaken.py:accumulated_gradients"))
    outside, inside = by["all-reduce", ("X",)], by["all-reduce", ("Y",)]
    assert (outside.reason.kind, outside.reason.in_loop, outside.executions) == (ReasonKind.PARTIAL_SUM, False, 1)
    assert outside.reason.summed == ("64",)
    assert "iteration" not in outside.why
    assert inside.why.endswith("all-reduce over Y in every iteration")


def test_recomputed_layers_gather_the_weights_by_name_and_what_the_loop_carries_is_no_argument(explained):
    found = explained("easily_mistaken.py:recomputed_layers").collectives
    gathered = [one.reason.moved for one in found if one.kind.value == "all-gather"]
    assert sorted({one.argument for one in gathered}) == ["params['down']", "params['up']"]
    assert {one.name for one in gathered} == {"part of params['down']", "part of params['up']"}
    names = {one.name for each in found for one in each.reason.operands}
    assert "carried x" in names
    assert "x" not in names
    assert all(one.reason.kind in (ReasonKind.OPERAND_CONFLICT, ReasonKind.PARTIAL_SUM) for one in found)


def test_a_sum_that_is_cut_afterwards_should_have_been_scattered(explained):
    (one,) = explained("ambiguous_einsum.py:sharded_columns").collectives
    assert advice(one.reason, one.kind)[0] == (
        "add the parts up with jax.lax.psum_scatter under jax.shard_map, which moves half of it"
    )
    assert notation(one)[1:] == ("Out[B_X, F] = AllReduce_Y(Out[B_X, F] {U_Y})", "Out[B_X, F_Y] = Slice_Y(Out[B_X, F])")
