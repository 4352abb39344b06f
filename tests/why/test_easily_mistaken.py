"""Collectives that are easily put down to the wrong array, the wrong operation or the wrong reason."""

from __future__ import annotations

import pytest

from hloscope.model import ReasonKind, make_shapes
from hloscope.model.vocabulary import Origin
from hloscope.why.sentences import render_equations, suggest_changes

pytestmark = pytest.mark.tpu_compiler


def reasons(found):
    return {(one.kind.value, one.axes): one for one in found.collectives}


def notation(one):
    return render_equations(one.reason, one.kind)


def but_for_who_needs_it(one):
    """The sentence without what versions of JAX order in different ways: which part a compiled collective serves."""
    start, _, rest = one.why.partition("; ")
    return f"{start}; …: {rest.rpartition(': ')[2]}"


def test_a_reduction_of_several_arrays_leaves_parts_of_all_of_them(says, explained):
    found = explained("easily_mistaken.py:largest").collectives
    assert [one.reason.kind for one in found] == [ReasonKind.PARTIAL_SUM] * len(found)
    assert all("dimension 1 (4096)" in one.why for one in found)
    says(sorted({but_for_who_needs_it(one) for one in found}))


def test_a_reversed_dimension_has_no_edges_to_speak_of(says, explained):
    (one,) = explained("easily_mistaken.py:turned_around").collectives
    assert "dimension 1 (512) of `rows[64, 512_Y]`" in says(one.why)
    assert not any("edges" in change for change in suggest_changes(one.reason))


def test_an_array_that_is_needed_along_another_dimension_is_not_needed_whole(says, explained):
    (one,) = explained("easily_mistaken.py:batched").collectives
    text = says(one.why)
    assert text.startswith("`a[8_Y, 64, 32]`")
    assert ("dimension 0 (8)" in text, "dimension 1 (64)" in text) == (True, True)


def test_another_order_of_axes_is_told_as_one_and_each_sum_by_its_own_axis(says, explained):
    found = explained("easily_mistaken.py:axes_in_another_order")
    by = reasons(found)
    permute, scatter, total = (
        by["collective-permute", ("X", "Y")],
        by["reduce-scatter", ("X",)],
        by["all-reduce", ("Y",)],
    )
    assert "Y, X" in says(permute.why)
    assert notation(permute)[1] == "Out[64, 256] {U_(Y,X)} = x[64, 512_(Y,X)] *_512 w[512_(Y,X), 256]"
    assert notation(scatter)[1] == "Out[64_X, 256] = ReduceScatter_X(Out[64, 256] {U_X})"
    assert notation(total)[1] == "Out[64, 256] = AllReduce_Y(Out[64, 256] {U_Y})"


def test_what_a_shard_map_hands_out_is_not_its_operand(explained):
    found = explained("easily_mistaken.py:after_a_shard_map").collectives
    (one,) = [one for one in found if one.reason.kind is not ReasonKind.AUTHORED]
    assert (one.reason.kind, one.reason.moved.sharding) == (ReasonKind.REQUESTED_OUTPUT, (("X",), ("Y",)))
    assert one.reason.moved.shape == (64, 256)


def test_a_reshard_in_explicit_mode_is_a_constraint_with_its_line(says, explained):
    (one,) = explained("easily_mistaken.py:resharded").collectives
    assert one.reason.kind is ReasonKind.CONSTRAINT
    assert "P(None, 'Y') (easily_mistaken.py:" in says(one.why)


def test_a_sum_that_left_its_loop_is_not_in_every_iteration(says, explained):
    by = reasons(explained("easily_mistaken.py:accumulated_gradients"))
    outside, inside = by["all-reduce", ("X",)], by["all-reduce", ("Y",)]
    assert (outside.reason.kind, outside.reason.in_loop, outside.executions) == (ReasonKind.PARTIAL_SUM, False, 1)
    assert outside.reason.summed == ("64",)
    assert "iteration" not in outside.why
    says(inside.why)


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
    assert "where a reduce-scatter would be enough" in one.why
    assert notation(one)[1:] == ("Out[B_X, F] = AllReduce_Y(Out[B_X, F] {U_Y})", "Out[B_X, F_Y] = Slice_Y(Out[B_X, F])")


def test_of_collectives_combined_into_one_the_largest_is_told_and_the_others_are_named(says, explained):
    found = explained("meshes.py:data_tensor_and_pipeline_parallel").collectives
    combined = next(one for one in found if len(one.operand_shapes) == 4)
    assert (combined.origin, combined.reason.combined) == (Origin.REWRITTEN, 4)
    assert combined.why.startswith("`slice` (meshes.py:")
    assert combined.why.endswith("`Wout[L_pp, F_tp, D]` and `Win[L_pp, D, F_tp]`")
    says(combined.why)
    assert notation(combined) == ()  # nothing is added up


