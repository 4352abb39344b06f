"""Each spelling of a collective becomes one record with the right facts."""

from __future__ import annotations

import re

import pytest

from hloscope.model import MovedValue, make_shapes
from hloscope.model.vocabulary import Bound, Kind, Link

ROWS = "replica_groups={{0,1,2,3},{4,5,6,7}}, channel_id=1"
GLOBAL = f"{ROWS}, use_global_device_ids=true"


def only(analysis):
    assert len(analysis.collectives) == 1, [c.name for c in analysis.collectives]
    return analysis.collectives[0]


PLAIN = [
    (f"all-gather(%p), {GLOBAL}, dimensions={{0}}", "f32[64,4]", Kind.ALL_GATHER, 1024, 768),
    (f"all-reduce(%p), {GLOBAL}, to_apply=%sum", "f32[16,4]", Kind.ALL_REDUCE, 256, 384),
    (f"reduce-scatter(%p), {GLOBAL}, dimensions={{0}}, to_apply=%sum", "f32[4,4]", Kind.REDUCE_SCATTER, 256, 192),
    (f"all-to-all(%p), {ROWS}, dimensions={{0}}", "f32[16,4]", Kind.ALL_TO_ALL, 256, 192),
    (f"collective-broadcast(%p), {ROWS}", "f32[16,4]", Kind.COLLECTIVE_BROADCAST, 256, 256),
]


@pytest.mark.parametrize(("rhs", "shape", "kind", "payload", "wire"), PLAIN, ids=[row[2] for row in PLAIN])
def test_plain_forms(analyze, mesh, rhs, shape, kind, payload, wire):
    found = only(analyze(f"%p = f32[16,4] parameter(0)\nROOT %c = {shape} {rhs}", mesh=mesh))
    assert (found.kind, found.axes, found.group_size) == (kind, ("Y",), 4)
    assert (found.payload_bytes, found.wire_bytes) == (payload, wire)
    assert (found.operand_shapes, found.result_shapes) == (make_shapes("f32[16,4]"), make_shapes(shape))
    assert (found.executions, found.executions_bound, found.loops) == (1, Bound.EXACT, ())
    assert (found.name, found.computation, found.asynchronous, found.link) == ("c", "main", False, Link.ICI)


STARTS = [
    ("all-gather-start", "(f32[16,4], f32[64,4])", f"{GLOBAL}, dimensions={{0}}", "f32[64,4]", Kind.ALL_GATHER, 1024),
    ("all-reduce-start", "f32[16,4]", f"{GLOBAL}, to_apply=%sum", "f32[16,4]", Kind.ALL_REDUCE, 256),
    (
        "all-to-all-start",
        "((f32[16,4]), f32[16,4], s32[])",
        f"{ROWS}, dimensions={{0}}",
        "f32[16,4]",
        Kind.ALL_TO_ALL,
        256,
    ),
    (
        "reduce-scatter-start",
        "((f32[16,4]), f32[4,4])",
        f"{GLOBAL}, dimensions={{0}}, to_apply=%sum",
        "f32[4,4]",
        Kind.REDUCE_SCATTER,
        256,
    ),
]


@pytest.mark.parametrize(("opcode", "shape", "rest", "result", "kind", "payload"), STARTS, ids=[s[0] for s in STARTS])
def test_start_and_done_are_one(analyze, mesh, opcode, shape, rest, result, kind, payload):
    entry = f"""
    %p = f32[16,4] parameter(0)
    %start = {shape} {opcode}(%p), {rest}
    ROOT %done = {result} {opcode.replace("start", "done")}(%start)
    """
    found = only(analyze(entry, mesh=mesh))
    assert (found.kind, found.name, found.asynchronous) == (kind, "start", True)
    assert (found.operand_shapes, found.result_shapes) == (make_shapes("f32[16,4]"), make_shapes(result))
    assert (found.axes, found.payload_bytes) == (("Y",), payload)


