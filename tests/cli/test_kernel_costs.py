"""`--kernel-cost`, and the same in Python, in the decorator and in the targets file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hloscope as run

import hloscope
from hloscope.app.pricing import price
from hloscope.base.errors import NotationError
from hloscope.compile.target import find_attached_facts, make_facts

ROOT = Path(__file__).parent.parent.parent
BLOCK = "f32[1024,1024]{1,0:T(8,128)}"
TEXT = f"""HloModule step, is_scheduled=true
%fused (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  ROOT %n = {BLOCK} negate(%p)
}}
ENTRY %e {{
  %a = {BLOCK} parameter(0)
  %f = {BLOCK} fusion(%a), kind=kLoop, calls=%fused, backend_config={{"estimated_cycles":"150000"}}
  ROOT %splash.1 = {BLOCK} custom-call(%f), custom_call_target="tpu_custom_call", backend_config={{"flag_configs":[]}}
}}
"""
COST, KERNEL_US = "splash=197e9,1", 1000.0
MODULE = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import hloscope

def double(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2

@hloscope.target(args=("f32[256,1024]",), slice="v5e:1x1", kernel_costs={"splash": (197e9, 1)})
def step(x):
    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="splash")(x)
"""


pytestmark = pytest.mark.usefixtures("cached")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "step.hlo").write_text(TEXT)
    return tmp_path


def time_of(done):
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    return (document["prices"][0] if "prices" in document else document)["time"]


@pytest.mark.parametrize("command", ["analyze", "price"])
def test_a_cost_on_the_command_line(command, folder):
    given = (command, "step.hlo", "--slice", "v5e:1x1", "--format", "json")
    unknown, known = (time_of(run(*given, *more, cwd=folder)) for more in ((), ("--kernel-cost", COST)))
    assert (unknown["bound"], unknown["unpriced_kernels"], unknown["spread"]) == ("at least", ["splash"], None)
    assert (known["bound"], known["unpriced_kernels"], known["basis"]) == ("exact", [], "cycles")
    assert known["spread"]["rows"] > 20
    assert known["step_us"] - unknown["step_us"] == pytest.approx(KERNEL_US, rel=0.01)  # whose bytes are known


@pytest.mark.parametrize("costs", [[COST], {"splash": (197e9, 1)}])
def test_from_python_too(costs, folder):
    path = folder / "step.hlo"
    unknown, known = (hloscope.analyze(path, slice="v5e:1x1", kernel_costs=given).time for given in ((), costs))
    assert known.step_us - unknown.step_us == pytest.approx(KERNEL_US, rel=0.01)  # whose bytes are known
    (priced,) = price(path, ("v5e:1x1",), kernel_costs=costs)
    assert priced.time.step_us == known.step_us


@pytest.mark.long
def test_in_the_targets_file(folder):
    (folder / "hloscope.toml").write_text(
        '[targets.step]\nhlo = "step.hlo"\nslice = "v5e:1x1"\nbaseline = false\ncontract = "time <= 1.2ms"\n'
        "kernel-costs = { splash = [197e9, 1] }\n"
    )
    done = run("check", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "hloscope.toml").write_text((folder / "hloscope.toml").read_text().replace("kernel-costs", "#"))
    assert run("check", cwd=folder).returncode == 1  # what is only a lower bound decides nothing


def test_a_cost_that_says_nothing_is_refused(says, folder):
    done = run("analyze", "step.hlo", "--slice", "v5e:1x1", "--kernel-cost", "splash=1e9", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "splash=1e9" in says(done.stderr)


@pytest.mark.parametrize(
    "costs",
    [["splash"], ["splash=1e9,fast"], ["=1,1"], {"splash": (0, 0)}, {"splash": (-1, 2)}, {"splash": 7}],
    ids=str,
)
def test_a_cost_that_says_nothing_is_refused_in_python(says, costs):
    with pytest.raises(NotationError) as caught:
        make_facts(kernel_costs=costs)
    says(caught)


def test_a_wrong_cost_in_python_is_answered_in_python(folder):
    with pytest.raises(NotationError) as caught:
        hloscope.analyze(folder / "step.hlo", kernel_costs={"foo": 3})
    assert 'kernel_costs={"splash": (7e11, 2e8)}' in caught.value.fix


def test_facts_of_a_function_are_joined():
    @hloscope.target(kernel_costs={"splash": (1.0, 2.0), "paged": (3.0, 4.0)})
    def step(x):
        return x

    mine = make_facts(kernel_costs=["splash=5,6"])
    assert mine.over(find_attached_facts(step)).kernel_costs == {"splash": (5.0, 6.0), "paged": (3.0, 4.0)}


@pytest.mark.tpu_compiler
def test_in_the_decorator_of_a_function(folder):
    (folder / "model.py").write_text(MODULE)
    time = time_of(run("analyze", "model.py:step", "--format", "json", cwd=folder))
    assert time["unpriced_kernels"] == []
    assert time["step_us"] == pytest.approx(KERNEL_US, rel=0.01)
