"""Text from before the SPMD partitioner must not pass for a program that moves nothing."""

from __future__ import annotations

import re

import pytest

from hloscope.analysis.groups import Placement
from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound

PARAMETER = 'f32[8,6] parameter(0), sharding={devices=[4,2]<=[8]}, metadata={op_name="a"}'
SDY = 'frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["X"=4, "Y"=2]>}}'
MESH = Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2))

CASES = {
    "as JAX lowers it": (SDY, "ROOT %t = f32[8,6] tanh(%a)", "header"),
    "no header": ("", "ROOT %t = f32[8,6] tanh(%a)", "%a "),
    "a dump before partitioning": (
        "num_partitions=8",
        "ROOT %t = f32[8,6] tanh(%a), sharding={devices=[4,2]<=[8]}",
        "%t ",
    ),
    "a constraint": (
        "num_partitions=8",
        'ROOT %t = f32[8,6] custom-call(%a), custom_call_target="Sharding", sharding={devices=[4,2]<=[8]}',
        "%t ",
    ),
    "a manual region": (
        "num_partitions=8",
        'ROOT %t = f32[2,3] custom-call(%a), custom_call_target="SPMDFullToShardShape", sharding={manual}',
        "%t ",
    ),
}


@pytest.mark.parametrize(("header", "rest", "evidence"), CASES.values(), ids=CASES.keys())
def test_it_is_reported_and_no_total_is_exact(says, analyze, header, rest, evidence):
    analysis = analyze(f"%a = {PARAMETER}\n{rest}", header=header, mesh=MESH)
    [entry] = analysis.unmodelled
    assert re.findall(r"partitioned|header|%\w ", entry.what) == ["partitioned", evidence]
    says([entry.what, entry.effect])
    assert analysis.totals.bound is Bound.AT_LEAST


def test_shapes_are_those_of_whole_arrays(analyze):
    [argument] = analyze(f"%a = {PARAMETER}\nROOT %t = f32[8,6] tanh(%a)", header=SDY).arguments
    assert (argument.global_shape, argument.local_shape, argument.bytes_per_device) == ((8, 6), (2, 3), 24)
    assert argument.sharding == "P('X', 'Y')"


@pytest.mark.parametrize(
    ("header", "rest"),
    [
        ("num_partitions=8", "ROOT %t = f32[8,6] tanh(%a)"),
        ("num_partitions=8, is_scheduled=true", "ROOT %t = f32[8,6] tanh(%a)"),
        ("num_partitions=8", "ROOT %t = (f32[8,6]) tuple(%a), sharding={{devices=[4,2]<=[8]}}"),
    ],
)
def test_partitioned_text_is_left_alone(analyze, header, rest):
    analysis = analyze(f"%a = {PARAMETER}\n{rest}", header=header)
    assert (analysis.unmodelled, analysis.totals.bound) == ((), Bound.EXACT)
    assert analysis.arguments[0].global_shape == (32, 12)


def test_one_device_may_keep_a_replicated_constraint(analyze):
    rest = 'ROOT %t = f32[4] custom-call(%p), custom_call_target="Sharding", sharding={replicated}'
    assert analyze(f"%p = f32[4] parameter(0)\n{rest}", header="").unmodelled == ()


ALONE = (
    'frontend_attributes={xla.sdy.meshes={maximal_mesh_0 = #sdy.mesh<[], device_ids=[0]>, mesh = #sdy.mesh<["X"=1]>}}'
)
ONE = Mesh(axis_names=("X",), axis_sizes=(1,))


@pytest.mark.parametrize("mesh", [ONE, None])
@pytest.mark.parametrize("sharding", ["{replicated}", "{mesh['X'=1], [{'X'}, {}]}", "{maximal device=0}"])
@pytest.mark.parametrize("header", [ALONE, ""])
def test_a_program_for_one_device_is_complete(analyze, header, sharding, mesh):
    entry = f"""
    %x = f32[8,6] parameter(0), sharding={sharding}
    %s = f32[8,6] collective-permute(%x), channel_id=1, source_target_pairs={{{{0,0}}}}
    ROOT %t = f32[8,6] tanh(%s), sharding={sharding}
    """
    analysis = analyze(entry, header=header, mesh=mesh)
    assert analysis.unmodelled == ()
    assert (analysis.totals.wire_bytes, analysis.totals.bound) == (0, Bound.EXACT)


def test_a_manual_region_on_one_device_is_complete(analyze):
    rest = 'ROOT %t = f32[4] custom-call(%p), custom_call_target="SPMDFullToShardShape", sharding={manual}'
    entry = f"%p = f32[4] parameter(0)\n{rest}"
    assert analyze(entry, header="", mesh=ONE).unmodelled == ()
    assert analyze(entry, header=ALONE).unmodelled == ()
    assert len(analyze(entry, header="").unmodelled) == 1
    assert len(analyze(entry, header="", mesh=MESH).unmodelled) == 1


@pytest.mark.parametrize("meshes", ['mesh = #sdy.mesh<["X"=1]>, other = #sdy.mesh<["X"=2]>', "mesh = #sdy.mesh<[X]!>"])
def test_meshes_of_more_devices_or_unread_ones_still_count(analyze, meshes):
    header = f"frontend_attributes={{xla.sdy.meshes={{{meshes}}}}}"
    analysis = analyze("ROOT %p = f32[4] parameter(0)", header=header, mesh=ONE)
    [entry] = analysis.unmodelled
    assert re.findall("partitioned|header", entry.what) == ["partitioned", "header"]


def test_one_device_of_each_slice_is_partitioned(analyze):
    entry = "ROOT %a = f32[4] parameter(0), sharding={devices=[2]<=[2]}"
    mesh = Mesh(axis_names=("data",), axis_sizes=(2,))
    for told in ({"devices_per_slice": 1}, {"placement": Placement((0, 1))}):
        assert analyze(entry, header="", mesh=mesh, **told).unmodelled == ()
    assert len(analyze(entry, header="", mesh=mesh).unmodelled) == 1


def test_a_program_for_one_device_says_nothing_about_a_mesh_of_several(says, analyze):
    analysis = analyze("ROOT %p = f32[4] parameter(0)", header="", mesh=MESH)
    [entry] = analysis.unmodelled
    axes = " ".join(f"{name}={size}" for name, size in zip(MESH.axis_names, MESH.axis_sizes, strict=True))
    assert f" {axes} " in entry.what
    assert str(MESH.device_count) in entry.what.split()
    says([entry.what, entry.effect])
    assert (analysis.totals.wire_bytes, analysis.totals.bound) == (0, Bound.AT_LEAST)
    assert analyze("ROOT %p = f32[4] parameter(0)", header="num_partitions=8", mesh=MESH).unmodelled == ()
    assert analyze("ROOT %p = f32[4] parameter(0)", header="").unmodelled == ()
