"""What hloscope is told to write replaces no source, and nothing else that it did not write."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

import hloscope
from hloscope.base.errors import HloscopeError, NotationError, TargetError
from hloscope.base.outputs import (
    OutputFiles,
    check_hlo_file,
    check_is_not_an_input,
    check_output,
    check_report_file,
    write_files,
)
from hloscope.judge.baseline_files import TITLE

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


def test_a_folder_is_named_for_what_writes_one(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for path, problem in ((None, "none is named"), ("-", "none is named"), (file, "is a file")):
        with pytest.raises(TargetError, match=problem):
            check_output(path, "folder")
    check_output(tmp_path, "folder")
    check_output(tmp_path / "new", "folder")
    with pytest.raises(HloscopeError, match="the report cannot be written to"):
        write_files(OutputFiles(contents={"below/it": b""}, opened_by="nobody"), file)
    assert file.read_text() == "mine"


def step_at(folder: Path) -> Path:
    file = folder / "step.hlo"
    file.write_text(
        "HloModule m, is_scheduled=true\n\nENTRY e {\n  ROOT %a = f32[8,128]{1,0} iota(), iota_dimension=0\n}\n"
    )
    return file


def test_a_report_that_is_no_text_goes_into_a_pipe(tmp_path, capfdbinary):
    from hloscope.cli import group

    arguments = ["timeline", str(step_at(tmp_path)), "--slice", "v5e:1x1", "--format"]
    with pytest.raises(SystemExit) as ended:
        group([*arguments, "trace"])
    assert ended.value.code == 0
    piped, said = capfdbinary.readouterr()
    assert said == b""
    assert hloscope.timeline(step_at(tmp_path), slice="v5e:1x1").save(tmp_path / "t.gz", "trace") == (
        f"{tmp_path / 't.gz'} is written: https://ui.perfetto.dev opens it",
    )
    assert (tmp_path / "t.gz").read_bytes() == piped


def test_a_folder_is_asked_for_before_anything_is_compiled(tmp_path, capfd):
    from hloscope.cli import group

    with pytest.raises(SystemExit) as ended:
        group(["timeline", "no_such_file.py:step", "--format", "xplane"])
    assert ended.value.code == 2
    assert capfd.readouterr().err == (
        "error: this format writes a folder, and none is named\n   = fix: name one: -o LOGDIR\n"
    )


def test_every_result_is_saved_in_its_formats(tmp_path):
    found = hloscope.timeline(step_at(tmp_path), slice="v5e:1x1")
    assert found.save(tmp_path / "step.json") == ()
    assert json.loads((tmp_path / "step.json").read_text()) == found.to_dict()
    found.save(tmp_path / "step.txt", "text")
    assert (tmp_path / "step.txt").read_text() == found.report()
    with pytest.raises(HloscopeError, match="Timeline has no format 'sarif'"):
        found.save(tmp_path / "step.sarif", "sarif")
    with pytest.raises(TargetError, match="is a file"):
        found.save(tmp_path / "step.txt", "xplane")


@pytest.mark.parametrize("ending", [".toml", ".sh", ".csv", ".yaml", ".pb", ".npz", ".hlo", ".ipynb", ".TOML"])
def test_a_report_replaces_no_file_of_another_kind(tmp_path, ending):
    file, link = tmp_path / f"mine{ending}", tmp_path / "link.txt"
    check_report_file(file)
    file.write_text("mine")
    link.symlink_to(file)
    for path in (file, link):
        with pytest.raises(TargetError, match="which the report would replace"):
            check_report_file(path)
    figures = tmp_path / "chip.toml"
    figures.write_text("# Written by hloscope compare --write, for --chip-override.\n")
    check_report_file(figures)


def test_a_report_replaces_no_baseline(tmp_path):
    file = tmp_path / "step.txt"
    file.write_text(f"{TITLE}\n")
    with pytest.raises(TargetError, match="is a baseline"):
        check_report_file(file)


@pytest.mark.parametrize("path", [None, b"step.json", 3])
def test_a_result_is_saved_to_a_path(tmp_path, path):
    found = hloscope.analyze(step_at(tmp_path), slice="v5e:1x1")
    with pytest.raises(NotationError, match="path must be a path, not ") as caught:
        found.save(path)
    assert 'write path="report.html"' in str(caught.value)
    with pytest.raises(NotationError, match="path must be a path"):
        found.mesh_picture().save(path)


@pytest.mark.parametrize("place", ["missing/step.json", "."])
def test_where_nothing_can_be_written_a_fix_is_named(says, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    found = hloscope.timeline(step_at(tmp_path), slice="v5e:1x1")
    with pytest.raises(HloscopeError) as caught:
        found.save(place)
    says(caught)
    with pytest.raises(HloscopeError, match="cannot be written"):
        found.save("a\0b.json")


def test_a_trace_is_compressed_as_its_name_says(tmp_path):
    found = hloscope.timeline(step_at(tmp_path), slice="v5e:1x1")
    plain, packed = tmp_path / "step.json", tmp_path / "step.json.gz"
    for path in (plain, packed):
        found.save(path, "trace")
    assert plain.read_bytes() == gzip.decompress(packed.read_bytes())
    assert json.loads(plain.read_text())["traceEvents"]


def test_a_report_replaces_nothing_that_its_command_reads(tmp_path):
    text, chip = tmp_path / "step.hlo.gz", tmp_path / "chip.toml"
    for path in (text, chip):
        path.write_text("mine")
    (tmp_path / "same.gz").symlink_to(text)
    for output, given in ((text, f"{text}#step"), (chip, ("hbm_gib=1", str(chip))), (tmp_path / "same.gz", str(text))):
        with pytest.raises(TargetError, match="the report would replace it"):
            check_is_not_an_input(str(output), [None, 3, given])
    check_is_not_an_input(str(tmp_path / "new.html"), [str(text), "model.py:step", "\0"])
    check_is_not_an_input("-", ["-"])
