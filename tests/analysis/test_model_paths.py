"""Names of places in a model: what arguments and name stacks say, and which numbers are those of layers."""

from __future__ import annotations

import pytest

from hloscope.analysis.model_parts import (
    find_model_paths,
    find_phase,
    fold_paths,
    parse_scopes,
    render_layers,
    render_number_ranges,
)
from hloscope.analysis.provenance import find_shared_helpers, find_users_frame
from hloscope.model import Phase, SourceFrame
from hloscope.model.analysis import parse_argument_path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("params['layers'][3]['mlp']['gate']", ("params", "layers", "3", "mlp", "gate")),
        ("params['head'].value", ("params", "head")),
        ("state.params['w']", ("state", "params", "w")),
        ("opt_state[1][0].mu['w']", ("opt_state", "1", "0", "mu", "w")),
        ("weights[<flat index 2>]", ("weights", "2")),
        ("x", ("x",)),
    ],
)
def test_paths_of_arguments(name, path):
    assert parse_argument_path(name) == path


@pytest.mark.parametrize(
    ("op_name", "scopes", "phase"),
    [
        ("jit(step)/jvp(Model)/layers_0/mlp/dot_general", ("Model", "layers_0", "mlp"), Phase.FORWARD),
        ("jit(step)/transpose(jvp(Model))/head/dot_general", ("Model", "head"), Phase.BACKWARD),
        ("jit(step)/transpose(jvp())/dot_general", (), Phase.BACKWARD),
        ("jit(step)/jvp(layer_3)/while/body/closed_call/attn/dot_general", ("layer_3", "attn"), Phase.FORWARD),
        ("jit(f)/checkpoint/rematted_computation/attn/dot", ("attn",), Phase.BACKWARD),
        ("jit(step)/train/transpose(jvp(jit(_take)))/scatter-add", ("train",), Phase.BACKWARD),
        (
            "jit(step)/transpose(jvp(layer3))/jvp(layer3)/checkpoint/rematted_computation/attn/dot_general",
            ("layer3", "attn"),
            Phase.BACKWARD,
        ),
        ("jit(step)/jvp(attn)/bsd,dnh->bsnh/dot_general", ("attn",), Phase.FORWARD),
        ("jit(step)/vmap(jit(g))/add", (), None),
        ("jit(step)/add", (), None),
        (None, (), None),
    ],
)
def test_scopes_and_passes_of_name_stacks(op_name, scopes, phase):
    assert (parse_scopes(op_name), find_phase(op_name)) == (scopes, phase)


def modules(*names, shape=(8, 8)):
    bodies = find_model_paths([(name, shape) for name in names])
    return [fold_paths(bodies.values())[bodies[name]] for name in names]


def test_layers_of_a_list_are_folded():
    found = modules("params['layers'][0]['mlp']['kernel']", "params['layers'][11]['mlp']['kernel']")
    assert found == [("layers.*.mlp", 0), ("layers.*.mlp", 11)]


def test_layers_whose_number_stands_in_their_name_are_folded():
    names = [f"params['params']['Block_{layer}']['attn']['kernel']" for layer in (0, 1)]
    assert modules(*names) == [("Block_*.attn", 0), ("Block_*.attn", 1)]


def test_parts_of_one_block_that_are_only_numbered_stay_apart():
    assert modules("params['mlp']['Dense_0']['kernel']", "params['mlp']['Dense_1']['kernel']") == [
        ("mlp.Dense_0", None),
        ("mlp.Dense_1", None),
    ]


def test_layers_whose_number_is_a_part_of_their_name_are_folded_where_they_are_several():
    several = [(f"layer{layer}", "attn") for layer in range(3)]
    assert [name.module for name in fold_paths(several).values()] == ["layer*.attn"] * 3
    assert [name.module for name in fold_paths(several[:2]).values()] == ["layer0.attn", "layer1.attn"]
    assert [name.module for name in fold_paths([(f"fc{number}",) for number in range(5)]).values()][1] == "fc1"


