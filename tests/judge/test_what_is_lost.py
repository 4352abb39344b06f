"""Sums that are missing, smaller, less precise or joined: named first, with the line that was, and failing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from contract_examples import GATHER, REDUCE, program

from hloscope.base.errors import Command
from hloscope.judge.baseline_files import format_baselines, parse_baselines
from hloscope.judge.baselines import make_baseline
from hloscope.judge.changes import Judgement
from hloscope.judge.checks import make_findings
from hloscope.judge.judging import judge, judge_two
from hloscope.model import Matmuls, SourceFrame, StepTime, make_shapes
from hloscope.model.analysis import RepeatedWork
from hloscope.model.vocabulary import Bound, Kind, Origin

SUM = 'out = jax.lax.psum(y, "Y")'
OTHER = 'loss = jax.lax.psum(loss, "Y")'


class Written:
    """A file of the user's, and collectives on its lines."""

    def __init__(self, folder: Path) -> None:
        self.root, self.path = folder, folder / "model.py"

    def at(self, line, function="step.<locals>.on_device"):
        return (SourceFrame(file=str(self.path), line=line, function=function),)

    def baseline(self, found, *lines):
        """What a program's baseline is as it is read back, with these lines in the file."""
        self.path.write_text("\n".join(lines))
        (read,) = parse_baselines(format_baselines(make_baseline(found, root=self.root)), name="b.txt")
        return read

    def judged(self, before, found, *lines):
        self.path.write_text("\n".join(lines))
        return judge(before, found, root=self.root)


@pytest.fixture
def written(tmp_path):
    return Written(tmp_path)


def summed(source, shape="f32[2,8192]", **facts):
    arrays = make_shapes(*([shape] if isinstance(shape, str) else shape))
    size = {"f32": 4, "bf16": 2}[arrays[0].dtype] * sum(one.dimensions[0] * one.dimensions[1] for one in arrays)
    sides = {"operand_shapes": arrays, "result_shapes": arrays, "payload_bytes": size, "wire_bytes": size}
    return replace(REDUCE, origin=Origin.AUTHORED, source=source, **sides, **facts)


