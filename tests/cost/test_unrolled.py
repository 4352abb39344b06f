"""A step as it goes by: each interval as often as it comes and when it does, however few iterations are told."""

from __future__ import annotations

import pytest
from cost_examples import BLOCK, module_text
from hypothesis import given, settings
from hypothesis import strategies as st
from step_by_step import told
from test_timeline import STEPS, random_text, timed
from test_walk import ARGUMENT, LOOP, permute_done, permute_start

from hloscope.cost.unrolled import PlacedRole, UnrolledTimeline

WITHIN_LOOP = f"""
%outer (p: (s32[], {BLOCK})) -> (s32[], {BLOCK}) {{
  %p = (s32[], {BLOCK}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = {BLOCK} get-tuple-element(%p), index=1
  %zero = s32[] constant(0)
  %init = (s32[], {BLOCK}) tuple(%zero, %x)
  %inner = (s32[], {BLOCK}) while(%init), condition=%condition, body=%body
  %y = {BLOCK} get-tuple-element(%inner), index=1
  ROOT %t = (s32[], {BLOCK}) tuple(%next, %y)
}}
%more (p: (s32[], {BLOCK})) -> pred[] {{
  %p = (s32[], {BLOCK}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}
"""
NESTED = module_text(
    f"""
  {ARGUMENT}
  %zero = s32[] constant(0)
  %init = (s32[], {BLOCK}) tuple(%zero, %a)
  %w = (s32[], {BLOCK}) while(%init), condition=%more, body=%outer
  ROOT %o = {BLOCK} get-tuple-element(%w), index=1
""",
    before=LOOP + WITHIN_LOOP,
)


def check_told(found) -> None:
    """All intervals are there, when the JSON says."""
    given = sorted(
        (one.computation, str(one.interval.name), one.beside, one.begin_us, one.end_us)
        for one in UnrolledTimeline(found)
        if one.role is PlacedRole.WHOLE
    )
    expected = sorted(
        (one.computation, str(one.interval["name"]), one.beside, one.begin_us, one.end_us)
        for one in told(found.to_dict())
    )
    assert [one[:3] for one in given] == [one[:3] for one in expected]
    assert [one[3:] for one in given] == [pytest.approx(one[3:]) for one in expected]


def test_loops_in_loops_are_told_iteration_by_iteration():
    found, _ = timed(NESTED)
    unrolled = UnrolledTimeline(found)
    check_told(found)
    iterations = [(one.name, one.iteration, one.iterations) for one in unrolled if one.role is PlacedRole.ITERATION]
    inner = [("inner", number, 7) for number in range(1, 8)]
    assert iterations == [each for number in range(1, 6) for each in (("w", number, 5), *inner)]
    assert unrolled.left_out is None


def test_of_many_iterations_the_first_are_told_and_the_rest_is_one():
    found, _ = timed(NESTED)
    unrolled = UnrolledTimeline(found, most_events=60)
    every = list(unrolled)
    rest = [(one.name, one.iteration, one.iterations) for one in every if one.role is PlacedRole.LEFT_OUT]
    assert unrolled.most_iterations == 1
    assert rest == [("inner", 2, 7), ("w", 2, 5)]
    assert max(one.end_us for one in every) == pytest.approx(found.step_us)
    assert str(unrolled.left_out).startswith("the step has more than 60 events: of each loop the first iteration is")
    for one in every:
        if one.role is PlacedRole.LEFT_OUT:
            (loop,) = (
                each
                for each in every
                if each.role is PlacedRole.WHOLE and each[2:4] == one[2:4] and each.name == one.name
            )
            assert one.end_us == pytest.approx(loop.end_us)


def test_what_is_started_says_when_and_what_waits_for_it():
    found, _ = timed(
        module_text(f"""
      {ARGUMENT}
      {permute_start("a", "start")}
      {permute_start("a", "other")}
      {permute_done("other", "last")}
      {permute_done("start", "done")}
      ROOT %t = ({BLOCK}, {BLOCK}) tuple(%done, %last)
    """)
    )
    first, second = (one for one in found.computation(found.entry).intervals if one.unit == "ici")
    assert (first.name, first.issued_us, first.done, first.done_us) == ("start", 0.0, "done", found.step_us)
    assert (second.name, second.issued_us, second.done, second.done_us) == ("other", 0.0, "last", 0.0)
    assert second.begin_us == first.end_us, "it waits for the links"
    roles = [(one.role, one.name) for one in UnrolledTimeline(found) if one.role in (PlacedRole.START, PlacedRole.DONE)]
    assert roles == [(PlacedRole.START, "start"), (PlacedRole.START, "other"), (PlacedRole.DONE, "done")]
    starts = [one for one in UnrolledTimeline(found) if one.role is PlacedRole.START]
    assert all(one.is_on_core and one.begin_us == one.end_us for one in starts)


@given(STEPS, st.lists(st.integers(0, 20), max_size=12), st.integers(1, 200))
@settings(max_examples=40)
def test_random_schedules_go_by_as_their_json_says(steps, order, most):
    found, _ = timed(random_text(steps, order))
    check_told(found)
    few = list(UnrolledTimeline(found, most))
    assert max((one.end_us for one in few if one.is_on_core), default=0.0) == pytest.approx(found.step_us)
