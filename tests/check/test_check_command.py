"""`hloscope check`, `accept` and `diff` as CI runs them: processes in a repository."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time

import pytest
from check_examples import ROOT, Repository, demonstration

pytestmark = pytest.mark.tpu_compiler


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return demonstration(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def bad(good, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad") / "repository"
    shutil.copytree(good.folder, folder)
    repository = Repository(folder, good.cache)
    repository.git("apply", "bad_commit.patch")
    repository.commit("bad")
    return repository


def test_the_good_commit_passes(good):
    done = good.run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    *targets, compiles = done.stderr.splitlines()
    assert sorted(line.split()[1] for line in targets) == ["block", "loss"]
    assert re.fullmatch(r"[012] of 2 compiles came from the cache", compiles)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok      block  v5e:2x4  524 kB ")
    assert lines[0].endswith("contract and baseline")
    assert lines[1].startswith("ok      loss   v5e:2x4  6 B ")
    assert lines[-1] == "2 passed"


def test_the_demonstration_passes_as_it_stands_in_the_checkout(good, tmp_path):
    shutil.copytree(ROOT / "fixtures" / "ci", tmp_path / "repository")
    done = Repository(tmp_path / "repository", good.cache).run("check")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 passed"), done.stdout


def test_accept_changes_nothing_where_nothing_changed(good):
    assert good.run("accept", "--jobs", 1).stdout == (
        "block: unchanged  hloscope_baselines/block.txt\nloss: unchanged  hloscope_baselines/loss.txt\n"
    )
    good.git("diff", "--exit-code")


def test_the_bad_commit_fails_with_an_annotation_on_the_line(bad):
    done = bad.run("check", "--jobs", 1, "--format", "github")
    assert done.returncode == 1, done.stdout + done.stderr
    source = (bad.folder / "model.py").read_text().splitlines()
    line = next(index for index, text in enumerate(source, 1) if "with_sharding_constraint" in text)
    annotations = [text for text in done.stdout.splitlines() if text.startswith("::error ")]
    assert len(annotations) == 2
    assert annotations[0].startswith(
        f"::error file=model.py,line={line},title=contract-broken (block)::"
        "the program has 1 all-gather over model per step, 33.6 MB payload"
    )
    assert annotations[1].startswith(
        f"::error file=model.py,line={line},title=baseline-changed (block)::worse: an all-gather over model is new, "
        "16.8 MB sent per step; the matmuls in block do more: "
    )
    assert done.stdout.endswith("hloscope check: 1 passed, 1 failed\n")


def test_what_the_page_says_of_rules(good):
    written = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    (added,) = [each for each in written if "all-reduce@model in model.py:" in each]
    header = "[tool.hloscope.targets.block]\n"
    rules, said = added.split(header)
    path = good.folder / "pyproject.toml"
    whole = path.read_text()
    strict = whole.replace(header, header + said) + rules
    try:
        path.write_text(strict)
        accepted = good.run("check", "block", "--jobs", 1)
        path.write_text(strict.replace("all-reduce@model in model.py:", "all-reduce@model in other.py:"))
        refused = good.run("check", "block", "--jobs", 1)
    finally:
        path.write_text(whole)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    assert refused.returncode == 1
    assert re.search(r"error\[unexpected-collective\]: all-reduce over model .*\bmodel\.py:10\b", refused.stdout)


def test_what_changed_since_a_revision(says, bad):
    done = bad.run("diff", "--base", "HEAD~1", "block", "--fail-on", "increase")
    assert done.returncode == 1
    head, cause, *others = done.stdout.splitlines()
    assert head == "block in HEAD~1 -> block: worse, 1 change of what moves"
    assert cause.startswith("worse: an all-gather over model is new, ")
    assert "+1 all-gather model 33.6 MB payload  model.py:9 in block" in others
    assert any(line.startswith("  why: ") for line in others)
    says(done.stderr, "failed")
    assert bad.run("diff", "--base", "HEAD", "loss", "--fail-on", "any").returncode == 0
    nothing = bad.run("diff", "--base", "no-such-branch", "block")
    assert nothing.returncode == 2
    assert "no-such-branch" in says(nothing.stderr, "no revision")


PROJECT = """\
[defaults]
mesh = { X = 8 }
slice = "v5e:2x4"

[targets.dead]
function = "model.py:dead"
args = ["f32[8@X,128]"]
contract = "no all-gather"

[targets.folded]
function = "model.py:folded"
args = ["s32[64@X]"]
contract = "none"

[targets.returns_nothing]
function = "model.py:returns_nothing"
args = ["f32[8@X,128]"]
contract = "none"

