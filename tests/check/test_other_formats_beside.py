"""`hloscope check --write FORMAT=FILE`: other formats beside the report, which is never lost to them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hloscope.cli import group

PROJECT = '[targets.step]\nhlo = "step.hlo"\nbaseline = false\ncontract = "none"\n'
STEP = "HloModule m, num_partitions=2\n\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"


@pytest.fixture
def check(tmp_path, monkeypatch):
    (tmp_path / "hloscope.toml").write_text(PROJECT)
    (tmp_path / "step.hlo").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    return lambda *written: CliRunner().invoke(
        group, ["check", *(part for text in written for part in ("--write", text))]
    )


def test_each_is_written(check, tmp_path):
    done = check("sarif=found.sarif", "junit=found.xml", "html=found.html")
    assert "step" in done.output
    assert json.loads((tmp_path / "found.sarif").read_text())["runs"]
    assert (tmp_path / "found.xml").read_text().startswith("<?xml")
    assert (tmp_path / "found.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("srif=found.sarif", "sarif"),
        ("found.sarif", "FORMAT=FILE"),
        ("sarif=", "sarif=FILE"),
        ("sarif=-", "sarif=FILE"),
        ("sarif=gone/found.sarif", "folder"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_runs(says, check, written, named):
    done = check(written)
    assert (done.exit_code, done.stdout) == (2, "")
    assert named in says(done.stderr)


def test_the_report_is_there_when_a_file_cannot_be_written(check, tmp_path):
    (tmp_path / "found.sarif").mkdir()
    done = check("sarif=found.sarif")
    assert done.exit_code == 2
    assert "step" in done.stdout
    assert "found.sarif" in done.stderr