TRACED = {"versions": {"hloscope": "0.2.0", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42"}}


def test_two_sums_that_become_a_narrower_one_of_the_same_bytes(written, says):
    """A matcher of bytes alone takes the one for one of them, and the other for gone."""
    two = program(summed(written.at(1)), summed(written.at(2), name="other"), **TRACED)
    one = program(summed(written.at(1), ("bf16[2,8192]", "bf16[2,8192]")), **TRACED)
    before = written.baseline(two, SUM, OTHER)
    judged = written.judged(before, one, SUM, "loss = 0").judged
    (cause,) = judged.causes
    assert (judged.judgement, cause.judgement, cause.key) == ("different", "different", "types")
    says(cause.message)


def test_narrower_sums_are_different_and_what_else_is_narrower_is_better(written, says):
    for kind, judgement in ((Kind.ALL_REDUCE, "different"), (Kind.ALL_GATHER, "better")):
        wide = replace(summed(written.at(1)), kind=kind)
        narrow = replace(summed(written.at(1), "bf16[2,8192]"), kind=kind)
        judged = written.judged(written.baseline(program(wide), SUM), program(narrow), SUM).judged
        assert judged.judgement == judgement
        says(judged.causes[0].message, kind)
        assert written.judged(written.baseline(program(narrow), SUM), program(wide), SUM).judged.judgement == "worse"


def test_a_missing_sum_is_named_by_the_line_that_it_was(written, says):
    neighbor = Matmuls(dtype="bf16", executions=1, flops=100, source=written.at(1))
    before = written.baseline(program(summed(written.at(2)), matmuls=(neighbor,), **TRACED), "h = 1", SUM)
    (cause,) = written.judged(before, program(matmuls=(neighbor,), **TRACED), "h = 1", "out = y").judged.causes
    assert (cause.judgement, cause.source) == (Judgement.DIFFERENT, f"{written.path}:1")
    elsewhere = replace(neighbor, source=written.at(1, function="other"))
    (cause,) = written.judged(before, program(matmuls=(elsewhere,), **TRACED), "h = 1", "out = y").judged.causes
    assert cause.source == "model.py"  # another function's line is not the place
    (finding, *_) = make_findings(
        written.judged(before, program(**TRACED), "h = 1", "out = y").judged, accept=Command("accept")
    )
    says([finding.message, finding.why])


def test_the_sum_of_another_array_is_named_by_both_lines(written, says):
    before = written.baseline(program(summed(written.at(1)), **TRACED), SUM)
    wrong = 'out = y + jax.lax.psum(bias, "Y")'
    smaller = written.judged(before, program(summed(written.at(1), "f32[1,128]"), **TRACED), wrong).judged
    larger = written.judged(before, program(summed(written.at(1), "f32[4,8192]"), **TRACED), wrong).judged
    assert (smaller.judgement, larger.judgement) == ("different", "worse")
    says([smaller.causes[0].message, larger.causes[0].message])


def test_a_sum_that_is_combined_with_another_is_not_gone(written, says):
    two = program(summed(written.at(1), "bf16[2,8192]"), summed(written.at(2), "f32[1,128]", name="other"), **TRACED)
    one = program(summed(written.at(1), ("f32[2,8192]", "f32[1,128]")), **TRACED)
    wider, combined = written.judged(written.baseline(two, SUM, OTHER), one, SUM, OTHER).judged.causes
    assert (wider.key, combined.judgement) == ("types", "better")
    says(combined.message)


def test_accepting_one_change_takes_its_rows_alone(written):
    def found(gathers, flops, step_us, mesh):
        return program(
            summed(written.at(1)),
            replace(GATHER, source=written.at(2), executions=gathers, payload_bytes=gathers * 1000),
            mesh=mesh,
            matmuls=(Matmuls(dtype="bf16", executions=1, flops=flops, source=written.at(3)),),
            time=StepTime(step_us=step_us, compute_us=step_us, exposed_us=0.0, hidden_us=0.0),
            **TRACED,
        )

    lines = (SUM, "x = gather(x)", "h = x @ w")
    before = written.baseline(found(1, 1000, 100.0, ("X=4", "Y=2")), *lines)
    now = found(2, 1030, 150.0, ("X=2", "Y=4"))  # the FLOPs are within what is let pass, and named by no change
    compared = written.judged(before, now, *lines)
    assert {change.key for change in compared.changes} == {"all-gather@X", "mesh"}
    part = compared.accept(["all-gather@X"])
    assert [row.executions for row in part.rows] == [2, 1]
    assert (part.matmuls, part.step, part.mesh) == (before.matmuls, before.step, before.mesh)
    whole = compared.accept(["all-gather@X", "mesh"])
    assert whole.step == compared.after.step != before.step
    assert (whole.matmuls, whole.mesh) == (compared.after.matmuls, compared.after.mesh)


FIVE = tuple("f32[2,8192]" for _ in range(5))


@pytest.mark.parametrize(
    ("other", "words", "key"),
    [
        ({"reduction": "maximum"}, "1 of 5 arrays is reduced by maximum over Y where add was", "reduction"),
        ({"axes": ("X", "Y")}, "1 of 5 arrays is summed over X,Y where Y was", "all-reduce@Y"),
        ({"axes": ("X",)}, "1 of 5 arrays is summed over X where Y was", "all-reduce@Y"),
    ],
    ids=["another operation", "more axes", "other axes"],
)
def test_what_is_reduced_otherwise_is_one_change_that_says_how(written, other, words, key):
    before = written.baseline(program(summed(written.at(1), FIVE), **TRACED), SUM, OTHER)
    rest, one = summed(written.at(1), FIVE[1:]), summed(written.at(2), FIVE[0], name="other", **other)
    judged = written.judged(before, program(rest, one, **TRACED), SUM, OTHER).judged
    (cause,) = judged.causes
    assert (judged.judgement, cause.judgement, cause.key) == ("different", "different", key)
    assert cause.message.startswith(words)
    assert (cause.source, cause.why) == (f"{written.path}:2", None)  # no device is left with a partial sum


def test_why_a_sum_is_missing_is_inferred(written):
    before = written.baseline(program(summed(written.at(1), FIVE), **TRACED), SUM)
    (cause,) = written.judged(before, program(summed(written.at(1), FIVE[1:]), **TRACED), SUM).judged.causes
    assert cause.message.startswith("1 of 5 arrays is no longer summed over Y")
    assert cause.why.startswith("likely: ")


def test_a_step_comes_with_the_changes_behind_it(written):
    def found(gathers, step_us):
        time = StepTime(step_us=step_us, compute_us=step_us, exposed_us=0.0, hidden_us=0.0)
        moved = replace(GATHER, source=written.at(2), executions=gathers, payload_bytes=gathers * 1000)
        return program(summed(written.at(1)), moved, time=time, **TRACED)

    before = written.baseline(found(2, 150.0), SUM, "x = gather(x)")
    compared = written.judged(before, found(1, 100.0), SUM, "x = gather(x)")
    assert {change.key for change in compared.changes} == {"all-gather@X"}
    part = replace(before, rows=compared.after.rows)  # as accepting that alone would have left it
    compared = written.judged(part, found(1, 100.0), SUM, "x = gather(x)")
    assert {change.key for change in compared.changes} == {"step"}
    assert compared.accept(["step"]).step == compared.after.step
    assert not compared.is_all(["all-gather@X"])


def test_a_reduction_that_is_named_hides_no_other_loss(written):
    """A sum that became a maximum, and another one over the same axes of the same line that is gone."""
    both = program(summed(written.at(1)), summed(written.at(1), "bf16[2,8192]", name="other"), **TRACED)
    before = written.baseline(both, SUM)
    judged = written.judged(before, program(summed(written.at(1), reduction="maximum"), **TRACED), SUM).judged
    assert judged.judgement == "different"
    messages = [cause.message for cause in judged.causes if cause.judgement == "different"]
    assert any("maximum where add was" in message for message in messages)
    assert any("sum" in message and "over Y" in message and "missing" in message for message in messages), judged.causes


def test_what_was_not_named_is_not_accepted_with_a_step(written):
    def found(gathers, step_us):
        time = StepTime(step_us=step_us, compute_us=step_us, exposed_us=0.0, hidden_us=0.0)
        moved = replace(GATHER, source=written.at(2), executions=gathers, payload_bytes=gathers * 1000)
        return program(summed(written.at(1)), moved, time=time, **TRACED)

    lines = (SUM, "x = gather(x)")
    before = written.baseline(found(2, 100.0), *lines)
    slower = written.judged(before, found(1, 160.0), *lines)  # it moves less, and takes longer
    assert {(change.key, change.judgement) for change in slower.changes} == {
        ("all-gather@X", "better"),
        ("step", "worse"),
    }
    assert slower.add_faster_step(["all-gather@X"]) == ["all-gather@X"]
    assert slower.accept(["all-gather@X"]).step == before.step
    less = written.judged(written.baseline(found(1, 100.0), *lines), found(2, 60.0), *lines)  # and the other way round
    assert {(change.key, change.judgement) for change in less.changes} == {
        ("all-gather@X", "worse"),
        ("step", "better"),
    }
    assert {*less.add_faster_step(["all-gather@X"])} == {"all-gather@X", "step"}
    assert [*less.add_faster_step([])] == []


def multiplying(flops, step_us, *, ratio=1.0, traced=1e12, file="/w/model.py", function="layer"):
    """A program whose devices multiply so much, which is so many times what it multiplies as written."""
    source = (SourceFrame(file=file, line=3, function=function),)
    work = RepeatedWork(
        ratio=ratio, bound=Bound.EXACT, padding=1.0, recomputed=0.0, traced_flops=traced, compiled_flops=ratio * traced
    )
    time = StepTime(step_us=step_us, compute_us=step_us, exposed_us=0.0, hidden_us=0.0)
    matmuls = (Matmuls(dtype="bf16", executions=1, flops=flops, source=source),)
    return program(REDUCE, matmuls=matmuls, repeated=work, time=time, **TRACED)


def judged_two(was, now):
    return judge_two(make_baseline(was), make_baseline(now), now, was=was, called="before")


def test_a_function_in_a_copy_of_its_file_is_the_same_function():
    was, now = multiplying(10**9, 100.0, traced=5e11), multiplying(2 * 10**9, 100.0, file="/w/model2.py")
    (cause,) = judged_two(was, now).causes
    assert cause.message.startswith("the matmuls in layer do more: 1 GFLOPs -> 2 GFLOPs")


def test_functions_of_one_name_in_two_files_are_two():
    one, other = (multiplying(10**9, 100.0, file=f"/w/{name}.py") for name in ("one", "other"))
    both = replace(one, matmuls=(*one.matmuls, *other.matmuls))
    grown = replace(both, matmuls=(*one.matmuls, replace(other.matmuls[0], flops=2 * 10**9)))
    (cause,) = judge(make_baseline(both), grown).judged.causes
    assert "1 GFLOPs -> 2 GFLOPs; 2 GFLOPs -> 3 GFLOPs in total" in cause.message


@pytest.mark.parametrize(
    ("now", "judgement"),
    [
        (multiplying(10**9, 90.0), None),  # a product was no matmul before
        (multiplying(10**9, 100.2), "worse"),  # nothing shows that it was done otherwise
        (multiplying(10**9, 90.0, ratio=1.1), "worse"),
        (multiplying(10**9, 90.0, traced=1.2e12), "worse"),
    ],
)
def test_what_only_became_a_matmul_is_not_more_work(says, now, judgement):
    was = multiplying(8 * 10**8, 100.0, ratio=0.8)
    judged = judged_two(was, now)
    found = [cause.judgement for cause in judged.causes if cause.key == "matmuls"]
    assert found == ([] if judgement is None else [judgement])
    assert bool(judged.notes) == (judgement is None)
    if judgement is None:
        says(*judged.notes)
        assert "matmuls" not in [cause.key for cause in judged_two(now, was).causes]
    (cause,) = [cause for cause in judge(make_baseline(was), now).judged.causes if cause.key == "matmuls"]
    assert cause.judgement == "worse"  # a baseline does not say what the program multiplies as written
