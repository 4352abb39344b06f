"""The largest arrays that a program makes on the way."""

from __future__ import annotations

import pytest

from hloscope.analysis import arrays
from hloscope.analysis.arrays import SHOWN

META = 'metadata={op_name="jit(f)/mul" source_file="m.py" source_line=7}'


def names(analysis):
    return [(one.name, one.computation, one.bytes_per_device) for one in analysis.intermediates]


def test_arrays_on_the_way_largest_first(analyze):
    entry = f"""
    %p = f32[1024] parameter(0)
    %a = f32[2,1024]{{1,0:T(8,128)S(1)}} broadcast(%p), dimensions={{1}}, {META}
    %b = f32[4,1024] broadcast(%p), dimensions={{1}}
    %n = f32[4,1024] negate(%b), metadata={{op_name="jit(f)/neg"}}
    ROOT %r = f32[4,1024] add(%n, %n)
    """
    first, second, third = analyze(entry).intermediates
    assert (first.name, first.line, first.dtype, first.local_shape) == ("a", 13, "f32", (2, 1024))
    assert (first.bytes_per_device, first.padded_bytes_per_device, first.memory_space) == (8192, 32768, 1)
    assert (first.op_name, first.source[0].line, first.source_of, first.loops) == ("jit(f)/mul", 7, None, ())
    assert (second.name, second.bytes_per_device, second.padded_bytes_per_device) == ("b", 16384, None)
    assert (second.op_name, second.source_of, second.memory_space, second.global_shape) == ("jit(f)/neg", "n", 0, None)
    assert third.name == "n"


SHARED = """
%update (u: f32[8,1024], v: f32[1,1024], i: s32[]) -> f32[8,1024] {
  %u = f32[8,1024] parameter(0)
  %v = f32[1,1024] parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %dus = f32[8,1024] dynamic-update-slice(%u, %v, %i, %z)
}
"""


@pytest.mark.parametrize(
    "line",
    [
        "%x = f32[1024,8] bitcast(%b)",
        "%x = (f32[8,1024], s32[]) tuple(%b, %z)",
        "%x = f32[8,1024] opt-barrier(%b)",
        "%x = f32[8,1024] dynamic-update-slice(%b, %v, %z, %z)",
        "%x = f32[8,1024] fusion(%b, %v, %z), kind=kLoop, calls=%update",
        "%x = f32[8,1024] fusion(%b, %v, %z), kind=kCustom, calls=%other, output_to_operand_aliasing={{}: (0, {})}",
    ],
)
def test_what_shares_memory_is_none(analyze, line):
    other = SHARED + SHARED.replace("%update", "%other").replace("dynamic-update-slice(%u, %v, %i, %z)", "negate(%u)")
    entry = f"""
    %p = f32[1024] parameter(0)
    %v = f32[1,1024] parameter(1)
    %z = s32[] constant(0)
    %b = f32[8,1024] broadcast(%p), dimensions={{1}}
    {line}
    ROOT %r = f32[] constant(0)
    """
    assert names(analyze(entry, computations=other)) == [("b", "main", 32768)]


def test_a_fusion_that_makes_a_new_array_is_one(analyze):
    computations = SHARED.replace("dynamic-update-slice(%u, %v, %i, %z)", "negate(%u)")
    entry = """
    %p = f32[8,1024] parameter(0)
    %v = f32[1,1024] parameter(1)
    %z = s32[] constant(0)
    %x = f32[8,1024] fusion(%p, %v, %z), kind=kLoop, calls=%update
    ROOT %r = f32[] constant(0)
    """
    assert names(analyze(entry, computations=computations)) == [("x", "main", 32768)]


def test_elements_of_a_result_are_told_apart(analyze):
    entry = """
    %p = f32[8,1024] parameter(0)
    %s = (f32[8,1024], f32[64,1024], u32[], u32[]) all-gather-start(%p), channel_id=1, dimensions={0},
      replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true
    %d = f32[64,1024] all-gather-done(%s)
    %c = (f32[8,1024], f32[8,1024], u32[]) copy-start(%p)
    %e = f32[8,1024] copy-done(%c)
    ROOT %r = f32[] constant(0)
    """
    assert names(analyze(entry)) == [("s[1]", "main", 262144), ("c[0]", "main", 32768)]


