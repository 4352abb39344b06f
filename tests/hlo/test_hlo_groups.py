"""Replica groups, meshes and shardings, against numpy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hloscope.hlo.grammar import load_language

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def groups_of(text, devices=8):
    return load_language().read("replica_groups", text).groups(devices)


def sharding_of(text):
    return load_language().read("sharding", text)


def rows(array):
    return tuple(tuple(map(int, row)) for row in array)


@given(SIZES.flatmap(lambda sizes: st.tuples(st.just(sizes), st.permutations(range(len(sizes))))), st.data())
def test_iota_groups_are_numpy(case, data):
    sizes, permutation = case
    count = prod(sizes)
    group_size = data.draw(st.sampled_from([size for size in range(1, count + 1) if count % size == 0]))
    suffix = f"T({','.join(map(str, permutation))})" if len(sizes) > 1 else ""
    text = f"[{count // group_size},{group_size}]<=[{','.join(map(str, sizes))}]{suffix}"
    expected = np.arange(count).reshape(sizes).transpose(permutation).reshape(-1, group_size)
    assert groups_of(text) == rows(expected)


@given(st.permutations(range(8)), st.sampled_from([1, 2, 4, 8]))
def test_listed_groups(devices, size):
    groups = [devices[start : start + size] for start in range(0, 8, size)]
    text = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"
    assert groups_of(text) == tuple(map(tuple, groups))


@pytest.mark.parametrize("text", ["{}", "{{}}", "{ }"])
def test_no_groups_are_one_group_of_all(text):
    assert groups_of(text, 4) == ((0, 1, 2, 3),)


@given(SIZES, st.data())
def test_mesh_groups_are_numpy(sizes, data):
    names = [f"axis_{index}" for index in range(len(sizes))]
    order = data.draw(st.permutations(range(len(sizes))))
    chosen = list(order[: data.draw(st.integers(0, len(sizes)))])
    quote = data.draw(st.sampled_from(["'", '"', ""]))
    mesh = ",".join(f"{quote}{name}{quote}={size}" for name, size in zip(names, sizes, strict=True))
    axes = ",".join(f"{quote}{names[index]}{quote}" for index in chosen)
    rest = [index for index in range(len(sizes)) if index not in chosen]
    array = np.arange(prod(sizes)).reshape(sizes).transpose([*rest, *chosen])
    assert groups_of(f"mesh[{mesh}] {{{axes}}}") == rows(array.reshape(-1, prod(sizes[index] for index in chosen)))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_sub_axes_are_numpy(before, size, after):
    assume(size > 1)
    text = f"mesh['x'={before * size * after}] {{'x':({before}){size}}}"
    array = np.arange(before * size * after).reshape(before, size, after).transpose(0, 2, 1)
    assert groups_of(text) == rows(array.reshape(-1, size))


def test_mesh_with_devices_in_another_order():
    assert groups_of("mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}", 4) == ((3, 2), (1, 0))
    array = np.arange(8).reshape(2, 2, 2).transpose(0, 2, 1).reshape(4, 2).reshape(2, 2, 2)
    expected = rows(array.transpose(0, 2, 1).reshape(-1, 2))
    assert groups_of("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,2,2]T(0,2,1)) {'axis_0':(2)2}") == expected


def test_a_maximal_mesh_is_one_device():
    assert groups_of("maximal_mesh[device_id=1] {}") == ((1,),)


def test_mesh_axes_as_printed():
    groups = load_language().read("replica_groups", "mesh['axis_0'=4,'b'=2] {'axis_0':(1)2,'b'}")
    assert groups.mesh.axes == (("axis_0", 4), ("b", 2))
    assert groups.groups(8) == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_axes_named_by_their_index():
    assert groups_of("mesh['a'=2,'b'=4] {'1'}") == groups_of("mesh['a'=2,'b'=4] {'b'}")


@pytest.mark.parametrize(
    ("text", "kind", "tiles", "devices", "last"),
    [
        ("{replicated}", "replicated", (), (), ()),
        ("{manual}", "manual", (), (), ()),
        ("{unknown}", "unknown", (), (), ()),
        ("{unreduced}", "unreduced", (), (), ()),
        ("{maximal device=3}", "maximal", (), (3,), ()),
        ("{devices=[2,2]<=[4]}", "tiled", (2, 2), (0, 1, 2, 3), ()),
        ("{devices=[2,2]<=[2,2]T(1,0)}", "tiled", (2, 2), (0, 2, 1, 3), ()),
        ("{devices=[2,2]0,2,1,3}", "tiled", (2, 2), (0, 2, 1, 3), ()),
        (
            "{devices=[1,2,2]<=[4] last_tile_dims={manual, replicated}}",
            "tiled",
            (1, 2, 2),
            (0, 1, 2, 3),
            ("manual", "replicated"),
        ),
        ('{devices=[2]<=[2] shard_as 3 metadata={op_name="a}"}}', "tiled", (2,), (0, 1), ()),
        ("{maximal_mesh[device_id=3]}", "maximal", (), (3,), ()),
        ("{single_device[device_id=3]}", "maximal", (), (3,), ()),
        ("{{single_device[device_id=3]}, {replicated}}", "tuple", (), (), ()),
        ("{mesh['a'=2,'b'=2], [{'a','b'}, {}]}", "tiled", (4, 1), (0, 1, 2, 3), ()),
        ("{mesh['a'=2,'b'=2], [{'b'}, {'a'}]}", "tiled", (2, 2), (0, 2, 1, 3), ()),
        ("{mesh['a'=2,'b'=2] replicated}", "replicated", (), (), ()),
        ("{mesh['a'=2,'b'=2], [{}, {?}]}", "replicated", (), (), ()),
        ("{mesh['a'=2,'b'=2], manual}", "manual", (), (), ()),
        ("{mesh['a'=2,'b'=2], [{'a', ?}], unreduced={'b'}}", "tiled", (2, 2), (0, 1, 2, 3), ("unreduced",)),
        ("{mesh['a'=2,'b'=2], [{'a'}], unreduced=max{'b'}}", "tiled", (2, 2), (0, 1, 2, 3), ("unreduced",)),
        ("{mesh['a'=2], unreduced {'a'}}", "unreduced", (), (), ()),
        ("{mesh['a'=4], [{'a':(1)2}]}", "tiled", (2, 2), (0, 1, 2, 3), ()),
        ("{mesh['a'=4], [{'a':(2)2}], replicated={'a':(1)2}}", "tiled", (2, 2), (0, 2, 1, 3), ()),
    ],
)
def test_shardings(text, kind, tiles, devices, last):
    sharding = sharding_of(text)
    assert (sharding.kind, sharding.tile_dimensions, sharding.devices) == (kind, tiles, devices)
    assert sharding.last_tile_dims == last


def test_axes_that_are_not_named_replicate():
    sharding = sharding_of("{mesh['a'=2,'b'=4], [{'a'}, {}]}")
    assert (sharding.tile_dimensions, sharding.replicate_on_last_tile_dim) == ((2, 1, 4), True)
    assert sharding.last_tile_dims == ()
    assert sharding.devices == tuple(range(8))


def test_manual_and_replicated_axes_are_subgroups():
    sharding = sharding_of("{mesh['a'=2,'b'=2,'c'=2], [{'b'}], manual={'c'}}")
    assert sharding.tile_dimensions == (2, 2, 2)
    assert sharding.last_tile_dims == ("manual", "replicated")
    assert sharding.devices == (0, 4, 1, 5, 2, 6, 3, 7)


def test_tuple_shardings():
    sharding = sharding_of("{{replicated}, /*index=1*/{devices=[2]0,1}, {maximal device=0}}")
    assert [element.kind for element in sharding.elements] == ["replicated", "tiled", "maximal"]
    assert sharding.kind == "tuple"
    assert sharding_of("{}").kind == "tuple"
    assert sharding_of("{}").elements == ()


@given(SIZES.flatmap(lambda sizes: st.tuples(st.just(sizes), st.permutations(range(len(sizes))))))
def test_iota_shardings_are_numpy(case):
    sizes, permutation = case
    suffix = f"T({','.join(map(str, permutation))})" if len(sizes) > 1 else ""
    tiles = [sizes[index] for index in permutation]
    text = f"{{devices=[{','.join(map(str, tiles))}]<=[{','.join(map(str, sizes))}]{suffix}}}"
    sharding = sharding_of(text)
    assert sharding.tile_dimensions == tuple(tiles)
    assert sharding.devices == tuple(map(int, np.arange(prod(sizes)).reshape(sizes).transpose(permutation).reshape(-1)))
