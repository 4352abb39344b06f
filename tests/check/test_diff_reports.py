"""`hloscope diff` over files: HLO text, JSON reports, baselines; in every format."""

from __future__ import annotations

import json

import pytest
from check_examples import Repository

import hloscope
from hloscope.api.diffing import difference, side_of_file
from hloscope.config import TargetConfig
from hloscope.contracts.baselines import baseline_of, format_baseline
from hloscope.errors import HloscopeError
from hloscope.report.formats import Canvas, render

SUM = "sum {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT add = f32[] add(x, y)\n}\n"
TABLES = """
FileNames
1 "/home/me/model.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=14 end_line=14 column=8 end_column=8}
2 {file_name_id=1 function_name_id=1 line=20 end_line=20 column=8 end_column=8}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

"""
REDUCE = (
    "r = f32[16,128] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, "
    'to_apply=sum, metadata={op_name="jit(step)/dot_general" stack_frame_id=1}'
)
GATHER = (
    "g = f32[32,128] all-gather(p), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}, "
    'use_global_device_ids=true, metadata={op_name="jit(step)/gather" stack_frame_id=2}'
)
MESH = TargetConfig(name="", options={"mesh": {"X": 2, "Y": 4}})


def module(*lines):
    names = ", ".join(line.partition(" ")[0] for line in lines)
    shapes = ", ".join(line.split()[2] for line in lines)
    body = "\n  ".join(["p = f32[16,128] parameter(0)", *lines, f"ROOT t = ({shapes}) tuple({names})"])
    return f"HloModule m, num_partitions=8\n{TABLES}\n{SUM}\nENTRY main {{\n  {body}\n}}\n"


BEFORE, AFTER = module(REDUCE), module(GATHER, REDUCE.replace("channel_id=1", "channel_id=9"))


@pytest.fixture
def files(tmp_path):
    """The two programs as files of every kind."""
    paths = {}
    for name, text in (("before", BEFORE), ("after", AFTER)):
        found = hloscope.analyze_text(text, name=f"{name}.hlo", mesh=MESH.options["mesh"])
        paths[name, "hlo"] = tmp_path / f"{name}.hlo"
        paths[name, "json"] = tmp_path / f"{name}.json"
        paths[name, "baseline"] = tmp_path / f"{name}.txt"
        paths[name, "hlo"].write_text(text)
        paths[name, "json"].write_text(json.dumps(found.to_dict()))
        paths[name, "baseline"].write_text(format_baseline(baseline_of(found)))
    return paths


def report(old, new):
    one, other = (side_of_file(path, path.name, MESH) for path in (old, new))
    return difference(one, other)


KINDS = ("hlo", "json", "baseline")


@pytest.mark.parametrize("old", KINDS)
@pytest.mark.parametrize("new", KINDS)
def test_files_of_every_kind(files, old, new):
    found = report(files["before", old], files["after", new])
    (change,) = found.changes
    assert (change.kind, change.new[0].kind, change.wire_bytes_per_step) == ("added", "all-gather", 8192)
    assert report(files["before", old], files["before", new]).same


def test_text(files):
    found = report(files["before", "hlo"], files["after", "hlo"])
    assert (
        render("difference", "text", found, Canvas())
        == """\
before.hlo -> after.hlo: 1 change
+1 all-gather X 16.4 kB payload  model.py:20 in step

per device       before     after     change
────────────────────────────────────────────
sent per step   12.3 kB   20.5 kB   +8.19 kB
all-reduce Y    12.3 kB   12.3 kB          =
all-gather X        0 B   8.19 kB   +8.19 kB
"""
    )


def test_markdown_and_json(files):
    found = report(files["after", "json"], files["before", "json"])
    text = render("difference", "markdown", found, Canvas())
    assert text.startswith("### hloscope diff: 1 change\n\n`after.json` → `before.json`\n")
    assert "```diff\n-1 all-gather X 16.4 kB payload  model.py:20 in step\n```" in text
    document = json.loads(render("difference", "json", found, Canvas()))
    (change,) = document["changes"]
    assert (change["kind"], change["increase"], change["wire_bytes_per_step"]) == ("removed", False, -8192)
    assert change["old"][0]["source"] == "/home/me/model.py:20"
    assert document["same"] is False


def test_the_command(says, files, tmp_path):
    repository = Repository(tmp_path, tmp_path / "cache")
    options = ("--mesh", "X=2,Y=4")
    same = repository.run("diff", "before.hlo", "before.json", *options, "--fail-on", "any")
    assert (same.returncode, same.stdout.splitlines()[0]) == (
        0,
        "before.hlo -> before.json: the same communication",
    )
    more = repository.run("diff", "before.hlo", "after.txt", *options, "--fail-on", "increase")
    assert more.returncode == 1
    says(more.stderr, "more")
    less = repository.run("diff", "after.txt", "before.hlo", *options, "--fail-on", "increase")
    assert less.returncode == 0, less.stderr
    (tmp_path / "cut.hlo").write_text(BEFORE + "body {\n  x = f32[8] all-red")
    cut = repository.run("diff", "before.hlo", "cut.hlo", *options, "--fail-on", "increase")
    assert cut.returncode == 1
    notes = [line for line in cut.stdout.splitlines() if line.startswith("note: ")]
    assert any("cut.hlo" in note for note in notes)
    says([cut.stderr, *notes], "cut")
    assert (
        repository.run("diff", "before.hlo", "cut.hlo", *options, "--fail-on", "any", "--at-least-ok").returncode == 0
    )


@pytest.mark.parametrize("name", ["aftr.hlo", "aftr.json", "aftr.hlo#step"])
def test_a_file_that_is_not_there(says, files, tmp_path, name):
    done = Repository(tmp_path, tmp_path / "cache").run("diff", "before.hlo", name)
    assert done.returncode == 2
    assert name.partition("#")[0] in says(done.stderr)


def test_a_report_that_is_none(says, tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(HloscopeError) as caught:
        side_of_file(path, "x.json", MESH)
    assert caught.value.what.startswith("x.json ")
    says(caught.value.what)


def test_programs_of_other_meshes_and_slices_are_told(says, tmp_path):
    path = tmp_path / "step.hlo"
    path.write_text(BEFORE)
    sides = [
        side_of_file(path, "step.hlo", TargetConfig(name="", options={"mesh": mesh}, slices=(slice_name,)))
        for mesh, slice_name in (({"X": 2, "Y": 4}, "v5e:2x4"), ({"Y": 4, "X": 2}, None))
    ]
    assert difference(sides[0], sides[0]).unlike == ()
    slices, meshes = difference(*sides).unlike
    assert ("v5e:2x4" in slices, "Y=4,X=2" in meshes) == (True, True)
    says([slices, meshes])
