"""`hloscope analyze` of a folder that XLA dumped into."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from command_line import environment, hloscope, hloscope_process

ROOT = Path(__file__).parent.parent.parent
MLP = ROOT / "fixtures/dumps/mlp"
STEM = "module_0000.jit_mlp.cl_1004524046"
SCHEMAS = ROOT / "hloscope/schemas"
SMALL = "HloModule jit_small, num_partitions=8\n\nENTRY main {\n  ROOT p = f32[16] parameter(0)\n}\n"


@pytest.fixture
def folder(tmp_path):
    """A dump with a module that has all that may lie beside it, a small one for CPUs, and two that cannot be read."""
    shutil.copytree(MLP, tmp_path / "dump")
    names = ("module_0002.jit_small", "module_0004.jit_broken", "module_0006.jit_empty")
    for name, text in zip(names, (SMALL, "no HLO at all\n" * 20, ""), strict=True):
        (tmp_path / "dump" / f"{name}.cpu_after_optimizations.txt").write_text(text)
    return tmp_path / "dump"


def lines_of(done):
    found = [json.loads(line) for line in done.stdout.splitlines()]
    schema = json.loads((SCHEMAS / "dumped_module.json").read_text())
    for document in found:
        jsonschema.validate(document, schema)
    return {document["name"]: document for document in found}


def test_all_of_them_one_on_each_line(folder):
    done = hloscope("analyze", folder, "--all", "--format", "json")
    assert done.returncode == 2
    assert "2 of 4 modules could not be analyzed" in done.stderr
    found = lines_of(done)
    assert set(found) == {"jit_mlp", "jit_small", "jit_broken", "jit_empty"}
    mlp = found["jit_mlp"]
    assert (mlp["number"], mlp["platform"], mlp["file"]) == ("0000", "tpu", f"{STEM}.after_codegen.txt")
    assert mlp["size_bytes"] == (MLP / f"{STEM}.after_codegen.txt").stat().st_size
    assert mlp["error"] is None
    analysis = mlp["analysis"]
    assert (analysis["slice"]["name"], analysis["slice"]["chosen_by"]) == ("v5e:2x4", "dump")
    assert analysis["mesh"]["axis_names"] == ["data", "model"]
    assert [collective["axes"] for collective in analysis["collectives"]] == [["model"]]
    assert analysis["time"]["step_us"] > 0
    assert analysis["memory"]["argument_bytes"] > 0
    for name in ("jit_broken", "jit_empty"):
        assert found[name]["analysis"] is None
        assert found[name]["error"].startswith("error: ")
    assert found["jit_small"]["analysis"]["slice"] is None


def test_rows_and_what_they_sum_up_to(folder):
    os.remove(folder / "module_0004.jit_broken.cpu_after_optimizations.txt")
    os.remove(folder / "module_0006.jit_empty.cpu_after_optimizations.txt")
    done = hloscope("analyze", folder, "--all", "--jobs", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 of 2 modules analyzed" in done.stdout
    rows = {words[0]: words for words in map(str.split, done.stdout.splitlines()) if words}
    assert "v5e:2x4" in rows["jit_mlp"]
    assert "nothing" in rows["jit_small"]


SENDS = '{"custom_call_config":{"has_communication":true}}'
KERNEL = f"""\
HloModule jit_kernel, num_partitions=2

