"""The report of a verification: what it says, and that it keeps to its width."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from report_examples import GATHER, NOTHING

from hloscope.base.canvas import Canvas
from hloscope.model import StepTime
from hloscope.model.vocabulary import Bound
from hloscope.report.formats import render
from hloscope.verification.judging import judge_verification
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
    inputs=("x: normal",),
    dims={"B": 64},
    comparisons=(GOOD,),
)


def shown(found, width=100, colour=False):
    return render("verification", "text", found, Canvas(width=width, colour=colour))


def test_nothing_moves_and_all_agree(says):
    text = shown(judge_verification(NOTHING, NOTHING, RAN))
    assert text.endswith("\n\nhloscope 0.2.0\n")
    says(text)
    assert text.splitlines()[:3] == ["model.py:step", "compared with model.py:step", "passed"]
    (ran,) = re.findall(".* simulated CPU .*", text)
    assert re.findall(r"\d+ simulated|\w=\d+|seed \d", ran) == ["8 simulated", "B=64", "seed 0"]
    (row,) = re.findall("  result .*", text)
    assert row.split()[:6] == ["result", "reference", "4,096", "0", "0.0012", "1.86%"]
    assert len(re.findall(": unknown$", text, re.MULTILINE)) == 2


def test_what_differs_is_said_with_its_shard(says):
    words = " ".join(shown(judge_verification(NOTHING, NOTHING, replace(RAN, comparisons=(BAD,)))).split())
    assert "failed: 1 error" in words
    (error,) = re.findall(r"error\[wrong-result\]: .*? is allowed", words)
    assert re.findall(r"[\d,]+ of [\d,]+|X=\d, Y=\d|\[\d+, \d+\]|\d\.\d+", error) == [
        *("512 of 4,096", "1 of 8", "X=1, Y=0"),
        *("[3, 17]", "[1, 17]", "X=1, Y=0", "3.25", "1.5", "0.012"),
    ]
    says(error)


def test_what_is_untested_is_in_the_verdict(says):
    idle = Untested(argument="table", shards=("X=4", "X=5"), parts=8)
    found = judge_verification(
        NOTHING, NOTHING, replace(RAN, untested=(idle, replace(idle, argument="mask", shards=())))
    )
    assert found.passed
    (verdict,) = re.findall("^passed.*", shown(found), re.MULTILINE)
    table = ["table", "2 of 8", "X=4", "X=5"]
    assert re.findall(r"table|mask|\d of \d|X=\d", verdict) == [*table, "mask"]
    (warning, _) = re.findall(r"warning\[untested\]: .*? depends on \w+(?: on .*?\))?", " ".join(shown(found).split()))
    assert re.findall(r"table|\d of \d|X=\d", warning) == table
    says([verdict, warning])


def test_more_traffic_and_time_side_by_side(says):
    def timed(analysis, step_us):
        return replace(analysis, time=StepTime(step_us=step_us, compute_us=1, exposed_us=1, hidden_us=0))

    found = judge_verification(timed(replace(NOTHING, collectives=(GATHER,)), 300.0), timed(NOTHING, 100.0), RAN)
    words = " ".join(shown(found).split())
    assert "all-gather X 2.82 GB 8 -" in words
    (whole,) = re.findall(r"In total .*?\)\.", words)
    assert re.findall(r"[\d.]+ (?:GB|B|us|times)", whole) == ["2.82 GB", "0 B", "300 us", "100 us", "3 times"]
    says(whole)
    assert found.time_ratio == 3


def test_a_run_that_did_not_end():
    hung = Numerics(status=NumericsStatus.HUNG, ran_on="8 simulated CPU devices", message="no end after 10 s")
    words = shown(judge_verification(NOTHING, NOTHING, hung))
    assert "  not compared: hung\n" in words


@pytest.mark.parametrize("width", [20, 40, 60, 100, 200])
def test_it_keeps_to_its_width(width):
    numerics = replace(RAN, comparisons=(GOOD, BAD, replace(BAD, name="gradient of params['layers'][0]['kernel']")))
    text = shown(judge_verification(replace(NOTHING, collectives=(GATHER,)), NOTHING, numerics), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "\x1b" in shown(judge_verification(NOTHING, NOTHING, numerics), width, colour=True)


def test_json_is_the_document():
    found = judge_verification(NOTHING, NOTHING, RAN)
    assert json.loads(render("verification", "json", found, Canvas())) == json.loads(json.dumps(found.to_dict()))


def test_what_a_branch_may_move_is_marked_wherever_it_is_said():
    """Of twice the bytes at most, nothing is known that bounds the ratio from below."""
    may = replace(GATHER, executions_bound=Bound.AT_MOST, time_us=10.0)
    whole = replace(GATHER, executions=4, time_us=10.0)

    def of(collective, step_us, bound):
        time = StepTime(step_us=step_us, compute_us=1, exposed_us=1, hidden_us=0, bound=bound)
        return replace(NOTHING, collectives=(collective,), time=time)

    found = judge_verification(of(may, 300.0, Bound.AT_MOST), of(whole, 100.0, Bound.EXACT), RAN)
    words = " ".join(shown(found, 160).split())
    assert "≤2.82 GB ≤8 ≤80 us 1.41 GB 4 40 us" in words
    assert "In total ≤2.82 GB, compared with 1.41 GB in the reference (≤2 times as much)" in words
    assert "a step takes ≤300 us, compared with 100 us in the reference (≤3 times as much)" in words
    both = judge_verification(of(may, 300.0, Bound.AT_MOST), of(replace(may, executions=4), 100.0, Bound.AT_MOST), RAN)
    assert "(~2 times as much)" in " ".join(shown(both, 160).split())
    page = render("verification", "html", found, Canvas())
    assert page.count(">≤80 us</data>") == 1
    assert ">40 us</data>" in page
