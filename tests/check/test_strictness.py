"""What loosens a check: notes on a desk, failures in continuous integration."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import hloscope
from hloscope.base.environment import is_ci
from hloscope.cli import group

HLO = """\
HloModule m, num_partitions=8

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT add = f32[] add(x, y)
}

ENTRY main {
  p = f32[16,128] parameter(0)
  ROOT r = f32[16,128] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=sum
}
"""
PROJECT = """\
[tool.hloscope.targets.step]
hlo = "step.hlo"
mesh = { X = 2, Y = 4 }
contract = ["all-reduce@Y", "nothing else"]
"""


class Project:
    """A folder with a target of HLO text, which is checked in this process."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, *arguments):
        return CliRunner().invoke(group, arguments)

    def document(self, *arguments):
        done = self.run(*arguments, "--format", "json")
        return done.exit_code, {one["name"]: one for one in json.loads(done.stdout)["checks"]}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "step.hlo").write_text(HLO)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    found = Project(tmp_path)
    accepted = found.run("accept")
    assert accepted.exit_code == 0, accepted.stderr
    return found


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("1", True), ("false", False), ("", False), (" 0 ", False)]
)
def test_ci_is_what_says_so(monkeypatch, value, expected):
    monkeypatch.setenv("CI", value)
    assert is_ci() is expected


def loosened(repository):
    """What can be done to a check so that it says less."""
    baseline = repository.folder / "hloscope_baselines" / "step.txt"
    project = repository.folder / "pyproject.toml"
    yield "no-baseline", baseline.unlink
    yield "unused-baseline", lambda: baseline.with_name("gone.txt").write_text(baseline.read_text())
    unused = 'allow = ["all-reduce@Y: sums", "all-to-all@X: none here"]\nfail-on = "error"\n'
    yield "unused-allow", lambda: project.write_text(PROJECT + unused)


@pytest.mark.parametrize("number", range(3))
def test_what_loosens_a_check_fails_where_it_guards_a_merge(says, repository, monkeypatch, number):
    assert repository.run("check", "--strict").exit_code == 0
    rule, loosen = list(loosened(repository))[number]
    loosen()
    alone = repository.run("check")
    assert alone.exit_code == 0, alone.stdout
    assert "this fails in CI, and with --strict" in " ".join(says(alone.stdout, rule).split())
    monkeypatch.setenv("CI", "true")
    guarded = repository.run("check", "--format", "github")
    assert guarded.exit_code == 1
    assert f"title={rule} (" in guarded.stdout
    assert "::error " in guarded.stdout
    assert repository.run("check", "--no-strict").exit_code == 0
    code, checks = repository.document("check")
    assert code == 1
    assert [finding["rule"] for check in checks.values() for finding in check["findings"]] == [rule]


def test_an_allowance_that_another_target_uses_is_not_unused(repository):
    project = repository.folder / "pyproject.toml"
    allow = 'allow = ["all-reduce@Y: partial sums"]\nbaseline = false\nfail-on = "warning"\n'
    (repository.folder / "none.hlo").write_text(
        HLO.replace("all-reduce(p)", "negate(p)").partition(", channel_id")[0] + "\n}\n"
    )
    other = PROJECT.replace("targets.step", "targets.other").replace("step.hlo", "none.hlo")
    project.write_text(PROJECT + allow + other.replace('["all-reduce@Y", "nothing else"]', '"none"') + allow)
    (repository.folder / "hloscope_baselines" / "step.txt").unlink()
    found = repository.run("check", "--strict")
    assert found.exit_code == 0, found.stdout
    assert "unused-allow" not in found.stdout


def test_what_a_target_is_held_to_stands_in_its_line(repository):
    project, contract = repository.folder / "pyproject.toml", 'contract = ["all-reduce@Y", "nothing else"]\n'
    assert "against its contract and baseline" in repository.run("check").stdout
    (repository.folder / "hloscope_baselines" / "step.txt").unlink()
    project.write_text(f"{PROJECT}baseline = false\n")
    assert "against its contract alone" in repository.run("check", "--strict").stdout
    project.write_text(PROJECT.replace(contract, 'baseline = false\nfail-on = "error"\n'))
    assert "against rules alone" in repository.run("check", "--strict").stdout
    project.write_text(PROJECT.replace(contract, "baseline = false\n"))
    nothing = repository.run("check", "--strict")
    assert (nothing.exit_code, "nothing-expected" in nothing.stdout) == (1, True)


def test_no_baseline_is_written_in_ci(repository, monkeypatch):
    monkeypatch.setenv("CI", "true")
    refused = repository.run("accept")
    assert refused.exit_code == 2
    assert "baselines are not written in continuous integration" in refused.stderr
    assert refused.stderr.endswith("or pass --accept-in-ci\n")
    assert repository.run("accept", "--accept-in-ci").exit_code == 0


def test_changes_for_the_better_fail_when_asked_to(repository):
    baseline = repository.folder / "hloscope_baselines" / "step.txt"
    baseline.write_text(baseline.read_text().replace("12,288 B wire", "92,288 B wire"))
    report = ("--format", "json", "-o", "found.json")
    assert repository.run("check", *report).exit_code == 0
    assert repository.run("merge-reports", "found.json").exit_code == 0
    assert hloscope.check().passed
    found = repository.run("check", "--fail-on", "any")
    assert found.exit_code == 1
    assert "error[baseline-changed]: better: " in found.stdout
    assert repository.run("merge-reports", "found.json", "--fail-on", "any").exit_code == 1
    assert not hloscope.check(changes="any").passed


def test_the_same_in_python(says, repository, monkeypatch):
    (repository.folder / "hloscope_baselines" / "step.txt").unlink()
    assert hloscope.check().passed
    assert not hloscope.check(strict=True).passed
    monkeypatch.setenv("CI", "true")
    assert not hloscope.check().passed
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.accept()
    says(str(caught.value))
    assert hloscope.accept(in_ci=True)[0].state == "written"


def test_a_named_target_does_not_pass_beside_its_own_orphan(repository):
    project = repository.folder / "pyproject.toml"
    project.write_text(f"{PROJECT}baseline = false\n")
    assert repository.run("check", "step").exit_code == 0
    strict = repository.run("check", "step", "--strict")
    assert (strict.exit_code, "baseline-unused" in strict.stdout or "unused-baseline" in strict.stdout) == (1, True)
