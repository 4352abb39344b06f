"""What is said of a target's slices where it is priced on others: nothing is compiled here."""

from __future__ import annotations

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

import hloscope
from hloscope.app import pricing
from hloscope.base.errors import CompileError, MeshError
from hloscope.compile import client, compiling
from hloscope.compile.functions import Function
from hloscope.compile.target import make_facts
from hloscope.report.price import Unpriced


@hloscope.target(mesh={"replica": 2, "X": 4}, slice="2*v5e:2x2", dcn={"replica": 2}, args=("f32[8@replica,8@X]",))
def step(x):
    return jnp.sin(x)


@pytest.fixture
def asked(monkeypatch):
    """The slices that programs are compiled for, with their axes over DCN."""
    found: list[tuple[str, object]] = []

    def start(lowered, **_):
        plan = lowered.plan
        found.append((plan.slice.name, plan.dcn))
        compiling._find_dcn_shape(plan.mesh, plan.slice, plan)  # which refuses as a compile would
        return SimpleNamespace(capture=refuse, drop=lambda: None)

    def refuse(_):
        raise CompileError("nothing is compiled here")

    monkeypatch.setattr(compiling, "start_compile", start)
    monkeypatch.setattr(client, "start_worker_ahead", lambda *_: None)
    return found


def test_a_slice_without_dcn_drops_the_targets_own_axes_over_it(asked):
    found = hloscope.price(step, ("2*v5e:2x2", "v5e:2x4"))
    assert asked == [("2*v5e:2x2", {"replica": 2}), ("v5e:2x4", None)]
    assert [one.error.what for one in found] == ["nothing is compiled here"] * 2


def test_axes_that_are_asked_for_are_those_of_the_slices_that_have_dcn(asked):
    hloscope.price(step, ("v5e:2x4", "2*v5e:2x2"), dcn={"X": 2})
    assert asked == [("v5e:2x4", None), ("2*v5e:2x2", {"X": 2})]


def test_axes_that_are_asked_for_are_refused_where_no_slice_has_dcn(asked):
    with pytest.raises(MeshError, match="dcn needs a slice of several"):
        hloscope.price(step, ("v5e:2x4",), dcn={"replica": 2})


def test_axes_of_a_targets_file_are_not_asked_for(asked):
    facts = make_facts(dcn={"replica": 2})
    pricing.price_function(Function(target=step, facts=facts), ("v5e:2x4",), dcn_is_asked=False)
    assert asked == [("v5e:2x4", None)]


def test_a_slice_that_the_target_does_not_fit_is_a_row(asked):
    good, bad = hloscope.price(step, ("v5e:2x4", "4*v5e:1x2"))
    assert isinstance(bad, Unpriced)
    assert (bad.slice_name, "does not fit 4 slices" in bad.error.what) == ("4*v5e:1x2", True)
    assert good.error.what == "nothing is compiled here"