def test_async_start_around_a_computation(analyze, mesh):
    computations = f"""
    %wrapped (q: f32[16,4]) -> f32[16,4] {{
      %q = f32[16,4] parameter(0)
      ROOT %inner = f32[16,4] all-to-all(%q), {ROWS}, dimensions={{0}}
    }}
    """
    entry = """
    %p = f32[16,4] parameter(0)
    %s = ((f32[16,4]), f32[16,4], s32[]) async-start(%p), calls=%wrapped
    %u = ((f32[16,4]), f32[16,4], s32[]) async-update(%s), calls=%wrapped
    ROOT %d = f32[16,4] async-done(%u), calls=%wrapped
    """
    found = only(analyze(entry, computations=computations, mesh=mesh))
    assert (found.kind, found.name, found.computation) == (Kind.ALL_TO_ALL, "s", "main")
    assert (found.asynchronous, found.payload_bytes, found.executions) == (True, 256, 1)


@pytest.mark.parametrize("late", [False, True])
def test_sparsecore_call_also_with_late_operands(analyze, mesh, late):
    computations = f"""
    %called_computation (q: f32[16,4]) -> f32[64,4] {{
      %q = f32[16,4] parameter(0)
      ROOT %inner = f32[64,4] all-gather(%q), {GLOBAL}, dimensions={{0}}
    }}, execution_thread="sparsecore"
    """
    tail = 'async_execution_thread="sparsecore", to_apply=%called_computation'
    early_entry = f"""
    %p = f32[16,4] parameter(0)
    %s = ((f32[16,4]), f32[64,4]) call-start(%p), {tail}
    ROOT %d = f32[64,4] call-done(%s)
    """
    late_entry = f"""
    %p = f32[16,4] parameter(0)
    %s = ((), (), (s32[1])) call-start(), {tail}
    %u = ((f32[16,4]), f32[64,4]) call-update(%s, %p)
    ROOT %d = f32[64,4] call-done(%u)
    """
    found = only(analyze(late_entry if late else early_entry, computations=computations, mesh=mesh))
    assert (found.kind, found.name, found.asynchronous) == (Kind.ALL_GATHER, "s", True)
    assert (found.payload_bytes, found.wire_bytes, found.axes) == (1024, 768, ("Y",))


def test_combined_operands_are_one_collective(analyze, mesh):
    entry = f"""
    %p = f32[16,4] parameter(0)
    %q = bf16[8] parameter(1)
    ROOT %c = (f32[16,4], bf16[8]) all-reduce(%p, %q), {GLOBAL}, to_apply=%sum
    """
    found = only(analyze(entry, mesh=mesh))
    assert found.operand_shapes == make_shapes("f32[16,4]", "bf16[8]")
    assert (found.payload_bytes, found.wire_bytes) == (272, 408)


def test_combined_all_gather_start(analyze, mesh):
    entry = f"""
    %p = f32[2] parameter(0)
    %q = bf16[2] parameter(1)
    %s = ((f32[2], bf16[2]), (f32[8], bf16[8])) all-gather-start(%p, %q), {GLOBAL}, dimensions={{0}}
    ROOT %d = (f32[8], bf16[8]) all-gather-done(%s)
    """
    found = only(analyze(entry, mesh=mesh))
    assert (found.result_shapes, found.payload_bytes, found.wire_bytes) == (make_shapes("f32[8]", "bf16[8]"), 48, 36)


def test_all_to_all_as_a_tuple(analyze, mesh):
    entry = f"""
    %p = f32[4] parameter(0)
    ROOT %c = (f32[4], f32[4], f32[4], f32[4]) all-to-all(%p, %p, %p, %p), {ROWS}
    """
    found = only(analyze(entry, mesh=mesh))
    assert (found.payload_bytes, found.wire_bytes) == (64, 48)


def test_reduce_scatter_spelled_as_a_fusion(analyze, mesh):
    computations = f"""
    %all-reduce-scatter.2 (a: f32[16,4]) -> f32[4,4] {{
      %a = f32[16,4] parameter(0)
      %inner = f32[16,4] all-reduce(%a), {GLOBAL}, to_apply=%sum
      %zero = s32[] constant(0)
      ROOT %slice = f32[4,4] dynamic-slice(%inner, %zero, %zero), dynamic_slice_sizes={{4,4}}
    }}
    """
    entry = """
    %p = f32[16,4] parameter(0)
    ROOT %fusion.1 = f32[4,4] fusion(%p), kind=kCustom, calls=%all-reduce-scatter.2,
      metadata={op_name="jit(f)/dot" source_file="m.py" source_line=7}
    """
    found = only(analyze(entry, computations=computations, mesh=mesh))
    assert (found.kind, found.name, found.axes) == (Kind.REDUCE_SCATTER, "fusion.1", ("Y",))
    assert (found.operand_shapes, found.result_shapes) == (make_shapes("f32[16,4]"), make_shapes("f32[4,4]"))
    assert (found.payload_bytes, found.wire_bytes) == (256, 192)
    assert (found.op_name, found.source[0].line, found.source_of) == ("jit(f)/dot", 7, None)


