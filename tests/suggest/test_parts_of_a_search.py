"""What a search is made of: classes of dimensions, recipes with names, what neighbors tell, orders of devices."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

import jax
import jax.numpy as jnp
import pytest
import shardable

import hloscope
from hloscope.compile import client
from hloscope.compile.devices import run_on_enough_devices
from hloscope.compile.importing import isolate_call
from hloscope.compile.lowering import lower
from hloscope.compile.target import find_attached_facts
from hloscope.search.recipes import Recipes
from hloscope.search.space import FOLLOWING, Space, find_device_orders, follows_axes
from hloscope.tpu.slices import parse_slice


def space_of(function, keep=(), free=()):
    facts = find_attached_facts(function)

    def work():
        lowered = lower(function, facts, name="it")
        module, _ = client.ask_propagation(lowered.bytecode, "jax", [], timeout_s=100)
        return Space(lowered, module, keep, free)

    with isolate_call():
        return run_on_enough_devices((function,), facts, work)


def names(space):
    return [part.name for part in space.parts]


def classes_of(space, name):
    return next(part.classes for part in space.parts if part.name == name)


def test_dimensions_that_belong_together_are_one_class():
    space = space_of(shardable.small_ffn, free=("result",))
    x, up, down, out = (classes_of(space, name) for name in ("x", "W1", "W2", "result"))
    assert x[0] == out[0]
    assert x[1] == up[0]
    assert up[1] == down[0]
    assert down[1] == out[1]
    assert len({x[0], x[1], up[1]}) == 3


def test_classes_go_through_scans_gradients_and_updates():
    space = space_of(shardable.train)
    up, state, tokens = (classes_of(space, name) for name in ("params['up']", "mu['up']", "tokens"))
    assert up == state
    assert up[2] == classes_of(space, "params['down']")[1]
    assert tokens[0] not in {*up, *classes_of(space, "params['embed']")}


def test_states_belong_to_their_weights_and_what_is_kept_is_no_part():
    space = space_of(shardable.train)
    weights = {number for number, part in enumerate(space.parts) if part.name.startswith("params")}
    assert {part.belongs_to for part in space.parts if part.name.startswith(("mu", "nu"))} <= weights
    assert names(space_of(shardable.train, keep=("params*", "mu*")))[-1] == "tokens"
    assert not any(
        name.startswith(("params", "mu")) for name in names(space_of(shardable.train, keep=("params*", "mu*")))
    )


@pytest.mark.parametrize(("word", "how"), [("keep", {"keep": ("w1",)}), ("free", {"free": ("y",)})])
def test_a_name_that_nothing_has_is_refused(says, word, how):
    with pytest.raises(hloscope.NotationError) as caught:
        space_of(shardable.small_ffn, **how)
    says(str(caught.value), word)


def test_a_result_is_searched_only_where_it_is_freed():
    assert names(space_of(shardable.small_ffn)) == ["x", "W1", "W2"]
    space = space_of(shardable.small_ffn, free=("result",))
    assert names(space)[-1] == "result"
    assert None in space.parts[-1].layouts
    assert space.size == 9**3 * 10


RECIPES = {
    "small_ffn": {
        "tensor parallel over X and Y": {"W1": ((), ("X", "Y")), "W2": (("X", "Y"), ())},
        "data parallel over X, tensor parallel over Y": {"x": (("X",), ()), "W1": ((), ("Y",)), "W2": (("Y",), ())},
    },
    "experts": {"expert parallel over X": {"x": (("X",), ()), "W1": (("X",), (), ()), "W2": (("X",), (), ())}},
    "train": {
        "data parallel with ZeRO over X and Y": {"params['up']": ((), (), ()), "tokens": (("X", "Y"), ())},
    },
    "attention": {"data parallel over X, tensor parallel over Y": {"Wq": ((), ("Y",), ()), "Wo": (("Y",), (), ())}},
}


@pytest.mark.parametrize("function", RECIPES)
def test_the_ways_that_people_name_are_among_the_recipes(function):
    space = space_of(getattr(shardable, function))
    found = {}
    for recipe in Recipes(space).all():
        specs = dict(zip(names(space), recipe.point.specs, strict=True))
        found.setdefault(recipe.name, []).append(specs)
    for name, expected in RECIPES[function].items():
        assert any(expected.items() <= specs.items() for specs in found[name]), (name, found.get(name))


def parallel(function, *order):
    """A function of `x`, `up` and `down`, as most write it, whose arguments come in some order."""
    types = {"x": "bf16[256@data,512]", "up": "bf16[512,1024@model]", "down": "bf16[1024@model,512]"}

    def ordered(*arrays):
        return function(**dict(zip(order, arrays, strict=True)))

    args = tuple(types[name] for name in order)
    return hloscope.target(mesh={"data": 4, "model": 2}, slice="v5e:2x4", args=args)(ordered)


def forward(x, up, down):
    return jax.nn.relu(x @ up) @ down


def differentiate(x, up, down):
    return jax.grad(lambda up, down: (forward(x, up, down) ** 2).sum(), (0, 1))(up, down)


def scale_first(x, up, down):
    return forward(x, up * 2, jnp.tanh(down.astype(jnp.float32) * 2).astype(x.dtype))


@pytest.mark.parametrize("function", [forward, differentiate, scale_first])
@pytest.mark.parametrize("order", [*permutations(["x", "up", "down"])], ids=" ".join)
def test_the_order_of_arguments_does_not_decide_what_is_data(function, order):
    space = space_of(parallel(function, *order))
    own = {recipe.point.specs: recipe.name for recipe in reversed([*Recipes(space).all()])}[space.own.specs]
    assert own == "data parallel over data, tensor parallel over model"


def test_a_change_takes_the_states_and_the_results_along():
    space = space_of(shardable.train)
    point = next(
        other for other in space.neighbors(space.own) if other.specs[names(space).index("params['up']")] != ((), (), ())
    )
    changed = {leaf.name for leaf in space.change(point).arguments}
    assert {"params['up']", "mu['up']", "nu['up']"} <= changed
    assert {leaf.replaces for leaf in space.change(point).results} == {
        leaf.index for leaf in space.leaves.arguments if leaf.array.name in changed
    }


def place(x, *spec):
    return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(*spec))


@hloscope.target(mesh={"data": 4, "model": 2}, slice="v5e:2x4", args=("f32[64,128]", "f32[128,128]"))
def constrained(x, w):
    """Constraints in a helper, of which some follow the arguments as they are, and some do not."""
    x = place(x, "data", None)
    x = place(x @ w, None, None)
    return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(None, "model"))


@pytest.mark.parametrize("axes", ["data", "model"])
def test_a_constraint_in_a_helper_is_named_by_the_call_that_changes(axes):
    space = space_of(constrained)
    specs = tuple(
        ((axes,), ()) if part.name == "x" else spec for part, spec in zip(space.parts, space.own.specs, strict=True)
    )
    changes = space.change(replace(space.own, specs=specs, constraints=FOLLOWING)).constraints
    first = constrained.__code__.co_firstlineno
    lines = [int(change.place.partition(":")[2]) - first for change in changes]
    assert lines == ([4, 5] if axes == "data" else [3, 4, 5])


@pytest.mark.parametrize("name", ["v5e:2x4", "v5e:4x4", "v6e:4x8", "v5p:2x2x2"])
def test_an_order_goes_from_neighbor_to_neighbor(name):
    from hloscope.tpu.slices import list_devices

    chosen = parse_slice(name)
    known = list_devices(chosen)
    orders = list(find_device_orders(chosen, (len(known),)))
    assert all(sorted(order) == list(range(len(known))) for order in orders)
    winding = [known[place].coords for place in orders[0]]
    apart = [sum(abs(a - b) for a, b in zip(here, there, strict=True)) for here, there in pairwise(winding)]
    assert set(apart) <= {0, 1}


def test_meshes_that_make_mesh_refuses_are_known():
    assert follows_axes(parse_slice("v5e:2x4"), (2, 4))
    assert follows_axes(parse_slice("v5e:2x4"), (4, 2))
    assert follows_axes(parse_slice("v5e:2x4"), (8, 1))
    assert not follows_axes(parse_slice("v5e:4x4"), (2, 8))
