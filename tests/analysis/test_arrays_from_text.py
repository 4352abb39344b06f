"""Arguments and outputs, and shardings in the user's axes."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.arrays import render_partition_spec
from hloscope.hlo import parse_module
from hloscope.model import Mesh

MESH = Mesh(axis_names=("X", "Y"), axis_sizes=(2, 4))


def sharding_of(text: str, rank: int = 2):
    shape = f"f32[{','.join(['8'] * rank)}]"
    module = parse_module(
        f"HloModule m, num_partitions=8\nENTRY %e {{\n ROOT %p = {shape} parameter(0), sharding={text}\n}}"
    )
    return module.entry.root.sharding


SPECS = [
    ("{replicated}", "P(None, None)"),
    ("{devices=[2,4]<=[8]}", "P('X', 'Y')"),
    ("{devices=[4,2]<=[2,4]T(1,0)}", "P('Y', 'X')"),
    ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "P('X', None)"),
    ("{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}", "P(None, 'Y')"),
    ("{devices=[8,1]<=[8]}", "P(('X', 'Y'), None)"),
    ("{devices=[8,1]<=[2,4]T(1,0)}", "P(('Y', 'X'), None)"),
    ("{devices=[2,2,2]<=[2,2,2]T(0,2,1) last_tile_dim_replicate}", "P('X', 'Y:(2)2')"),
    ("{devices=[2,2,2]<=[8] last_tile_dim_replicate}", "P('X', 'Y:(1)2')"),
    ("{devices=[8,1]0,2,1,3,4,6,5,7}", "P(('X', 'Y:(2)2', 'Y:(1)2'), None)"),
    ("{devices=[8,1]0,3,1,2,4,6,5,7}", None),
    ("{maximal device=0}", None),
    ("{manual}", None),
]


@pytest.mark.parametrize(("text", "spec"), SPECS)
def test_shardings_in_the_users_axes(text, spec):
    assert render_partition_spec(sharding_of(text), 2, MESH) == spec


def test_a_mesh_of_other_devices_does_not_fit():
    assert (
        render_partition_spec(sharding_of("{devices=[2,4]<=[8]}"), 2, Mesh(axis_names=("X",), axis_sizes=(4,))) is None
    )


@st.composite
def specs(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3))
    ids = draw(st.permutations(range(prod(sizes))))
    mesh = Mesh(axis_names=tuple("WXYZ"[: len(sizes)]), axis_sizes=tuple(sizes), partition_ids=tuple(ids))
    axes = [axis for axis in draw(st.permutations(range(len(sizes)))) if sizes[axis] > 1]
    used = axes[: draw(st.integers(0, len(axes)))]
    cut = draw(st.integers(0, len(used)))
    return mesh, (tuple(used[:cut]), tuple(used[cut:]))


@given(specs())
def test_specs_come_back(case):
    mesh, dimensions = case
    sharded = [axis for dimension in dimensions for axis in dimension]
    rest = [axis for axis in range(len(mesh.axis_sizes)) if axis not in sharded]
    order = [*sharded, *rest]
    device_of = dict(zip(product(*map(range, mesh.axis_sizes)), mesh.partition_ids, strict=True))
    devices = []
    for index in product(*(range(mesh.axis_sizes[axis]) for axis in order)):
        by_axis = dict(zip(order, index, strict=True))
        devices.append(device_of[tuple(by_axis[axis] for axis in range(len(order)))])
    tiles = [prod(mesh.axis_sizes[axis] for axis in dimension) for dimension in dimensions]
    copies = prod(mesh.axis_sizes[axis] for axis in rest)
    text = f"{{devices=[{tiles[0]},{tiles[1]},{copies}]{','.join(map(str, devices))} last_tile_dim_replicate}}"
    entries = []
    for dimension in dimensions:
        names = [repr(mesh.axis_names[axis]) for axis in dimension]
        entries.append("None" if not names else names[0] if len(names) == 1 else f"({', '.join(names)})")
    assert render_partition_spec(sharding_of(text), 2, mesh) == f"P({', '.join(entries)})"


def test_arguments(analyze):
    entry = """
    %w = bf16[2,1024] parameter(1), sharding={devices=[2,4]<=[8]}, metadata={op_name="params['w']"}
    %b = f32[8] parameter(0), sharding={replicated}, metadata={op_name="params['b']"}
    %n = s32[] parameter(2)
    %unused = f32[4] parameter(3)
    ROOT %t = (bf16[2,1024], f32[8], s32[]) tuple(%w, %b, %n)
    """
    header = "num_partitions=8, input_output_alias={ {0}: (1, {}, may-alias) }, buffer_donor={ (2, {}) }"
    analysis = analyze(entry, mesh=MESH, header=header)
    facts = [
        (a.name, a.dtype, a.global_shape, a.local_shape, a.sharding, a.bytes_per_device, a.donated, a.used)
        for a in analysis.arguments
    ]
    assert facts == [
        ("params['b']", "f32", (8,), (8,), "P(None)", 32, False, True),
        ("params['w']", "bf16", (4, 4096), (2, 1024), "P('X', 'Y')", 4096, True, True),
        ("n", "s32", None, (), None, 4, True, True),
        ("unused", "f32", None, (4,), None, 16, False, False),
    ]
    assert [(o.name, o.donated, o.local_shape) for o in analysis.outputs] == [
        ("result[0]", True, (2, 1024)),
        ("result[1]", False, (8,)),
        ("result[2]", False, ()),
    ]


def test_a_single_output_and_a_single_device(analyze):
    analysis = analyze('ROOT %p = f32[4,2] parameter(0), metadata={op_name="x"}', header="")
    assert [(o.name, o.global_shape, o.chosen_by) for o in analysis.outputs] == [("result", (4, 2), None)]
    assert analysis.arguments[0].global_shape == (4, 2)


def test_a_tuple_argument_is_shown_by_its_elements(analyze):
    entry = """
    %args = (f32[4], (s32[], f32[2,2])) parameter(0), sharding={{replicated}, {manual}, {devices=[2,4]<=[8]}}
    ROOT %x = f32[4] get-tuple-element(%args), index=0
    """
    header = "num_partitions=8, buffer_donor={ (0, {1, 1}) }"
    analysis = analyze(entry, mesh=MESH, header=header)
    assert [(a.name, a.sharding, a.global_shape, a.donated) for a in analysis.arguments] == [
        ("args[0]", "P(None)", (4,), False),
        ("args[1][0]", None, None, False),
        ("args[1][1]", "P('X', 'Y')", (4, 8), True),
    ]
