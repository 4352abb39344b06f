"""Text that breaks off before ENTRY: what there is, as a lower bound, and a finding that says so."""

from __future__ import annotations

import re

import pytest

from hloscope.analysis.analyze import analyze_module
from hloscope.hlo import parse_module
from hloscope.hlo.call_graph import HloGraph, find_entry
from hloscope.judge.rule import Facts
from hloscope.judge.rules.unmodelled_text import UnmodelledText
from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound, Kind

ROWS = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}"
TEXT = f"""HloModule cut, num_partitions=8

%sum (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}}

%all-reduce-scatter.1 (a: f32[16]) -> f32[4] {{
  %a = f32[16] parameter(0)
  %inner = f32[16] all-reduce(%a), {ROWS}, to_apply=%sum
  %zero = s32[] constant(0)
  ROOT %part = f32[4] dynamic-slice(%inner, %zero), dynamic_slice_sizes={{4}}
}}

%inner_body (b: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %b = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %v = f32[4] get-tuple-element(%b), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %c = f32[4] all-reduce(%v), {ROWS}, to_apply=%sum
  ROOT %out = (s32[], f32[4]) tuple(%next, %c)
}}

%inner_cond (k: (s32[], f32[4])) -> pred[] {{
  %k = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%k), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}

%outer_body (o: f32[4]) -> f32[4] {{
  %o = f32[4] parameter(0)
  %zero = s32[] constant(0)
  %init = (s32[], f32[4]) tuple(%zero, %o)
  %w = (s32[], f32[4]) while(%init), condition=%inner_cond, body=%inner_body
  ROOT %g = f32[4] get-tuple-element(%w), index=1
}}

ENTRY %main (p: f32[4]) -> f32[4] {{
  %p = f32[4] parameter(0)
  %q = f32[4] neg"""


@pytest.fixture(scope="module")
def analysis():
    mesh = Mesh(axis_names=("X", "Y"), axis_sizes=(2, 4))
    return analyze_module(parse_module(TEXT), target="cut.hlo", mesh=mesh)


def test_what_there_is_is_counted_from_below(analysis):
    rows = {(c.kind, c.name, c.axes, c.executions, c.executions_bound) for c in analysis.collectives}
    assert rows == {
        (Kind.REDUCE_SCATTER, "inner", ("Y",), 1, Bound.AT_LEAST),
        (Kind.ALL_REDUCE, "c", ("Y",), 5, Bound.AT_LEAST),
    }
    totals = analysis.totals
    every = [totals, *totals.by_axis.values(), *totals.by_kind.values(), *totals.by_link.values()]
    assert {total.bound for total in every} == {Bound.AT_LEAST}
    assert totals.wire_bytes == 48 + 5 * 24


def test_a_finding_says_so(says, analysis):
    [item] = analysis.unmodelled
    assert re.findall(r"ENTRY|%\w+", item.what) == ["ENTRY", "%outer_body"]
    says([item.what, item.effect])
    [finding] = UnmodelledText().check(Facts(analysis))
    assert (finding.rule, finding.severity) == ("unmodelled-text", "warning")
    assert finding.message == f"{item.what}: {item.effect}"


def test_what_only_entry_tells_is_not_known(analysis):
    assert (analysis.arguments, analysis.outputs, analysis.intermediates) == ((), (), ())


def test_the_graph_begins_with_what_nothing_calls():
    module = parse_module(TEXT)
    graph = HloGraph(module)
    assert (graph.entry, find_entry(module)) == (None, None)
    assert [one.name for one in module.outermost] == ["all-reduce-scatter.1", "outer_body"]
    order = [one.name for one in graph.reachable]
    assert set(order) == {"sum", "all-reduce-scatter.1", "inner_body", "inner_cond", "outer_body"}
    assert order.index("outer_body") < order.index("inner_body") < order.index("sum")


def test_a_text_may_be_cut_after_any_line():
    lines = TEXT.partition("ENTRY")[0].splitlines(keepends=True)
    first_whole = next(number for number, line in enumerate(lines) if line == "}\n") + 1
    for end in range(first_whole, len(lines)):
        module = parse_module("".join(lines[:end]) + "%cut (")
        found = analyze_module(module, target="cut.hlo", mesh=None)
        assert (found.totals.bound, module.truncated) == (Bound.AT_LEAST, True)


BRANCH = """
%doubled (x: f32[4]) -> f32[4] {
  ROOT %x = f32[4] parameter(0)
}
"""


@pytest.mark.parametrize(
    ("header", "parts", "is_told"),
    [
        (", entry_computation_layout={(f32[4])->f32[4]}", BRANCH, True),
        ("", BRANCH, False),
        ("", BRANCH.replace("doubled", "other") + BRANCH, True),
        (", entry_computation_layout={(f32[4])->f32[4]}", BRANCH.replace("%doubled", "ENTRY %doubled"), False),
    ],
    ids=["printed by a compiler", "one part by hand", "two parts that nothing calls", "whole"],
)
def test_a_text_that_ends_between_two_computations(says, header, parts, is_told):
    module = parse_module(f"HloModule cut, num_partitions=8{header}\n{parts}")
    found = analyze_module(module, target="cut.hlo", mesh=None)
    whats = [item.what for item in found.unmodelled]
    assert [re.findall(r"ENTRY|%\w+", what) for what in whats] == [["ENTRY", "%doubled"]] * is_told
    if whats:
        says(whats)
    assert found.totals.bound is (Bound.AT_LEAST if is_told else Bound.EXACT)
