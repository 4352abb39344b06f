"""A difference: its figures, causes and changes, as text, Markdown and on a page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bounded_examples import BRANCH, ONCE, analysis_of

import hloscope
from hloscope.base.canvas import Canvas
from hloscope.judge.changes import Cause, ChangeKind, Judgement
from hloscope.model import SourceFrame
from hloscope.report.diffs import (
    ListedChange,
    attach_sides,
    find_cause_places,
    is_step_tie,
    list_change_lines,
    list_figure_rows,
)
from hloscope.report.formats import render

TWICE = ONCE.replace("1024", "2048")
WHY = "the dimension of 1024 of `result_of_mul[1024]` is sharded over X, so each device holds a partial sum " * 2
CAUSE = Cause(
    key="all-reduce@X",
    judgement=Judgement.WORSE,
    message="an all-reduce over X moves more than before, 6.14 kB -> 12.3 kB sent per step",
    source="/elsewhere/models/moe.py:31",
    why=WHY.strip(),
    tried="argument W: P('X') -> P(None, 'X'), 3.26 us -> 1.1 us",
)


def with_causes(*causes):
    found = hloscope.diff(analysis_of(ONCE), analysis_of(TWICE))
    judged = replace(found.judged, judgement=Judgement.WORSE, causes=causes)
    return attach_sides(replace(found, judged=judged), found.sides)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_are_folded_to_the_terminal(width):
    text = render("difference", "text", with_causes(CAUSE), Canvas(width=width))
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert f"{CAUSE.message} (moe.py:31)" in words
    assert f"why: {CAUSE.why} tried: {CAUSE.tried}" in words
    assert "/elsewhere" not in text


def test_what_is_no_reason_is_not_given_as_one():
    found = with_causes(replace(CAUSE, why="not known: HLO text keeps no shardings", tried=None))
    for name in ("text", "markdown"):
        assert "why" not in render("difference", name, found, Canvas())


def test_markdown_gives_reasons_below_their_causes():
    lines = render("difference", "markdown", with_causes(CAUSE), Canvas()).splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith("* worse: "))
    assert lines[first].endswith(" (moe.py:31)")
    assert [line[:9] for line in lines[first + 1 : first + 4]] == ["  * why: ", "  * tried", ""]


def test_places_are_named_with_the_function_where_it_is_known():
    found = with_causes(CAUSE, replace(CAUSE, source=None), replace(CAUSE, source="C:\\me\\moe.py:4"))
    before, after = found.sides
    frame = SourceFrame(file="/elsewhere/models/moe.py", line=31, function="MoE.<locals>.expert")
    (moved,) = after.collectives
    known = replace(after, collectives=type(after.collectives)([replace(moved, source=(frame,))]))
    assert list(find_cause_places(attach_sides(found, (before, known)))) == ["moe.py:31 in expert", None, "moe.py:4"]


def test_the_step_comes_first_and_a_figure_of_another_version_is_not_compared():
    found = hloscope.diff(analysis_of(ONCE), analysis_of(TWICE))
    assert [row[0] for row in list_figure_rows(found)] == ["predicted step", "sent per step", "all-reduce X"]
    figures = tuple(replace(figure, comparable=False) for figure in found.judged.figures)
    step, sent, _ = list_figure_rows(replace(found, judged=replace(found.judged, figures=figures)))
    assert (step[-1], sent[-1]) == ("not comparable", "+6.14 kB")


def changed(*changes):
    """A difference of changes of one collective: kind, executions after, text."""
    found = hloscope.diff(analysis_of(ONCE), analysis_of(TWICE))
    (change,) = found.changes
    listed = tuple(
        replace(change, kind=kind, text=text, new=(replace(change.new[0], executions=executions),))
        for kind, executions, text in changes
    )
    assert all(isinstance(each, ListedChange) for each in listed)
    return [(line.kinds, line.text) for line in list_change_lines(replace(found, changes=listed))]


BYTES, TIMES, OUT = ChangeKind.BYTES, ChangeKind.EXECUTIONS, ChangeKind.OUT_OF_LOOP
WORDS = "~ all-reduce X 4.10 kB payload -> 3 x 8.19 kB payload"


def test_changes_of_one_collective_are_one_line():
    assert changed((BYTES, 3, f"{WORDS}  a.py:1"), (TIMES, 3, f"{WORDS}  a.py:1")) == [
        ((BYTES, TIMES), f"{WORDS}  a.py:1")
    ]
    assert changed((BYTES, 3, f"{WORDS}  a.py:1"), (OUT, 3, f"{WORDS}, {OUT}  a.py:1")) == [
        ((BYTES, OUT), f"{WORDS}, moved out of a loop  a.py:1")
    ]
    assert changed((BYTES, 3, f"{WORDS}  a.py:1"), (ChangeKind.REDUCTION, 3, "~ maximum where add was  a.py:1")) == [
        ((BYTES, ChangeKind.REDUCTION), f"{WORDS}; ~ maximum where add was  a.py:1")
    ]


def test_changes_that_read_the_same_are_counted_and_others_stay_apart():
    alike = [(kind, 3, f"{WORDS}  a.py:1") for kind in (BYTES, TIMES)] * 3
    other = (BYTES, 2, f"{WORDS}  a.py:1"), (BYTES, 3, f"{WORDS}  %all-reduce.2")
    assert [text for _, text in changed(*alike, *other)] == [
        f"{WORDS}  a.py:1, +2 more",
        f"{WORDS}  a.py:1",
        f"{WORDS}  %all-reduce.2",
    ]


def test_a_tie_is_within_the_error_of_the_prediction():
    before, after = analysis_of(ONCE), analysis_of(ONCE.replace("1024", "1040"))
    assert is_step_tie(hloscope.diff(before, after)) is False  # of one rule, whose error is the same in both
    assert is_step_tie(hloscope.diff(before, before)) is False
    assert is_step_tie(hloscope.diff(before, analysis_of(BRANCH))) is False  # nobody knows what is only a bound
    found = hloscope.diff(before, after)
    assert is_step_tie(attach_sides(found, (None, after)))  # of a baseline, whose rules are not known
    far = hloscope.diff(before, analysis_of(ONCE.replace("1024", "10485760")))
    assert is_step_tie(attach_sides(far, (None, far.sides[1]))) is False
