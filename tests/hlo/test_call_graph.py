"""The call graph and data flow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hloscope.analysis.dataflow import find_consumers, find_producers
from hloscope.hlo import parse_module
from hloscope.hlo.call_graph import HloGraph

TEXT = """HloModule m

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}

%fused (a: f32[4]) -> f32[4] {
  %a = f32[4] parameter(0)
  ROOT %neg = f32[4] negate(%a)
}

%unused (u: f32[4]) -> f32[4] {
  ROOT %u = f32[4] parameter(0)
}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  %b = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %v = f32[4] get-tuple-element(%b), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %f = f32[4] fusion(%v), kind=kLoop, calls=%fused
  ROOT %out = (s32[], f32[4]) tuple(%next, %f)
}

%cond (c: (s32[], f32[4])) -> pred[] {
  %c = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p: f32[4], q: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  %q = f32[4] parameter(1)
  %zero = s32[] constant(0)
  %f1 = f32[4] fusion(%p), kind=kLoop, calls=%fused
  %s = ((f32[4]), f32[4], s32[]) async-start(%f1), calls=%fused
  %d = f32[4] async-done(%s), calls=%fused
  %init = (s32[], f32[4]) tuple(%zero, %d)
  %w = (s32[], f32[4]) while(%init), condition=%cond, body=%body
  %g = f32[4] get-tuple-element(%w), index=1
  ROOT %r = f32[4] multiply(%g, %q)
}
"""


@pytest.fixture(scope="module")
def graph() -> HloGraph:
    return HloGraph(parse_module(TEXT))


def test_callers_stand_before_callees(graph):
    order = [computation.name for computation in graph.reachable]
    assert set(order) == {"main", "body", "cond", "fused"}
    assert order[0] == "main"
    assert order.index("body") < order.index("fused")


def test_calls_name_the_instruction_and_the_attribute(graph):
    calls = [(site.caller.name, site.attribute, site.callee) for site in graph.calls("main")]
    assert calls == [
        ("f1", "calls", "fused"),
        ("s", "calls", "fused"),
        ("w", "condition", "cond"),
        ("w", "body", "body"),
    ]


def test_callers_leave_out_the_done_of_an_asynchronous_call(graph):
    assert [site.caller.name for site in graph.callers("fused")] == ["f1", "s", "f"]
    assert graph.callers("unused") == ()
    assert graph.calls("unused") == ()


def test_only_caller(graph):
    assert graph.only_caller("body").name == "w"
    assert graph.only_caller("fused") is None
    assert graph.only_caller("main") is None


def test_branches_are_numbered():
    text = """HloModule m
    %no (a: f32[4]) -> f32[4] {
      ROOT %a = f32[4] parameter(0)
    }
    %yes (b: f32[4]) -> f32[4] {
      %b = f32[4] parameter(0)
      ROOT %n = f32[4] negate(%b)
    }
    ENTRY %main (p: f32[4], i: s32[]) -> f32[4] {
      %p = f32[4] parameter(0)
      %i = s32[] parameter(1)
      %q = f32[4] copy(%p)
      ROOT %c = f32[4] conditional(%i, %p, %q), branch_computations={%no, %yes}
    }"""
    graph = HloGraph(parse_module(text))
    assert [(site.callee, site.position) for site in graph.calls("main")] == [("no", 0), ("yes", 1)]
    copy = graph.module.entry.instruction("q")
    assert [found.name for found in find_consumers(graph, copy)] == ["b", "c", "n"]
    parameter = graph.module.computation("yes").instruction("n")
    assert [found.name for found in find_producers(graph, parameter)][:2] == ["b", "q"]


def test_consumers_nearest_first(graph):
    done = graph.module.entry.instruction("d")
    names = [found.name for found in find_consumers(graph, done)]
    assert names[:4] == ["init", "c", "b", "w"]
    assert names.index("g") < names.index("r")
    assert "next" not in names


def test_a_value_of_a_loop_reaches_the_next_iteration_and_what_follows(graph):
    fused = graph.module.computation("body").instruction("f")
    names = [found.name for found in find_consumers(graph, fused)]
    assert {"out", "b", "v", "w", "g", "r"} <= set(names)


def test_producers_go_into_bodies_and_out_to_callers(graph):
    product = graph.module.entry.instruction("r")
    names = [found.name for found in find_producers(graph, product)]
    assert names[:3] == ["g", "q", "w"]
    assert {"out", "f", "init", "d"} <= set(names)
    assert "zero" not in names


def test_the_search_gives_up(graph):
    done = graph.module.entry.instruction("d")
    assert len(list(find_consumers(graph, done, limit=2))) <= 4


@pytest.mark.process
def test_analysing_imports_neither_networkx_nor_jax():
    code = (
        "import sys; from hloscope.hlo import parse_module; from hloscope.analysis.analyze import analyze_module;"
        "m = parse_module('HloModule m\\nENTRY %e {\\n ROOT %p = f32[] parameter(0)\\n}');"
        "analyze_module(m, target='-', mesh=None).to_dict();"
        "print([name for name in ('networkx', 'jax', 'jsonschema') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.process
def test_the_model_alone_imports_no_parser():
    code = "import sys; import hloscope.model; print('lark' in sys.modules, 'hloscope.hlo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
