"""`hloscope graph` as a user runs it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
from command_line import hloscope

ROOT = Path(__file__).parent.parent.parent
EXPERTS = ROOT / "fixtures/captured/mixture_of_experts.mixture_of_experts.jax-0.10.hlo"


def test_a_graph_is_written_in_each_format(tmp_path):
    near = ("graph", EXPERTS, "--slice", "v5e:2x4", "--mesh", "X=4,Y=2", "--around", "all-gather.8", "--hops", 2)
    files = {name: tmp_path / f"near.{name}" for name in ("dot", "graphml", "svg", "json", "text")}
    commands = [(*near, "--format", name, "-o", file) for name, file in files.items()]
    for done in (hloscope(*command) for command in commands):
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert files["dot"].read_text().startswith('digraph "')
    assert len(nx.read_graphml(files["graphml"])) == 10
    assert ElementTree.parse(files["svg"]).getroot().tag.endswith("svg")
    assert "10 instructions, 13 edges" in files["text"].read_text()


def test_what_is_not_there_is_one_message():
    missing = hloscope("graph", EXPERTS, "--around", "all-gather.9")
    unread = hloscope("graph", EXPERTS, "--computation", "entry")
    for done in (missing, unread):
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
    assert "did you mean all-gather.8?" in missing.stderr
    assert "has no computation 'entry'" in unread.stderr


def test_hops_count_from_an_instruction():
    done = hloscope("graph", "no_such_file.hlo", "--hops", 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: --hops 2 counts from an instruction, and none is named\n   = fix: name one: --around all-gather.8\n"
    )