def test_what_the_user_wrote_has_the_users_name_and_its_gradient_is_no_users(says, explained):
    by = {one.kind.value: one for one in explained("easily_mistaken.py:gradient_of_a_shard_map").collectives}
    for kind in ("all-gather", "reduce-scatter"):
        assert ": `all_gather` (easily_mistaken.py:" in says(by[kind].why, kind)
    added = by["all-reduce"].reason  # nobody wrote that sum: differentiation did
    assert (added.kind, added.producer.name) == (ReasonKind.PARTIAL_SUM, "dot_general")
    assert suggest_changes(added) == ()
    says(by["all-reduce"].why, "all-reduce")


def test_a_mean_by_name_is_not_the_transpose_of_what_it_takes_the_mean_of(explained):
    (one,) = explained("easily_mistaken.py:means_by_name").collectives
    assert one.why.startswith("written by the user: `psum` (easily_mistaken.py:")


def test_a_variable_with_the_name_of_an_argument_is_not_that_argument_and_a_dictionary_no_array(explained):
    found = explained("easily_mistaken.py:reused_name").collectives
    (total,) = [one for one in found if one.reason.kind is ReasonKind.PARTIAL_SUM]
    assert total.reason.moved.name == "result of dot_general"
    assert [one.name for one in total.reason.operands] == ["x", "w"]
    assert {one.name for each in found for one in each.reason.operands} <= {"x", "w", "v", "result of sin"}


@pytest.mark.words_of_jax("0.10.")
def test_a_part_that_an_operation_asks_for_needs_no_doubt(says, explained):
    (one,) = explained("easily_mistaken.py:best_of_all").collectives
    assert one.reason.certain
    assert "`top_k` (easily_mistaken.py:" in says(one.why)


def test_a_barrier_of_recomputation_needs_nothing_itself(explained):
    found = explained("easily_mistaken.py:recomputed_by_hand").collectives
    assert not any("remat" in one.why or "checkpoint`" in one.why for one in found)
    gathered = [one for one in found if one.reason.moved is not None and one.reason.moved.argument == "layers"]
    assert gathered
    assert all(one.reason.consumer is None or one.reason.consumer.name == "dot_general" for one in gathered)


def test_permutes_of_a_windowed_product_are_told_as_the_gather_that_they_are(says, explained):
    permutes = explained("bidirectional_matmul.py:all_gather_auto").collectives
    assert len(permutes) == 3
    for one in permutes:
        assert one.reason.rewritten_from == "all-gather"
        assert notation(one)[0] == "A[B_X, D] = AllGather_Y(A[B_X, D_Y])"
    says(sorted({one.why for one in permutes}))


def test_a_gather_that_is_compiled_to_a_sum_is_the_users_gather(explained):
    found = explained("easily_mistaken.py:gathered_sizes")
    (one,) = found.collectives
    assert (one.kind.value, one.origin.value, one.reason.rewritten_from) == ("all-reduce", "rewritten", "all-gather")
    assert one.why.endswith("in column) over X, Y, compiled to an all-reduce")
    (finding,) = (each for each in found.findings if each.rule == "all-reduce-then-slice")
    assert "all_to_all" in finding.fix
    assert "psum_scatter" not in finding.fix
    (summed,) = explained("easily_mistaken.py:summed_parts").collectives
    assert (summed.origin.value, summed.reason.rewritten_from) == ("authored", None)


def test_what_a_statement_hands_to_a_helper_has_not_the_name_that_it_assigns(explained):
    found = explained("easily_mistaken.py:handed_to_a_helper").collectives
    names = {tensor.name for one in found for tensor in (*one.reason.operands, one.reason.moved) if tensor is not None}
    assert "part of layers" in names
    weights = [tensor for one in found for tensor in one.reason.operands if tensor.shape == (512, 512)]
    assert weights
    assert {tensor.name for tensor in weights} == {"part of layers"}


def test_a_constraint_that_leaves_a_dimension_open_requests_no_sum(explained):
    found = explained("easily_mistaken.py:left_open").collectives
    sums = [one for one in found if one.reason.kind.value == "partial-sum" and "gradient" in one.why]
    assert sums
    assert not any("the sharding constraint" in one.why for one in sums)


