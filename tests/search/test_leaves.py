"""Arguments and results: which belong together, and when a result is freed."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hloscope
from hloscope.model.capture import CapturedArray
from hloscope.search.ranking import combine_pairs
from hloscope.search.space import ProgramLeaf, ProgramLeaves
from hloscope.why.shardy_graph import ShardyGraph

pytestmark = pytest.mark.tpu_compiler
ROWS, COLUMNS, WHOLE = (("X",), ()), ((), ("X",)), ((), ())


def array(name, shape=(8, 8), *, donated=False, asked=True, sharding=None) -> CapturedArray:
    return CapturedArray(
        name=name,
        dtype="f32",
        global_shape=shape,
        local_shape=None,
        sharding=sharding,
        asked=asked,
        itemsize_bytes=4,
        donated=donated,
    )


@pytest.fixture
def leaves(subject_of):
    """Leaves of these arrays, over a mesh X=8."""
    graph = ShardyGraph(subject_of("masked").captured.compiled.shardy)
    captured = subject_of("masked").captured

    def made(arguments, results):
        found = ProgramLeaves(captured.arguments, captured.outputs, graph)
        found.arguments = tuple(ProgramLeaf(index=i, array=one, sharding=ROWS) for i, one in enumerate(arguments))
        found.results = tuple(
            ProgramLeaf(index=i, array=one, sharding=COLUMNS if one.asked else None) for i, one in enumerate(results)
        )
        return found

    return made


def test_real_leaves_are_those_of_the_program(subject_of):
    captured = subject_of("momentum").captured
    found = ProgramLeaves(captured.arguments, captured.outputs, ShardyGraph(captured.compiled.shardy))
    assert [(leaf.array.name, leaf.sharding) for leaf in found.arguments] == [("w", ROWS), ("m", ROWS), ("g", ROWS)]
    assert [(leaf.asked, leaf.computed) for leaf in found.results] == [(ROWS, ROWS), (COLUMNS, ROWS)]
    assert found.replaces == {0: 0, 1: 1}


@pytest.mark.parametrize(("arguments", "results", "expected"), [
    (["params['w']", "mu['w']"], ["result[0]['w']", "result[1]['w']"], {0: 0, 1: 1}),
    (["state.opt['mu']['w']", "state.params['w']"], ["result.params['w']", "result.opt['mu']['w']"], {0: 1, 1: 0}),
    (["x", "y"], ["result[0]", "result[1]"], {}),
    (["layers[0]", "layers[1]"], ["result[1]", "result[0]"], {}),
], ids=str)  # fmt: skip
def test_results_replace_arguments_of_the_same_path(leaves, arguments, results, expected):
    assert leaves(map(array, arguments), map(array, results)).replaces == expected


def test_others_replace_what_is_donated(leaves):
    arguments = [array("x"), array("y", donated=True), array("z", (4, 4), donated=True)]
    assert leaves(arguments, [array("result[0]"), array("result[1]", (4, 4)), array("result[2]")]).replaces == {
        0: 1,
        1: 2,
    }


def test_a_result_follows_the_argument_that_it_replaces(leaves):
    found = leaves([array("p['w']"), array("x")], [array("result['w']"), array("result['loss']")])
    change = found.change([(found.arguments[0], WHOLE)])
    assert change.words == ("argument p['w']: P('X', None) -> P(None, None)",
                            "result['w']: P(None, 'X') -> P(None, None)")  # fmt: skip
    assert not change.frees_output


@pytest.mark.parametrize(("number", "spec", "frees"), [
    (0, ROWS, False),  # as its argument lies
    (0, WHOLE, True),
    (0, None, True),
    (1, ROWS, True),  # it replaces none
    (1, None, True),
], ids=str)  # fmt: skip
def test_a_result_is_freed_where_it_does_not_come_to_lie_as_its_argument(leaves, number, spec, frees):
    found = leaves([array("p['w']"), array("x")], [array("result['w']"), array("result['loss']")])
    assert found.change(results=[(found.results[number], spec)]).frees_output is frees


def test_a_result_that_nobody_asked_for_is_free_but_for_its_argument(leaves):
    found = leaves([array("p['w']")], [array("result['w']", asked=False), array("result['loss']", asked=False)])
    assert not found.change(results=[(found.results[1], ROWS)]).frees_output
    assert not found.change(results=[(found.results[0], ROWS)]).frees_output
    assert found.change(results=[(found.results[0], COLUMNS)]).frees_output
    of_argument = found.change([(found.arguments[0], WHOLE)])
    of_result = found.change(results=[(found.results[0], ROWS)])
    assert combine_pairs((of_argument, of_result), ()) == ()


def test_an_argument_moves_where_no_result_comes_to_lie_as_it(leaves):
    found = leaves([array("p['w']"), array("x")], [array("result['w']"), array("result['loss']")])
    assert [leaf.moves for leaf in found.change([(found.arguments[0], COLUMNS)]).arguments] == [False]
    assert [leaf.moves for leaf in found.change([(found.arguments[1], COLUMNS)]).arguments] == [True]
    parted = found.change([(found.arguments[0], WHOLE)], [(found.results[0], ROWS)])
    assert [leaf.moves for leaf in parted.arguments] == [True]


def test_a_result_that_is_left_open_stays_as_the_argument_that_it_replaces(leaves):
    found = leaves([array("p['w']")], [array("result['w']", asked=False)])
    change = found.change([(found.arguments[0], COLUMNS)])
    assert change.words == ("argument p['w']: P('X', None) -> P(None, 'X')", "result['w']: left open -> P(None, 'X')")
    assert ([leaf.moves for leaf in change.arguments], change.frees_output) == ([False], False)


SWAPPED = """\
import jax
import jax.numpy as jnp
import hloscope

