"""The file itself: self-contained, private, and with the very data that the JSON holds."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pages import data_of
from report_examples import AT_MOST, DEEP, DOUBTFUL, FULL, LONG, NOTHING, TWO_SLICES

import hloscope
from hloscope.app.analyzing import analyze_hlo
from hloscope.base.canvas import Canvas
from hloscope.model.capture import attach_evidence
from hloscope.model.trial import Figures, Trial, Trials
from hloscope.model.vocabulary import Bound
from hloscope.report.formats import render
from hloscope.report.html import privacy
from hloscope.report.html.privacy import Privacy, find_files


@pytest.fixture(scope="module")
def page(found):
    return found.report("html")


def test_it_is_one_file_whose_policy_lets_nothing_in(page):
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    scripts = [text for kind, text in re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL) if not kind]
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert (len(scripts), len(styles)) == (1, 1)
    for text in (*scripts, *styles):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert re.findall(r"(?:src|href)=\"(?!#|data:)", page) == []
    assert "innerHTML" not in page
    assert "eval(" not in page


def test_its_data_are_the_documents_that_json_holds(found, page):
    (side,) = data_of(page)["sides"]
    assert side["analysis"] == json.loads(found.report("json"))
    timeline = found.timeline().to_dict()
    assert set(side["timeline"]) == set(timeline) - set(side["analysis"])
    assert side["timeline"] == {name: timeline[name] for name in side["timeline"]}
    assert {"computations", "entry", "step_us", "waits"} <= set(side["timeline"])
    assert side["no_timeline"] is None


def test_the_same_twice(found, page):
    assert found.report("html") == page


def test_an_analysis_from_json_says_what_is_missing(found):
    read = hloscope.Analysis.from_dict(found.to_dict())
    (side,) = data_of(read.report("html"))["sides"]
    assert side["timeline"] is None
    assert "compiled program of this analysis is not available here" in side["no_timeline"]
    assert side["hlo"] is None
    assert "the compiled program is not available" in side["no_hlo"]


def test_hlo_without_a_slice_says_what_is_missing(captured):
    (side,) = data_of(analyze_hlo(captured("mixture_of_experts"), name="moe.hlo").report("html"))["sides"]
    assert side["timeline"] is None
    assert "--slice" in side["no_timeline"]
    assert side["hlo"]["computations"]


@pytest.mark.parametrize("example", [NOTHING, FULL, TWO_SLICES, DOUBTFUL, DEEP, LONG], ids=lambda one: one.module)
def test_every_kind_of_analysis_has_a_page(example):
    (side,) = data_of(render("analysis", "html", example, Canvas()))["sides"]
    assert len(side["analysis"]["collectives"]) == len(example.collectives)
    assert [one["bytes_per_device"] for one in side["analysis"]["arguments"]] == [
        one.bytes_per_device for one in example.arguments
    ]


def test_the_hlo_around_a_collective(found, page):
    (side,) = data_of(page)["sides"]
    collective = found.collectives[0]
    (within,) = [one for one in side["hlo"]["computations"] if one["name"] == collective.computation]
    shown = {one["name"]: one for one in within["instructions"]}
    gather = shown[collective.name]
    assert gather["opcode"].startswith("all-gather")
    assert gather["line"] == collective.line
    assert "metadata" not in gather["attributes"]
    assert all(name in shown for name in (*gather["operands"], *gather["users"]))


HLO_AT_HOME = """HloModule m, num_partitions=4

ENTRY main {{
  p = f32[4] parameter(0), metadata={{op_name="x"}}
  ROOT g = f32[16] all-gather(p), channel_id=1, use_global_device_ids=true, replica_groups=[1,4]<=[4], \
dimensions={{0}}, metadata={{op_name="jit(f)/dot" source_file="{file}" source_line=2}}
}}
"""


@pytest.fixture
def janes(tmp_path, monkeypatch):
    """A folder below somebody's home folder."""
    home = tmp_path / "home" / "jane.doe"
    project = home / "private" / "models"
    project.mkdir(parents=True)
    (project / "model.py").write_text(
        "def step(x, w):\n    secret_of_this_line = x @ w\n    return secret_of_this_line\n"
    )
    for name, value in {"HOME": str(home), "USER": "jane.doe", "LOGNAME": "jane.doe"}.items():
        monkeypatch.setenv(name, value)
    privacy._find_own_name.cache_clear()
    yield project
    privacy._find_own_name.cache_clear()


def says_nothing_of_jane(page: str, tmp_path: Path) -> str:
    """The data of a page, as text."""
    data = json.dumps(data_of(page))
    for text in (page.partition('id="data"')[0], data):
        assert "jane.doe" not in text
        assert str(tmp_path) not in text
    assert "model.py" in data
    return data


