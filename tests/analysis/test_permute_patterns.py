"""Permutes as shifts along mesh axes: which axis, how far, which way, ring or not."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.groups import find_permute_pattern
from hloscope.model import Mesh
from hloscope.model.collectives import AxisShift, PermutePattern

LINE = Mesh(axis_names=("X",), axis_sizes=(8,))
GRID = Mesh(axis_names=("X", "Y"), axis_sizes=(2, 4))


def one(axes, size, distance, ring):
    return PermutePattern(shifts=(AxisShift(axes=axes, size=size, distance=distance, ring=ring),), ring=ring)


def shifted(size, distance):
    return tuple((source, (source + distance) % size) for source in range(size))


@pytest.mark.parametrize(
    ("pairs", "mesh", "expected"),
    [
        (shifted(8, 1), LINE, one(("X",), 8, 1, True)),
        (shifted(8, 7), LINE, one(("X",), 8, -1, True)),
        (shifted(8, 3), LINE, one(("X",), 8, 3, True)),
        (shifted(8, 4), LINE, one(("X",), 8, 4, True)),
        (shifted(8, 1)[:7], LINE, one(("X",), 8, 1, False)),
        (((1, 0), (2, 1)), LINE, one(("X",), 8, -1, False)),
        (((0, 1),), LINE, one(("X",), 8, 1, False)),
        (((0, 0), (1, 2), (3, 3)), LINE, one(("X",), 8, 1, False)),
        (((0, 4), (4, 0), (1, 5), (5, 1), (2, 6), (6, 2), (3, 7), (7, 3)), GRID, one(("X",), 2, 1, True)),
        (((0, 2), (2, 0), (1, 3), (3, 1), (4, 6), (6, 4), (5, 7), (7, 5)), GRID, one(("Y",), 4, 2, True)),
        (((0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4), (6, 7), (7, 6)), GRID, one(("Y:(2)2",), 2, 1, True)),
        (shifted(8, 1), GRID, one(("X", "Y"), 8, 1, True)),
        (shifted(8, 7), GRID, one(("X", "Y"), 8, -1, True)),
    ],
)
def test_uniform_shifts(pairs, mesh, expected):
    assert find_permute_pattern(pairs, mesh) == expected


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        ((0, 0), (1, 1)),
        tuple((source, 7 - source) for source in range(8)),
        ((0, 1), (0, 2)),
        ((0, 2), (1, 2)),
        ((0, 1), (2, 5)),
        ((0, 9),),
    ],
    ids=["nothing", "all stay", "reversal", "two targets", "two sources", "two distances", "no such device"],
)
def test_all_others_have_no_pattern(pairs):
    assert find_permute_pattern(pairs, LINE) is None


def test_a_ring_along_one_axis_and_a_line_along_the_other():
    pairs = tuple((4 * x + y, 4 * ((x + 1) % 2) + y + 1) for x, y in product(range(2), range(3)))
    assert find_permute_pattern(pairs, GRID) == PermutePattern(
        shifts=(
            AxisShift(axes=("X",), size=2, distance=1, ring=True),
            AxisShift(axes=("Y",), size=4, distance=1, ring=False),
        ),
        ring=False,
    )


@given(
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=3),
    data=st.data(),
)
def test_rings_come_back_from_any_mesh(sizes, data):
    count = 1
    for size in sizes:
        count *= size
    ids = tuple(data.draw(st.permutations(range(count))))
    distances = [data.draw(st.integers(0, size - 1)) for size in sizes]
    mesh = Mesh(axis_names=tuple("XYZ"[: len(sizes)]), axis_sizes=tuple(sizes), partition_ids=ids)
    places = list(product(*map(range, sizes)))
    id_at = dict(zip(places, ids, strict=True))
    pairs = tuple(
        (id_at[place], id_at[tuple((c + d) % n for c, d, n in zip(place, distances, sizes, strict=True))])
        for place in places
    )
    found = find_permute_pattern(pairs, mesh)
    if not any(distances):
        assert found is None
        return
    assert found is not None
    assert found.ring
    assert [(shift.axes, shift.size, shift.distance % shift.size) for shift in found.shifts] == [
        ((name,), size, distance)
        for name, size, distance in zip(mesh.axis_names, sizes, distances, strict=True)
        if distance
    ]
    assert all(-shift.size < 2 * shift.distance <= shift.size for shift in found.shifts)


def test_the_record_of_a_permute_says_how_it_shifts(analyze, mesh):
    pairs = "{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}"
    entry = f"""
    %p = f32[4] parameter(0)
    ROOT %c = f32[4] collective-permute(%p), channel_id=1, source_target_pairs={pairs}
    """
    assert analyze(entry, mesh=mesh).collectives[0].permute == one(("Y",), 4, 1, True)
    assert analyze(entry).collectives[0].permute is None
