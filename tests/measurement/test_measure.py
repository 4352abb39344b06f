"""`hloscope measure`: a program runs under the profiler on simulated devices, of which nothing is predicted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hloscope
from hloscope.measurement.profiles import find_profile_files

STEPS = Path(__file__).parent / "steps.py"
ARGS = ("--mesh", "X=4", "--arg", "f32[64@X,128]", "--arg", "f32[128@X,128]")


def ran(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hloscope", "measure", *command], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measure")
    done = ran(f"{STEPS}:step", *ARGS, "--on", "cpu", "--runs", "3", "--save", "kept", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


@pytest.mark.process
def test_each_run_on_each_device_is_measured(measured, schema_of):
    import jsonschema

    document, folder = measured
    jsonschema.validate(document, schema_of("compare"))
    (program,) = document["programs"]
    assert (program["runs"], program["devices"], program["partitions"]) == (12, 4, 4)
    assert (program["slice"], program["slice_chosen_by"]) == (None, None), "it is not priced"
    assert program["step"]["least_us"] <= program["step"]["median_us"] <= program["step"]["most_us"]
    assert program["step"]["least_us"] > 0
    assert len(find_profile_files(folder / "kept")[0]) == 1


@pytest.mark.process
def test_its_collectives_are_measured_over_the_users_axes(measured):
    (program,) = measured[0]["programs"]
    assert {(one["kind"], *one["axes"]) for one in program["transfers"]} == {("all-gather", "X"), ("all-reduce", "X")}
    assert all(one["measured_us"] > 0 and one["measured_bound"] == "exact" for one in program["transfers"])
    (axis,) = program["axes"]
    assert (axis["axes"], axis["collectives"]) == ("X", 2)
    assert axis["measured_bytes_per_s"] > 0


@pytest.mark.process
def test_what_is_not_predicted_is_unknown_and_never_zero(measured):
    document, _ = measured
    (program,) = document["programs"]
    assert (document["chip"], document["calibration"], program["step"]["predicted_us"]) == (None, [], None)
    assert {part["predicted_us"] for part in program["parts"]} == {None}
    assert {one["predicted_us"] for one in (*program["operations"], *program["transfers"])} == {None}
    assert {one["rule"] for one in (*program["operations"], *program["transfers"])} == {None}
    assert program["axes"][0]["predicted_exposed_us"] is None


@pytest.mark.process
def test_the_report_says_so(tmp_path):
    done = ran(f"{STEPS}:step", *ARGS, "--on", "cpu", "--runs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "on 4 devices, not priced: only TPUs have predicted times" in done.stdout
    assert "not predicted" in done.stdout
    assert "unknown" not in done.stdout
    assert "these are simulated devices of this machine" in done.stdout


@pytest.mark.process
def test_axes_have_the_names_of_the_targets_own_mesh(tmp_path):
    done = ran(f"{STEPS}:decorated", "--on", "cpu", "--runs", "1", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (program,) = json.loads(done.stdout)["programs"]
    assert {tuple(one["axes"]) for one in program["transfers"]} == {("model",)}


@pytest.mark.process
def test_where_no_tpu_is(tmp_path):
    done = ran(f"{STEPS}:step", *ARGS, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no TPU is attached here")
    assert "--on cpu" in done.stderr


@pytest.mark.process
def test_a_program_that_jax_refuses_is_one_message(tmp_path):
    done = ran(f"{STEPS}:fails", "--arg", "f32[4,8]", "--on", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_hlo_text_cannot_be_run(tmp_path):
    (tmp_path / "step.hlo").write_text("HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n")
    done = ran("step.hlo", "--on", "cpu", cwd=tmp_path)
    assert (done.returncode, "cannot be run" in done.stderr) == (2, True)


@pytest.mark.process
def test_in_python(says):
    found = hloscope.measure(f"{STEPS}:step", ("f32[64@X,128]", "f32[128@X,128]"), mesh={"X": 2}, on="cpu", runs=2)
    assert (found.programs[0].runs, found.device_kind) == (4, "CPU")
    for wrong in ({"on": "gpu"}, {"runs": 0}):
        with pytest.raises(hloscope.HloscopeError) as caught:
            hloscope.measure(f"{STEPS}:step", **wrong)
        says(caught, next(iter(wrong)))
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.measure(lambda x: x, ("f32[4]",), on="cpu")
    assert "cannot be imported" in caught.value.what
