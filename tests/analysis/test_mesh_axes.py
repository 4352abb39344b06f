"""Groups of partition ids become the axes of the user's mesh."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.groups import find_axes_of_groups, find_axes_of_pairs
from hloscope.model import Mesh

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4).filter(lambda sizes: prod(sizes) <= 96)


def named(sizes, partition_ids=None) -> Mesh:
    return Mesh(axis_names=tuple("WXYZ"[: len(sizes)]), axis_sizes=tuple(sizes), partition_ids=partition_ids)


def groups_over(mesh: Mesh, axes: set[int]) -> list[list[int]]:
    """The groups over whole axes, straight from the definition."""
    ids = mesh.partition_ids or range(mesh.device_count)
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, coordinates in zip(ids, product(*map(range, mesh.axis_sizes)), strict=True):
        fixed = tuple(c for axis, c in enumerate(coordinates) if axis not in axes)
        groups.setdefault(fixed, []).append(device)
    return list(groups.values())


@st.composite
def meshes_with_axes(draw):
    sizes = draw(SIZES)
    ids = draw(st.one_of(st.none(), st.permutations(range(prod(sizes)))))
    mesh = named(sizes, None if ids is None else tuple(ids))
    axes = set(draw(st.lists(st.integers(0, len(sizes) - 1), unique=True)))
    groups = draw(st.permutations([draw(st.permutations(group)) for group in groups_over(mesh, axes)]))
    return mesh, axes, tuple(map(tuple, groups))


@given(meshes_with_axes())
def test_names_come_back(case):
    mesh, axes, groups = case
    expected = tuple(mesh.axis_names[axis] for axis in sorted(axes) if mesh.axis_sizes[axis] > 1)
    assert find_axes_of_groups(groups, mesh) == expected


@given(st.sampled_from([4, 6, 8, 12, 16]), st.data())
def test_sub_axes_come_back(size, data):
    before = data.draw(st.sampled_from([d for d in range(1, size) if size % d == 0]))
    part = data.draw(st.sampled_from([d for d in range(2, size) if (size // before) % d == 0] or [1]))
    after = size // (before * part)
    mesh = named([2, size])
    groups = [
        tuple(x * size + (a * part + m) * after + b for m in range(part))
        for x, a, b in product(range(2), range(before), range(after))
    ]
    expected = () if part == 1 else ("X",) if part == size else (f"X:({before}){part}",)
    assert find_axes_of_groups(tuple(groups), mesh) == expected


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (((0, 1, 4, 5), (2, 3, 6, 7)), ("W", "Y")),
        (((0, 1), (2, 3), (4, 5), (6, 7)), ("Y",)),
        (((7, 3), (1, 5), (0, 4), (2, 6)), ("W",)),
        (((0, 1, 2), (3, 4, 5), (6, 7)), None),
        (((0, 1), (2, 3)), None),
        (((0, 3), (1, 2), (4, 7), (5, 6)), None),
        (((0, 1, 2, 3, 4, 5, 6, 8),), None),
        ((), None),
    ],
)
def test_groups_on_a_cube(groups, axes):
    assert find_axes_of_groups(groups, named([2, 2, 2])) == axes


def test_two_digits_of_one_axis():
    groups = ((0, 1, 4, 5), (2, 3, 6, 7))
    assert find_axes_of_groups(groups, named([8])) == ("W:(1)2", "W:(4)2")


def test_groups_of_a_part_of_an_axis():
    mesh = Mesh(axis_names=("data", "model"), axis_sizes=(4, 4))
    groups = tuple((first, first + 8) for first in range(8))
    assert find_axes_of_groups(groups, mesh) == ("data:(1)2",)


@pytest.mark.parametrize(
    ("pairs", "axes"),
    [
        (tuple((i, (i + 1) % 8) for i in range(8)), ("X", "Y")),
        (tuple((i, i // 4 * 4 + (i + 1) % 4) for i in range(8)), ("Y",)),
        (tuple((i, (i + 4) % 8) for i in range(8)), ("X",)),
        (((0, 0), (1, 1), (2, 4), (3, 5), (4, 2), (5, 3), (6, 6), (7, 7)), ("X", "Y:(1)2")),
        (tuple((i, i ^ 1) for i in range(8)), ("Y:(2)2",)),
        (((0, 1),), ("Y",)),
        (((3, 3),), ()),
        (((0, 8),), None),
    ],
)
def test_permutes_change_axes(pairs, axes):
    assert find_axes_of_pairs(pairs, Mesh(axis_names=("X", "Y"), axis_sizes=(2, 4))) == axes


def test_an_authored_permute_names_whole_axes():
    pairs = tuple((i, i ^ 1) for i in range(8))
    assert find_axes_of_pairs(pairs, Mesh(axis_names=("X", "Y"), axis_sizes=(2, 4)), whole_axes=True) == ("Y",)


@given(SIZES, st.data())
def test_shifts_along_one_axis(sizes, data):
    mesh = named(sizes)
    axis = data.draw(st.integers(0, len(sizes) - 1))
    shift = data.draw(st.integers(1, 8))
    stride = prod(sizes[axis + 1 :])
    pairs = []
    for position in range(mesh.device_count):
        coordinate = position // stride % sizes[axis]
        pairs.append((position, position + ((coordinate + shift) % sizes[axis] - coordinate) * stride))
    moves = shift % sizes[axis] != 0
    assert find_axes_of_pairs(tuple(pairs), mesh, whole_axes=True) == ((mesh.axis_names[axis],) if moves else ())