def test_a_number_that_belongs_to_a_name_is_none_of_a_layer():
    assert modules("params['linear2']['kernel']", "params['conv1d']['kernel']") == [("linear2", None), ("conv1d", None)]


def test_a_number_that_no_layer_has_is_left_as_it_is():
    name = f"params['layers'][{'9' * 5000}]['w']"
    assert modules(name)[0] == (f"layers.{'9' * 5000}.w", None)


def test_parameters_that_are_a_list_keep_the_name_of_the_argument():
    assert modules("params[0]['w']", "params[1]['w']") == [("params.*.w", 0), ("params.*.w", 1)]


@pytest.mark.parametrize(
    ("parameter", "state"),
    [
        ("params['layers'][0]['w']", "opt_state[0].mu['layers'][0]['w']"),
        ("state.params['layers'][0]['w']", "state.opt_state[1][0].nu['layers'][0]['w']"),
        ("variables['params']['h_0']['w']", "opt[0].mu['params']['h_0']['w']"),
    ],
)
def test_the_state_of_an_optimizer_has_the_path_of_its_parameter(parameter, state):
    bodies = find_model_paths([(parameter, (4, 8)), (state, (4, 8))])
    assert bodies[parameter] == bodies[state]
    assert not {"mu", "nu"} & set(bodies[state])


def test_two_parameters_of_one_shape_are_two():
    bodies = find_model_paths([("params['head']['kernel']", (4,)), ("params['layers'][0]['q']['kernel']", (4,))])
    assert list(bodies.values()) == [("head",), ("layers", "0", "q")]


@pytest.mark.parametrize(
    ("numbers", "words"), [((0, 1, 2, 4), "0-2, 4"), (range(36), "0-35"), ((7,), "7"), ((), ""), ((3, 1), "1, 3")]
)
def test_ranges_name_gaps(numbers, words):
    assert render_number_ranges(numbers) == words


@pytest.mark.parametrize(
    ("module", "layers", "shown"),
    [
        ("layers.*.mlp.experts.*", (0, 1, 2), "layers[0-2].mlp.experts.*"),
        ("h_*.mlp", (0, 1, 3), "h_[0-1, 3].mlp"),
        ("h_*.mlp", (3,), "h_3.mlp"),
        ("head", (), "head"),
    ],
)
def test_layers_stand_where_the_star_was(module, layers, shown):
    assert render_layers(module, layers) == shown


def frame(line, function, file="model.py"):
    return SourceFrame(file=file, line=line, function=function)


LINEAR = frame(116, "Linear.__call__")
STACKS = [(LINEAR, frame(line, "Attention.__call__"), frame(221, "Layer.__call__")) for line in (195, 197, 199)]


def test_a_function_that_many_lines_call_is_a_helper():
    helpers = find_shared_helpers(STACKS)
    assert [find_users_frame(stack, helpers).line for stack in STACKS] == [195, 197, 199]


def test_a_block_with_as_many_lines_as_callers_is_a_place():
    blocks = [(frame(line, "block"), frame(caller, "model")) for line in (10, 11, 12) for caller in (30, 31, 32)]
    assert find_users_frame(blocks[0], find_shared_helpers(blocks)).line == 10


def test_two_callers_make_no_helper():
    assert not find_shared_helpers(STACKS[:2])


@pytest.mark.parametrize("name", ["model.py", "Linear.__call__", "__call__"])
def test_helpers_are_named_by_file_or_function(name):
    stack = (LINEAR, frame(31, "step", "train.py"))
    expected = {"model.py": 31, "Linear.__call__": 31, "__call__": 31}[name]
    assert find_users_frame(stack, find_shared_helpers([stack], [name])).line == expected


def test_where_all_are_helpers_the_innermost_line_stays():
    assert find_users_frame(STACKS[0], find_shared_helpers(STACKS, ["model.py"])) == LINEAR