CHAIN = f"""
%fused_computation.1 (a: f32[16,4]) -> (f32[16,4], f32[64,4], s32[2]) {{
  %a = f32[16,4] parameter(0)
  %g1 = f32[64,4] all-gather(%a), {GLOBAL}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}
  ROOT %cc1 = (f32[16,4], f32[64,4], s32[2]) custom-call(%g1), custom_call_target="AsyncCollectiveStart"
}}

%async_collective_fusion.2 (b: f32[16,4]) -> f32[64,4] {{
  %b = f32[16,4] parameter(0)
  ROOT %g2 = f32[64,4] all-gather(%b), {GLOBAL}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}
}}

%fused_computation.3 (c: f32[16,4]) -> f32[64,4] {{
  %c = f32[16,4] parameter(0)
  %g3 = f32[64,4] all-gather(%c), {GLOBAL}, dimensions={{0}}, frontend_attributes={{chain_id="CHAIN"}}
  ROOT %cc3 = f32[64,4] custom-call(%g3), custom_call_target="AsyncCollectiveDone"
}}
"""
CHAIN_ENTRY = """
%p = f32[16,4] parameter(0)
%async-collective-start = (f32[16,4], f32[64,4], s32[2]) fusion(%p), kind=kCustom, calls=%fused_computation.1
%gte = f32[16,4] get-tuple-element(%async-collective-start), index=0
%step = f32[64,4] fusion(%gte), kind=kOutput, calls=%async_collective_fusion.2
ROOT %done = f32[64,4] fusion(%gte), kind=kCustom, calls=%fused_computation.3
"""


def test_async_collective_fusion_counts_its_start_only(analyze, mesh):
    analysis = analyze(CHAIN_ENTRY, computations=CHAIN.replace("CHAIN", "0"), mesh=mesh)
    found = only(analysis)
    assert (found.name, found.kind, found.asynchronous) == ("async-collective-start", Kind.ALL_GATHER, True)
    assert (found.payload_bytes, found.operand_shapes) == (1024, make_shapes("f32[16,4]"))
    assert (analysis.unmodelled, analysis.totals.bound) == ((), Bound.EXACT)


def test_a_chain_without_a_start_is_reported(says, analyze, mesh):
    analysis = analyze(CHAIN_ENTRY, computations=CHAIN.replace("CHAIN", "7"), mesh=mesh)
    [entry] = analysis.unmodelled
    assert re.findall(r"%\w+|\d+\b", entry.what) == ["%g3", "7"]
    says([entry.what, entry.effect])
    assert analysis.totals.bound is Bound.AT_LEAST


def test_permute_start_takes_the_operand_once(analyze, mesh):
    entry = """
    %p = f32[16,4] parameter(0)
    %s = (f32[16,4], f32[16,4], u32[], u32[]) collective-permute-start(%p), channel_id=3,
      source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}
    ROOT %d = f32[16,4] collective-permute-done(%s)
    """
    found = only(analyze(entry, mesh=mesh))
    assert (found.kind, found.axes, found.group_size) == (Kind.COLLECTIVE_PERMUTE, ("Y",), None)
    assert (found.payload_bytes, found.wire_bytes, found.result_shapes) == (256, 256, make_shapes("f32[16,4]"))
    assert found.groups[:2] == ((0, 1), (1, 2))


def test_permute_that_stays_at_home_moves_nothing(analyze, mesh):
    entry = (
        "%p = f32[4] parameter(0)\nROOT %c = f32[4] collective-permute(%p), channel_id=1, source_target_pairs={{0,0}}"
    )
    found = only(analyze(entry, mesh=mesh))
    assert (found.payload_bytes, found.wire_bytes, found.axes) == (16, 0, ())