def test_outputs_are_none_also_through_loops(analyze):
    loops = """
    %body (b: (s32[], f32[8,1024], f32[16,1024])) -> (s32[], f32[8,1024], f32[16,1024]) {
      %b = (s32[], f32[8,1024], f32[16,1024]) parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[8,1024] get-tuple-element(%b), index=1
      %w = f32[16,1024] get-tuple-element(%b), index=2
      %one = s32[] constant(1)
      %next = s32[] add(%i, %one)
      %big = f32[32,1024] concatenate(%w, %w), dimensions={0}
      ROOT %out = (s32[], f32[8,1024], f32[16,1024]) tuple(%next, %v, %w)
    }
    %cond (c: (s32[], f32[8,1024], f32[16,1024])) -> pred[] {
      %c = (s32[], f32[8,1024], f32[16,1024]) parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %n = s32[] constant(3)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }
    """
    entry = """
    %p = f32[1024] parameter(0)
    %zero = s32[] constant(0)
    %a = f32[8,1024] broadcast(%p), dimensions={1}
    %k = f32[16,1024] broadcast(%p), dimensions={1}
    %init = (s32[], f32[8,1024], f32[16,1024]) tuple(%zero, %a, %k)
    %w = (s32[], f32[8,1024], f32[16,1024]) while(%init), condition=%cond, body=%body
    %x = f32[8,1024] get-tuple-element(%w), index=1
    ROOT %r = (f32[8,1024]) tuple(%x)
    """
    analysis = analyze(entry, computations=loops)
    assert names(analysis) == [("big", "body", 131072), ("k", "main", 65536)]
    assert [one.loops for one in analysis.intermediates] == [("w",), ()]


def test_only_the_largest_are_told(analyze):
    lines = [f"%b{n} = f32[{n},1024] broadcast(%p), dimensions={{1}}" for n in range(2, SHOWN + 9)]
    analysis = analyze("\n".join(["%p = f32[1024] parameter(0)", *lines, "ROOT %r = f32[] constant(0)"]))
    assert [one.name for one in analysis.intermediates] == [f"b{n}" for n in range(SHOWN + 8, 8, -1)]


def test_no_more_arrays_are_looked_at_than_are_told(analyze, monkeypatch):
    looked_at = []
    monkeypatch.setattr(arrays, "find_memory_owner", lambda _, value: looked_at.append(value.instruction.name))
    lines = [f"%b{n} = f32[8,1024] broadcast(%p), dimensions={{1}}" for n in range(50)]
    analysis = analyze("\n".join(["%p = f32[1024] parameter(0)", *lines, "ROOT %r = f32[] constant(0)"]))
    assert [one.name for one in analysis.intermediates] == looked_at[1:] == [f"b{n}" for n in range(SHOWN)]
    assert looked_at[0] == "r"  # the output


def test_what_is_a_thousand_times_smaller_is_not_told(analyze):
    entry = """
    %p = f32[1024] parameter(0)
    %b = f32[8,1024] broadcast(%p), dimensions={1}
    %s = f32[8] broadcast(%z), dimensions={}
    %t = f32[9] broadcast(%z), dimensions={}
    ROOT %r = f32[] constant(0)
    """.replace("%b =", "%z = f32[] constant(1)\n    %b =")
    assert [one.name for one in analyze(entry).intermediates] == ["b", "t", "s"]
    assert [one.name for one in analyze(entry.replace("[8,1024]", "[32,1024]")).intermediates] == ["b"]


def test_a_sharding_that_is_still_printed_tells_the_whole_array(analyze):
    entry = """
    %p = f32[1024] parameter(0)
    %r = (f32[8,1024], u32[], token[]) recv(%t), channel_id=1, is_host_transfer=true,
      sharding={{devices=[8,1]<=[8]}, {replicated}, {replicated}}
    ROOT %x = f32[] constant(0)
    """.replace("%r =", "%t = token[] after-all()\n    %r =")
    [one] = analyze(entry).intermediates
    assert (one.name, one.global_shape) == ("r[0]", (64, 1024))
