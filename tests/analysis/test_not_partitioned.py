"""Text from before the SPMD partitioner must not pass for a program that moves nothing."""

from __future__ import annotations

import pytest

from hloscope.analysis.model import Mesh
from hloscope.analysis.vocabulary import Bound

PARAMETER = 'f32[8,6] parameter(0), sharding={devices=[4,2]<=[8]}, metadata={op_name="a"}'
SDY = 'frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["X"=4, "Y"=2]>}}'
MESH = Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2))

CASES = {
    "as JAX lowers it": (SDY, "ROOT %t = f32[8,6] tanh(%a)", "its header still names Shardy's meshes"),
    "no header": ("", "ROOT %t = f32[8,6] tanh(%a)", "it has one device, but %a is sharded over more"),
    "a dump before partitioning": (
        "num_partitions=8",
        "ROOT %t = f32[8,6] tanh(%a), sharding={devices=[4,2]<=[8]}",
        "%t still asks for a sharding",
    ),
    "a constraint": (
        "num_partitions=8",
        'ROOT %t = f32[8,6] custom-call(%a), custom_call_target="Sharding", sharding={devices=[4,2]<=[8]}',
        "%t still asks for a sharding",
    ),
    "a manual region": (
        "num_partitions=8",
        'ROOT %t = f32[2,3] custom-call(%a), custom_call_target="SPMDFullToShardShape", sharding={manual}',
        "%t still asks for a sharding",
    ),
}


@pytest.mark.parametrize(("header", "rest", "evidence"), CASES.values(), ids=CASES.keys())
def test_it_is_reported_and_no_total_is_exact(analyze, header, rest, evidence):
    analysis = analyze(f"%a = {PARAMETER}\n{rest}", header=header, mesh=MESH)
    [entry] = analysis.unmodelled
    assert entry.what == f"the program is not partitioned yet: {evidence}"
    assert entry.effect == "shapes are those of whole arrays, and the compiler has yet to put its collectives in"
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