def test_permute_of_slices_moves_the_slices(analyze):
    entry = """
    %a = f32[128,32] parameter(0)
    %b = f32[128,128] parameter(1)
    %i = s32[] constant(0)
    %t = (s32[], s32[]) tuple(%i, %i)
    ROOT %c = f32[128,128] collective-permute(%a, %b, %t, %t), channel_id=1,
      source_target_pairs={{0,1},{1,0}}, slice_sizes={{64,32}}
    """
    found = only(analyze(entry))
    assert (found.payload_bytes, found.operand_shapes) == (64 * 32 * 4, make_shapes("f32[128,32]"))


def test_groups_of_one_move_nothing(analyze, mesh):
    groups = "channel_id=1, use_global_device_ids=true, replica_groups=[8,1]<=[8]"
    entry = f"%p = f32[4] parameter(0)\nROOT %c = f32[4] all-reduce(%p), {groups}, to_apply=%sum"
    found = only(analyze(entry, mesh=mesh))
    assert (found.group_size, found.wire_bytes, found.axes) == (1, 0, ())


def test_ragged_all_to_all_is_at_most_its_operand(analyze, mesh):
    entry = f"""
    %p = bf16[64,8] parameter(0)
    %o = bf16[256,8] parameter(1)
    %n = s32[4] parameter(2)
    ROOT %c = bf16[256,8] ragged-all-to-all(%p, %o, %n, %n, %n, %n), {ROWS}
    """
    analysis = analyze(entry, mesh=mesh)
    found = only(analysis)
    assert (found.kind, found.operand_shapes) == (Kind.RAGGED_ALL_TO_ALL, make_shapes("bf16[64,8]"))
    assert (found.payload_bytes, found.wire_bytes, analysis.totals.bound) == (1024, 1024, Bound.AT_MOST)


def test_collective_in_a_call_inside_an_asynchronous_computation(analyze, mesh):
    computations = f"""
    %callee (b: f32[16,4]) -> f32[64,4] {{
      %b = f32[16,4] parameter(0)
      ROOT %g = f32[64,4] all-gather(%b), {ROWS}, dimensions={{0}}
    }}
    %wrapped (c: s32[], q: f32[16,4]) -> f32[64,4] {{
      %c = s32[] parameter(0)
      %q = f32[16,4] parameter(1)
      ROOT %call = f32[64,4] call(%q), to_apply=%callee
    }}
    """
    entry = """
    %z = s32[] parameter(0)
    %p = f32[16,4] parameter(1)
    %s = ((s32[], f32[16,4]), f32[64,4], s32[]) async-start(%z, %p), calls=%wrapped
    ROOT %d = f32[64,4] async-done(%s), calls=%wrapped
    """
    [found] = analyze(entry, computations=computations, mesh=mesh).collectives
    assert (found.kind, found.name, found.asynchronous) == (Kind.ALL_GATHER, "s", True)
    assert (found.payload_bytes, found.moved_values) == (1024, (MovedValue(computation="main", instruction="p"),))


def test_collective_inside_an_ordinary_fusion_and_a_call(analyze, mesh):
    computations = f"""
    %fused (a: f32[16,4]) -> f32[16,4] {{
      %a = f32[16,4] parameter(0)
      ROOT %inner = f32[16,4] all-reduce(%a), {GLOBAL}, to_apply=%sum
    }}
    %callee (b: f32[16,4]) -> f32[16,4] {{
      %b = f32[16,4] parameter(0)
      ROOT %f = f32[16,4] fusion(%b), kind=kLoop, calls=%fused
    }}
    """
    entry = """
    %p = f32[16,4] parameter(0)
    %one = f32[16,4] call(%p), to_apply=%callee
    ROOT %two = f32[16,4] call(%one), to_apply=%callee
    """
    found = only(analyze(entry, computations=computations, mesh=mesh))
    assert (found.name, found.computation, found.executions) == ("f", "callee", 2)