@pytest.mark.parametrize("inside", [True, False], ids=["in the project", "above the home folder"])
@pytest.mark.parametrize("source", [True, False])
def test_no_home_folder_and_no_user_stands_on_it(janes, tmp_path, monkeypatch, inside, source):
    monkeypatch.chdir(janes if inside else tmp_path)
    text = HLO_AT_HOME.format(file=janes / "model.py")
    (janes / "step.hlo").write_text(text)
    found = hloscope.analyze(janes / "step.hlo", slice="v5e:2x2", source_root=janes)
    data = says_nothing_of_jane(found.report("html", source=source), tmp_path)
    assert ("secret_of_this_line" in data) is source


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_nor_of_a_function_that_is_compiled(janes, tmp_path, root):
    given = ["--mesh", "X=4", "--arg", "f32[64@X,128]", "--arg", "f32[128,64]", "--slice", "v5e:2x2"]
    for here, options in ((janes, []), (tmp_path, ["--no-source"])):
        command = ["analyze", f"{janes / 'model.py'}:step", *given, "--format", "html", *options]
        done = subprocess.run(
            [sys.executable, "-m", "hloscope", *command],
            cwd=here,
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        )
        data = says_nothing_of_jane(done.stdout, tmp_path)
        assert ("secret_of_this_line" in data) is not bool(options)


PATHS = {
    "/home/ann/work/moe.py": "moe.py",
    "/home/ann/work/layers/mlp.py": "layers/mlp.py",
    "/usr/lib/python3.11/site-packages/flax/linen.py": "site-packages/flax/linen.py",
    "C:\\Users\\bob\\model.py": "~\\model.py",
    "moe.py": "moe.py",
}


def test_files_are_named_from_the_folder_that_they_have_in_common():
    own = [path for path in PATHS if path.startswith("/")]
    names = Privacy.of(own)
    assert {path: names.hide_place(path) for path in own} == {path: PATHS[path] for path in own}
    assert names.hide_place("/home/ann/work/moe.py:31") == "moe.py:31"
    assert names.hide("see /home/ann/work/moe.py:31, and /Users/eve/x") == "see moe.py:31, and ~/x"
    for path in ("C:\\Users\\bob\\model.py", "moe.py"):
        assert Privacy.of([path]).hide_place(path) in (PATHS[path], "model.py")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jit(step)/home/dense/dot_general", "jit(step)/home/dense/dot_general"),
        ("jit(step)/root/jane.doe/dot", "jit(step)/root/jane.doe/dot"),
        ("read /mnt/disks/jane.doe/w.npz and /root/w.npz", "read ~/w.npz and ~/w.npz"),
        ("'/home/someone'", "'~'"),
        ("/roots/x", "/roots/x"),
        ("D:\\Users\\jane.doe\\w", "~\\w"),
    ],
)
def test_paths_lose_people_and_names_of_modules_stay(janes, text, shown):
    assert Privacy.of([]).hide(text) == shown


def test_no_folder_of_a_file_is_called_as_whoever_runs_this(janes):
    names = Privacy.of(["/data/jane.doe/a.py", "/data/shared/b.py"])
    assert names.hide_place("/data/jane.doe/a.py") == "~/a.py"
    assert names.hide_place("/data/shared/b.py") == "shared/b.py"


def test_no_letter_of_a_page_is_hidden_or_turns_text_around():
    assert Privacy.of([]).hide_data({"a\u202eb": ["x\u2028y\x1b", 3]}) == {"a\ufffdb": ["x\ufffdy\ufffd", 3]}


def test_the_files_that_a_document_names():
    document = {"frames": [{"file": "/a/b.py", "line": 3}], "findings": [{"source": "/a/c.py:4"}]}
    assert list(find_files(document)) == ["/a/b.py", "/a/c.py"]


def test_changes_that_were_tried_stand_on_it(found):
    before = Figures(
        step_us=found.time.step_us,
        step_us_range=None,
        step_bound=Bound.EXACT,
        wire_bytes=found.totals.wire_bytes,
        wire_bytes_by_axis={"X": found.totals.wire_bytes},
        wire_bound=Bound.EXACT,
        hbm_bytes=None,
        collectives=1,
    )
    after = replace(before, step_us=1000.0, wire_bytes=0, wire_bytes_by_axis={})
    trials = Trials(
        before=before, trials=(Trial(change=("argument W: P('X') -> P(None, 'X')",), after=after, helps=True),)
    )
    collective = found.collectives[0]
    known = replace(found.evidence, trials={(collective.computation, collective.name): trials})
    (side,) = data_of(attach_evidence(replace(found), known).report("html"))["sides"]
    (told,) = side["explained"]
    assert told["trials"][0] == ["tried", "argument W: P('X') -> P(None, 'X')"]
    assert "-> 1 ms" in told["trials"][1][1]


def test_a_difference_has_both_programs(found):
    fewer = replace(found, collectives=(AT_MOST,), target="older.hlo")
    data = data_of(hloscope.diff(fewer, found).report("html"))
    assert data["names"] == ["before", "after"]
    assert [side["analysis"]["target"] for side in data["sides"]] == ["older.hlo", "moe.hlo"]
    assert data["diff"]["step_us"][1] == found.time.step_us
    assert [side["timeline"] is None for side in data["sides"]] == [True, False]
