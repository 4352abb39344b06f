"""The action, the hook and the page on CI: each is tried by running its steps."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest
from check_examples import ROOT, Repository, demonstration, sarif_run

pytestmark = pytest.mark.tpu_compiler
PAGE = (ROOT / "docs" / "ci.md").read_text()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The demonstration with a `hloscope` on the path, as an installed one would be."""
    folder = tmp_path_factory.mktemp("wiring")
    made = demonstration(folder)
    made.git("apply", "bad_commit.patch")
    made.commit("bad")
    tools = folder / "bin"
    tools.mkdir()
    (tools / "hloscope").write_text(f'#!/bin/sh\nexec {" ".join(made.command())} "$@"\n')
    (tools / "hloscope").chmod(0o755)
    made.environment["PATH"] = f"{tools}:{made.environment['PATH']}"
    return made


def shell(repository: Repository, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=repository.folder,
        env={**repository.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def run_blocks(path: Path) -> list[str]:
    """The scripts of a YAML file's `run: |` steps, and of its one-line ones."""
    text = path.read_text()
    blocks = re.findall(r"^( +)run: \|\n((?:\1  .*\n|\n)+)", text, re.MULTILINE)
    lines = re.findall(r"^ +run: (?!\|)(.+)$", text, re.MULTILINE)
    return [*(re.sub(rf"^{indent}  ", "", body, flags=re.MULTILINE) for indent, body in blocks), *lines]


def test_the_action(repository, tmp_path):
    check, result = run_blocks(ROOT / "action.yml")
    files = {"GITHUB_STEP_SUMMARY": tmp_path / "summary.md", "GITHUB_OUTPUT": tmp_path / "output"}
    environment = {name: str(path) for name, path in files.items()}
    done = shell(
        repository, check, RUNNER_TEMP=str(tmp_path), TARGETS="block", CONFIG="", SARIF="hloscope.sarif", **environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("::error file=model.py,line=9,")
    assert files["GITHUB_OUTPUT"].read_text() == "status=1\n"
    assert files["GITHUB_STEP_SUMMARY"].read_text().startswith("### hloscope: ❌ 0 passed, 1 failed\n")
    log = (repository.folder / "hloscope.sarif").read_text()
    assert [one["ruleId"] for one in sarif_run(log)["results"]] == ["contract-broken", "baseline-changed"]
    assert shell(repository, result, STATUS="1").returncode == 1


@pytest.mark.parametrize("targets", ["loss\nnosuch", "--help", " \n ", "loss --no-strict"])
def test_names_of_the_action_that_are_none_fail_it(repository, tmp_path, targets):
    check, _ = run_blocks(ROOT / "action.yml")
    files = {"GITHUB_STEP_SUMMARY": tmp_path / "summary.md", "GITHUB_OUTPUT": tmp_path / "output"}
    (tmp_path / "hloscope.md").write_text("the last run's summary")
    environment = {"TARGETS": targets, "CONFIG": "", "SARIF": "hloscope.sarif", "RUNNER_TEMP": str(tmp_path)}
    done = shell(repository, check, **environment, **{name: str(path) for name, path in files.items()})
    assert done.returncode == 0, done.stderr
    assert files["GITHUB_OUTPUT"].read_text() == "status=2\n"
    assert "::error" in done.stdout
    assert "last run" not in (files["GITHUB_STEP_SUMMARY"].read_text() if files["GITHUB_STEP_SUMMARY"].exists() else "")


def test_the_pre_commit_hook(repository):
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    (entry,) = re.findall(r"^  entry: (.+)$", hooks, re.MULTILINE)
    (on_page,) = re.findall(r"repo: local\n    hooks:\n(.*?)```", PAGE, re.DOTALL)
    described = [line for line in hooks.splitlines() if not line.startswith("  description:")]
    assert described == dedent(on_page).splitlines()
    done = shell(repository, f"{entry} loss")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed")
    (covered,) = re.findall(r"^  files: '(.+)'$", hooks, re.MULTILINE)
    for path in ("model.py", "src/pyproject.toml", "hloscope_baselines/loss.txt", "tests/hloscope_baselines/a/b.txt"):
        assert re.search(covered, path)
    assert not re.search(covered, "docs/hloscope.md")


@pytest.mark.long
def test_the_shell_and_gitlab_steps_of_the_page(repository):
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    gitlab = re.findall(r"^  script:\n    - (.+)$", PAGE, re.MULTILINE)
    codes = [shell(repository, line).returncode for line in (commands.splitlines()[1], *gitlab)]
    assert codes == [1, 1]
    for name in ("hloscope.xml", "hloscope.md", "hloscope.sarif"):
        assert (repository.folder / name).read_text()
    diff = shell(repository, commands.splitlines()[2])
    assert (diff.returncode, diff.stdout.splitlines()[0]) == (0, "block in HEAD -> block: the same communication")


def test_the_action_is_where_the_page_says():
    (used,) = re.findall(r"uses: \./(.+)", PAGE)
    assert f"copy [`action.yml`](../action.yml) to `{used}/action.yml`" in PAGE


def test_the_targets_of_the_page_are_those_of_the_demonstration():
    toml, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    demonstration_file = (ROOT / "fixtures" / "ci" / "pyproject.toml").read_text()
    assert toml.strip() in demonstration_file
