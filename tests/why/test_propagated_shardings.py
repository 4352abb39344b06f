"""Every array's sharding before a compile."""

from __future__ import annotations

import pytest

from hloscope.app.analyses import propagate_shardings
from hloscope.base.canvas import Canvas
from hloscope.compile.functions import Function
from hloscope.compile.target import TargetFacts
from hloscope.report.formats import render
from hloscope.why.explanation import explain_collectives
from hloscope.why.sentences import render_equations
from hloscope.why.shardings import ArrayRole

pytestmark = pytest.mark.tpu_compiler


@pytest.fixture
def table(root, monkeypatch):
    def of(target: str):
        monkeypatch.chdir(root)
        return propagate_shardings(Function(target=target, facts=TargetFacts()))

    return of


def test_constraints_are_those_that_the_user_wrote(table):
    found = table("fixtures/programs/two_matmuls.py:two_matmuls")
    (constraint,) = [one for one in found.arrays if one.role is ArrayRole.CONSTRAINT]
    assert (constraint.name, constraint.sharding, constraint.local_shape) == ("hidden", "P('X', 'Y')", (128, 4096))
    assert (constraint.bytes_per_device, constraint.source.line) == (128 * 4096 * 2, 21)


def test_a_constraint_on_an_argument_is_shown_with_what_it_asks_for(table):
    found = table("tests/why/programs/known_cases.py:argument_in_two_orders").arrays
    (constraint,) = [one for one in found if one.role is ArrayRole.CONSTRAINT]
    assert (constraint.sharding, constraint.local_shape) == ("P(('Y', 'X'), None, None)", (8, 32, 16))


def test_an_array_of_an_element_type_without_a_size_is_among_the_largest(monkeypatch, table):
    monkeypatch.setattr(
        "hloscope.why.shardings.count_array_bytes", lambda dtype, elements: None if dtype == "pred" else elements * 4
    )
    found = [
        one for one in table("tests/why/programs/wide_layer.py:masks").arrays if one.role is ArrayRole.INTERMEDIATE
    ]
    assert (found[0].element_type, found[0].bytes_per_device) == ("pred", None)


def test_an_argument_that_has_to_move_is_marked_also_inside_a_loop(table):
    found = table("fixtures/programs/mixture_of_experts.py:mixture_of_experts")
    arguments = {one.name: one for one in found.arrays if one.role is ArrayRole.ARGUMENT}
    assert {name: one.is_moved for name, one in arguments.items()} == {"W": True, "A": False, "B": False}
    assert (arguments["W"].element_type, arguments["B"].element_type) == ("f32", "s32")
    largest = next(one for one in found.arrays if one.role is ArrayRole.INTERMEDIATE)
    assert (largest.local_shape, largest.sharding) == ((4096, 14336), "P(None, None)")


def test_inside_shard_map_there_is_nothing_to_propagate(table):
    found = table("fixtures/programs/two_matmuls.py:two_matmuls_shard_map")
    intermediates = [one for one in found.arrays if one.role is ArrayRole.INTERMEDIATE]
    assert [(one.local_shape, one.sharding) for one in intermediates] == [((128, 2048), "P('X', None)")]
    assert not any(one.is_moved for one in found.arrays)


@pytest.mark.words_of_jax("0.10.")
def test_an_argument_that_comes_as_a_sum_in_parts_is_told_as_that_before_and_after_the_compile(says, table, explained):
    (argument,) = [
        one
        for one in table("tests/why/programs/wide_layer.py:takes_a_sum_in_parts").arrays
        if one.role is ArrayRole.ARGUMENT
    ]
    compiled = explained("wide_layer.py:takes_a_sum_in_parts")
    assert {argument.sharding, compiled.arguments[0].sharding} == {"P('X', None, unreduced={'Y'})"}
    (one,) = compiled.collectives
    assert "`partial[64_X, 256] {U_Y}`" in one.why
    assert render_equations(one.reason, one.kind) == ("partial[64_X, 256] = AllReduce_Y(partial[64_X, 256] {U_Y})",)
    says([one.why, *(step.what for step in explain_collectives(compiled)[0].steps)])


def test_a_sum_that_nobody_has_taken_yet_is_told(table):
    found = table("tests/why/programs/wide_layer.py:sums_late").arrays
    [partial] = (one for one in found if one.name == "partial")
    assert partial.sharding == "P('X', None, unreduced={'Y'})"
    assert [one.sharding for one in found if one.role is ArrayRole.OUTPUT] == ["P('X', None)"]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_table_fits_its_width(table, width):
    text = render("shardings", "text", table("tests/why/programs/train_step.py:train_step"), Canvas(width=width))
    assert max(map(len, text.splitlines())) <= width
    assert "parameters['layers'][1]['wo']" in text.replace("\n", "").replace(" ", "")
