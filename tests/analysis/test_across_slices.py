"""One all-reduce across slices, printed as transfers within slices and between them, is one record with parts."""

from __future__ import annotations

import pytest

from hloscope.model import Mesh, make_shapes
from hloscope.model.vocabulary import Bound, Kind, Link, Origin

MESH = Mesh(axis_names=("dcn", "data", "model"), axis_sizes=(2, 2, 4))
WITHIN = "channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true"
OTHERS = "channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true"


def between(
    number: str,
    data: str,
    shape: str,
    *,
    target: str = "{1,2}x{0:7}",
    kind: str = "ALL_REDUCE",
    operation: str = "SUM",
) -> str:
    attributes = (
        "channel_id=2, is_host_transfer=true, frontend_attributes={"
        '_xla_host_transfer_handler_name="xla_megascale_runtime",'
        f'_xla_host_transfer_rendezvous="{number}",_xla_megascale_target="{target}",'
        f'_xla_megascale_reduce_operation="{operation}",_xla_megascale_transfer_type="{kind}"}}'
    )
    return f"""
    %t{number} = token[] after-all()
    %send{number} = ({shape}, u32[], token[]) send({data}, %t{number}), {attributes}
    %recv{number} = ({shape}, u32[], token[]) recv(%t{number}), {attributes}
    %send-done{number} = token[] send-done(%send{number}), channel_id=2, is_host_transfer=true
    %recv-done{number} = ({shape}, token[]) recv-done(%recv{number}), channel_id=2, is_host_transfer=true
    %got{number} = {shape} get-tuple-element(%recv-done{number}), index=0
    """


def hierarchical(
    *,
    scatter: str = WITHIN,
    gather: str = WITHIN,
    gathered: str = "f32[64]",
    more: str = "",
    target: str = "{1,2}x{0:7}",
    kind: str = "ALL_REDUCE",
    operation: str = "SUM",
) -> str:
    return f"""
    %p = f32[64] parameter(0)
    %rs = f32[32] reduce-scatter(%p), {scatter}, dimensions={{0}}, to_apply=%sum
    %b = f32[4,8] bitcast(%rs)
    {between("", "%b", "f32[4,8]", target=target, kind=kind, operation=operation)}
    %c = f32[32] bitcast(%got)
    {more}
    ROOT %ag = {gathered} all-gather(%c), {gather}, dimensions={{0}}, metadata={{op_name="jit(f)/shard_map/psum"}}
    """


def rows(parts):
    return [(p.kind, p.name, p.axes, p.link, p.payload_bytes, p.wire_bytes, p.executions) for p in parts]


def test_scatter_exchange_and_gather_are_one_all_reduce(analyze):
    analysis = analyze(hierarchical(), mesh=MESH)
    [found] = analysis.collectives
    assert (found.kind, found.name, found.link, found.axes) == (Kind.ALL_REDUCE, "rs", Link.BOTH, ("dcn", "data"))
    assert (found.payload_bytes, found.wire_bytes, found.group_size) == (256, 384, 4)
    assert (found.operand_shapes, found.result_shapes) == (make_shapes("f32[64]"), make_shapes("f32[64]"))
    assert (found.asynchronous, found.origin, found.groups[1]) == (True, Origin.AUTHORED, (1, 5, 9, 13))
    assert rows(found.parts) == [
        (Kind.REDUCE_SCATTER, "rs", ("data",), Link.ICI, 256, 128, 1),
        (Kind.ALL_REDUCE, "send", ("dcn",), Link.DCN, 128, 128, 1),
        (Kind.ALL_GATHER, "ag", ("data",), Link.ICI, 256, 128, 1),
    ]
    by_link = {
        link: (total.wire_bytes, total.collectives, total.bound) for link, total in analysis.totals.by_link.items()
    }
    assert by_link == {"ici": (256, 2, Bound.EXACT), "dcn": (128, 1, Bound.EXACT)}
    assert {axes: total.wire_bytes for axes, total in analysis.totals.by_axis.items()} == {"dcn,data": 384}
    assert (analysis.totals.wire_bytes, analysis.totals.collectives) == (384, 1)


def test_its_bytes_are_those_of_the_flat_ring(analyze):
    flat = "%p = f32[64] parameter(0)\nROOT %c = f32[64] all-reduce(%p), channel_id=1, use_global_device_ids=true, "
    flat += "replica_groups={{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}, to_apply=%sum"
    [one] = analyze(flat, header="num_partitions=16", mesh=MESH).collectives
    [other] = analyze(hierarchical(), mesh=MESH).collectives
    assert (one.wire_bytes, one.axes, one.group_size) == (other.wire_bytes, other.axes, other.group_size)


def test_without_a_mesh_slices_are_taken_one_after_the_other(analyze):
    [found] = analyze(hierarchical()).collectives
    assert (found.axes, found.groups[0], len(found.parts)) == (None, (0, 4, 8, 12), 3)


DEVICE = """
    %id = u32[] partition-id()
    %table = s32[8] constant({0, 0, 0, 0, 32, 32, 32, 32})
    %row = s32[1] dynamic-slice(%table, %id), dynamic_slice_sizes={1}
    %offset = s32[] reshape(%row)
"""


