"""Programs over several slices: whose text is that of one slice, numbered within it, and names physical devices."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.groups import Numbering, Placement, find_numbering
from hloscope.base.canvas import Canvas
from hloscope.judge.evaluate import evaluate
from hloscope.judge.matching import match
from hloscope.judge.notation import parse_contract
from hloscope.judge.rule import Facts
from hloscope.judge.selection import apply_rules, make_selection
from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound, Kind, Link
from hloscope.report.formats import render

MINOR = Placement(
    (0, 1) * 8,
    tuple(s * 100_000 + d for d in (0, 1, 2, 3, 7, 6, 5, 4) for s in (1, 2)),
)
"""What libtpu has for data=8, model=2 on two slices of 2x4 with model across them."""

BOTH = Placement(
    (0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3),
    tuple(
        row * 200_000 + s + d for row in (0, 1) for pair in ((0, 1), (3, 2)) for s in (100_000, 200_000) for d in pair
    ),
)
"""What libtpu has for data=4, model=4 on four slices of 2x2 with two slices along each axis."""

EIGHT_BY_TWO = Mesh(axis_names=("data", "model"), axis_sizes=(8, 2))
FOUR_BY_FOUR = Mesh(axis_names=("data", "model"), axis_sizes=(4, 4))


def between_slices(kind: str, target: str, sent: str = "f32[128,512]", received: str = "f32[128,512]") -> str:
    """A send and its recv as libtpu prints them."""
    attributes = (
        "channel_id=2, is_host_transfer=true, frontend_attributes={"
        '_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="r",'
        f'_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"}}'
    )
    return f"""
    %t = token[] after-all()
    %send = ({sent}, u32[], token[]) send(%p, %t), {attributes}
    %recv = ({received}, u32[], token[]) recv(%t), {attributes}
    """


def entry(*lines: str) -> str:
    return "\n".join(("%p = f32[128,512] parameter(0)", *lines, "ROOT %r = f32[128,512] negate(%p)"))


def facts(analysis):
    return {(c.kind, c.link): (c.axes, c.wire_bytes) for c in analysis.collectives}


def run(analyze, mesh, placement, *lines):
    local = len(placement.partitions_by_slice()[0])
    return analyze(entry(*lines), header=f"num_partitions={local}", mesh=mesh, placement=placement)


@pytest.mark.parametrize(
    ("line", "kind", "axes"),
    [
        (
            "%c = f32[128,512] all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, "
            "use_global_device_ids=true, to_apply=%sum",
            Kind.ALL_REDUCE,
            ("data",),
        ),
        (
            "%c = f32[128,512] collective-permute(%p), channel_id=1, "
            "source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}",
            Kind.COLLECTIVE_PERMUTE,
            ("data",),
        ),
    ],
)
def test_slices_need_not_hold_consecutive_partitions(analyze, line, kind, axes):
    [found] = run(analyze, EIGHT_BY_TWO, MINOR, line).collectives
    assert (found.kind, found.axes, found.link) == (kind, axes, Link.ICI)
    assert found.groups[0][0] == 0


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("ALL_REDUCE", '"{1,2}x{0:7}"'),
        ("ALL_TO_ALL", "{" + ",".join(f"{{10000{d},20000{d}}}" for d in (0, 1, 2, 3, 7, 6, 5, 4)) + "}"),
        (
            "ONE_TO_ONE",
            "{" + ",".join(f"{{10000{d}->20000{d}}},{{20000{d}->10000{d}}}" for d in (0, 1, 2, 3, 7, 6, 5, 4)) + "}",
        ),
    ],
)
def test_the_minor_axis_across_slices(analyze, kind, target):
    analysis = run(analyze, EIGHT_BY_TWO, MINOR, between_slices(kind, target))
    [found] = analysis.collectives
    assert (found.axes, found.link, found.groups[0]) == (("model",), Link.DCN, (0, 1))
    assert analysis.totals.by_axis["model"].bound is Bound.EXACT
    assert analysis.totals.by_link["dcn"].bound is Bound.EXACT


GROUPS_OVER_DATA = (
    "{{100000,300000},{100003,300003},{100001,300001},{100002,300002},"
    "{200000,400000},{200003,400003},{200001,400001},{200002,400002}}"
)


def test_both_axes_across_slices(analyze):
    analysis = run(
        analyze,
        FOUR_BY_FOUR,
        BOTH,
        "%s = f32[64,512] reduce-scatter(%p), channel_id=1, replica_groups={{0,2},{1,3}}, "
        "use_global_device_ids=true, dimensions={0}, to_apply=%sum",
        between_slices("ALL_REDUCE", GROUPS_OVER_DATA, "f32[64,512]", "f32[64,512]"),
    )
    assert facts(analysis) == {
        (Kind.REDUCE_SCATTER, Link.ICI): (("data:(2)2",), 131072),
        (Kind.ALL_REDUCE, Link.DCN): (("data:(1)2",), 131072),
    }
    assert analysis.totals.bound is Bound.EXACT


RING = (
    between_slices(
        "ONE_TO_ONE",
        "{{100003->300000},{300003->100000},{100002->300001},{300002->100001},"
        "{200003->400000},{400003->200000},{200002->400001},{400002->200001}}",
    ),
    "%c = f32[128,512] collective-permute(%p), channel_id=1, source_target_pairs={{0,2},{1,3}}",
)


@pytest.mark.parametrize("placement", [BOTH, None])
def test_a_permute_over_slices_is_sent_over_one_of_its_two_links(analyze, placement):
    analysis = analyze(entry(*RING), header="num_partitions=4", mesh=FOUR_BY_FOUR, placement=placement)
    assert (analysis.totals.wire_bytes, analysis.totals.bound) == (2 * 262144, Bound.AT_MOST)
    assert analysis.totals.by_kind["collective-permute"].bound is Bound.AT_MOST
    assert {link: total.bound for link, total in analysis.totals.by_link.items()} == {
        "ici": Bound.EXACT,
        "dcn": Bound.EXACT,
    }


def test_both_halves_of_such_a_permute_run_over_one_axis(analyze):
    analysis = run(analyze, FOUR_BY_FOUR, BOTH, *RING)
    assert {found.axes for found in analysis.collectives} == {("data",)}
    assert analysis.totals.by_axis["data"].bound is Bound.AT_MOST


@pytest.mark.parametrize("placement", [BOTH, None])
def test_an_all_to_all_may_partly_stay_inside_a_slice(analyze, placement):
    target = (
        "{{100000,100003,300000,300003},{100001,100002,300001,300002},"
        "{200000,200003,400000,400003},{200001,200002,400001,400002}}"
    )
    lines = entry(between_slices("ALL_TO_ALL", target))
    analysis = analyze(lines, header="num_partitions=4", mesh=FOUR_BY_FOUR, placement=placement)
    [found] = analysis.collectives
    assert (found.axes, found.wire_bytes) == (("data",) if placement else None, 262144 * 3 // 4)
    assert (analysis.totals.bound, analysis.totals.by_link["dcn"].bound) == (Bound.EXACT, Bound.AT_MOST)


@pytest.mark.parametrize(
    ("target", "axes", "first"),
    [
        (GROUPS_OVER_DATA, ("data:(1)2",), (0, 8)),
        (GROUPS_OVER_DATA.replace("{100000,300000},", ""), None, (100003, 300003)),
        (GROUPS_OVER_DATA.replace("300000", "300009"), None, (100000, 300009)),
    ],
    ids=["alike", "a pair is missing", "a device is missing"],
)
def test_without_a_placement_slices_are_laid_out_alike(says, analyze, target, axes, first):
    analysis = analyze(entry(between_slices("ALL_REDUCE", target)), header="num_partitions=4", mesh=FOUR_BY_FOUR)
    [found] = analysis.collectives
    assert (found.axes, found.groups[0], found.link) == (axes, first, Link.DCN)
    assumed, *unplaced = analysis.notes
    assert re.findall(r"\d+ \w+", assumed) == ["4 consecutive"]
    assert [re.findall(r"%\w+", note) for note in unplaced] == ([["%send"]] if axes is None else [])
    says(analysis.notes)


def test_without_a_placement_the_report_says_what_is_assumed(says, analyze):
    lines = entry(between_slices("ALL_REDUCE", '"{1,2}x{0:7}"'))
    [note] = analyze(lines, mesh=EIGHT_BY_TWO).notes
    assert re.findall(r"\d+ \w+", says(note)) == ["8 consecutive"]
    assert analyze(lines, mesh=EIGHT_BY_TWO, placement=MINOR).notes == ()


def test_axes_that_are_guessed_say_so_wherever_they_are_shown(says, analyze):
    lines = entry(between_slices("ALL_REDUCE", '"{1,2}x{0:7}"'))
    guessed, known = analyze(lines, mesh=EIGHT_BY_TWO), analyze(lines, mesh=EIGHT_BY_TWO, placement=MINOR)
    [one], [other] = guessed.collectives, known.collectives
    text = render("analysis", "text", guessed, Canvas(width=140))
    rows = [line for line in text.splitlines() if "all-reduce" in line]
    assert rows
    assert all(f" {','.join(one.axes)}?" in line for line in rows)
    [legend] = [line for line in text.splitlines() if line.strip().startswith("? ")]
    assert "guessed" not in render("analysis", "text", known, Canvas(width=140))
    told = apply_rules(Facts(guessed), make_selection(rule_options={"unexpected-collective.active": True})).findings
    assert [one.message.partition(" at ")[0] for one in told] == [f"all-reduce over {','.join(one.axes)} (guessed)"]
    contract = parse_contract("none")
    [remark] = evaluate(contract, guessed).remarks
    [breach] = evaluate(contract, guessed).breaches
    assert "mesh axes guessed" in str(breach)
    assert ["mesh axes guessed" in found.message for found in evaluate(contract, guessed).findings] == [True]
    assert [tally.axes_guessed for tally in match(guessed.collectives, guessed.collectives).tallies] == [True]
    assert [tally.axes_guessed for tally in match(known.collectives, known.collectives).tallies] == [False]
    assert "guessed" in remark
    says([legend, remark])
    assert evaluate(contract, known).remarks == ()
    assert (one.axes_guessed, other.axes_guessed) == (True, False)


def test_text_that_counts_all_devices_is_taken_as_it_is(analyze):
    line = "%c = f32[128,512] all-reduce(%p), channel_id=1, use_global_device_ids=true, to_apply=%sum, replica_groups="
    for groups, link in (("[8,2]<=[16]", Link.DCN), ("[2,8]<=[8,2]T(1,0)", Link.ICI)):
        [found] = analyze(
            entry(line + groups), header="num_partitions=16", mesh=EIGHT_BY_TWO, placement=MINOR
        ).collectives
        assert found.link is link


@given(st.permutations([0, 0, 0, 1, 1, 1, 2, 2, 2]))
def test_every_partition_is_in_its_own_slice(slices):
    placement = Placement(tuple(slices))
    repeated = placement.over_all_slices(((0, 1, 2),))
    assert repeated == placement.partitions_by_slice()
    assert all(len({placement.slice_of(p) for p in group}) == 1 for group in repeated)
    assert sorted(p for group in repeated for p in group) == list(range(9))


def test_what_does_not_fit_is_not_known(says):
    assert Placement((0, 0, 1)).over_all_slices(((0, 1),)) is None
    assert Placement((0, 0, 1, 1)).over_all_slices(((0, 2),)) is None
    assert Placement((0, 1), (5, 6)).partitions_of(((5, 7),)) is None
    assert Placement((0, 1)).slice_of(2) is None
    with pytest.raises(ValueError, match=r"\b1 .*\b2 ") as caught:
        Placement((0, 1), (5,))
    says(caught)


@pytest.mark.parametrize(
    ("devices", "mesh", "told", "layout"),
    [
        (8, None, {}, Numbering()),
        (16, EIGHT_BY_TWO, {}, Numbering()),
        (8, EIGHT_BY_TWO, {}, Numbering(placement=Placement.in_blocks(16, 8), one_slice=True, guessed=True)),
        (8, EIGHT_BY_TWO, {"placement": MINOR}, Numbering(placement=MINOR, one_slice=True)),
        (16, EIGHT_BY_TWO, {"placement": MINOR}, Numbering(placement=MINOR)),
        (16, EIGHT_BY_TWO, {"devices_per_slice": 8}, Numbering(placement=Placement.in_blocks(16, 8))),
        (1, EIGHT_BY_TWO, {"placement": MINOR}, Numbering(placement=MINOR)),
        (1, EIGHT_BY_TWO, {}, Numbering()),
        (3, EIGHT_BY_TWO, {}, Numbering(placement=Placement.in_blocks(16, 3), one_slice=True, guessed=True)),
    ],
)
def test_layouts(devices, mesh, told, layout):
    assert find_numbering(devices, mesh, **told) == layout
