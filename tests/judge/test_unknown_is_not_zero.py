"""Verdicts over what is not known: it is neither zero, nor as before, and never lets a program pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contract_examples import GATHER, PRICED, REDUCE, program

import hloscope
from hloscope.judge.baseline_files import format_baselines, parse_baselines
from hloscope.judge.baselines import make_baseline
from hloscope.judge.changes import Judgement
from hloscope.judge.judging import judge, judge_two
from hloscope.model import Matmuls, SourceFrame, make_shapes
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


@pytest.mark.parametrize("link", [Link.DCN, Link.BOTH])
def test_a_line_that_sends_more_between_slices_is_worse_however_much_less_it_sends(link):
    across = replace(GATHER, axes=("Y",), link=link, payload_bytes=3000, wire_bytes=3000)
    within = replace(GATHER, payload_bytes=9_000_000, wire_bytes=9_000_000)
    less = replace(within, payload_bytes=5_000_000, wire_bytes=5_000_000)
    then, now = program(within, time=PRICED), program(less, across, time=PRICED)
    assert {cause.judgement for cause in judged(then, now).causes} == {Judgement.WORSE}


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
        assert cause.message.startswith(
            "the step takes longer, 0 us -> 198 us, although it neither moves nor multiplies"
        )


# ---- FLOPs that are not known

DOT = Matmuls(dtype="bf16", executions=1, flops=9_000)
UNCOUNTED = replace(DOT, flops=None)
ELSEWHERE = (SourceFrame(file="/home/me/model/attention.py", line=3, function="attend"),)


@pytest.mark.parametrize(
    ("before", "after", "judgement"),
    [
        ([DOT], [UNCOUNTED], "different"),
        ([UNCOUNTED], [replace(DOT, flops=9_000_000)], "different"),
        ([DOT], [DOT, replace(UNCOUNTED, source=ELSEWHERE)], "different"),
        ([DOT, UNCOUNTED], [replace(DOT, flops=9_000_000), UNCOUNTED], "different"),
        ([UNCOUNTED], [UNCOUNTED], "same"),
        ([UNCOUNTED], [replace(UNCOUNTED, source=ELSEWHERE)], "same"),
        ([DOT, UNCOUNTED], [DOT], "same"),
        ([DOT, UNCOUNTED], [replace(DOT, flops=5_000)], "better"),
        ([DOT], [replace(DOT, flops=9_000_000), UNCOUNTED], "worse"),
    ],
)
def test_flops_that_are_not_known_are_not_judged_as_none(before, after, judgement):
    found = judged(program(matmuls=tuple(before)), program(matmuls=tuple(after)))
    assert found.judgement == judgement
    assert [cause.key for cause in found.causes] == ["matmuls"] * (judgement != "same")
    is_told = any(note.startswith("the FLOPs of 1 line are not judged") for note in found.caveats)
    assert is_told == (UNCOUNTED in before or any(each.flops is None for each in after))


def test_a_step_is_not_said_to_multiply_as_much_where_that_is_not_known():
    for matmuls, words in (((DOT,), "it neither moves nor multiplies"), ((UNCOUNTED,), "it is not known to move")):
        (cause,) = judged(timed(100.0, matmuls=matmuls), timed(200.0, matmuls=matmuls)).causes
        assert words in cause.message


SHAPE = "bf16[4096,4096]"
MATMUL = "dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
KERNEL = 'custom-call(p, q), custom_call_target="tpu_custom_call", backend_config={"custom_call_config": {%s}}'
RAGGED = "ragged-dot(p, stacked, sizes), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}"
UNCOUNTED_WORK = {
    "kernel": KERNEL % '"body": "TUzvUgFNTElS"',
    "factorization": "cholesky(p), lower=true",
    "library": 'custom-call(p), custom_call_target="Cholesky"',
    "ragged": RAGGED + ", rhs_group_dims={0}",
    "ragged, bare": "ragged-dot(p, q, sizes)",
}


def multiplying(work, *first):
    """A program that computes an array, after other lines, and sends it to a neighbor."""
    lines = "".join(f"{line}\n  " for line in first)
    text = f"""HloModule m, num_partitions=4, entry_computation_layout={{({SHAPE},{SHAPE})->{SHAPE}}}
ENTRY main {{
  p = {SHAPE} parameter(0)
  q = {SHAPE} parameter(1)
  sizes = s32[4] constant({{1,2,3,4}})
  stacked = bf16[4,4096,4096] broadcast(q), dimensions={{1,2}}
  {lines}d = {SHAPE} {work}
  ROOT r = {SHAPE} collective-permute(d), channel_id=1, source_target_pairs={{{{0,1}},{{1,2}},{{2,3}},{{3,0}}}}
}}
"""
    return hloscope.analyze_text(text, name="m.hlo", mesh={"X": 4}, slice="v5e:2x2")


@pytest.mark.parametrize("name", UNCOUNTED_WORK)
def test_work_of_which_the_flops_are_unknown_is_no_less_than_a_matmul(name):
    before, after = multiplying(MATMUL), multiplying(UNCOUNTED_WORK[name])
    found = judged(before, after)
    assert found.judgement is Judgement.DIFFERENT
    figures = {figure.name: figure for figure in found.figures}
    assert not figures["multiplied"].is_decided or name == "ragged"
    assert not figures["predicted step"].is_decided
    assert judged(after, after).judgement is Judgement.SAME
    assert parse_baselines(format_baselines(make_baseline(after)), name="b") == (make_baseline(after),)


def test_a_ragged_matmul_multiplies_at_most_as_much_as_one_with_a_single_group():
    (whole,), (ragged,) = multiplying(MATMUL).matmuls, multiplying(UNCOUNTED_WORK["ragged"]).matmuls
    assert (ragged.flops, ragged.bound) == (whole.flops, Bound.AT_MOST)
    grouped = (
        "rows = bf16[4,4096,4096] ragged-dot(p, q, sizes), lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        "lhs_ragged_dims={1}, rhs_group_dims={}"
    )
    first = "first = bf16[1,4096,4096] slice(rows), slice={[0:1],[0:4096],[0:4096]}"
    (summed,) = multiplying("reshape(first)", grouped, first).matmuls  # where each group sums its own part of p
    assert (summed.flops, summed.bound) == (whole.flops, Bound.AT_MOST)


def test_a_kernel_multiplies_as_much_as_its_author_says():
    (whole,) = multiplying(MATMUL).matmuls
    stated = {share: multiplying(KERNEL % f'"cost_estimate": {{"flops": {share * whole.flops}}}') for share in (1, 2)}
    figures = {figure.name: figure for figure in judged(multiplying(MATMUL), stated[1]).figures}
    assert figures["multiplied"].after == figures["multiplied"].before == whole.flops
    (cause,) = judged(stated[1], stated[2]).causes
    assert (cause.key, cause.judgement) == ("matmuls", "worse")


@pytest.mark.parametrize("name", UNCOUNTED_WORK)
def test_what_an_older_release_did_not_record_of_a_program_is_no_change(name):
    now = multiplying(UNCOUNTED_WORK[name])
    then = make_baseline(now)
    counted = tuple(row for row in then.matmuls if row.dtype != "kernel" and row.flops is not None)
    older = replace(then, matmuls=counted, versions={"hloscope": "0.1.9"})
    assert judge(older, now).judged.judgement is Judgement.SAME
    if name != "ragged":
        assert judge(replace(older, versions=then.versions), now).judged.judgement is Judgement.DIFFERENT
    multiplied = replace(make_baseline(multiplying(MATMUL)), versions=older.versions)
    assert judge(multiplied, now).judged.judgement is Judgement.DIFFERENT
