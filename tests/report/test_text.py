"""The text report against goldens; `pytest tests/report --update-goldens` rewrites them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_examples import DEEP, DOUBTFUL, FULL, GATHER, LONG, NOTHING, TWO_SLICES, parameters, total, totals

from hloscope.base.canvas import Canvas
from hloscope.model import Mesh, SourceFrame, make_shapes
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Bound, Kind, Link
from hloscope.report.formats import render

GOLDENS = Path(__file__).parent / "goldens"

CASES = {
    "nothing": (NOTHING, 100),
    "full": (FULL, 100),
    "narrow": (FULL, 60),
    "wide": (FULL, 160),
    "two_slices": (TWO_SLICES, 100),
    "two_slices_narrow": (TWO_SLICES, 60),
    "doubtful": (DOUBTFUL, 100),
    "deep": (DEEP, 100),
    "deep_narrow": (DEEP, 80),
    "long": (LONG, 100),
    "long_narrow": (LONG, 40),
}


def report(analysis, width=100, colour=False):
    return render("analysis", "text", analysis, Canvas(width=width, colour=colour))


def rows(text, start):
    """The lines that begin with a word, each with single blanks and without its number."""
    lines = (re.sub(r"^ *(\d+ )?", "", line) for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line.startswith(start)]


@pytest.mark.parametrize("name", CASES)
def test_golden(name, request):
    analysis, width = CASES[name]
    text = report(analysis, width)
    path = GOLDENS / f"{name}.txt"
    if request.config.getoption("--update-goldens"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(map(len, text.splitlines())) <= width


def test_every_golden_is_used():
    assert {path.stem for path in GOLDENS.iterdir()} - {"messages"} == set(CASES)  # which `says` holds itself


@pytest.mark.parametrize("name", CASES)
def test_colour_only_when_asked_for_and_it_changes_no_word(name):
    analysis, width = CASES[name]
    plain, coloured = report(analysis, width), report(analysis, width, colour=True)
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


def test_alike_collectives_share_a_row_and_their_bytes_are_summed():
    (row,) = rows(report(FULL, 160), "all-gather")
    assert row == "all-gather X bf16[4,4096,14336] 2 8 5.64 GB moe.py:14 in expert (of %fusion.16)"


def test_rows_that_read_the_same_are_one():
    unseen = replace(
        GATHER,
        name="all-gather.9",
        operand_shapes=make_shapes("bf16[1,1,4096,14336]"),
        groups=((0, 2, 4, 6), (1, 3, 5, 7)),
        source=(SourceFrame(file="/elsewhere/moe.py", line=14, column=7, function="expert"), *GATHER.source),
        source_of="fusion.17",
    )
    (row,) = rows(report(replace(FULL, collectives=(GATHER, unseen)), 160), "all-gather")
    assert row == "all-gather X bf16[4,4096,14336] 2 8 5.64 GB moe.py:14 in expert (of %fusion.16, +1 more)"


@pytest.mark.parametrize(
    "difference",
    [
        {"axes": ("Y",)},
        {"link": Link.DCN},
        {"executions": 9},
        {"executions_bound": Bound.AT_MOST},
        {"wire_bytes": 8},
        {"wire_bytes": None},
        {"result_shapes": make_shapes("bf16[8]")},
        {"source_of": None},
        {"source": ()},
    ],
)
def test_rows_that_read_differently_stay_apart(difference):
    both = (GATHER, replace(GATHER, name="all-gather.9", **difference))
    assert len(rows(report(replace(FULL, collectives=both), 160), "all-gather")) == 2


def test_collectives_without_a_source_name_their_instructions():
    bare = replace(GATHER, source=(), source_of=None)
    text = report(replace(FULL, collectives=(bare, replace(bare, name="all-gather.9", line=98))), 160)
    assert rows(text, "all-gather")[0].endswith("%all-gather.8, HLO line 97, +1 more")


def test_many_rows_are_cut_and_said_so():
    many = tuple(replace(GATHER, name=f"g{i}", result_shapes=make_shapes(f"bf16[{i}]")) for i in range(50))
    text = report(replace(FULL, collectives=many))
    assert "+10 smaller rows, 28.2 GB in total (all of them with --format json)" in text


def test_a_long_tuple_is_cut_and_counted():
    shapes = ("f32[16]", "f32[8,8]", "s32[4]")
    assert " f32[16], f32[8,8], +1 more " in report(
        replace(FULL, collectives=(replace(GATHER, result_shapes=make_shapes(*shapes)),))
    )


def test_links_are_told_only_where_something_leaves_ici():
    assert "ICI" not in report(DOUBTFUL)
    text = report(TWO_SLICES)
    assert "by link: DCN 2.82 GB (50%), ICI 2.82 GB (50%)" in text
    assert [row.split()[2] for row in rows(text, "all-reduce")] == ["ICI", "DCN"]


def test_part_of_an_axis_is_explained_once():
    words = "X:(p)s = the part of axis X of size s, with p devices of X before it (Shardy's notation)"
    assert report(TWO_SLICES, 120).count(words) == 1
    assert words not in report(FULL, 120)


@pytest.mark.parametrize(
    ("bound", "shown"),
    [
        (Bound.EXACT, ["24.6 kB", "13 transfers", "2 collectives"]),
        (Bound.AT_LEAST, ["at least", "24.6 kB", "≥13 transfers", "2 collectives"]),
        (Bound.AT_MOST, ["at most", "24.6 kB", "≤13 transfers", "2 collectives"]),
        (Bound.UNKNOWN, ["24.6 kB", "as counted", "13 transfers", "2 collectives", "lower", "upper"]),
    ],
)
def test_the_headline_tells_the_bound(says, bound, shown):
    headline = report(replace(DOUBTFUL, totals=totals(total(24_576, 2, 13, bound))), 160).splitlines()[1]
    marks = r"at least|at most|as counted|[\d.]+ kB|[≥≤]?\d+ transfers|\d+ collectives|lower|upper"
    assert re.findall(marks, says(headline)) == shown


def test_no_collective_in_text_that_was_not_understood_is_no_all_clear(says):
    text = report(replace(NOTHING, totals=totals(total(0, 0, 0, Bound.AT_LEAST))))
    assert re.findall("No collective|not everything|at least 0 B", says(text.splitlines()[1])) == [
        *("No collective", "not everything"),
        "at least 0 B",
    ]


def test_marks_are_explained_where_they_occur(says):
    (explained,) = [line for line in report(DOUBTFUL, 160).splitlines() if " means " in line]
    assert re.findall(r"([≥≤~]) means (\w+ \w+)", says(explained)) == [
        *(("≥", "at least"), ("≤", "at most")),
        ("~", "as counted"),
    ]
    assert "means" not in report(TWO_SLICES)


def test_one_is_singular():
    one = replace(
        FULL,
        slice=replace(FULL.slice, devices=1, used_devices=1),
        mesh=Mesh(axis_names=("X",), axis_sizes=(1,), axis_types=("auto",)),
        collectives=(replace(GATHER, executions=1, axes=None, groups=((0, 1),), group_size=2),),
        totals=totals(total(8, 1, 1), by_axis={"?": total(8, 1, 1)}),
        arguments=parameters(13),
    )
    text = report(one, 40) + report(one, 160)
    for words in ("(1 device)", "1 transfer from 1 collective.", "1 time ", "1 group of 2", "+1 more argument,"):
        assert words in text
    assert not re.search(r"\b1 (collective|device|transfer|time|group|place|argument|row)s", text)


def test_an_argument_that_is_dropped_shows_what_is_known():
    (row,) = rows(report(FULL, 160), "unread")
    assert row == "unread f32[64] unused: JAX drops it"


def test_the_largest_arrays_are_shown_in_the_programs_order():
    arrays = tuple(replace(one, bytes_per_device=1000 * index) for index, one in enumerate(parameters(40)))
    text = report(replace(NOTHING, arguments=arrays))
    assert rows(text, "params") == [row for row in rows(text, "params") if f"{row.split()[-2]} kB" in row]
    assert [int(re.search(r"\[(\d+)\]", row).group(1)) for row in rows(text, "params")] == list(range(28, 40))
    assert "  +28 smaller arguments, 378 kB in total (all of them with --format json)" in text


def test_arrays_of_unknown_size_come_first_and_make_a_lower_bound():
    arrays = tuple(replace(one, bytes_per_device=None if index < 13 else 8) for index, one in enumerate(parameters(15)))
    text = report(replace(NOTHING, outputs=(*arrays, replace(arrays[0], used=False))))
    assert len(rows(text, "params")) == 12
    assert "+4 more outputs (1 unused), at least 16 B in total (all of them with --format json)" in text


def test_what_holds_for_each_array_is_said_once():
    text = report(replace(NOTHING, outputs=parameters(2)))
    assert "Outputs (all: donated, compiler's choice)" in text
    assert text.count("donated") == 1


def test_an_argument_that_is_dropped_does_not_keep_the_others_from_being_described_once():
    dropped = replace(parameters(1)[0], used=False, donated=False)
    text = report(replace(NOTHING, arguments=(*parameters(2), dropped)))
    assert "Arguments (all: donated, compiler's choice)" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"axes": ()}, "    over no axis\n"),
        ({"axes": ("X", "Y")}, "    over X,Y\n"),
        ({"axes": None}, "    in 2 groups of 4\n"),
        ({"axes": None, "group_size": None}, "    in 2 pairs\n"),
        ({"axes": None, "groups": ()}, "    axes unknown\n"),
    ],
)
def test_a_narrow_terminal_tells_axes_in_words(change, words):
    assert words in report(replace(FULL, collectives=(replace(GATHER, **change),)), 40)


def test_axes_without_a_mesh(says):
    text = report(replace(FULL, mesh=None))
    assert rows(text, "unknown")[0] == "unknown ≥504 B <1% 2 ≥2"
    (axes,) = [line for line in text.splitlines() if line.startswith("  Axes are unknown")]
    assert "--mesh X=4,Y=2" in says(axes)


def test_long_notes_are_cut():
    sentences = f"[SPMD] {'The compiler cannot go from here. ' * 5}It {'tries ' * 50}"
    text = report(replace(NOTHING, notes=(sentences, "word " * 100, "x" * 300, "short\nand  plain")), 300)
    assert f"  • [SPMD] {'The compiler cannot go from here. ' * 5}…\n" in text
    assert f"  • {'word ' * 48}…\n" in text
    assert f"  • {'x' * 240} …\n" in text
    assert "  • short and plain\n" in text


def test_a_finding_names_its_places():
    finding = Finding(
        rule="a", severity=Severity.NOTE, message="one\nline", line=3, source="moe.py:14", fix="drop\n it"
    )
    text = report(replace(NOTHING, findings=(finding,)))
    assert "  note[a]: one line\n    --> moe.py:14, HLO line 3\n     = fix: drop it\n" in text


def test_findings_that_read_the_same_are_told_once_with_their_number():
    layers = [
        Finding(
            rule="a", severity=Severity.NOTE, message="moved", source="moe.py:14", instruction=f"x.{layer}", line=layer
        )
        for layer in range(1, 61)
    ]
    other = replace(layers[0], source="moe.py:15", instruction="x.61", line=61)
    text = report(replace(NOTHING, findings=(*layers[:30], other, *layers[30:])))
    assert (
        "  note[a]: moved\n    --> moe.py:14, %x.1, HLO line 1, and 60 more places like it\n     = also at: moe.py:15\n"
    ) in text
    assert text.count("note[a]") == 1


def test_a_finding_tells_why_and_what_it_costs_before_the_fix():
    finding = Finding(rule="a", severity=Severity.ERROR, message="moved", fix="shard it", cost="8 B", why="a loop")
    text = report(replace(NOTHING, findings=(finding,)))
    assert "  error[a]: moved\n     = why: a loop\n     = cost: 8 B\n     = fix: shard it\n" in text


def test_an_accepted_finding_is_one_line_with_the_reason():
    finding = Finding(rule="a", severity=Severity.ERROR, message="moved", fix="shard it", allowed="once per epoch")
    text = report(replace(NOTHING, findings=(finding,)))
    assert "  allowed[a]: moved (once per epoch)\n" in text
    assert "fix" not in text


def test_unknown_bytes_are_unknown_in_every_row():
    kernel = replace(GATHER, kind=Kind.OPAQUE, wire_bytes=None)
    (row,) = rows(report(replace(FULL, collectives=(kernel,)), 160), "opaque")
    assert row.split()[5] == "unknown"


def test_what_is_not_known_of_any_collective_is_said_once():
    unknown = "not known: HLO text keeps no shardings"
    one, other = (replace(GATHER, why=unknown, executions=trips) for trips in (8, 9))
    assert report(replace(FULL, collectives=(one, other)), 100).count(unknown) == 1
    told = report(replace(FULL, collectives=(one, replace(other, why="W is gathered"))), 100)
    assert (told.count(unknown), told.count("why: W is gathered")) == (1, 1)
