"""Graphs of programs in the formats of other tools: what is written reads back, whatever names hold."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest
from test_fragments import Reader
from test_hostile_strings import EVIL, UNSEEN

import hloscope
from hloscope.base.errors import NotationError
from hloscope.model.program_graph import EdgeKind, GraphEdge, GraphNode, ProgramGraph
from hloscope.report.escaping import escape_line
from hloscope.report.graphs import lay_out

FILE = Path(__file__).parent.parent.parent / "fixtures/captured/collective_matmul.collective.jax-0.10.hlo"
NODE = GraphNode(id="m/a", computation="m", name="a", line=1, opcode="add", shape="f32[8]", bytes=32, time_us=1.5)
EDGE = GraphEdge(source="m/a", target="m/b", kind=EdgeKind.OPERAND, position=0)
SMALL = ProgramGraph(
    target="step.hlo",
    module="jit_step",
    slice="v5e:2x4",
    part="the whole step",
    nodes=(NODE, replace(NODE, id="m/b", name="b", axes=("X", "Y"), collective="all-gather", is_critical=True)),
    edges=(EDGE,),
    critical_path_us=3.0,
)
HOSTILE = replace(
    SMALL,
    target=EVIL,
    module=EVIL,
    part=EVIL,
    nodes=tuple(
        replace(node, id=f"{node.id}{EVIL}", name=EVIL, computation=EVIL, op_name=EVIL, source=EVIL, shape='f32"\\')
        for node in SMALL.nodes
    ),
    edges=(replace(EDGE, source=f"m/a{EVIL}", target=f"m/b{EVIL}", attribute=EVIL),),
)


@pytest.fixture(scope="module")
def found():
    return hloscope.analyze(FILE, slice="v5e:2x4", mesh={"X": 4, "Y": 2}).graph()


def test_graphml_loads_with_typed_attributes(found):
    read = nx.read_graphml(io.BytesIO(found.report("graphml").encode()), force_multigraph=True)
    whole = found.to_networkx()
    assert set(read.nodes) == set(whole.nodes)
    assert read.number_of_edges() == whole.number_of_edges() == len(found.edges)
    for name, attributes in whole.nodes(data=True):
        for key, value in attributes.items():
            assert read.nodes[name][key] == value
            assert type(read.nodes[name][key]) is type(value)


def test_graphml_of_hostile_names_loads():
    text = HOSTILE.report("graphml")
    read = nx.read_graphml(io.BytesIO(text.encode()))
    assert UNSEEN.search(text) is None
    assert {attributes["name"] for _, attributes in read.nodes(data=True)} == {escape_line(EVIL)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pydot's, of how it asks pyparsing
@pytest.mark.parametrize("graph", [SMALL, HOSTILE], ids=["plain", "hostile"])
def test_dot_parses(graph):
    pydot = pytest.importorskip("pydot")
    (parsed,) = pydot.graph_from_dot_data(graph.report("dot"))
    (cluster,) = parsed.get_subgraphs()
    assert len(cluster.get_nodes()) == 2
    (edge,) = parsed.get_edges()
    assert {edge.get_source(), edge.get_destination()} == {node.get_name() for node in cluster.get_nodes()}


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
@pytest.mark.parametrize("graph", [SMALL, HOSTILE], ids=["plain", "hostile"])
def test_graphviz_draws_it(graph):
    done = subprocess.run(["dot", "-Tsvg"], input=graph.report("dot"), capture_output=True, text=True, check=True)
    assert not re.search("syntax|error", done.stderr, re.IGNORECASE)
    drawn = ElementTree.fromstring(done.stdout)
    letters = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("%") for text in letters)
    assert "script" not in {each.tag for each in drawn.iter()}


def test_a_picture_shows_each_instruction_once(found):
    root = ElementTree.fromstring(found.report("svg"))
    letters = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    for node in found.nodes:
        assert letters.count(f"%{node.name}") == 1 or len(node.name) > 24
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == len(
        {(edge.source, edge.target) for edge in found.edges}
    )


def test_pictures_of_hostile_names_hold_text():
    picture = HOSTILE.report("svg")
    assert UNSEEN.search(picture) is None
    assert "img" not in Reader(picture).tags
    assert len(picture) < 30_000


def test_what_nobody_could_read_is_not_drawn():
    many = replace(
        SMALL, nodes=tuple(replace(NODE, id=f"m/{number}", name=f"{number}") for number in range(401)), edges=()
    )
    with pytest.raises(NotationError, match="a picture of 401 instructions could not be read") as refused:
        many.report("svg")
    assert 'around="all-gather.8" hops=2' in str(refused.value)
    assert many._repr_html_() is not None


def test_text_tells_the_critical_path(found):
    text = found.report(width=100)
    assert max(map(len, text.splitlines())) <= 100
    (line,) = (line for line in text.splitlines() if line.startswith("On the critical path of the step"))
    assert "us" in line
    assert "%convolution_add_fusion" in text


# ---- layers


def test_what_is_needed_stands_above_what_needs_it(found):
    edges = list(dict.fromkeys((edge.source, edge.target) for edge in found.edges))
    layers = lay_out([node.id for node in found.nodes], edges, width=100, gap=10)
    row_of = {each: number for number, row in enumerate(layers.rows) for each in row}
    assert all(row_of[source] < row_of[target] for source, target in edges)
    for row in layers.rows:
        places = sorted((layers.x[each], each) for each in row)
        for (here, one), (there, other) in pairwise(places):
            halves = sum(50 if each in {node.id for node in found.nodes} else 5 for each in (one, other))
            assert there - here >= halves + 10 - 1e-6
    assert set(map(len, layers.ways.values())) <= set(range(2, len(layers.rows) + 1))


def test_text_that_needs_itself_is_laid_out_all_the_same():
    layers = lay_out(["a", "b"], [("a", "b"), ("b", "a"), ("a", "a")], width=10, gap=1)
    assert sorted(each for row in layers.rows for each in row if each in ("a", "b")) == ["a", "b"]
