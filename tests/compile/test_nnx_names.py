"""Arguments that are arrays of Flax NNX modules have the names of their places in the module; nothing is compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from hloscope.compile.devices import bypass_trace_caches
from hloscope.compile.jax_private import read_lowered_facts, rename_arguments
from hloscope.compile.lowering import name_arguments_by_nnx_path

nnx = pytest.importorskip("flax.nnx")


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 8, rngs=rngs)
        self.down = nnx.Linear(8, 4, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return x + self.down(self.up(x))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.heads = nnx.Dict({"next word": nnx.Linear(4, 4, use_bias=False, rngs=rngs)})
        self.tied = self.blocks[0].up

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.heads["next word"](x)


BLOCKS = [f"blocks[{i}].{name}" for i in range(2) for name in ("down.kernel", "up.bias", "up.kernel")]
MODEL = [f"model.{name}" for name in (*BLOCKS, "heads['next word'].kernel")]


def step(model, batch, *, scale=1.0):
    loss, gradients = nnx.value_and_grad(lambda model: model(batch["x"]).sum() * scale)(model)
    return loss, gradients


def names_of(function, *args, **kwargs):
    with bypass_trace_caches(), name_arguments_by_nnx_path():
        lowered = function.lower(*args, **kwargs)
    while not isinstance(lowered, jax.stages.Lowered):
        lowered = lowered.lowered
    return list(read_lowered_facts(lowered).argument_names)


@pytest.fixture(scope="module")
def model():
    return Model(nnx.Rngs(0))


def test_arrays_of_a_module_are_named_by_their_path(model):
    names = names_of(nnx.jit(step), model, {"x": jnp.ones((2, 4))})
    assert names == [*MODEL, "batch['x']"]


def test_a_static_argument_does_not_move_the_names(model):
    jitted = nnx.jit(step, static_argnames=("scale",))
    names = names_of(jitted, model, {"x": jnp.ones((2, 4))}, scale=2.0)
    assert names == [*MODEL, "batch['x']"]


def test_a_module_that_is_sharded_by_filters(model):
    shardings = nnx.StateSharding({nnx.Param: None})
    names = names_of(nnx.jit(step, in_shardings=(shardings, None)), model, {"x": jnp.ones((2, 4))})
    assert names == [*MODEL, "batch['x']"]


def test_an_optimizer_has_its_own_arrays_and_not_those_of_a_model_before_it(model):
    optax = pytest.importorskip("optax")

    def train(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda model: model(x).sum())(model))

    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    names = names_of(nnx.jit(train), model, optimizer, jnp.ones((2, 4)))
    assert names[:7] == MODEL
    traces = [f"optimizer.opt_state[0].trace.{name.removeprefix('model.')}" for name in MODEL]
    assert sorted(names[7:]) == sorted([*traces, "optimizer.step", "x"])


def test_arrays_that_two_modules_share_are_named_once(model):
    def both(part, model, x):
        return model(part(x))

    names = names_of(nnx.jit(both), model.blocks[1], model, jnp.ones((2, 4)))
    assert [name for name in names if name.startswith("part")] == ["part.down.kernel", "part.up.bias", "part.up.kernel"]
    assert [name for name in names if "blocks[1]" in name] == []
    assert len(set(names)) == len(names) == 8


def test_without_modules_the_names_are_jaxs():
    names = names_of(jax.jit(lambda params, x: params["w"] @ x), {"w": jnp.ones((4, 4))}, jnp.ones(4))
    assert names == ["params['w']", "x"]


@pytest.mark.parametrize("made", ["fails", "has other leaves"])
def test_where_the_tree_is_not_as_expected_the_names_are_jaxs(made):
    def rewritten(arguments):
        if made == "fails":
            raise KeyError(made)
        return [arguments[0][:1]], {}

    with bypass_trace_caches(), rename_arguments(rewritten):
        lowered = jax.jit(lambda a, b: a + b).lower(jnp.ones(4), jnp.ones(4))
    assert read_lowered_facts(lowered).argument_names == ("a", "b")