[targets.alone]
function = "model.py:step"
mesh = { X = 1 }
slice = "v5e:1x1"
args = ["f32[8@X,128]"]
contract = "none"

[targets.cut]
hlo = "cut.hlo"
contract = "none"

[targets.unexpecting]
function = "model.py:step"
args = ["f32[8@X,128]"]
baseline = false

[targets.missing]
function = "model.py:spet"
args = ["f32[8@X,128]"]
contract = "none"

[targets.dies]
function = "dies.py:step"
args = ["f32[8@X,128]"]
contract = "none"

[targets.two]
function = "model.py:step"
mesh = { X = 4 }
slices = ["v5e:2x2", "v6e:2x2"]
args = ["f32[8@X,128]"]
contract = ["all-reduce@X <= 4B", "nothing else"]
"""
MODEL = """\
import jax
import jax.numpy as jnp


def step(x):
    return jnp.sum(x)


def dead(x):
    jnp.sum(x)
    return jnp.zeros(8)


def folded(x):
    return jnp.sum(x) * 0


def returns_nothing(x):
    jnp.sum(x)
"""
CUT = """\
HloModule m, num_partitions=8

ENTRY main {
  ROOT p = f32[4] parameter(0)
}

body {
  x = f32[8] all-red"""


def test_what_passes_vacuously_elsewhere_is_noticed(says, tmp_path):
    (tmp_path / "hloscope.toml").write_text(PROJECT)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "dies.py").write_text("import os\n\n\ndef step(x):\n    os.abort()\n")
    (tmp_path / "cut.hlo").write_text(CUT)
    code, found = Repository(tmp_path, tmp_path / "cache").document("check")
    assert code == 2
    rules = {name: [finding["rule"] for finding in check["findings"]] for name, check in found.items()}
    no_baseline = {name for name, names in rules.items() if names and names[-1] == "no-baseline"}
    assert no_baseline == {"dead", "folded", "returns_nothing", "alone", "cut", "two@v5e:2x2", "two@v6e:2x2"}
    for name in ("dead", "folded", "returns_nothing", "alone"):
        assert rules[name] == ["contract-vacuous", "no-baseline"]
        says(found[name]["findings"][0]["message"], name)
    assert rules["cut"] == ["contract-undecided", "no-baseline"]
    assert "cut off" in found["cut"]["findings"][0]["message"]
    assert rules["unexpecting"][0] == "nothing-expected"
    assert "'spet'" in says(found["missing"]["error"], "missing")
    assert "dies" in says(found["dies"]["error"].splitlines()[0], "dies")
    assert [name for name, check in found.items() if check["passed"]] == ["two@v5e:2x2", "two@v6e:2x2"]


def test_a_killed_check_or_accept_leaves_nothing_wrong(good):
    chance = random.Random(7)
    for command in ("accept", "check"):
        process = good.start(command)
        time.sleep(chance.uniform(0.5, 3))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert good.run("check", "--jobs", 1).returncode == 0


def test_checks_side_by_side_on_one_cache(good, tmp_path):
    repository = Repository(good.folder, tmp_path / "fresh")
    both = [repository.start("check", "loss") for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    for entry in repository.cache.iterdir():
        entry.write_bytes(entry.read_bytes()[:-7])
    assert repository.run("check", "loss").returncode == 0


def test_a_damaged_baseline_and_one_of_no_target(says, good):
    baseline = good.folder / "hloscope_baselines" / "loss.txt"
    stray = good.folder / "hloscope_baselines" / "old.txt"
    whole = baseline.read_text()
    try:
        baseline.write_text(whole[: len(whole) // 2])
        stray.write_text(whole)
        (good.folder / "hloscope_baselines" / "notes.txt").write_text("what we agreed on")
        done = good.run("check", "--jobs", 1)
    finally:
        baseline.write_text(whole)
        stray.unlink()
        (good.folder / "hloscope_baselines" / "notes.txt").unlink()
    assert done.returncode == 2
    assert "notes.txt" not in done.stdout
    assert "ERROR   loss" in done.stdout
    assert re.search("error: .*baseline.* (is cut off|cannot be read)", done.stdout)
    assert "hloscope_baselines/old.txt" in says(done.stdout.partition("ok      hloscope_baselines/")[2])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["accept", "blok"], "'blok'"),
        (["diff", "block"], "1 program"),
        (["diff", "blok", "block"], "'blok'"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_run(says, good, arguments, named):
    done = good.run(*arguments)
    assert done.returncode == 2
    text = says(done.stderr.replace(str(good.folder), "REPOSITORY"))
    assert text.startswith("error: ")
    assert named in text.splitlines()[0]
    assert done.stdout == ""
