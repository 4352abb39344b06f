"""Verdicts over what is not known: it is neither zero, nor as before, and never lets a program pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contract_examples import GATHER, PRICED, REDUCE, program

from hloscope.judge.baselines import make_baseline
from hloscope.judge.changes import Judgement
from hloscope.judge.judging import judge, judge_two
from hloscope.model import make_shapes
from hloscope.model.vocabulary import Bound, Link

UNREAD = replace(GATHER, payload_bytes=None, wire_bytes=None)
UNREAD_SUM = replace(REDUCE, payload_bytes=None, wire_bytes=None)


def judged(then, now):
    """The judgement of a check, which that of a comparison of both must agree with."""
    found = judge(make_baseline(then), now).judged
    assert judge_two(make_baseline(then), make_baseline(now), called="the first").judgement is found.judgement
    return found


# ---- transfers of unknown bytes


@pytest.mark.parametrize(
    ("moved", "before", "after"), [(UNREAD, 2, 50), (UNREAD, 1, 500), (UNREAD, 50, 2), (UNREAD_SUM, 3, 1)]
)
def test_transfers_of_unknown_bytes_are_not_the_same_if_there_are_more_or_fewer(moved, before, after):
    then, now = (program(replace(moved, executions=times)) for times in (before, after))
    (cause,) = judged(then, now).causes
    assert cause.judgement is Judgement.DIFFERENT
    assert judged(then, then).causes == judged(now, now).causes == ()


def test_as_many_arrays_of_unknown_bytes_may_be_combined_otherwise():
    apart = program(*(replace(UNREAD_SUM, name=f"all-reduce.{number}") for number in range(3)))
    together = program(replace(UNREAD_SUM, operand_shapes=make_shapes(*["bf16[2,8192]"] * 3)))
    assert judged(apart, together).judgement is Judgement.SAME
    assert judged(together, apart).judgement is Judgement.SAME


def test_bytes_that_are_unknown_do_not_hide_growth_between_slices():
    unread = replace(UNREAD_SUM, axes=("Y",), link=Link.DCN)
    between = replace(UNREAD, axes=("Y",), link=Link.DCN, payload_bytes=1000, wire_bytes=1000, source=REDUCE.source)
    most = replace(GATHER, payload_bytes=9_000_000, wire_bytes=9_000_000)
    then = program(unread, between, most, time=PRICED)
    now = program(
        unread,
        replace(between, payload_bytes=3000, wire_bytes=3000),
        replace(most, payload_bytes=5_000_000, wire_bytes=5_000_000),
        time=replace(PRICED, step_us=0.8 * PRICED.step_us),
    )
    found = judged(then, now)
    assert found.judgement is Judgement.WORSE
    (sent,) = [figure for figure in found.figures if figure.name == "sent between slices"]
    assert (sent.before, sent.after, sent.before_bound, sent.after_bound) == (6000, 18000, "at least", "at least")


# ---- steps that are bounds, or nothing


def timed(step_us, bound=Bound.EXACT, *collectives, **facts):
    """A program whose step takes so long."""
    return program(*(collectives or (GATHER,)), time=replace(PRICED, step_us=step_us, bound=bound), **facts)


@pytest.mark.parametrize(
    ("before", "after", "judgement"),
    [
        ((100.0, Bound.EXACT), (80.0, Bound.EXACT), "better"),
        ((100.0, Bound.AT_LEAST), (80.0, Bound.EXACT), "better"),
        ((100.0, Bound.EXACT), (80.0, Bound.AT_MOST), "better"),
        ((100.0, Bound.EXACT), (80.0, Bound.AT_LEAST), "different"),
        ((100.0, Bound.AT_LEAST), (80.0, Bound.AT_LEAST), "different"),
        ((100.0, Bound.AT_MOST), (80.0, Bound.EXACT), "different"),
        ((100.0, Bound.UNKNOWN), (80.0, Bound.UNKNOWN), "different"),
        ((80.0, Bound.EXACT), (100.0, Bound.AT_LEAST), "worse"),
        ((80.0, Bound.AT_MOST), (100.0, Bound.EXACT), "worse"),
        ((80.0, Bound.EXACT), (100.0, Bound.AT_MOST), "different"),
        ((80.0, Bound.AT_LEAST), (82.0, Bound.AT_MOST), "same"),
    ],
)
def test_a_step_that_is_a_bound_is_judged_as_far_as_it_is_known(before, after, judgement):
    found = judged(timed(*before), timed(*after))
    assert found.judgement == judgement
    assert [cause.key for cause in found.causes] == ["step"] * (judgement != "same")
    words = "whether the step takes longer than before is not known: "
    assert [cause.message.startswith(words) for cause in found.causes] == [judgement == "different"] * len(found.causes)


@pytest.mark.parametrize("bound", [Bound.AT_LEAST, Bound.AT_MOST, Bound.UNKNOWN])
def test_a_step_that_is_a_bound_does_not_outvote_what_grew(bound):
    less = replace(REDUCE, payload_bytes=9000, wire_bytes=9000)
    small = replace(GATHER, executions=1, payload_bytes=1000, wire_bytes=1000)
    more, rest = replace(small, wire_bytes=5000), replace(less, wire_bytes=8000)
    assert judged(timed(100.0, bound, small, less), timed(80.0, bound, more, rest)).judgement == "worse"
    assert judged(timed(100.0, Bound.EXACT, small, less), timed(80.0, Bound.EXACT, more, rest)).judgement == "better"
    saved = replace(less, wire_bytes=1000)  # by the transfers it is better, whatever else takes time
    assert judged(timed(100.0, bound, small, less), timed(80.0, bound, more, saved)).judgement == "better"


@pytest.mark.parametrize(
    ("bound", "judgement"), [(Bound.EXACT, "worse"), (Bound.AT_LEAST, "different"), (Bound.AT_MOST, "worse")]
)
def test_a_step_that_took_no_time_is_judged(bound, judgement):
    found = judged(timed(0.0, bound), timed(198.0))
    assert found.judgement == judgement
    assert judged(timed(0.0, bound), timed(0.0, bound)).judgement == "same"
    if bound is Bound.EXACT:
        (cause,) = found.causes
        assert cause.message.startswith("the step takes longer, 0 us -> 198 us, although it neither moves nor multiplies")
