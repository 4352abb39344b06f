"""What a check says while it runs, and what is left of it when it is ended: nothing that was known is lost."""

from __future__ import annotations

import json
import signal
import time
from xml.etree import ElementTree

import pytest
from check_examples import Repository, sarif_run

TABLE = """\
[targets.{0}]
function = "{0}.py:f"
mesh = {{ X = 2 }}
args = ["f32[4@X]"]
contract = "none"
baseline = false
"""
QUICK = "def f(x):\n    return x * 2\n"
HANGING = "import pathlib, time\npathlib.Path('imported').touch()\ntime.sleep(3600)\n"
WRITTEN = {"junit": "found.xml", "sarif": "found.sarif", "markdown": "found.md", "json": "found.json"}


def project(tmp_path, **modules):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "hloscope.toml").write_text("\n".join(TABLE.format(name) for name in modules))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return Repository(folder, tmp_path / "cache")


def written(repository):
    """What was written in each format, which is valid in all of them."""
    folder = repository.folder
    suite = ElementTree.fromstring((folder / "found.xml").read_text())
    sarif_run((folder / "found.sarif").read_text())
    assert (folder / "found.md").read_text().startswith("### hloscope: ")
    document = json.loads((folder / "found.json").read_text())
    assert {case.get("name") for case in suite.iter("testcase")} == {check["name"] for check in document["checks"]}
    return {check["name"]: check for check in document["checks"]}


ALSO = [argument for name, file in WRITTEN.items() for argument in ("--write", f"{name}={file}")]


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_what_is_known_is_written_when_a_check_is_ended(tmp_path, told):
    repository = project(tmp_path, quick=QUICK, hangs=HANGING)
    process = repository.start("check", "--jobs", 2, *ALSO)
    said, end = "", time.monotonic() + 120
    while "ok      quick" not in said or not (repository.folder / "imported").exists():
        assert time.monotonic() < end
        if "ok      quick" not in said:
            said += process.stdout.readline()
        time.sleep(0.05)
    process.send_signal(told)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "1 passed, 1 could not run" in output
    checks = written(repository)
    assert checks["quick"]["passed"]
    assert "interrupted" in checks["hangs"]["error"]


@pytest.mark.tpu_compiler
def test_each_target_gets_a_line_with_its_time_as_it_ends(tmp_path):
    repository = project(tmp_path, first=QUICK, second=QUICK, broken="raise RuntimeError('no')\n")
    done = repository.run("check", "--jobs", 1)
    *lines, compiles = [line.split() for line in done.stderr.splitlines()]
    assert " ".join(compiles) == "1 of 2 compiles came from the cache"  # both are the same program
    assert sorted(line[:2] for line in lines) == [["ERROR", "broken"], ["ok", "first"], ["ok", "second"]]
    assert all(float(line[2]) >= 0 and line[3] == "s" for line in lines)


def test_a_mistake_in_the_targets_file_is_in_every_format(tmp_path):
    repository = project(tmp_path, step=QUICK)
    file = repository.folder / "hloscope.toml"
    file.write_text(file.read_text().replace("contract", "contrakt"))
    done = repository.run("check", *ALSO)
    assert (done.returncode, done.stdout) == (2, "")
    assert "contrakt" in done.stderr
    (check,) = written(repository).values()
    assert "contrakt" in check["error"]
    annotated = repository.run("check", "--format", "github")
    assert annotated.returncode == 2
    assert annotated.stdout.startswith("::error file=hloscope.toml,line=5,")