def test_an_all_reduce_of_which_each_device_keeps_its_shard(analyze):
    entry = f"""
    %p = f32[64] parameter(0)
    {DEVICE}
    %first = f32[64] all-reduce(%p), {WITHIN}, to_apply=%sum
    %b = f32[32] fusion(%first, %offset), kind=kLoop, calls=%shard
    {between("", "%b", "f32[32]")}
    ROOT %ag = f32[64] all-gather(%got), {WITHIN}, dimensions={{0}}
    """
    shard = """
    %shard (v: f32[64], o: s32[]) -> f32[32] {
      %v = f32[64] parameter(0)
      %o = s32[] parameter(1)
      ROOT %ds = f32[32] dynamic-slice(%v, %o), dynamic_slice_sizes={32}
    }
    """
    [found] = analyze(entry, computations=shard, mesh=MESH).collectives
    assert [part.kind for part in found.parts] == [Kind.ALL_REDUCE, Kind.ALL_REDUCE, Kind.ALL_GATHER]
    assert (found.link, found.wire_bytes, found.payload_bytes) == (Link.BOTH, 256 + 128 + 128, 256)


def test_a_small_one_is_two_all_reduces(analyze):
    entry = f"""
    %p = f32[64] parameter(0)
    %first = f32[64] all-reduce(%p), {WITHIN}, to_apply=%sum
    {between("", "%first", "f32[64]")}
    ROOT %r = f32[64] copy(%got)
    """
    [found] = analyze(entry, mesh=MESH).collectives
    assert (found.axes, found.link, found.wire_bytes) == (("dcn", "data"), Link.BOTH, 512)
    assert [(part.kind, part.link) for part in found.parts] == [
        (Kind.ALL_REDUCE, Link.ICI),
        (Kind.ALL_REDUCE, Link.DCN),
    ]


def test_several_operands_in_one_scatter_and_one_gather(analyze):
    entry = f"""
    %p = f32[64] parameter(0)
    %q = f32[32] parameter(1)
    %rs = (f32[32], f32[16]) reduce-scatter(%p, %q), {WITHIN}, dimensions={{0}}, to_apply=%sum
    %x = f32[32] get-tuple-element(%rs), index=0
    %y = f32[16] get-tuple-element(%rs), index=1
    {between("1", "%x", "f32[32]")}
    {between("2", "%y", "f32[16]")}
    ROOT %ag = (f32[64], f32[32]) all-gather(%got1, %got2), {WITHIN}, dimensions={{0}}
    """
    [found] = analyze(entry, mesh=MESH).collectives
    assert [part.name for part in found.parts] == ["rs", "send1", "send2", "ag"]
    assert (found.payload_bytes, found.wire_bytes) == (384, 192 + 192 + 192)


@pytest.mark.parametrize(
    "entry",
    [
        hierarchical(gather=OTHERS, gathered="f32[128]"),
        hierarchical(gathered="f32[65]"),
        hierarchical(kind="ALL_GATHER"),
        hierarchical(operation="MAX"),
        hierarchical(gather=WITHIN.replace("{0,4}", "{4,0}")),
        hierarchical(kind="GOSSIP"),
        hierarchical(target="{1,2}x{0:3}"),
        hierarchical(more="%d = f32[32] negate(%c)"),
        hierarchical(more="%d = f32[32] negate(%rs)"),
    ],
    ids=[
        "other groups",
        "other bytes",
        "a gather",
        "another operation",
        "another order",
        "an unknown type",
        "half the devices",
        "used after",
        "used before",
    ],
)  # fmt: skip
def test_what_does_not_fit_together_stays_apart(analyze, entry):
    analysis = analyze(entry, mesh=MESH)
    assert len(analysis.collectives) == 3
    assert all(found.parts == () and found.link is not Link.BOTH for found in analysis.collectives)


def test_parts_in_different_iterations_stay_apart(analyze):
    loops = f"""
    %body (b: (s32[], f32[64], f32[32])) -> (s32[], f32[64], f32[32]) {{
      %b = (s32[], f32[64], f32[32]) parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[64] get-tuple-element(%b), index=1
      %last = f32[32] get-tuple-element(%b), index=2
      %one = s32[] constant(1)
      %next = s32[] add(%i, %one)
      %rs = f32[32] reduce-scatter(%v), {WITHIN}, dimensions={{0}}, to_apply=%sum
      {between("", "%last", "f32[32]")}
      %ag = f32[64] all-gather(%got), {WITHIN}, dimensions={{0}}
      ROOT %out = (s32[], f32[64], f32[32]) tuple(%next, %ag, %rs)
    }}
    %cond (c: (s32[], f32[64], f32[32])) -> pred[] {{
      %c = (s32[], f32[64], f32[32]) parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %n = s32[] constant(5)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }}
    """
    entry = """
    %p = f32[64] parameter(0)
    %q = f32[32] parameter(1)
    %zero = s32[] constant(0)
    %init = (s32[], f32[64], f32[32]) tuple(%zero, %p, %q)
    ROOT %w = (s32[], f32[64], f32[32]) while(%init), condition=%cond, body=%body
    """
    analysis = analyze(entry, computations=loops, mesh=MESH)
    assert [(found.executions, found.parts) for found in analysis.collectives] == [(5, ())] * 3


