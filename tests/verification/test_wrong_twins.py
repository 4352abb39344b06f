"""Deliberately wrong twins: each is caught, and the message points at the shards that are wrong."""

from __future__ import annotations

import re

import pytest
from verify_helpers import findings, job

from hloscope.model.finding import Severity
from hloscope.verification.job import Settings, VerificationJob
from hloscope.verification.judging import judge_numerics
from hloscope.verification.running import run_verification

ALL = tuple(f"X={x}, Y={y}" for x in range(2) for y in range(4))

WRONG = {
    "missing_psum": ("matmul", ALL),
    "wrong_axis": ("matmul", ALL),
    "wrong_direction": ("gathered", ALL),
    "off_by_one_chunk": ("gathered", ALL),
    "stale_shard": ("gathered", ("X=0, Y=3", "X=1, Y=3")),
    "bias_not_split": ("linear", tuple(place for place in ALL if not place.endswith("Y=0"))),
    "concatenated_along_the_wrong_axis": ("linear", ALL),
    "copies_that_differ": ("matmul", ("X=0, Y=2", "X=1, Y=2")),
}

DRIFTING = ("missing_psum", "wrong_axis", "copies_that_differ")
"""Twins whose devices hold different copies of one output."""


@pytest.mark.parametrize("right", ["matmul", "gathered", "linear"])
def test_a_right_program_agrees_with_itself(right):
    assert findings("wrong_twins", right, right) == []


def test_the_right_ring_agrees():
    assert findings("wrong_twins", "right_ring", "gathered") == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_twin_is_caught_at_its_shards(name):
    reference, shards = WRONG[name]
    numerics = run_verification(job("wrong_twins", name, reference))
    compared = numerics.comparisons[0]
    assert compared.wrong_shards == shards
    assert compared.worst.shard in shards
    assert not numerics.agree


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_wrong_twin_is_caught_with_any_seed(name, seed):
    rules = [one.rule for one in findings("wrong_twins", name, WRONG[name][0], seed=seed)]
    assert rules == ["wrong-result", "copies-differ"] if name in DRIFTING else ["wrong-result"]


SHOWN = r"\d+ of \d+|X=\d, Y=\d"


def test_the_message_of_a_stale_shard(says):
    (finding,) = findings("wrong_twins", "stale_shard", "gathered")
    assert (finding.rule, finding.severity) == ("wrong-result", Severity.ERROR)
    assert re.findall(SHOWN, says(finding.message)) == ["96 of 384", "2 of 8", "X=0, Y=3", "X=1, Y=3"]
    assert re.match(r"largest error at \[\d+, \d+\].* \[\d, \d\].* X=[01], Y=3: ", finding.why)


def test_a_reference_whose_copies_differ_is_told_too(says):
    (finding,) = findings("wrong_twins", "matmul", "copies_that_differ")
    assert finding.rule == "copies-differ"
    assert re.findall(f"reference|{SHOWN}", says(finding.message)) == [
        *("reference", "384 of 384"),
        *("2 of 8", "X=0, Y=2", "X=1, Y=2"),
    ]


def test_a_wrong_gradient_is_caught(says, tmp_path):
    (tmp_path / "gradients.py").write_text(
        "import jax, hloscope\n"
        "facts = dict(mesh={'X': 8}, args=('f32[64@X]', 'f32[64@X]'))\n"
        "right = hloscope.target(**facts)(lambda x, y: x * y)\n"
        "stopped = hloscope.target(**facts)(lambda x, y: x * jax.lax.stop_gradient(y))\n"
    )
    names = {role: f"{tmp_path}/gradients.py:{name}" for role, name in (("target", "stopped"), ("reference", "right"))}
    assert list(judge_numerics(run_verification(VerificationJob(**names, devices=8)))) == []
    (finding,) = judge_numerics(run_verification(VerificationJob(**names, devices=8, settings=Settings(grad=True))))
    assert finding.rule == "wrong-result"
    assert re.findall(r"gradient of \w|\d+|every device", says(finding.message)) == [
        *("gradient of y", "64", "64"),
        "every device",
    ]