ENTRY main {{
  p = f32[8] parameter(0)
  ROOT k = f32[8] custom-call(p), custom_call_target="tpu_custom_call", backend_config={SENDS}
}}
"""


def test_a_finding_in_one_of_them_breaks_the_build_when_asked_to(tmp_path):
    for name, text in (("module_0002.jit_small", SMALL), ("module_0004.jit_kernel", KERNEL)):
        (tmp_path / f"{name}.after_codegen.txt").write_text(text)
    codes = {}
    for severity in ("error", "warning"):
        done = hloscope("analyze", tmp_path, "--all", "--jobs", "1", "--fail-on", severity)
        codes[severity] = done.returncode
    assert codes == {"error": 0, "warning": 1}
    assert "failed: 1 finding at or above --fail-on warning: %k " in done.stderr


def test_too_little_memory_for_any(folder, tmp_path):
    done = hloscope("analyze", folder, "--all", "--memory", "1MB", "--format", "json", "-o", tmp_path / "out")
    assert done.returncode == 2
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert len(found) == 4
    assert all("--memory" in document["error"] for document in found)


@pytest.mark.parametrize("named", [("--only", "mlp"), ()], ids=["named", "largest"])
def test_one_in_full_with_likely_reasons(folder, named):
    done = hloscope("analyze", folder, *named, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    jsonschema.validate(found, json.loads((SCHEMAS / "analysis.json").read_text()))
    (collective,) = found["collectives"]
    reason = found["reasons"][collective["reason"]]
    assert (reason["kind"], reason["certain"], reason["axes"]) == ("partial-sum", False, ["model"])
    assert collective["why"].startswith("likely: ")


def test_a_file_by_itself_has_what_lies_beside_it():
    found = json.loads(hloscope("analyze", MLP / f"{STEM}.after_codegen.txt", "--format", "json").stdout)
    assert (found["slice"]["name"], found["slice"]["chosen_by"]) == ("v5e:2x4", "dump")
    assert (found["mesh"]["axis_names"], found["mesh"]["made_up"]) == (["data", "model"], False)
    assert found["reasons"][found["collectives"][0]["reason"]]["kind"] == "unknown"
    assert any("--only module_0000.jit_mlp" in note for note in found["notes"])


def test_the_list_comes_first(folder):
    done = hloscope_process("analyze", folder)
    assert done.returncode == 0
    assert done.stdout.index("4 compiled modules") < done.stdout.index("Collectives, most bytes per step first")
    assert "--all" in done.stdout


def test_the_slice_that_is_given_goes_first(folder):
    found = json.loads(hloscope("analyze", folder, "--only", "mlp", "--slice", "v6e:2x4", "--format", "json").stdout)
    assert (found["slice"]["name"], found["slice"]["chosen_by"]) == ("v6e:2x4", "user")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "nope"), "no module in"),
        (("--all", "--only", "mlp"), "exclude each other"),
        (("--all", "--format", "sarif"), "reports on one module only"),
        (("--memory", "1GB"), "--memory requires --all"),
        (("--all", "--memory", "much"), "is not a memory size"),
        (("--arg", "f32[8]"), "--arg does not apply to"),
        (("--only", "broken"), "no HLO"),
    ],
)
def test_what_cannot_be_done(folder, arguments, message):
    done = hloscope("analyze", folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_options_of_folders_beside_something_else(tmp_path):
    (tmp_path / "step.hlo").write_text(SMALL)
    done = hloscope("analyze", tmp_path / "step.hlo", "--memory", "1GB")
    assert done.returncode == 2
    assert "--memory is for a folder" in done.stderr
    assert hloscope("analyze", tmp_path / "nothing", "--only", "x").returncode == 2


@pytest.mark.long
def test_what_was_analyzed_is_there_after_an_interrupt(tmp_path):
    text = (MLP / f"{STEM}.after_codegen.txt").read_text()
    for number in range(200):
        (tmp_path / f"module_{number:04d}.jit_f.after_codegen.txt").write_text(text)
    arguments = [sys.executable, "-m", "hloscope", "analyze", str(tmp_path), "--all", "--format", "json"]
    with open(tmp_path / "out", "w") as out:
        process = subprocess.Popen(
            arguments, stdout=out, stderr=subprocess.PIPE, env=environment(), cwd=ROOT, text=True
        )
        deadline = time.monotonic() + 120
        while len((tmp_path / "out").read_text().splitlines()) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip() == "interrupted"
    assert 3 <= len([json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]) < 200