@hloscope.target(
    mesh={"X": 8}, slice="v5e:2x4", args=("f32[64@X,64]", "f32[64,64@X]", "f32[64@X,64]"), donate=(0, 1, 2)
)
def step(second, first, third):
    return first * 0.5 + jnp.tanh(second).sum(), jnp.tanh(third) + 1, second @ first
"""


def test_donated_arguments_are_matched_by_what_results_are_computed_from(tmp_path):
    (tmp_path / "swapped.py").write_text(SWAPPED)
    program = hloscope.analyze(f"{tmp_path / 'swapped.py'}:step")._evidence.program
    found = ProgramLeaves(program.arguments, program.outputs, ShardyGraph(program.compiled.shardy))
    assert found.replaces == {0: 1, 1: 2, 2: 0}


LOOPED = """\
import jax
import jax.numpy as jnp
import hloscope

@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[64@X,64]", "f32[64@X,64]"), donate=(0, 1))
def step(a, b):
    first, second = jax.lax.fori_loop(0, 3, lambda _, c: (jnp.tanh(c[0]), jnp.sin(c[1])), (b, a))
    return first, second
"""


def test_states_are_followed_through_a_loop(tmp_path):
    (tmp_path / "looped.py").write_text(LOOPED)
    program = hloscope.analyze(f"{tmp_path / 'looped.py'}:step")._evidence.program
    found = ProgramLeaves(program.arguments, program.outputs, ShardyGraph(program.compiled.shardy))
    assert found.replaces == {0: 1, 1: 0}


def test_order_alone_matches_nothing(leaves):
    donated = [array("a", donated=True), array("b", donated=True)]
    assert leaves(donated, [array("result[0]"), array("result[1]")]).replaces == {}


def test_layers_and_states_change_together(leaves):
    names = ["p['layers'][0]['w']", "p['layers'][1]['w']", "mu['layers'][0]['w']", "p['layers'][0]['b']"]
    found = leaves(map(array, names), [])
    first = found.arguments[0]
    assert [leaf.index for leaf in found.alike(first)] == [0, 1]
    assert [leaf.index for leaf in found.states_of(first)] == [0, 2]


@pytest.mark.parametrize(("shape", "sharding", "expected"), [
    ((8, 8), (("X",), ("X",)), False),
    ((4, 8), ROWS, False),
    ((8, 8), (("Z",), ()), False),
    ((8, 8), (("X",),), False),
    ((8, 8), (("X:(1)2",), ()), False),
    ((8, 8), ROWS, True),
    ((8, 8), None, True),
], ids=str)  # fmt: skip
def test_only_what_jax_takes_is_thought_of(leaves, shape, sharding, expected):
    assert leaves([], []).fits(array("x", shape), sharding) is expected


def test_what_says_of_sums_stays_as_it_is(leaves):
    partial = array("x", sharding="P('X', None, unreduced={'Y'})")
    assert not leaves([], []).fits(partial, ROWS)
    found = leaves([partial], [])
    assert found.change([(found.arguments[0], COLUMNS)]) is None


def test_a_change_that_changes_nothing_is_none(leaves):
    found = leaves([array("x")], [array("result")])
    assert found.change([(found.arguments[0], ROWS)]) is None
    assert found.change(results=[(found.results[0], COLUMNS)]) is None
    assert replace(found.arguments[0], sharding=None).asked is None
