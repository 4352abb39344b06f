"""The report of a verification: what it says, and that it keeps to its width."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from report_examples import GATHER, NOTHING

from hloscope.analysis.model import StepTime
from hloscope.report.formats import Canvas, render
from hloscope.verification.judging import judged
from hloscope.verification.model import Numerics, NumericsStatus, OutputComparison, Tolerance, Untested, Worst

WORST = Worst(index=(3, 17), shard="X=1, Y=0", local_index=(1, 17), found="3.25", expected="1.5", allowed=0.012)
GOOD = OutputComparison(
    name="result",
    against="reference",
    subject="target",
    elements=4096,
    copies=1,
    wrong=0,
    shards=8,
    wrong_shards=(),
    worst=None,
    largest_error=0.0186,
    informative=True,
    tolerance=Tolerance(relative=0.0012, absolute=0.0018, source="rounding"),
)
BAD = replace(GOOD, wrong=512, wrong_shards=("X=1, Y=0",), worst=WORST, largest_error=145.8)
RAN = Numerics(
    status=NumericsStatus.RAN,
    ran_on="8 simulated CPU devices",
    inputs=("x: standard normal",),
    dims={"B": 64},
    comparisons=(GOOD,),
)


def shown(found, width=100, colour=False):
    return render("verification", "text", found, Canvas(width=width, colour=colour))


def test_nothing_moves_and_all_agree():
    assert shown(judged(NOTHING, NOTHING, RAN)) == (
        "model.py:step\n"
        "against model.py:step\n"
        "passed\n"
        "\n"
        "Numbers\n"
        "  both run on 8 simulated CPU devices at B=64, seed 0\n"
        "  x: standard normal\n"
        "  output   beside      elements   wrong   allowed   largest error\n"
        "  ──────────────────────────────────────────────────────────────────────────\n"
        "  result   reference      4,096       0    0.0012   1.86% of what is allowed\n"
        "  Allowed is a share of elements of typical size: at least 1.5 times as far as they moved in runs of\n"
        "  the reference with every value that it stores, and every partial sum, moved by its rounding.\n"
        "\n"
        "Bytes one device sends per step\n"
        "  Neither moves anything between devices.\n"
        "\n"
        "Memory of one device\n"
        "  this program: unknown\n"
        "  reference: unknown\n"
        "\n"
        "hloscope 0.1.0\n"
    )


def test_what_differs_is_said_with_its_shard():
    words = " ".join(shown(judged(NOTHING, NOTHING, replace(RAN, comparisons=(BAD,)))).split())
    assert "failed: 1 error" in words
    assert (
        "error[wrong-result]: result differs from the reference in 512 of 4,096 elements, on 1 of 8 devices (X=1, Y=0) "
        "= why: worst at [3, 17], which is [1, 17] of the shard at X=1, Y=0: 3.25, and 1.5 in the reference; "
        "0.012 is allowed"
    ) in words


def test_what_is_untested_is_in_the_verdict():
    idle = Untested(argument="table", shards=("X=4", "X=5"), parts=8)
    found = judged(NOTHING, NOTHING, replace(RAN, untested=(idle, replace(idle, argument="mask", shards=()))))
    assert found.passed
    assert "\npassed, except: untested table on 2 of 8 devices (X=4; X=5); mask\n" in shown(found)
    assert "warning[untested]: no output of the reference depends on table on 2 of 8 devices (X=4; X=5)" in " ".join(
        shown(found).split()
    )


def test_more_traffic_and_time_side_by_side():
    def timed(analysis, step_us):
        return replace(analysis, time=StepTime(step_us=step_us, compute_us=1, exposed_us=1, hidden_us=0))

    found = judged(timed(replace(NOTHING, collectives=(GATHER,)), 300.0), timed(NOTHING, 100.0), RAN)
    words = " ".join(shown(found).split())
    assert "all-gather X 2.82 GB 8 -" in words
    assert (
        "In all 2.82 GB, and 0 B in the reference; a step takes 300 us, and 100 us in the reference (3 times as much)."
        in words
    )
    assert found.time_ratio == 3


def test_a_run_that_did_not_end():
    hung = Numerics(status=NumericsStatus.HUNG, ran_on="8 simulated CPU devices", message="no end after 10 s")
    words = shown(judged(NOTHING, NOTHING, hung))
    assert "  not compared: hung\n" in words


@pytest.mark.parametrize("width", [20, 40, 60, 100, 200])
def test_it_keeps_to_its_width(width):
    numerics = replace(RAN, comparisons=(GOOD, BAD, replace(BAD, name="gradient of params['layers'][0]['kernel']")))
    text = shown(judged(replace(NOTHING, collectives=(GATHER,)), NOTHING, numerics), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "\x1b" in shown(judged(NOTHING, NOTHING, numerics), width, colour=True)


def test_json_is_the_document():
    found = judged(NOTHING, NOTHING, RAN)
    assert json.loads(render("verification", "json", found, Canvas())) == json.loads(json.dumps(found.to_dict()))