def pipelined(*, inside: str = WITHIN, outside: str = WITHIN, leaves: str = "%shard") -> tuple[str, str]:
    """A loop of 5 trips in which each shard travels during the next trip, and what stands around it."""
    state = "(s32[], f32[64], f32[4,8])"
    loops = f"""
    %body (b: {state}) -> {state} {{
      %b = {state} parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[64] get-tuple-element(%b), index=1
      %last = f32[4,8] get-tuple-element(%b), index=2
      %one = s32[] constant(1)
      %next = s32[] add(%i, %one)
      {between("1", "%last", "f32[4,8]")}
      %flat = f32[32] bitcast(%got1)
      %ag = f32[64] all-gather(%flat), {WITHIN}, dimensions={{0}}
      %rs = f32[32] reduce-scatter(%v), {inside}, dimensions={{0}}, to_apply=%sum
      %shard = f32[4,8] bitcast(%rs)
      ROOT %out = {state} tuple(%next, %ag, {leaves})
    }}
    %cond (c: {state}) -> pred[] {{
      %c = {state} parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %n = s32[] constant(5)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }}
    """
    entry = f"""
    %p = f32[64] parameter(0)
    %zero = s32[] constant(0)
    %first = f32[32] reduce-scatter(%p), {outside}, dimensions={{0}}, to_apply=%sum
    %shard = f32[4,8] bitcast(%first)
    %init = {state} tuple(%zero, %p, %shard)
    %w = {state} while(%init), condition=%cond, body=%body
    %rest = f32[4,8] get-tuple-element(%w), index=2
    {between("2", "%rest", "f32[4,8]")}
    %flat = f32[1,32] bitcast(%got2)
    ROOT %end = f32[1,64] all-gather(%flat), {WITHIN}, dimensions={{1}}
    """
    return entry, loops


def test_shards_that_travel_during_the_next_iteration(analyze):
    entry, loops = pipelined()
    analysis = analyze(entry, computations=loops, mesh=MESH)
    found = {one.name: one for one in analysis.collectives}
    assert [part.name for part in found["rs"].parts] == ["rs", "send1", "ag"]
    assert [part.name for part in found["first"].parts] == ["first", "send2", "end"]
    assert {name: (one.kind, one.axes, one.executions, one.wire_bytes) for name, one in found.items()} == {
        "rs": (Kind.ALL_REDUCE, ("dcn", "data"), 5, 384),
        "first": (Kind.ALL_REDUCE, ("dcn", "data"), 1, 384),
    }
    assert {link: total.wire_bytes for link, total in analysis.totals.by_link.items()} == {"ici": 1536, "dcn": 768}


@pytest.mark.parametrize(
    ("entry", "loops"),
    [pipelined(outside=OTHERS), pipelined(inside=WITHIN.replace("{0,4}", "{4,0}")), pipelined(leaves="%last")],
    ids=["other groups before the loop", "another order inside it", "none leaves an iteration"],
)
def test_shards_that_travel_in_a_loop_but_not_as_those_around_it_stay_apart(analyze, entry, loops):
    analysis = analyze(entry, computations=loops, mesh=MESH)
    assert len(analysis.collectives) == 6
    assert all(found.parts == () for found in analysis.collectives)


def test_in_a_loop_every_part_runs_in_every_trip(analyze):
    loops = f"""
    %body (b: (s32[], f32[64])) -> (s32[], f32[64]) {{
      %b = (s32[], f32[64]) parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[64] get-tuple-element(%b), index=1
      %one = s32[] constant(1)
      %next = s32[] add(%i, %one)
      %rs = f32[32] reduce-scatter(%v), {WITHIN}, dimensions={{0}}, to_apply=%sum
      {between("", "%rs", "f32[32]")}
      %ag = f32[64] all-gather(%got), {WITHIN}, dimensions={{0}}
      ROOT %out = (s32[], f32[64]) tuple(%next, %ag)
    }}
    %cond (c: (s32[], f32[64])) -> pred[] {{
      %c = (s32[], f32[64]) parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %n = s32[] constant(5)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }}
    """
    entry = """
    %p = f32[64] parameter(0)
    %zero = s32[] constant(0)
    %init = (s32[], f32[64]) tuple(%zero, %p)
    ROOT %w = (s32[], f32[64]) while(%init), condition=%cond, body=%body
    """
    analysis = analyze(entry, computations=loops, mesh=MESH)
    [found] = analysis.collectives
    assert (found.executions, found.wire_bytes_per_step, found.loops) == (5, 5 * 384, ("w",))
    assert [part.executions for part in found.parts] == [5, 5, 5]
    assert {link: total.wire_bytes for link, total in analysis.totals.by_link.items()} == {"ici": 1280, "dcn": 640}
