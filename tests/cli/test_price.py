"""`hloscope price` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hloscope

ROOT = Path(__file__).parent.parent.parent
EXPERTS = ROOT / "fixtures/captured/mixture_of_experts.mixture_of_experts.jax-0.10.hlo"


pytestmark = pytest.mark.usefixtures("cached")


def price(*arguments, stdin=None):
    return hloscope("price", *arguments, stdin=stdin)


def test_slices_stand_side_by_side():
    done = price(EXPERTS, "--mesh", "X=8", "--slice", "v5e:2x4", "--slice", "v5e:4x4")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    (small,) = [line for line in lines if line.startswith("v5e:2x4")]
    (large,) = [line for line in lines if line.startswith("v5e:4x4 ")]
    assert small.startswith("v5e:2x4 76.7 ms ×1.00 68.4 to 84.9 ms")
    assert small.endswith("×1.15")
    assert large.startswith("v5e:4x4 76.7 ms ×1.00")
    (note,) = [line for line in lines if line.startswith("• v5e:4x4: devices ")]
    assert "ordered" in note


def test_json_holds_every_slice(says):
    done = price(EXPERTS, "--mesh", "X=8", "--slice", "v5e:2x4", "--slice", "v6e-8", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["slice"]["name"] for one in found["prices"]] == ["v5e:2x4", "v6e:2x4"]
    assert [round(one["time"]["step_us"] / 1000) for one in found["prices"]] == [77, 39]
    assert found["prices"][0]["collectives"][0]["exposed_us"] > 9000
    says(found["prices"][0]["notes"])


@pytest.mark.long
def test_a_figure_can_be_overridden(tmp_path):
    path = tmp_path / "links.toml"
    path.write_text("[v5e]\nici_bytes_per_s = 22.5e9\n")
    arguments = (EXPERTS, "--mesh", "X=8", "--slice", "v5e:2x4", "--format", "json")
    times = [
        json.loads(price(*arguments, *more).stdout)["prices"][0]["time"]["exposed_us"]
        for more in ((), ("--chip-override", path), ("--chip-override", "ici_bytes_per_s=22.5e9"))
    ]
    assert times[1] == times[2]
    assert times[1] == pytest.approx(2 * times[0], rel=1e-2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--slice", "cpu:8"), "cpu:8"),
        (("--slice", "v5e:2x2"), "v5e:2x2"),
        (("--slice", "v5e:2x4", "--chip-override", "speed=1"), "speed"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_priced_is_said(says, arguments, named):
    done = price(EXPERTS, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {named} ")
    says(done.stderr)


def test_without_a_slice_there_is_nothing_to_price():
    done = price(EXPERTS)
    assert done.returncode == 2
    assert "Missing option '--slice'" in done.stderr


@pytest.mark.tpu_compiler
def test_a_function_is_compiled_for_each_slice():
    done = price("fixtures/programs/matmul.py:matmul", "--slice", "v5e:2x4", "--slice", "v6e:2x4", "--format", "json")
    assert done.returncode == 0, done.stderr
    prices = json.loads(done.stdout)["prices"]
    assert [one["time"]["basis"] for one in prices] == ["cycles", "cycles"]
    assert prices[0]["time"]["step_us"] > prices[1]["time"]["step_us"] > 0
    assert all("generation" not in note for one in prices for note in one["notes"])
