"""Sums over collectives and their bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hloscope.analysis.totals import Reach, compute_totals, sort_largest_first
from hloscope.model import Collective, make_shapes
from hloscope.model.vocabulary import Bound, Kind, Link

BASE = Collective(
    kind=Kind.ALL_REDUCE,
    name="c",
    computation="main",
    line=1,
    axes=("X",),
    groups=((0, 1),),
    group_size=2,
    link=Link.ICI,
    operand_shapes=make_shapes("f32[4]"),
    result_shapes=make_shapes("f32[4]"),
    payload_bytes=16,
    wire_bytes=16,
    executions=1,
    executions_bound=Bound.EXACT,
)
OPAQUE = replace(BASE, kind=Kind.OPAQUE, axes=None, payload_bytes=None, wire_bytes=None)


def test_sums_by_axis_kind_and_link():
    loop = replace(BASE, executions=8)
    gather = replace(BASE, kind=Kind.ALL_GATHER, axes=("X", "Y"), wire_bytes=100, payload_bytes=200, link=Link.DCN)
    totals = compute_totals((BASE, loop, gather))
    assert (totals.wire_bytes, totals.payload_bytes) == (9 * 16 + 100, 9 * 16 + 200)
    assert (totals.collectives, totals.executions, totals.bound) == (3, 10, Bound.EXACT)
    assert {axes: total.wire_bytes for axes, total in totals.by_axis.items()} == {"X": 144, "X,Y": 100}
    assert {kind: total.collectives for kind, total in totals.by_kind.items()} == {"all-reduce": 2, "all-gather": 1}
    assert {link: total.executions for link, total in totals.by_link.items()} == {"ici": 9, "dcn": 1}


def reach(*senders):
    return (Reach(senders=frozenset(senders)),)


@pytest.mark.parametrize(
    ("reaches", "bound"),
    [
        ([reach(0, 1), reach(1, 2)], Bound.EXACT),
        ([reach(0, 1), reach(2, 3)], Bound.AT_MOST),
        ([reach(0), (Reach(),)], Bound.EXACT),
        ([reach(~100_000), reach(0)], Bound.AT_MOST),
    ],
)
def test_a_sum_that_no_device_attains_is_an_upper_bound(reaches, bound):
    totals = compute_totals((BASE, replace(BASE, link=Link.DCN)), reaches)
    assert (totals.bound, totals.by_axis["X"].bound, totals.by_kind["all-reduce"].bound) == (bound, bound, bound)
    assert {total.bound for total in totals.by_link.values()} == {Bound.EXACT}


def test_who_sends_nothing_does_not_count():
    totals = compute_totals((BASE, replace(BASE, wire_bytes=0)), [reach(0), reach()])
    assert totals.bound is Bound.EXACT


def test_what_may_stay_inside_a_slice_is_an_upper_bound_for_the_link_between_them():
    crossing = replace(BASE, link=Link.DCN)
    totals = compute_totals((BASE, crossing), [(Reach(),), (Reach(within_slices=True),)])
    assert totals.bound is Bound.EXACT
    assert {link: total.bound for link, total in totals.by_link.items()} == {
        "ici": Bound.EXACT,
        "dcn": Bound.AT_MOST,
    }


def test_nothing_moves():
    totals = compute_totals(())
    assert (totals.wire_bytes, totals.collectives, totals.bound) == (0, 0, Bound.EXACT)
    assert (totals.by_axis, totals.by_kind, totals.by_link) == ({}, {}, {})


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((Bound.EXACT, Bound.EXACT), Bound.EXACT),
        ((Bound.EXACT, Bound.AT_MOST), Bound.AT_MOST),
        ((Bound.AT_LEAST, Bound.EXACT), Bound.AT_LEAST),
        ((Bound.AT_LEAST, Bound.AT_MOST), Bound.UNKNOWN),
        ((Bound.UNKNOWN, Bound.EXACT), Bound.UNKNOWN),
    ],
)
def test_bounds_of_sums(bounds, expected):
    assert compute_totals([replace(BASE, executions_bound=bound) for bound in bounds]).bound is expected


def test_unknown_bytes_are_a_lower_bound_for_every_axis():
    totals = compute_totals((BASE, OPAQUE))
    assert totals.bound is Bound.AT_LEAST
    assert {axes: total.bound for axes, total in totals.by_axis.items()} == {"X": Bound.AT_LEAST, "?": Bound.AT_LEAST}
    assert totals.by_kind["all-reduce"].bound is Bound.EXACT
    assert totals.by_kind["opaque"].bound is Bound.AT_LEAST


def test_unknown_bytes_over_a_known_axis_leave_the_others_exact():
    totals = compute_totals((BASE, replace(OPAQUE, axes=("Y",))))
    assert (totals.by_axis["X"].bound, totals.by_axis["Y"].bound) == (Bound.EXACT, Bound.AT_LEAST)


def test_hidden_transfers_make_everything_a_lower_bound():
    totals = compute_totals((BASE,), hidden=True)
    parts = [totals, *totals.by_axis.values(), *totals.by_kind.values(), *totals.by_link.values()]
    assert {part.bound for part in parts} == {Bound.AT_LEAST}


def test_unknown_bytes_come_before_the_largest():
    small, large = replace(BASE, name="small", line=2), replace(BASE, name="large", executions=9)
    opaque = replace(OPAQUE, name="opaque", line=9)
    assert [c.name for c in sort_largest_first((small, large, opaque))] == ["opaque", "large", "small"]
