"""`suggest --write` changes the lines and literals that make the suggestion real, and nothing else."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hloscope
from hloscope.app import suggesting
from hloscope.app.requests import Request
from hloscope.app.suggesting import Searching, find_suggestions
from hloscope.compile.source_edits import _write_import, apply_edits, find_literal_edits, retype
from hloscope.compile.target import find_attached_facts
from hloscope.model.trial import SourceEdit, SuggestedSpec

SHARED = """\
import hloscope

ONE = {"mesh": {"X": 4, "Y": 2}, "slice": "v5e:2x4"}
BOTH = {"mesh": {"X": 4, "Y": 2}, "slice": "v5e:2x4"}
WEIGHTS = {"up": "bf16[D,F@Y]", "layers": ["bf16[D,D@Y]", "bf16[D,D@Y]"]}
TYPE = "bf16[B@X,D]"


@hloscope.target(**ONE, args=(WEIGHTS, TYPE), out="P('X', None)", dims={"B": 8, "D": 16, "F": 32})
def own(weights, x):
    return x


@hloscope.target(**BOTH, args=(TYPE, make_type()), dims={"B": 8, "D": 16})
def other(x, y):
    return x


@hloscope.target(**BOTH, args=("bf16[8,8]",))
def third(x): return x
""".replace("make_type()", '"bf16[8]" "bf16"[:0]')


@pytest.fixture
def shared(tmp_path):
    file = tmp_path / "shared.py"
    file.write_text(SHARED)
    spec = spec_from_file_location("shared_targets", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def change(name, notation=None, after="P('Y', None)", **more):
    return SuggestedSpec(name=name, before="P(None, 'Y')", after=after, notation=notation, **more)


def edit(function, *specs, mesh=()):
    """The source with the edits, as the lines that differ, and what is to be written by hand."""
    edits, by_hand = find_literal_edits(function, find_attached_facts(function), specs, dict(mesh))
    lines = apply_edits(SHARED, edits).splitlines() if edits else SHARED.splitlines()
    return [line for line, before in zip(lines, SHARED.splitlines(), strict=True) if line != before], by_hand


def test_literals_of_arguments_results_and_mesh_are_changed(shared):
    lines, by_hand = edit(
        shared.own,
        change("weights['up']", "bf16[16@Y,32]"),
        change("weights['layers'][*]", "bf16[16@(X,Y),16]"),
        change("result", after="P(None, 'X')", is_result=True),
        mesh={"X": 2, "Y": 4},
    )
    assert by_hand == []
    assert lines == [
        'ONE = {"mesh": {"X": 2, "Y": 4}, "slice": "v5e:2x4"}',
        'WEIGHTS = {"up": "bf16[D@Y,F]", "layers": ["bf16[D@(X,Y),D]", "bf16[D@(X,Y),D]"]}',
        """@hloscope.target(**ONE, args=(WEIGHTS, TYPE), out="P(None, 'X')", dims={"B": 8, "D": 16, "F": 32})""",
    ]


def test_literals_that_serve_others_or_are_computed_are_for_the_hand(shared):
    lines, by_hand = edit(shared.own, change("x", "bf16[8@Y,16]"))
    assert (lines, by_hand) == ([], ["x: P(None, 'Y') -> P('Y', None): TYPE is used elsewhere too, or computed"])
    lines, by_hand = edit(
        shared.other, change("y", "bf16[8@Y]"), change("result", is_result=True), mesh={"X": 8, "Y": 1}
    )
    assert lines == []
    assert [words.rpartition(": ")[2] for words in by_hand] == [
        "mesh is in a dictionary that other targets share",
        "the decorator has another text than the target was called with",
        "no decorator in the source says out=",
    ]


def test_a_result_may_be_freed_or_held(shared):
    lines, by_hand = edit(shared.own, change("result", after=None, is_result=True))
    assert (by_hand, [line.partition("TYPE), ")[2] for line in lines]) == (
        [],
        ['out=None, dims={"B": 8, "D": 16, "F": 32})'],
    )


def test_what_the_target_was_called_with_may_be_no_text(shared):
    facts = replace(find_attached_facts(shared.other), args=(np.zeros((8, 16)), "bf16[8]"))
    edits, (why,) = find_literal_edits(shared.other, facts, [change("x", "bf16[8@Y,16]")], {})
    assert (edits, why.rpartition(": ")[2]) == ([], "TYPE is used elsewhere too, or computed")
    facts = replace(find_attached_facts(shared.third), args=(np.zeros((8, 8)),))
    edits, (why,) = find_literal_edits(shared.third, facts, [change("x", "bf16[8@Y,8]")], {})
    assert (edits, why.rpartition(": ")[2]) == ([], "the decorator has another text than the target was called with")


def test_a_file_that_is_no_python_meanwhile_costs_no_search(shared, monkeypatch):
    monkeypatch.setattr("linecache.getlines", lambda _: ["def own(:\n"])
    edits, by_hand = find_literal_edits(shared.own, find_attached_facts(shared.own), [change("x", "bf16[8@Y,16]")], {})
    assert (edits, len(by_hand)) == ([], 1)


@pytest.mark.parametrize(("head", "line"), [
    ('"""Steps."""\nfrom __future__ import annotations\n\n', 4),
    ('"""Steps."""\n', 2),
    ("# a comment\n", 2),
    ("import os\n", 1),
])  # fmt: skip
def test_an_import_has_its_place(tmp_path, head, line):
    file = tmp_path / "own.py"
    file.write_text(f"{head}@cached\ndef step(x):\n    return x\n")
    inserted = _write_import(str(file), "import jax")
    assert inserted.line == line
    ast.parse(apply_edits(file.read_text(), [inserted]))


def test_types_keep_their_letters():
    assert retype("bf16[B@(X,Y),T, D]", "bf16[8,16@X,4@(Y,Z)]") == "bf16[B,T@X,D@(Y,Z)]"
    assert retype("f32[]", "f32[]") == "f32[]"


def test_edits_are_of_the_text_that_was_traced():
    first, second = (SourceEdit(file="a.py", line=1, before="x = 1\n", after=text) for text in ("x = 2\n", "x = 3\n"))
    inserted = SourceEdit(file="a.py", line=1, before="", after="import jax\n")
    assert apply_edits("x = 1\ny = 2\n", [inserted, first]) == "import jax\nx = 2\ny = 2\n"
    assert apply_edits("\x0c\nx = 1\n", [replace(first, line=2)]) == "\x0c\nx = 2\n"
    for edits, why in (([first, second], "would be changed twice"), ([first], "is not as it was")):
        with pytest.raises(hloscope.HloscopeError, match=why):
            apply_edits("x = 1\n" if len(edits) == 2 else "x = 0\n", edits)
    with pytest.raises(hloscope.HloscopeError, match="would not be Python"):
        apply_edits("x = 1\n", [SourceEdit(file="a.py", line=1, before="x = 1\n", after="x = (\n")])


LOST = """\
from jax import jit, tree, grad, numpy as jnp