def test_unknown_element_type_is_unknown_bytes(analyze, mesh):
    entry = f"""
    %p = f32[?] parameter(0)
    ROOT %c = f32[?] all-reduce(%p), {GLOBAL}, to_apply=%sum
    """
    analysis = analyze(entry, mesh=mesh)
    assert (only(analysis).payload_bytes, only(analysis).wire_bytes) == (None, None)
    assert analysis.totals.bound is Bound.AT_LEAST


@pytest.mark.parametrize(
    ("config", "communicates"),
    [('{"custom_call_config":{"has_communication":true}}', True), ('{"custom_call_config":{"body":""}}', False)],
)
def test_pallas_kernels(says, analyze, mesh, config, communicates):
    entry = f"""
    %p = f32[4] parameter(0)
    ROOT %k = f32[4] custom-call(%p), custom_call_target="tpu_custom_call", backend_config={config}
    """
    analysis = analyze(entry, mesh=mesh)
    assert [c.kind for c in analysis.collectives] == ([Kind.OPAQUE] if communicates else [])
    if communicates:
        found = only(analysis)
        assert (found.axes, found.payload_bytes, found.wire_bytes, found.link) == (None, None, None, Link.ICI)
        [entry] = analysis.unmodelled
        assert re.findall(r"Pallas|%\w+", entry.what) == ["Pallas", "%k"]
        says([entry.what, entry.effect])
        assert analysis.totals.bound is Bound.AT_LEAST


@pytest.mark.parametrize("target", ["ncclAllReduce", "nvshmem_put", "mpi_allreduce_ffi", "xla.gpu.reduce_scatter"])
def test_custom_calls_whose_target_says_so(says, analyze, target):
    analysis = analyze(f'%p = f32[4] parameter(0)\nROOT %k = f32[4] custom-call(%p), custom_call_target="{target}"')
    assert only(analysis).kind is Kind.OPAQUE
    [entry] = analysis.unmodelled
    assert {target, "%k"} <= set(says(entry.what).split())


@pytest.mark.parametrize(
    "target", ["ConcatBitcast", "TopK", "__cublas$gemm", "PrepareAsyncCallStart", "AllocateBuffer"]
)
def test_custom_calls_that_do_not_communicate(analyze, target):
    analysis = analyze(f'%p = f32[4] parameter(0)\nROOT %k = f32[4] custom-call(%p), custom_call_target="{target}"')
    assert (analysis.collectives, analysis.unmodelled) == ((), ())


def test_unknown_opcode_that_looks_like_communication(says, analyze):
    analysis = analyze("%p = f32[4] parameter(0)\nROOT %c = f32[4] all-gather-ring(%p)")
    assert only(analysis).kind is Kind.OPAQUE
    whats = [entry.what for entry in analysis.unmodelled]
    assert [re.findall(r"all-gather-ring|%c", what) for what in whats] == [
        ["all-gather-ring", "%c"],
        ["all-gather-ring"],
    ]
    says(whats)


def test_unknown_opcode_makes_totals_a_lower_bound(says, analyze):
    analysis = analyze("%p = f32[4] parameter(0)\nROOT %c = f32[4] frobnicate(%p)")
    assert analysis.collectives == ()
    [entry] = analysis.unmodelled
    assert (entry.instruction, entry.computation) == ("c", "main")
    assert " frobnicate " in entry.what
    says([entry.what, entry.effect])
    assert analysis.totals.bound is Bound.AT_LEAST


def test_async_collective_start_of_something_else(analyze):
    entry = '%p = f32[4] parameter(0)\nROOT %k = f32[4] custom-call(%p), custom_call_target="AsyncCollectiveStart"'
    assert only(analyze(entry)).kind is Kind.OPAQUE


def test_a_collective_that_nothing_calls_is_reported(says, analyze):
    computations = f"""
    %lonely (a: f32[16,4]) -> f32[16,4] {{
      %a = f32[16,4] parameter(0)
      ROOT %c = f32[16,4] all-reduce(%a), {GLOBAL}, to_apply=%sum
    }}
    """
    analysis = analyze("ROOT %p = f32[4] parameter(0)", computations=computations)
    [entry] = analysis.unmodelled
    assert re.findall(r"%\w+|ENTRY", says(entry.what)) == ["%lonely", "%c", "ENTRY"]
    assert (analysis.collectives, analysis.totals.bound) == ((), Bound.AT_LEAST)
