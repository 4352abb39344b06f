"""The mesh as the text itself names it."""

from __future__ import annotations

import pytest

from hloscope.analysis.groups import read_mesh
from hloscope.hlo import parse_module
from hloscope.model import Mesh

SDY = 'frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["data"=4, "model"=2]>}}'
PERMUTED = 'frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2, "y"=2], device_ids=[3,1,2,0]>}}'

TRANSPOSED = "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}"


def module(header: str, body: str = "ROOT %p = f32[4] parameter(0)"):
    return parse_module(f"HloModule m, {header}\n\nENTRY %main (p: f32[4]) -> f32[4] {{\n  {body}\n}}\n")


def gather(groups: str) -> str:
    attributes = f"channel_id=1, replica_groups={groups}, dimensions={{0}}"
    return f"%p = f32[4] parameter(0)\n  ROOT %c = f32[8] all-gather(%p), {attributes}"


def mesh(ids=None, **axes) -> Mesh:
    return Mesh(axis_names=tuple(axes), axis_sizes=tuple(axes.values()), partition_ids=ids)


CASES = [
    (f"num_partitions=8, {SDY}", None, mesh(data=4, model=2)),
    (f"num_partitions=4, {PERMUTED}", None, mesh((3, 1, 2, 0), x=2, y=2)),
    (f"num_partitions=6, {SDY}", None, None),
    ("num_partitions=8", gather("mesh['a'=2,'b'=4] {'b'}"), mesh(a=2, b=4)),
    ("num_partitions=8", gather(TRANSPOSED), mesh((0, 2, 4, 6, 1, 3, 5, 7), a=2, b=4)),
    ("num_partitions=8", gather("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}"), None),
    ("num_partitions=8", gather("[4,2]<=[8]"), None),
    ("num_partitions=4", gather("mesh['a b'=2,'y'=2] {'a b'}"), mesh(**{"a b": 2, "y": 2})),
    ("num_partitions=4", gather("mesh['a,]b'=2,'y=3'=2] {'y=3'}"), mesh(**{"a,]b": 2, "y=3": 2})),
    ("num_partitions=4", gather('mesh["it\'s"=2,\'y\'=2] {"it\'s"}'), mesh(**{"it's": 2, "y": 2})),
    ("num_partitions=8", "ROOT %p = f32[4] parameter(0), sharding={mesh['my x'=8], [{'my x'}]}", mesh(**{"my x": 8})),
    ("num_partitions=8", "ROOT %p = f32[4] parameter(0), sharding={mesh['x'=8], [{'x'}]}", mesh(x=8)),
    ("num_partitions=8", "ROOT %p = f32[4] parameter(0), sharding={devices=[8]<=[8]}", None),
]  # fmt: skip


@pytest.mark.parametrize(("header", "body", "expected"), CASES)
def test_meshes(header, body, expected):
    assert read_mesh(module(header, body or "ROOT %p = f32[4] parameter(0)")) == expected


def test_axes_whose_names_need_quotes_keep_them(analyze):
    body = gather("mesh['a b'=2,'y'=4] {'a b'}")
    analysis = analyze(body)
    assert (analysis.mesh.axis_names, analysis.collectives[0].axes) == (("a b", "y"), ("a b",))


def test_it_names_axes_when_the_user_gives_no_mesh(analyze):
    body = gather("mesh['a'=2,'b'=4] {'b'}").replace("f32[8] all-gather", "f32[16] all-gather")
    analysis = analyze(body)
    assert (analysis.mesh, analysis.collectives[0].axes) == (mesh(a=2, b=4), ("b",))
