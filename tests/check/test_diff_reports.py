"""`hloscope diff` over files: HLO text, JSON reports, baselines; in every format."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from check_examples import Repository
from click.testing import CliRunner

import hloscope
from hloscope.app.config import TargetConfig
from hloscope.app.diffing import Side, compare_sides, read_side
from hloscope.base.canvas import Canvas
from hloscope.base.errors import HloscopeError
from hloscope.base.units import format_time
from hloscope.cli import group
from hloscope.judge.baseline_files import format_baselines
from hloscope.judge.baselines import make_baseline
from hloscope.report.formats import render

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


HERE = "g = f32[32,128] concatenate(p, p), dimensions={0}"
"""What has the shape of the gathered array, and moves nothing."""

BEFORE, AFTER = module(HERE, REDUCE), module(GATHER, REDUCE.replace("channel_id=1", "channel_id=9"))


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
        paths[name, "baseline"].write_text(format_baselines(make_baseline(found)))
    return paths


def report(old, new):
    one, other = (read_side(path, path.name, MESH) for path in (old, new))
    return compare_sides(one, other)


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
before.hlo -> after.hlo: worse, 1 change of what moves
worse: an all-gather over X is new, 8.19 kB sent per step (model.py:20 in step)
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
    assert text.startswith("### hloscope diff: better, 1 change of what moves\n\n`after.json` → `before.json`\n")
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
        "before.hlo -> before.json: the same",
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
        read_side(path, "x.json", MESH)
    assert caught.value.what.startswith("x.json ")
    says(caught.value.what)


def test_programs_of_other_meshes_and_slices_are_told(says, tmp_path):
    path = tmp_path / "step.hlo"
    path.write_text(BEFORE)
    sides = [
        read_side(path, "step.hlo", TargetConfig(name="", options={"mesh": mesh}, slices=(slice_name,)))
        for mesh, slice_name in (({"X": 2, "Y": 4}, "v5e:2x4"), ({"Y": 4, "X": 2}, None))
    ]
    assert compare_sides(sides[0], sides[0]).unlike == ()
    slices, meshes = compare_sides(*sides).unlike
    assert ("v5e:2x4" in slices, "Y=4,X=2" in meshes) == (True, True)
    says([slices, meshes])


# ---- more than what moves: the same judgement as a check


def multiplying(times):
    """A program that multiplies so many times as much, and moves and returns the same."""
    more = [f"d{n} = f32[16,128] dot(p, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, "
            f'metadata={{op_name="jit(step)/dot_general" stack_frame_id=2}}' for n in range(times)]  # fmt: skip
    sums = [f"sum{n} = f32[16,128] add({'p' if n == 0 else f'sum{n - 1}'}, d{n})" for n in range(times)]
    text = module(REDUCE)
    return text.replace("p = f32[16,128] parameter(0)\n", "\n  ".join(
        ["p = f32[16,128] parameter(0)", "w = f32[128,128] parameter(1)", *more, *sums]) + "\n"
    ).replace("all-reduce(p)", f"all-reduce(sum{times - 1})")  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name, text in (
        ("once", multiplying(1)),
        ("often", multiplying(8)),
        ("maximum", BEFORE.replace(" add(", " maximum(")),
    ):
        (tmp_path / f"{name}.hlo").write_text(text)
    (tmp_path / "before.hlo").write_text(BEFORE)
    (tmp_path / "dropped.hlo").write_text(module(HERE, "r = f32[16,128] negate(p)"))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(group, ("diff", *arguments))


@pytest.mark.parametrize("fail_on", ["increase", "any"])
def test_more_flops_fail_where_as_much_moves(says, run, fail_on):
    options = ("--mesh", "X=2,Y=4", "--slice", "v5e:2x4", "--fail-on", fail_on)
    done = run("once.hlo", "often.hlo", *options)
    assert done.exit_code == 1
    head, cause, rest, *table = done.stdout.splitlines()
    assert head == "once.hlo -> often.hlo: worse"
    cause = f"{cause} {rest.strip()}"  # folded to the width of the terminal
    assert cause.startswith("worse: the matmuls in step do more: ")
    assert any(line.startswith("multiplied") for line in table)
    assert any(line.startswith("predicted step") for line in table)
    says([cause, done.stderr])
    assert run("once.hlo", "once.hlo", *options).exit_code == 0


@pytest.mark.parametrize(
    ("name", "said"), [("dropped", "the sum over Y is missing"), ("maximum", "maximum where add was")]
)
def test_a_sum_that_is_dropped_fails_on_increase(run, name, said):
    done = run("before.hlo", f"{name}.hlo", "--mesh", "X=2,Y=4", "--fail-on", "increase")
    assert done.exit_code == 1
    assert said in done.stderr


def test_another_spelling_of_the_same_moves_passes_when_asked_to(run, tmp_path):
    same = "s = f32[4,128] slice(p), slice={[0:4], [0:128]}"
    scatter = REDUCE.replace("r = f32[16,128] all-reduce", "s = f32[4,128] reduce-scatter").replace(
        "to_apply", "dimensions={0}, to_apply"
    )
    gather = REDUCE.replace("all-reduce(p)", "all-gather(s)").replace("to_apply=sum", "dimensions={0}")
    (tmp_path / "whole.hlo").write_text(module(same, REDUCE))
    (tmp_path / "parts.hlo").write_text(module(scatter, gather.replace("channel_id=1", "channel_id=2")))
    options = ("whole.hlo", "parts.hlo", "--mesh", "X=2,Y=4", "--fail-on", "any")
    apart = run(*options)
    assert (apart.exit_code, "which --equivalent lets pass" in apart.stderr) == (1, True)
    done = run(*options, "--equivalent")
    assert (done.exit_code, done.stderr) == (0, "")


def test_the_steps_stand_in_their_columns(tmp_path):
    once, often = (
        side_of_object(priced(multiplying(times), name)) for times, name in ((1, "once.hlo"), (8, "often.hlo"))
    )
    report = compare_sides(once, often)
    (row,) = [line for line in render("difference", "text", report, Canvas()).splitlines() if "predicted step" in line]
    shown = [format_time(side.step_us) for side in (once, often)]
    assert row.index(shown[0]) < row.index(shown[1])
    assert "+" in row


def priced(text, name):
    return hloscope.analyze_text(text, name=name, mesh=MESH.options["mesh"], slice="v5e:2x4")


def test_the_step_of_a_baseline_is_shown(tmp_path):
    found = priced(BEFORE, "before.hlo")
    (tmp_path / "before.txt").write_text(format_baselines(make_baseline(found)))
    before = read_side(tmp_path / "before.txt", "before.txt", MESH)
    report = compare_sides(before, side_of_object(found))
    assert report.same
    assert report.step_us == (round(found.time.step_us, 3), found.time.step_us)
    (row,) = [line for line in render("difference", "text", report, Canvas()).splitlines() if "predicted step" in line]
    assert row.count(" us (") == 2


def test_a_step_of_another_cost_model_is_shown_and_not_judged(says, tmp_path):
    found = priced(BEFORE, "before.hlo")
    then = make_baseline(found)
    older = replace(then, step=replace(then.step, model=0, step_us=1.0))
    (tmp_path / "before.txt").write_text(format_baselines(older))
    report = compare_sides(read_side(tmp_path / "before.txt", "before.txt", MESH), side_of_object(found))
    assert report.same
    text = render("difference", "text", report, Canvas(width=120))
    assert "1 us" in text
    assert "from another version of hloscope" in " ".join(text.split())
    says(text.splitlines()[-1])


def side_of_object(found):
    return Side.of(found.target, found)
