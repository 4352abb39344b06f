"""What hloscope is told to write replaces no source, and nothing else that it did not write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hloscope
from hloscope.errors import TargetError
from hloscope.outputs import check_hlo_file, check_report_file

SOURCE = "def step(x):\n    return x * 2\n"
ARGS, SLICE = ("f32[8]",), "cpu:1"


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("mine.py")
    path.write_text(SOURCE)
    return path


def test_compiled_hlo_does_not_replace_the_source_of_its_target(says, source):
    with pytest.raises(TargetError) as caught:
        hloscope.analyze("mine.py:step", ARGS, slice=SLICE, save_hlo="mine.py")
    says(caught)
    assert source.read_text() == SOURCE


def test_compiled_hlo_replaces_compiled_hlo(source):
    file = source.parent / "step.hlo"
    file.write_text("HloModule other\n")
    for _ in range(2):
        hloscope.analyze("mine.py:step", ARGS, slice=SLICE, save_hlo=file)
        assert file.read_text().startswith("HloModule jit_step")


@pytest.mark.parametrize("option", ["--save-hlo", "-o"])
def test_neither_does_the_command_line(says, capfd, source, option):
    from hloscope.cli import group

    with pytest.raises(SystemExit) as ended:
        group(["analyze", "mine.py:step", "--arg", "f32[8]", "--slice", SLICE, option, "mine.py"])
    assert (ended.value.code, source.read_text()) == (2, SOURCE)
    says(capfd.readouterr().err)


def test_a_report_replaces_reports_alone(tmp_path):
    hlo, report, notebook = (tmp_path / name for name in ("step.hlo", "report.txt", "a.ipynb"))
    hlo.write_text("\nHloModule jit_step\n")
    report.write_text("all-reduce over X\n")
    notebook.write_text("{}")
    check_report_file(report)
    for kept in (hlo, notebook):
        with pytest.raises(TargetError, match="which the report would replace"):
            check_report_file(kept)


@pytest.mark.parametrize("name", ["new.py", "empty.py", os.devnull, "-"])
def test_where_nothing_is_lost_nothing_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("empty.py").touch()
    check_hlo_file(name)
    check_report_file(name)