import hloscope

WEIGHTS = {"emb": "bf16[256,512@data]", "out": "bf16[512@data,512]"}


@hloscope.target(mesh={"data": 4}, slice="v5e:2x2", args=(WEIGHTS, "s32[64@data,256]"), donate=0)
def step(weights, tokens):
    def loss(weights):
        x = weights["emb"][tokens]
        return (jnp.tanh(x @ weights["out"]).astype(jnp.float32) ** 2).mean()
    return tree.map(lambda w, g: w - g, weights, grad(loss)(weights))
"""


@pytest.mark.tpu_compiler
@pytest.mark.process
@pytest.mark.usefixtures("cached")
def test_a_suggestion_is_written_or_the_file_is_as_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, said = tmp_path / "lost.py", []
    file.write_text(LOST)
    file.chmod(0o640)
    request = Request(target=f"{file}:step")
    searching = Searching(keep=("*",), fix_mesh=True, candidates=2, orders=False)
    found = find_suggestions(request, searching)
    (imported, written) = sorted(found.best.edits, key=lambda each: each.line)
    assert (imported.after, written.line) == ("import jax\n", 11)
    document = found.to_dict()["front"][0]["edits"]
    assert document[0].keys() == {"file", "line", "before", "after"}

    def write(is_sure):
        suggesting.write_best(request, found, is_sure=is_sure, fix="commit it", say=said.append)

    with pytest.raises(hloscope.HloscopeError, match="is not committed as it is"):
        write(is_sure=False)
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "lost.py"], check=True)
    with pytest.raises(hloscope.HloscopeError, match="is not committed as it is"):
        write(is_sure=False)
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "first"], check=True)
    slow = SimpleNamespace(time=SimpleNamespace(step_us=1.03 * found.best.figures.step_us))
    for outcome, why in (((None, "no such axis"), "fails"), ((slow, None), "the step with the suggestion is")):
        with monkeypatch.context() as patched:
            answer = SimpleNamespace(analysis=outcome[0], error=outcome[1])
            patched.setattr(suggesting, "run_jobs", lambda *_, answer=answer, **__: [answer])
            with pytest.raises(hloscope.HloscopeError, match=f"was taken back: .*{why}"):
                write(is_sure=False)
        assert file.read_text() == LOST
    said.clear()
    write(is_sure=False)
    assert "+        x = jax.lax.with_sharding_constraint(" in said[0]
    assert said[1].startswith("written, and analyzed again: ")
    assert file.stat().st_mode & 0o777 == 0o640
    text = file.read_text()
    assert text.replace(imported.after, "", 1).replace(written.after, written.before) == LOST
    assert [each.name for each in Path(tmp_path).iterdir() if each.name.startswith(".lost")] == []
    with pytest.raises(hloscope.HloscopeError, match="is not as it was when the program was traced"):
        write(is_sure=True)


def test_links_and_ends_of_lines_stay(tmp_path):
    own, link = tmp_path / "own.py", tmp_path / "link.py"
    own.write_bytes(b"x = 1\r\ny = 2\r\n")
    link.symlink_to(own)
    edits = (SourceEdit(file=str(link), line=2, before="y = 2\n", after="y = 3\n"),)
    (change,) = suggesting.plan_changes(SimpleNamespace(edits=edits, by_hand=()))
    assert (change.path, change.after) == (own, "x = 1\r\ny = 3\r\n")
    own.write_bytes(b"\xff")
    with pytest.raises(hloscope.HloscopeError, match="cannot be read"):
        suggesting.plan_changes(SimpleNamespace(edits=edits, by_hand=()))


def test_what_cannot_be_written_is_said():
    own = SimpleNamespace(best=None)
    said = []
    suggesting.write_best(Request(target="a.py:step"), own, is_sure=True, fix="", say=said.append)
    assert said == ["nothing was written: no suggestion is better than the program as written"]
    best = SimpleNamespace(edits=(), by_hand=("x: P() -> P('X'): no decorator in the source says args=",))
    with pytest.raises(hloscope.HloscopeError, match="nothing was written"):
        suggesting.write_best(
            Request(target="a.py:step"), SimpleNamespace(best=best), is_sure=True, fix="", say=said.append
        )
