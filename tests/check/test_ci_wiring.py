"""The action, the hook and the page on CI: each is tried by running its steps."""

from __future__ import annotations

import json
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


STEPS = dict(zip(("check", "comment", "result"), run_blocks(ROOT / "action.yml"), strict=True))


class Action:
    """The steps of the action, each in a runner's folder of its own."""

    def __init__(self, repository: Repository, folder: Path) -> None:
        self.repository, self.folder = repository, folder
        self.summary, self.output = folder / "summary.md", folder / "output"

    def run(self, step: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        empty = dict.fromkeys(("TARGETS", "CONFIG", "SHARD", "REPORTS"), "")
        runner = {
            "RUNNER_TEMP": self.folder,
            "GITHUB_STEP_SUMMARY": self.summary,
            "GITHUB_OUTPUT": self.output,
            "SARIF": "hloscope.sarif",
            "STRICT": "true",
        }
        environment = {**empty, **{name: str(value) for name, value in runner.items()}, **inputs}
        return shell(self.repository, STEPS[step], **environment)

    def status(self) -> int:
        return int(self.output.read_text().removeprefix("status="))


@pytest.fixture
def action(repository, tmp_path):
    return Action(repository, tmp_path)


def test_the_action(action, repository):
    done = action.run("check", TARGETS="block")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("::error file=model.py,line=9,")
    assert action.status() == 1
    assert action.summary.read_text().startswith("### hloscope: ❌ 0 passed, 1 failed\n")
    log = (repository.folder / "hloscope.sarif").read_text()
    assert [one["ruleId"] for one in sarif_run(log)["results"]] == ["contract-broken", "baseline-changed"]
    assert action.run("result", STATUS="1").returncode == 1


REFUSED = [
    {"TARGETS": "loss\nnosuch"},
    {"TARGETS": "--help"},
    {"TARGETS": " \n "},
    {"TARGETS": "loss --no-strict"},
    {"TARGETS": "*"},
    {"TARGETS": "# loss"},
    {"CONFIG": "no-such.toml"},
    {"STRICT": "no"},
    {"STRICT": ""},
    {"REPORTS": "no-such-*.json"},
    {"REPORTS": "model.py"},
    {"REPORTS": "*.toml", "TARGETS": "loss"},
    {"REPORTS": "*.toml", "SHARD": "1/2"},
    {"REPORTS": " "},
]


@pytest.mark.parametrize("inputs", REFUSED, ids=str)
def test_inputs_of_the_action_that_would_check_less_fail_it(action, inputs):
    (action.folder / "hloscope.md").write_text("the last run's summary")
    done = action.run("check", **inputs)
    assert done.returncode == 0, done.stderr
    assert action.status() == 2
    assert "::error" in done.stdout
    assert "last run" not in (action.summary.read_text() if action.summary.exists() else "")


@pytest.mark.parametrize("shard", ["3/2", "x", "0/2", "1/3"])
def test_a_shard_that_is_none_fails_the_action(action, shard):
    done = action.run("check", SHARD=shard)
    assert action.status() == 2
    assert done.stdout.startswith("::error title=could-not-run (hloscope check)::")
    assert "could not run" in action.summary.read_text()


def test_shards_of_the_action_are_joined_by_its_last_job(action, repository):
    for old in repository.folder.glob("hloscope-shard-*.json"):
        old.unlink()
    for shard in ("1/2", "2/2"):
        assert action.run("check", SHARD=shard).stdout == ""  # the last job shows what they found
    assert not action.summary.exists()
    done = action.run("check", REPORTS="hloscope-shard-*.json")
    assert action.summary.read_text().startswith("### hloscope: ❌ 1 passed, 1 failed\n")
    assert done.stdout.splitlines()[-1] == "hloscope check: 1 passed, 1 failed"
    (repository.folder / "hloscope-shard-1.json").unlink()
    missing = action.run("check", REPORTS="hloscope-shard-*.json")
    assert "1/2" in missing.stdout


GH = """#!/usr/bin/env python3
import json, os, pathlib, subprocess, sys
comments = pathlib.Path(os.environ["COMMENTS_FILE"])
known = json.loads(comments.read_text())
arguments = sys.argv[1:]
if "--jq" in arguments:
    query = arguments[arguments.index("--jq") + 1]
    assert query == '.[] | select(.user.type == "Bot" and (.body | startswith(env.MARKER))) | .id', query
    mine = [c["id"] for c in known if c["user"]["type"] == "Bot" and c["body"].startswith(os.environ["MARKER"])]
    print("\\n".join(map(str, mine)))
    sys.exit(0)
if os.environ.get("READ_ONLY"):
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
field = arguments[arguments.index("-F") + 1]
body = pathlib.Path(field.removeprefix("body=@")).read_text()
method, target = arguments[arguments.index("--method") + 1 :][:2]
if method == "POST":
    known.append({"id": len(known) + 1, "user": {"type": "Bot"}, "body": body})
else:
    (edited,) = [comment for comment in known if target.endswith(f"/{comment['id']}")]
    edited["body"] = body
comments.write_text(json.dumps(known))
"""
"""What `gh api` does with the comments of a pull request, kept in a file."""


def test_the_action_keeps_one_comment_of_its_own(action, tmp_path):
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    comments = tmp_path / "comments.json"
    quoted = {"id": 1, "user": {"type": "User"}, "body": "<!-- hloscope . --> somebody quotes it"}
    comments.write_text(json.dumps([quoted]))
    marker = "<!-- hloscope . -->"
    environment = {
        "PATH": f"{tmp_path}:{action.repository.environment['PATH']}",
        "COMMENTS_FILE": str(comments),
        "COMMENTS": "repos/me/model/issues/7/comments",
        "COMMENT": "repos/me/model/issues/comments",
        "MARKER": marker,
    }
    for text in ("first", "second"):
        (tmp_path / "hloscope.md").write_text(f"### {text}\n")
        assert action.run("comment", **environment).stdout == ""
    assert json.loads(comments.read_text()) == [
        quoted,
        {"id": 2, "user": {"type": "Bot"}, "body": f"{marker}\n### second\n"},
    ]
    refused = action.run("comment", **environment, READ_ONLY="1")
    assert refused.returncode == 0
    assert refused.stdout.startswith("::warning title=hloscope::the comment could not be written")


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
    commands, _ = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    gitlab = re.findall(r"^  script:\n    - (.+)$", PAGE, re.MULTILINE)
    codes = [shell(repository, line).returncode for line in (commands.splitlines()[1], *gitlab)]
    assert codes == [1, 1]
    for name in ("hloscope.xml", "hloscope.md", "hloscope-codequality.json"):
        assert (repository.folder / name).read_text()
    diff = shell(repository, commands.splitlines()[2])
    assert (diff.returncode, diff.stdout.splitlines()[0]) == (0, "block in HEAD -> block: the same")


def test_the_comment_and_the_result_wait_for_no_upload():
    """A step without such a condition is skipped once one before it has failed."""
    text = (ROOT / "action.yml").read_text()
    steps = re.findall(r"^    - name: (.+)\n((?:      .+\n)+)", text, re.MULTILINE)
    names = [name for name, _ in steps]
    assert names == ["Keep compiles", "Check", "Comment", "Upload", "Result"]
    assert all("if: ${{ !cancelled()" in body for name, body in steps if name in ("Comment", "Upload", "Result"))
    assert "continue-on-error: true" in dict(steps)["Upload"]


def inputs():
    head = (ROOT / "action.yml").read_text().partition("\noutputs:")[0]
    return re.findall(r"^  ([a-z-]+):\n    description:", head, re.MULTILINE)


@pytest.mark.parametrize("name", inputs())
def test_every_input_of_the_action_is_on_the_page(name):
    assert re.search(rf"^\| .*`{name}`.* \|", PAGE.partition("## GitHub")[2], re.MULTILINE)


def test_the_action_is_where_the_page_says():
    (used,) = re.findall(r"uses: \./(.+)", PAGE)
    assert f"copy [`action.yml`](../action.yml) to `{used}/action.yml`" in PAGE


DEMONSTRATED = (".github/workflows/communication.yml", ".gitlab-ci.yml", ".pre-commit-config.yaml", "pyproject.toml")


@pytest.mark.parametrize("file", DEMONSTRATED)
def test_what_the_page_shows_is_what_the_demonstration_has(file):
    blocks = re.findall(r"```(?:yaml|toml)\n(.*?)```", PAGE, re.DOTALL)
    assert any(block.strip() in (ROOT / "fixtures" / "ci" / file).read_text() for block in blocks)


WORKFLOWS = sorted((ROOT / "fixtures" / "ci" / ".github" / "workflows").iterdir())


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_use_inputs_that_the_action_has(file):
    known = set(inputs())
    uses = re.findall(r"uses: \./\.github/actions/hloscope\n +with:\n((?: {10}.+\n)+)", file.read_text())
    used = {line.partition(":")[0].strip() for block in uses for line in block.splitlines()}
    assert used
    assert used <= known


def test_the_required_job_of_many_targets_is_never_skipped():
    last = (
        (ROOT / "fixtures" / "ci" / ".github" / "workflows" / "many_targets.yml").read_text().split("\n  hloscope:\n")
    )
    assert "    needs: shards\n    if: always()\n" in last[1]
