"""Verdicts over what is not known: it is neither zero, nor as before, and never lets a program pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contract_examples import GATHER, PRICED, REDUCE, SCATTER, program

from hloscope.judge.baselines import make_baseline
from hloscope.judge.changes import Judgement
from hloscope.judge.judging import judge, judge_two
from hloscope.model import make_shapes
from hloscope.model.vocabulary import Link

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
