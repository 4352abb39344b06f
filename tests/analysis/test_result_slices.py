"""All-reduces of whose result each device only ever reads its own slice."""

from __future__ import annotations

import pytest

from hloscope.model import make_shapes

ROWS = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}"
OFFSET = """
%id = u32[] partition-id()
%table = s32[8] constant({0, 4, 8, 12, 0, 4, 8, 12})
%row = s32[1] dynamic-slice(%table, %id), dynamic_slice_sizes={1}
%offset = s32[] bitcast(%row)
%zero = s32[] constant(0)
"""
FUSED = """
%shard (v: f32[16,8], o: s32[]) -> f32[4,8] {
  %v = f32[16,8] parameter(0)
  %o = s32[] parameter(1)
  %z = s32[] constant(0)
  %w = f32[16,8] bitcast(%v)
  %part = f32[4,8] dynamic-slice(%w, %o, %z), dynamic_slice_sizes={4,8}
  ROOT %n = f32[4,8] negate(%part)
}
"""


def program(*lines: str) -> str:
    first = ["%p = f32[16,8] parameter(0)", OFFSET, f"%c = f32[16,8] all-reduce(%p), {ROWS}, to_apply=%sum"]
    return "\n".join([*first, *lines])


OWN = "dynamic-slice(%c, %offset, %zero), dynamic_slice_sizes={4,8}"


@pytest.mark.parametrize(
    "lines",
    [
        (f"ROOT %s = f32[4,8] {OWN}",),
        ("%d = f32[16,8] copy(%c)", f"ROOT %s = f32[4,8] {OWN.replace('%c', '%d')}"),
        ("ROOT %f = f32[4,8] fusion(%c, %offset), kind=kLoop, calls=%shard",),
        (
            "%d = (f32[16,8], f32[16,8], u32[]) copy-start(%c)",
            "%e = f32[16,8] copy-done(%d)",
            "ROOT %f = f32[4,8] fusion(%e, %offset), kind=kLoop, calls=%shard",
        ),
        (
            "%t = (f32[16,8], s32[]) tuple(%c, %zero)",
            "%d = f32[16,8] get-tuple-element(%t), index=0",
            f"ROOT %s = f32[4,8] {OWN.replace('%c', '%d')}",
        ),
    ],
    ids=["plain", "copied", "fused", "copied and fused", "in a tuple"],
)
def test_only_the_own_slice_is_read(analyze, lines):
    [found] = analyze(program(*lines), computations=FUSED).collectives
    assert found.result_slices == make_shapes("f32[4,8]")
    assert (found.payload_bytes, found.wire_bytes) == (512, 768)


@pytest.mark.parametrize(
    "lines",
    [
        (f"%s = f32[4,8] {OWN}", "ROOT %t = (f32[16,8], f32[4,8]) tuple(%c, %s)"),
        (f"%s = f32[4,8] {OWN}", "ROOT %n = f32[16,8] negate(%c)"),
        (f"ROOT %s = f32[4,8] {OWN.replace('%offset', '%zero')}",),
        ("%q = s32[] parameter(1)", f"ROOT %s = f32[4,8] {OWN.replace('%offset', '%q')}"),
        (
            "%q = s32[] parameter(1)",
            "%o = s32[] add(%q, %offset)",
            f"ROOT %s = f32[4,8] {OWN.replace('%offset', '%o')}",
        ),
        ("ROOT %s = f32[16,8] dynamic-slice(%c, %offset, %zero), dynamic_slice_sizes={16,8}",),
        ("ROOT %s = f32[4,8] slice(%c), slice={[0:4], [0:8]}",),
        ("ROOT %x = f32[16,8] copy(%c)",),
    ],
    ids=["returned", "read whole", "at zero", "at an argument", "moved by an argument", "all", "a fixed slice", "root"],
)
def test_anything_else_reads_more(analyze, lines):
    [found] = analyze(program(*lines), computations=FUSED).collectives
    assert found.result_slices == ()


def test_every_element_of_a_combined_reduction_is_sliced(analyze):
    entry = f"""
    %p = f32[16,8] parameter(0)
    {OFFSET}
    %c = (f32[16,8], f32[8,8]) all-reduce(%p, %p), {ROWS}, to_apply=%sum
    %x = f32[16,8] get-tuple-element(%c), index=0
    %y = f32[8,8] get-tuple-element(%c), index=1
    %sx = f32[4,8] dynamic-slice(%x, %offset, %zero), dynamic_slice_sizes={{4,8}}
    %sy = f32[2,8] dynamic-slice(%y, %offset, %zero), dynamic_slice_sizes={{2,8}}
    ROOT %t = (f32[4,8], f32[2,8]) tuple(%sx, %sy)
    """
    [found] = analyze(entry).collectives
    assert found.result_slices == make_shapes("f32[4,8]", "f32[2,8]")
    [found] = analyze(entry.replace("tuple(%sx, %sy)", "tuple(%sx, %y)")).collectives
    assert found.result_slices == ()


LOOP = f"""
%body (b: (s32[], f32[16,8], s32[], f32[4,8])) -> (s32[], f32[16,8], s32[], f32[4,8]) {{
  %b = (s32[], f32[16,8], s32[], f32[4,8]) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %v = f32[16,8] get-tuple-element(%b), index=1
  %o = s32[] get-tuple-element(%b), index=2
  %one = s32[] constant(1)
  %z = s32[] constant(0)
  %next = s32[] add(%i, %one)
  %c = f32[16,8] all-reduce(%v), {ROWS}, to_apply=%sum
  %s = f32[4,8] dynamic-slice(%c, INDEX, %z), dynamic_slice_sizes={{4,8}}
  ROOT %out = (s32[], f32[16,8], s32[], f32[4,8]) tuple(%next, %v, %o, %s)
}}
%cond (k: (s32[], f32[16,8], s32[], f32[4,8])) -> pred[] {{
  %k = (s32[], f32[16,8], s32[], f32[4,8]) parameter(0)
  %i = s32[] get-tuple-element(%k), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}
"""


@pytest.mark.parametrize(("index", "slices"), [("%o", ("f32[4,8]",)), ("%i", ())], ids=["carried unchanged", "counter"])
def test_an_offset_that_a_loop_carries(analyze, index, slices):
    entry = f"""
    %p = f32[16,8] parameter(0)
    %q = f32[4,8] parameter(1)
    {OFFSET}
    %init = (s32[], f32[16,8], s32[], f32[4,8]) tuple(%zero, %p, %offset, %q)
    ROOT %w = (s32[], f32[16,8], s32[], f32[4,8]) while(%init), condition=%cond, body=%body
    """
    [found] = analyze(entry, computations=LOOP.replace("INDEX", index)).collectives
    assert (found.result_slices, found.executions) == (make_shapes(*slices), 3)


def test_other_kinds_have_none(analyze):
    entry = (
        program(f"ROOT %s = f32[4,8] {OWN}")
        .replace("all-reduce", "collective-broadcast")
        .replace(", to_apply=%sum", "")
    )
    [found] = analyze(entry).collectives
    assert found.result_slices == ()
