"""`hloscope verify` as a user runs it: a process, its two streams and its exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import hloscope

ROOT = Path(__file__).parent.parent.parent
SEEDS = "fixtures/programs"
CODE = "tests/verification/user_code"

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.usefixtures("cached")]


def verify(target, reference, *options, **environment):
    return hloscope("verify", target, "--reference", reference, *options, **environment)


@pytest.mark.smoke
def test_a_program_and_its_twin(says):
    done = verify(f"{SEEDS}/matmul.py:matmul", f"{SEEDS}/matmul.py:matmul_shard_map", "--scale", "D=64,F=128")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        f"{SEEDS}/matmul.py:matmul",
        f"compared with {SEEDS}/matmul.py:matmul_shard_map on v5e:4x2",
        "passed",
    ]
    (ran,) = [line for line in lines if line.startswith("  both were run ")]
    assert re.findall(r"\b8 \w+ CPU|[DF]=\d+|seed \d+", ran) == ["8 simulated CPU", "D=64", "F=128", "seed 0"]
    (moved,) = [line for line in lines if line.startswith("  Both move ")]
    assert "the same bytes; a step " in moved
    says([ran, moved.partition(";")[0]])


@pytest.mark.long
def test_the_headline_moves_more_than_its_twin():
    done = verify(
        f"{SEEDS}/mixture_of_experts.py:mixture_of_experts",
        f"{SEEDS}/moe_pipelined.py:pipelined",
        *("--scale", "S=64,D=32,F=64", "--range", "B=0:E", "--format", "json"),
    )
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert found["passed"] is False
    assert found["numerics"]["status"] == "ran"
    assert found["numerics"]["inputs"][-1] == "B: 0 to 7"
    assert [one["wrong"] for one in found["numerics"]["comparisons"]] == [0]
    assert [(one["rule"], one["severity"]) for one in found["findings"]] == [("more-than-reference", "error")]
    assert found["findings"][0]["source"].endswith("mixture_of_experts.py:26")
    rows = {row["kind"]: row for row in found["communication"]["rows"]}
    assert rows["all-gather"]["target"]["wire_bytes"] == 8 * 822_083_584
    assert rows["all-to-all"]["reference"]["executions"] == 4
    assert found["communication"]["bytes_ratio"] > 190


def test_more_bytes_can_be_accepted():
    done = verify(
        f"{SEEDS}/mixture_of_experts.py:mixture_of_experts",
        f"{SEEDS}/mixture_of_experts.py:mixture_of_experts_shard_map",
        *("--scale", "S=64,D=32,F=64", "--range", "B=0:8", "--ignore", "more-than-reference"),
        COLUMNS="60",
    )
    assert done.returncode == 0
    assert "more-than-reference" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60


def test_a_wrong_twin_breaks_the_build(says):
    done = verify(f"{CODE}/wrong_twins.py:stale_shard", f"{CODE}/wrong_twins.py:gathered", "--seed", "7")
    assert done.returncode == 1
    words, why, _ = " ".join(done.stdout.split()).partition(" = why: largest error at [")
    finding = words[words.index("error[wrong-result]: ") :]
    assert ("96 of 384" in finding, "(X=0, Y=3; X=1, Y=3)" in finding, why != "") == (True, True, True)
    says(finding)


@pytest.mark.long
def test_what_is_untested_fails_a_strict_run_alone(says):
    names = (f"{CODE}/covered.py:of_each_device", f"{CODE}/covered.py:embedding")
    options = ("--range", "index=0:1024", "--ignore", "more-than-reference")
    for strict, code in (((), 0), (("--strict",), 1)):
        done = verify(*names, *options, *strict)
        assert done.returncode == code
        (summary,) = [line for line in done.stdout.splitlines() if line.startswith("passed")]
        assert "table on 6 of 8 devices" in says(summary, "strict" if strict else "")


@pytest.mark.long
def test_a_hang_ends_in_time_and_breaks_the_build():
    done = verify(f"{CODE}/troubles.py:hangs", f"{CODE}/troubles.py:plain", "--timeout", "8")
    assert done.returncode == 1
    assert "error[numerics-hung]: " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("target", "reference", "options", "named"),
    [
        ("step.hlo", "matmul.py:matmul", (), "step.hlo"),
        (f"{CODE}/troubles.py:plain", f"{CODE}/troubles.py:plain", ("--range", "x"), "'x'"),
        (f"{CODE}/troubles.py:plain", f"{CODE}/troubles.py:plane", (), "'plane'"),
    ],
    ids=["text", "range", "name"],
)
def test_what_cannot_run_says_so(says, target, reference, options, named):
    done = verify(target, reference, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in says(done.stderr)


def test_what_jax_refuses_is_shown_in_its_words():
    done = verify(f"{SEEDS}/ambiguous_einsum.py:ambiguous", f"{SEEDS}/ambiguous_einsum.py:sharded_columns")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--> {SEEDS}/ambiguous_einsum.py:19 in ambiguous" in done.stderr
    assert re.search("Contracting dimensions .* ambiguous", done.stderr)
