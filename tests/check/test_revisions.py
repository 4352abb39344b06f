"""`hloscope diff --base`: a target as it was in a git revision, in repositories of every shape."""

from __future__ import annotations

import pytest
from check_examples import Repository

HLO = """\
HloModule m, num_partitions=8

ENTRY main {
  p = f32[16,128] parameter(0)
  ROOT g = f32[SIZE,128] all-gather(p), channel_id=1, replica_groups=[4,2]<=[8], dimensions={0}, \
use_global_device_ids=true
}
"""
SMALL, LARGE = HLO.replace("SIZE", "32"), HLO.replace("[16,128]", "[32,128]").replace("SIZE", "64")
CHANGE = "~ all-gather Y 16.4 kB payload -> 32.8 kB payload  %g"


def targets(path="step.hlo"):
    return f'[targets.step]\nhlo = "{path}"\nmesh = {{ X = 4, Y = 2 }}\n'


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "repository", tmp_path / "cache")
    made.folder.mkdir()
    (made.folder / "step.hlo").write_text(SMALL)
    (made.folder / "hloscope.toml").write_text(targets())
    made.git("init", "-q", "-b", "main")
    made.commit("first")
    return made


def changes(done):
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.partition("\n\n")[0].splitlines()
    return [head, *(line for line in lines if line[0] in "+-~")]


def test_what_is_not_committed_counts_and_is_left_alone(repository):
    (repository.folder / "step.hlo").write_text(LARGE)
    (repository.folder / "other.txt").write_text("new")
    before = repository.status()
    assert changes(repository.run("diff", "--base", "HEAD", "step")) == [
        "step in HEAD -> step: worse, 1 change of what moves",
        CHANGE,
    ]
    assert repository.status() == before
    assert b"other.txt" in before


def test_a_file_that_was_renamed(repository):
    repository.git("mv", "step.hlo", "forward.hlo")
    (repository.folder / "hloscope.toml").write_text(targets("forward.hlo"))
    repository.commit("renamed")
    assert changes(repository.run("diff", "--base", "HEAD~1", "step")) == ["step in HEAD~1 -> step: the same"]


def test_a_target_that_the_revision_does_not_have(says, repository):
    (repository.folder / "hloscope.toml").write_text(targets() + targets().replace("targets.step", "targets.loss"))
    done = repository.run("diff", "--base", "HEAD", "loss")
    assert done.returncode == 2
    text = says(done.stderr.replace(str(repository.folder), "REPOSITORY"))
    assert "  --> REPOSITORY/hloscope.toml, in HEAD" in text.splitlines()
    assert "'loss'" in text


def test_files_that_archives_leave_out_are_there(repository):
    (repository.folder / ".gitattributes").write_text("*.hlo export-ignore\n")
    repository.commit("attributes")
    (repository.folder / "step.hlo").write_text(LARGE)
    assert changes(repository.run("diff", "--base", "HEAD", "step"))[1:] == [CHANGE]


def test_a_project_below_the_root_and_a_worktree(says, repository):
    below = repository.folder / "services" / "model"
    below.mkdir(parents=True)
    (below / "step.hlo").write_text(LARGE)
    (below / "hloscope.toml").write_text(targets())
    repository.commit("below")
    (below / "step.hlo").write_text(SMALL)
    inner = Repository(below, repository.cache)
    assert (
        changes(inner.run("diff", "--base", "main", "step"))[0]
        == "step in main -> step: different, 1 change of what moves"
    )
    gone = inner.run("diff", "--base", "HEAD~1", "step")
    assert gone.returncode == 2
    assert "HEAD~1" in says(gone.stderr.replace(str(below), "BELOW"))
    repository.git("worktree", "add", "-q", "../other", "HEAD~1")
    other = Repository(repository.folder.parent / "other", repository.cache)
    (other.folder / "step.hlo").write_text(LARGE)
    assert changes(other.run("diff", "--base", "main", "step"))[1:] == [CHANGE]


def test_a_submodule(says, repository):
    outer = Repository(repository.folder.parent / "outer", repository.cache)
    outer.folder.mkdir()
    outer.git("init", "-q", "-b", "main")
    outer.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repository.folder), "model")
    outer.commit("outer")
    inner = Repository(outer.folder / "model", repository.cache)
    (inner.folder / "step.hlo").write_text(LARGE)
    assert changes(inner.run("diff", "--base", "main", "step"))[1:] == [CHANGE]
    (outer.folder / "hloscope.toml").write_text(targets("model/step.hlo"))
    outer.commit("targets")
    outside = outer.run("diff", "--base", "HEAD", "step")
    assert outside.returncode == 2
    assert "model/step.hlo" in says(outside.stderr.splitlines()[0])


def test_a_shallow_clone(says, repository):
    repository.git("branch", "older")
    (repository.folder / "step.hlo").write_text(LARGE)
    repository.commit("second")
    clone = Repository(repository.folder.parent / "clone", repository.cache)
    repository.git("clone", "-q", "--depth=1", f"file://{repository.folder}", str(clone.folder))
    missing = clone.run("diff", "--base", "older", "step")
    assert missing.returncode == 2
    text = says(missing.stderr)
    assert ("older" in text, "git fetch --depth=1 origin older" in text) == (True, True)
    clone.git("fetch", "-q", "--depth=1", "origin", "older")
    assert changes(clone.run("diff", "--base", "FETCH_HEAD", "step"))[1:] == [CHANGE]
