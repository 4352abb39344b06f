"""`--chip-override`, which every command that tells times understands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hloscope as run

import hloscope

ROOT = Path(__file__).parent.parent.parent
EXPERTS = ROOT / "fixtures/captured/mixture_of_experts.mixture_of_experts.jax-0.10.hlo"
ON_V5E = (EXPERTS, "--mesh", "X=8", "--slice", "v5e:2x4", "--format", "json")
HALF = "ici_bytes_per_s=22.5e9"

pytestmark = pytest.mark.usefixtures("cached")


def exposed_us(*more):
    done = run("analyze", *ON_V5E, *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["time"]["exposed_us"]


def test_analyze_takes_a_figure_or_a_file_of_them(tmp_path):
    path = tmp_path / "chips.toml"
    path.write_text("[v5e]\nici_bytes_per_s = 22.5e9\n\n[v6e]\nici_bytes_per_s = 1e9\n")
    plain, slower, from_file = exposed_us(), exposed_us("--chip-override", HALF), exposed_us("--chip-file", path)
    assert slower == from_file == pytest.approx(2 * plain, rel=1e-2)


def test_from_python_too():
    plain = hloscope.analyze(EXPERTS, mesh={"X": 8}, slice="v5e:2x4")
    slower = hloscope.analyze(EXPERTS, mesh={"X": 8}, slice="v5e:2x4", chip_overrides=[HALF])
    assert slower.time.exposed_us == pytest.approx(2 * plain.time.exposed_us, rel=1e-2)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("analyze", ("--slice", "v5e:2x4")),
        ("explain", ("--slice", "v5e:2x4")),
        ("price", ("--slice", "v5e:2x4")),
        ("diff", (EXPERTS, "--slice", "v5e:2x4")),
    ],
    ids=["analyze", "explain", "price", "diff"],
)
def test_a_misspelt_figure_is_refused(says, command, arguments):
    done = run(command, EXPERTS, *arguments, "--chip-override", "ici_byte_per_s=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert " ici_bytes_per_s?" in says(done.stderr)


def test_without_a_slice_there_is_nothing_to_override(says):
    done = run("analyze", EXPERTS, "--chip-override", HALF)
    assert (done.returncode, done.stdout) == (2, "")
    assert HALF in says(done.stderr)


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("command", ["analyze", "explain", "verify"])
def test_a_function_is_not_compiled_for_a_misspelt_figure(says, command):
    target = "fixtures/programs/matmul.py:matmul"
    more = ("--reference", f"{target}_shard_map") if command == "verify" else ()
    done = run(command, target, *more, "--chip-override", "clock_hz=fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert "  --> clock_hz=fast" in says(done.stderr)


@pytest.mark.tpu_compiler
def test_a_function_is_priced_with_the_figure():
    times = []
    for more in ((), ("--chip-override", "clock_hz=0.75e9")):
        done = run("analyze", "fixtures/programs/matmul.py:matmul", "--format", "json", *more)
        assert done.returncode == 0, done.stderr
        (cycles,) = [use for use in json.loads(done.stdout)["time"]["rules"] if use["rule"] == "cycles"]
        times.append(cycles["time_us"])
    assert times[1] == pytest.approx(2 * times[0])
