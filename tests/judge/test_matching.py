"""Two lists of collectives are matched by what they move and where they were written, never by a name."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matching_examples import GATHER, PERMUTE, REDUCE, SCATTER, moved

from hloscope.judge.changes import ChangeKind
from hloscope.judge.matching import find_respellings, match
from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound, Kind, Link


def kinds(comparison):
    return [change.kind for change in comparison.changes]


def test_names_computations_and_lines_of_hlo_are_no_identity():
    other = replace(GATHER, name="all-gather.77", computation="body", line=900, loops=("while.5",), asynchronous=True)
    found = match([GATHER, REDUCE], [REDUCE, other])
    assert found.same
    assert kinds(found) == []
    assert len(found.unchanged) == 2


@pytest.mark.parametrize(
    "other",
    [
        moved(GATHER, 101),
        moved(GATHER, 5, file="/ci/checkout/model/moe.py"),
        moved(GATHER, 3, function="helper", file="/home/me/model/helpers.py"),
        replace(GATHER, source=()),
    ],
    ids=["line", "checkout", "function", "no frames"],
)
def test_code_that_moved_is_no_change(other):
    assert match([GATHER], [other]).same


def test_added_and_removed():
    found = match([REDUCE], [REDUCE, GATHER])
    (change,) = found.changes
    assert (change.kind, change.before, change.after) == (ChangeKind.ADDED, (), (GATHER,))
    assert change.wire_bytes == 6 * 1_572_864
    assert change.is_increase
    (change,) = match([REDUCE, GATHER], [REDUCE]).changes
    assert (change.kind, change.wire_bytes, change.is_increase) == (ChangeKind.REMOVED, -6 * 1_572_864, False)


@pytest.mark.parametrize(
    "other",
    [
        replace(GATHER, axes=("tensor",)),
        replace(GATHER, kind=Kind.ALL_TO_ALL),
        replace(GATHER, link=Link.DCN),
        moved(replace(GATHER, payload_bytes=4_194_304, wire_bytes=3_145_728), 1, file="/home/me/model/other.py"),
    ],
    ids=["axes", "kind", "link", "another place and size"],
)
def test_another_kind_axis_link_or_place_with_other_bytes_is_another_collective(other):
    assert sorted(kinds(match([GATHER], [other]))) == [ChangeKind.ADDED, ChangeKind.REMOVED]


@pytest.mark.parametrize(
    ("facts", "kind", "more"),
    [
        ({"payload_bytes": 4_194_304, "wire_bytes": 3_145_728}, ChangeKind.BYTES, True),
        ({"payload_bytes": 1_048_576, "wire_bytes": 786_432}, ChangeKind.BYTES, False),
        ({"executions": 12}, ChangeKind.EXECUTIONS, True),
        ({"executions": 3}, ChangeKind.EXECUTIONS, False),
        ({"loops": ("a", "b"), "executions": 60}, ChangeKind.INTO_LOOP, True),
        ({"loops": (), "executions": 1}, ChangeKind.OUT_OF_LOOP, False),
        ({"executions_bound": Bound.AT_LEAST}, ChangeKind.BOUND, True),
        ({"wire_bytes": None}, ChangeKind.BYTES, True),
    ],
)
def test_what_changed_in_one_place(facts, kind, more):
    (change,) = match([GATHER], [replace(GATHER, **facts)]).changes
    assert (change.kind, change.is_increase) == (kind, more)


@pytest.mark.parametrize(
    ("old", "new", "judgement"),
    [
        ([], [GATHER], "worse"),
        ([GATHER], [], "better"),
        ([GATHER], [replace(GATHER, executions=3)], "better"),
        ([GATHER], [replace(GATHER, wire_bytes=None)], "worse"),
        ([GATHER], [replace(GATHER, executions_bound=Bound.AT_LEAST)], "worse"),
        ([replace(GATHER, executions_bound=Bound.AT_LEAST)], [GATHER], "different"),
        ([REDUCE], [replace(REDUCE, reduction="maximum")], "different"),
        ([REDUCE], [replace(REDUCE, payload_bytes=1_048_576, wire_bytes=1_572_864)] * 2, "same"),
    ],
    ids=["added", "removed", "fewer", "unknown bytes", "less sure", "surer", "reduction", "regrouped"],
)
def test_a_change_is_judged_by_what_moves(old, new, judgement):
    (change,) = match(old, new).changes
    assert change.judgement == judgement
    assert (change.before, change.after) == (tuple(old), tuple(new))


def test_the_difference_of_bounds_is_a_bound_or_unknown():
    at_least = replace(GATHER, executions=9, executions_bound=Bound.AT_LEAST)
    (change,) = match([GATHER], [at_least]).changes
    assert (change.wire_bytes, change.bound, change.key) == (3 * 1_572_864, Bound.AT_LEAST, "all-gather@fsdp")
    (change,) = match([at_least], [replace(at_least, executions=12)]).changes
    assert change.bound is Bound.UNKNOWN


def test_a_collective_that_nothing_hides_any_more():
    hidden = replace(GATHER, time_us=100.0, exposed_us=0.0)
    exposed = replace(GATHER, time_us=100.0, exposed_us=90.0)
    assert kinds(match([hidden], [exposed])) == [ChangeKind.NEWLY_EXPOSED]
    assert match([exposed], [hidden]).same
    assert match([GATHER], [exposed]).same  # not priced before: nothing can be said


def test_the_same_bytes_in_another_number_of_transfers():
    half = replace(REDUCE, payload_bytes=1_048_576, wire_bytes=1_572_864)
    found = match([REDUCE], [half, replace(half, name="all-reduce.2", line=11)])
    assert kinds(found) == [ChangeKind.REGROUPED]
    assert found.old_total.payload_bytes == found.new_total.payload_bytes
    assert found.same


def test_a_lost_reduce_scatter_at_the_same_count_is_an_increase():
    found = match([SCATTER], [REDUCE])
    assert {change.kind for change in found.increases} == {ChangeKind.ADDED}
    assert found.new_total.wire_bytes == 2 * found.old_total.wire_bytes


def test_an_all_reduce_split_in_two_is_equal_only_when_asked():
    parts = [SCATTER, replace(SCATTER, kind=Kind.ALL_GATHER, result_shapes=SCATTER.operand_shapes)]
    assert not match([REDUCE], parts).same
    found = match([REDUCE], parts, equivalent=True)
    assert kinds(found) == [ChangeKind.EQUIVALENT]
    assert found.same
    assert found.increases == ()
    assert match(parts, [REDUCE], equivalent=True).same


@pytest.mark.parametrize(("count", "same"), [(2, False), (3, True), (5, True), (6, False)])
def test_permutes_of_a_collective_matmul(count, same):
    gather = replace(GATHER, executions=1, loops=())
    permutes = [replace(PERMUTE, executions=1, loops=(), name=f"collective-permute.{index}") for index in range(count)]
    assert match([gather], permutes, equivalent=True).same is same
    assert not match([gather], permutes).same


def test_what_only_adds_up_to_the_same_is_equal():
    halves = [replace(SCATTER, payload_bytes=1_048_576, wire_bytes=786_432, name=f"reduce-scatter.{at}") for at in "12"]
    parts = [*halves, replace(SCATTER, kind=Kind.ALL_GATHER)]
    assert match([REDUCE], parts, equivalent=True).same
    assert [after for before, after in find_respellings(parts, None)] == []
    gathers = [
        replace(GATHER, name=f"all-gather.{at}", executions=1, loops=(), payload_bytes=8192, wire_bytes=6144)
        for at in "12"
    ]
    chunk = replace(PERMUTE, executions=1, loops=(), payload_bytes=2048, wire_bytes=2048)
    chunks = [replace(chunk, name=f"collective-permute.{index}") for index in range(8)]
    assert match(gathers, chunks, equivalent=True).same
    mesh = Mesh(axis_names=("fsdp",), axis_sizes=(4,))
    assert {whole.payload_bytes for _, (whole,) in find_respellings(chunks, mesh)} == {-(-8 * 2048 * 4 // 3)}


def test_a_half_of_an_all_reduce_is_not_all_of_it():
    assert not match([REDUCE], [SCATTER], equivalent=True).same


@pytest.mark.parametrize(
    "facts",
    [{"wire_bytes": None}, {"executions_bound": Bound.AT_MOST}, {"axes": None, "groups": ()}],
    ids=["bytes", "executions", "axes"],
)
def test_what_is_not_known_is_never_the_same(facts):
    one = replace(GATHER, **facts)
    found = match([one], [one])
    assert found.changes == ()
    assert found.unsure == (one, one)
    assert not found.same


def test_groups_stand_in_for_axes_that_are_not_known():
    one = replace(GATHER, axes=None)
    other = replace(one, groups=((7, 6, 5, 4), (0, 1, 2, 3)))
    assert match([one], [other]).same
    assert not match([one], [replace(one, groups=((0, 1), (2, 3), (4, 5), (6, 7)))]).same


def test_sums_by_kind_and_axes():
    found = match([GATHER, REDUCE], [GATHER, moved(GATHER, 1), SCATTER])
    rows = [(one.kind, one.axes, one.old.wire_bytes, one.new.wire_bytes) for one in found.tallies]
    assert rows == [
        ("all-gather", "fsdp", 9_437_184, 18_874_368),
        ("all-reduce", "fsdp", 3_145_728, 0),
        ("reduce-scatter", "fsdp", 0, 1_572_864),
    ]


COLLECTIVES = st.builds(
    lambda kind, axes, payload, executions, line, depth: moved(
        replace(
            GATHER,
            kind=kind,
            axes=axes,
            payload_bytes=payload,
            wire_bytes=payload,
            executions=executions,
            loops=("w",) * depth,
        ),
        line,
    ),
    st.sampled_from([Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.COLLECTIVE_PERMUTE]),
    st.sampled_from([("X",), ("Y",), ("X", "Y")]),
    st.sampled_from([1024, 2048, 4096]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2),
)


@given(st.lists(COLLECTIVES, max_size=8), st.randoms(use_true_random=False), st.booleans())
def test_a_program_is_the_same_as_itself_in_any_order(collectives, random_order, equivalent):
    shuffled = random.Random(random_order.random()).sample(collectives, len(collectives))
    found = match(collectives, shuffled, equivalent=equivalent)
    assert found.same
    assert len(found.unchanged) == len(collectives)


@given(st.lists(COLLECTIVES, max_size=6), st.lists(COLLECTIVES, max_size=6), st.booleans())
def test_every_collective_is_told_once_and_totals_agree(old, new, equivalent):
    found = match(old, new, equivalent=equivalent)
    told_old = {id(one) for change in found.changes for one in change.before} | {id(a) for a, _ in found.unchanged}
    told_new = {id(one) for change in found.changes for one in change.after} | {id(b) for _, b in found.unchanged}
    assert told_old == {id(one) for one in old}
    assert told_new == {id(one) for one in new}
    assert found.new_total.payload_bytes == sum(one.payload_bytes_per_step for one in new)
    if found.same and not equivalent:
        assert found.old_total.payload_bytes == found.new_total.payload_bytes
