"""A mesh for text that names none, and that nothing a user writes down rests on it."""

from __future__ import annotations

import pytest

from hloscope.analysis.groups import infer_mesh
from hloscope.analysis.totals import remove_guesses
from hloscope.app.analyzing import analyze_hlo
from hloscope.hlo import parse_module
from hloscope.judge.evaluate import evaluate
from hloscope.judge.notation import parse_contract

TEXT = """HloModule m, num_partitions={devices}{header}

add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}}

ENTRY main {{
  p = f32[16,128] parameter(0){sharding}
{body}
  ROOT r = f32[16,128] negate(p)
}}
"""
SUM = (
    "  sum.{n} = f32[16,128] all-reduce(p), channel_id={n}, replica_groups={groups}, use_global_device_ids=true, "
    "to_apply=add"
)
RING = "  c = f32[16,128] collective-permute(p), channel_id=9, source_target_pairs={{{pairs}}}"


def text(devices, *groups, sharding="", header="", pairs=""):
    body = [SUM.format(n=number, groups=found) for number, found in enumerate(groups, 1)]
    body += [RING.format(pairs=pairs)] if pairs else []
    sharding = f", sharding={sharding}" if sharding else ""
    return TEXT.format(devices=devices, header=header, sharding=sharding, body="\n".join(body))


RINGS_OF_4 = ",".join(f"{{{4 * row + at},{4 * row + (at + 1) % 4}}}" for row in range(2) for at in range(4))


@pytest.mark.parametrize(
    ("written", "sizes"),
    [
        (text(8, "[4,2]<=[8]"), (4, 2)),
        (text(8, "[2,4]<=[4,2]T(1,0)"), (4, 2)),
        (text(8, "{{0,1,2,3},{4,5,6,7}}"), (2, 4)),
        (text(8, "[1,8]<=[8]"), (8,)),
        (text(8, "[4,2]<=[8]", "[2,4]<=[8]"), (2, 2, 2)),
        (text(16, "[8,2]<=[16]", "[2,8]<=[8,2]T(1,0)"), (8, 2)),
        (text(8, "[4,2]<=[2,2,2]T(0,2,1)"), (2, 2, 2)),
        (text(8, sharding="{devices=[2,1,4]<=[8] last_tile_dim_replicate}"), (2, 4)),
        (text(8, "[1,8]<=[8]", sharding="{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"), (2, 4)),
        (text(8, pairs=RINGS_OF_4), (2, 4)),
        (text(8, "mesh['axis_0'=2,'axis_1'=4] {'axis_0'}"), (2, 4)),
        (text(6, "[3,2]<=[6]", "[2,3]<=[6]"), None),
        (text(8, "{{0,3},{1,2},{4,7},{5,6}}"), None),
        (text(8, "mesh['data'=2,'model'=4] {'data'}"), None),
        (text(8), None),
        (text(1, "{{0}}"), None),
    ],
)
def test_sizes_of_axes(written, sizes):
    found = infer_mesh(parse_module(written))
    assert (found and found.axis_sizes) == sizes
    if found is not None:
        assert found.made_up
        assert found.axis_names == tuple(f"axis_{number}" for number in range(len(sizes)))


def test_they_are_named_where_a_person_reads_them_and_nowhere_else():
    written = text(8, "[4,2]<=[8]")
    shown, alone = analyze_hlo(written, guesses=True), analyze_hlo(written)
    assert [collective.axes for collective in shown.collectives] == [("axis_1",)]
    assert any("--mesh X=4,Y=2" in note for note in shown.notes)
    assert alone.mesh is None
    assert [collective.axes for collective in alone.collectives] == [None]
    assert analyze_hlo(written, mesh={"X": 4, "Y": 2}, guesses=True).notes == ()


@pytest.mark.parametrize(
    "contract",
    ["all-reduce@axis_1 x1", "all-reduce@axis_1; nothing else", "no all-reduce@axis_0", "wire@axis_1 <= 1MB/step"],
)
def test_no_contract_is_met_by_names_that_are_made_up(contract):
    shown = analyze_hlo(text(8, "[4,2]<=[8]"), guesses=True)
    verdict = evaluate(parse_contract(contract), shown)
    assert not verdict.holds
    alone = evaluate(parse_contract(contract), analyze_hlo(text(8, "[4,2]<=[8]")))
    said = [(breach.kind, breach.message) for breach in verdict.breaches]
    assert said == [(breach.kind, breach.message) for breach in alone.breaches]


def test_without_the_names_it_is_as_before():
    written = text(8, "[4,2]<=[8]", "[1,8]<=[8]")
    assert remove_guesses(analyze_hlo(written, guesses=True)).totals == analyze_hlo(written).totals