def test_parts_that_are_added_up_where_shardy_would_move_the_operands_are_told_as_a_sum(says, explained):
    found = explained("easily_mistaken.py:fully_sharded_gradients").collectives
    sums = [one for one in found if one.kind.value in ("all-reduce", "reduce-scatter")]
    assert sums
    assert {one.reason.kind for one in sums} == {ReasonKind.PARTIAL_SUM}
    (gradient,) = [one for one in sums if one.reason.summed == ("512",)]
    assert [one.name for one in gradient.reason.operands if one.name == "x"] == ["x"]
    assert "`x[512_X, 1024]`" in gradient.why
    says(gradient.why)
    assert not any("zeros from" in one.why for one in found)


def test_of_two_operands_with_parts_alike_the_one_whose_whole_is_made_is_gathered(explained):
    found = explained("easily_mistaken.py:fully_sharded_gradients").collectives
    gathered = [one.reason.moved.name for one in found if one.kind.value == "all-gather"]
    assert sorted(gathered) == ["h", "params['up']"]


def test_a_step_of_a_sum_over_slices_is_no_gather_of_elements_and_zeros(explained):
    found = explained("easily_mistaken.py:gradients_over_two_slices").collectives
    scattered = [one for one in found if one.kind.value == "reduce-scatter"]
    assert [one.reason.kind for one in scattered] == [ReasonKind.PARTIAL_SUM]
    assert not any("zeros from" in one.why for one in found)


@pytest.mark.words_of_jax("0.10.")
def test_who_asks_for_another_sharding_is_not_told_as_who_made_the_array_so(says, explained):
    found = explained("easily_mistaken.py:constrained_otherwise").collectives
    asked = [one for one in found if one.reason.kind is ReasonKind.CONSTRAINT]
    assert asked
    for one in asked:
        assert not {asker.by for asker in one.reason.held_by} & {"constraint"}
        assert [asker.sharding for asker in one.reason.asked_by] == ["P('Y', 'X')"]
        assert "P('Y', 'X')" in one.why
    says(sorted({one.why for one in asked}))


def test_nobody_is_told_to_scatter_a_vector(explained):
    (one,) = explained("easily_mistaken.py:every_row").collectives
    assert (one.kind.value, one.operand_shapes) == ("all-reduce", make_shapes("u32[1,1,128]"))
    assert "dimension 1 (4096)" in one.why
    assert suggest_changes(one.reason) == ()


def test_a_search_goes_by_the_users_name_and_without_the_positions_that_jax_carries_along(says, explained):
    found = explained("easily_mistaken.py:largest").collectives
    for one in found:
        assert one.reason.producer.name == "argmax"
        assert [operand.name for operand in one.reason.operands] == ["scores"]
        assert one.why.startswith("`argmax` (easily_mistaken.py:18 in largest) ")
        name = one.reason.moved.name.replace(" ", "_")
        assert notation(one) == (
            f"{name}[64_X] {{U_Y}} = argmax(scores[64_X, 4096_Y])",
            f"{name}[64_X] = argmax(AllGather_Y({name}[64_X] {{U_Y}}))",
        )
    says(sorted({but_for_who_needs_it(one) for one in found}))


def test_of_two_dimensions_with_one_letter_the_one_that_more_operands_have_keeps_it(says, explained):
    (one,) = explained("easily_mistaken.py:letters_that_meet").collectives
    assert "dimension Q of `" in says(one.why)
    assert notation(one)[0].endswith("[B_X, 16, Q_Y] *_Q projection[Q_Y, D]")
    assert notation(one)[0].startswith("Out[B_X, 16, D] {U_Y} = ")


def test_the_gradient_of_a_slice_is_that_of_a_part_of_the_argument(says, explained):
    found = explained("easily_mistaken.py:layers_of_a_stack").collectives
    assert {(one.reason.weight.argument, len(one.reason.weight.shape)) for one in found} == {("weights", 2)}
    says(found[0].why)


def test_a_sum_is_not_told_as_the_maximum_that_is_made_along_with_it(explained):
    found = explained("easily_mistaken.py:sums_and_extremes").collectives
    told = {one.reduction: {one.reason.producer.name} for one in found}
    assert told == {"add": {"reduce_sum"}, "maximum": {"reduce_max"}, "minimum": {"reduce_min"}}


def test_of_a_combined_transfer_the_largest_part_is_told_whoever_wrote_the_others(says, explained):
    (one,) = explained("easily_mistaken.py:loss_and_gradient").collectives
    assert len(one.operand_shapes) == 2
    assert (one.reason.kind, one.reason.weight.argument) == (ReasonKind.PARTIAL_SUM, "w")
    says(one.why)
