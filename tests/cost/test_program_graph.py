"""A compiled program as a graph: what needs what, near an instruction too, with what is known of each."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import networkx as nx
import pytest
from test_critical_path import INDEPENDENT, LOOP, NEEDED

import hloscope
from hloscope.base.canvas import Canvas
from hloscope.base.errors import HloscopeError, NotationError
from hloscope.model.program_graph import EdgeKind, ProgramGraph
from hloscope.report.formats import render

FOLDER = Path(__file__).parent.parent.parent / "fixtures" / "captured"
BODY = "wide.region_0.1_spmd.clone.sunk"


@lru_cache(maxsize=1)
def experts():
    file = FOLDER / "mixture_of_experts.mixture_of_experts.jax-0.10.hlo"
    return hloscope.analyze(file, slice="v5e:2x4", mesh={"X": 4, "Y": 2})


def graph_of(text, **part):
    return hloscope.analyze_text(text, slice="v5e:2x2").graph(**part)


def test_nodes_have_what_is_known_of_them():
    (gather,) = (node for node in experts().graph().nodes if node.collective)
    (moved,) = experts().collectives
    assert gather.id == f"{BODY}/all-gather.8"
    assert (gather.opcode, gather.collective, gather.axes) == ("all-gather", "all-gather", ("X", "Y"))
    assert (gather.time_us, gather.wire_bytes, gather.executions) == (moved.time_us, moved.wire_bytes, 8)
    assert (gather.shape, gather.bytes) == ("bf16[8,4096,14336]", 8 * 4096 * 14336 * 2)
    assert gather.source == "mixture_of_experts.py:26 in expert_forward"
    assert gather.is_critical


def test_all_that_runs_is_there_and_what_stays_inside_fusions_is_not():
    found = experts().graph()
    assert {node.computation for node in found.nodes} == {"main.3_spmd", BODY, "wide.region_1.2_spmd.clone"}
    inside = experts().graph(computation="%fused_computation.5.clone.1")
    assert {node.computation for node in inside.nodes} == {"fused_computation.5.clone.1"}
    assert inside.part == "computation fused_computation.5.clone.1"


def test_edges_lead_into_loops_and_out_of_them():
    edges = {(edge.source, edge.target): edge for edge in graph_of(LOOP).edges}
    assert edges["main/s", "main/w"].kind is EdgeKind.OPERAND
    handed = edges["main/s", "body/s"]
    assert (handed.kind, handed.attribute, handed.position) == (EdgeKind.ARGUMENT, "body", 0)
    back = edges["body/t", "main/w"]
    assert (back.kind, back.attribute) == (EdgeKind.RESULT, "body")


def test_branches_are_handed_an_operand_each():
    text = LOOP.replace(
        "ROOT w = (s32[], s32[], f32[1024,1024]) while(s), condition=condition, body=body",
        "one = s32[] constant(1)\n  w = f32[1024,1024] negate(p)\n"
        "  ROOT c = f32[1024,1024] conditional(one, p, w), branch_computations={first, second}",
    ).replace(
        "\nENTRY",
        "\nfirst {\n  ROOT a = f32[1024,1024] parameter(0)\n}\n\nsecond {\n  ROOT b = f32[1024,1024] parameter(0)\n}\n"
        "\nENTRY",
    )
    handed = {(edge.source, edge.target) for edge in graph_of(text).edges if edge.kind is EdgeKind.ARGUMENT}
    assert {("main/p", "first/a"), ("main/w", "second/b")} <= handed


def test_the_critical_path_is_the_one_that_rules_know():
    apart, together = (
        {node.name for node in graph_of(text).nodes if node.is_critical} for text in (INDEPENDENT, NEEDED)
    )
    assert "d" not in apart
    assert {"r", "d"} <= together
    found = graph_of(NEEDED)
    times = sum((node.time_us or 0) * (node.executions or 0) for node in found.nodes if node.is_critical)
    assert found.critical_path_us == pytest.approx(times)


def test_what_is_near_an_instruction():
    found = experts().graph(around="all-gather.8", hops=1)
    assert {node.name for node in found.nodes} == {"all-gather.8", "get-tuple-element.125", "fusion.16"}
    assert {(edge.source, edge.target) for edge in found.edges} == {
        (f"{BODY}/get-tuple-element.125", f"{BODY}/all-gather.8"),
        (f"{BODY}/all-gather.8", f"{BODY}/fusion.16"),
    }
    assert len(experts().graph(around=f"%{BODY}/all-gather.8", hops=0).nodes) == 1
    whole = nx.ego_graph(experts().graph().to_networkx().to_undirected(), f"{BODY}/all-gather.8", radius=2)
    assert {node.id for node in experts().graph(around="all-gather.8", hops=2).nodes} == set(whole.nodes)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"around": "all-gather.9"}, "did you mean all-gather.8"),
        ({"around": "qqq"}, "its collectives are all-gather.8"),
        ({"computation": "main.3"}, "did you mean main.3_spmd"),
        ({"around": "all-gather.8", "hops": -1}, "hops"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(part, message):
    with pytest.raises(NotationError) as refused:
        experts().graph(**part)
    assert message in str(refused.value)


def test_of_several_of_one_name_one_has_to_be_chosen():
    with pytest.raises(NotationError, match="3 instructions have the name 's'") as refused:
        graph_of(LOOP, around="s")
    assert "condition/s, body/s, main/s" in str(refused.value)


def test_without_a_slice_there_are_no_times():
    found = hloscope.analyze_text(NEEDED).graph()
    assert (found.slice, found.critical_path_us) == (None, None)
    assert not any(node.is_critical or node.time_us is not None for node in found.nodes)
    assert "nothing is priced" in str(found)


def test_a_document_cannot_be_asked_for_its_graph():
    with pytest.raises(HloscopeError, match="compiled program of this analysis is not available here"):
        hloscope.Analysis.from_dict(experts().to_dict()).graph()


def test_networkx_has_it_with_its_attributes():
    graph = experts().graph().to_networkx()
    assert isinstance(graph, nx.MultiDiGraph)
    assert nx.is_directed_acyclic_graph(graph)
    node = graph.nodes[f"{BODY}/all-gather.8"]
    assert (node["opcode"], node["axes"], node["executions"]) == ("all-gather", "X,Y", 8)
    assert "main.3_spmd/convert.1" in nx.ancestors(graph, f"{BODY}/all-gather.8")
    twice = graph_of(INDEPENDENT).to_networkx()
    assert twice.number_of_edges("main/q", "main/d") == 2


def test_documents_read_back(schema_of):
    found = experts().graph(around="all-gather.8", hops=1)
    import json

    import jsonschema

    text = render("graph", "json", found, Canvas())
    jsonschema.validate(json.loads(text), schema_of("graph"))
    assert ProgramGraph.from_dict(json.loads(text)) == found
