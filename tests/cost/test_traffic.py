"""Bytes that instructions and fusions read and write."""

import pytest

from hloscope.cost.operations import Moved, Traffic
from hloscope.hlo import parse_module
from hloscope.hlo.call_graph import HloGraph

KILOBYTE = 1024
TAKES_A_ROW = """
%fused (p: f32[64,256], i: s32[]) -> f32[1,256] {
  %p = f32[64,256] parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %b = f32[64,256] bitcast(%p)
  ROOT %d = f32[1,256] dynamic-slice(%b, %i, %i), dynamic_slice_sizes={1,256}
}
"""


def inside(before, entry):
    module = parse_module(f"HloModule m\n{before}\nENTRY %e {{\n{entry}\n}}\n")
    return Traffic(HloGraph(module)).needed(module.entry.root)


def test_of_an_operand_that_is_only_sliced_the_slices_count():
    entry = (
        "  %a = f32[64,256] parameter(0)\n  %i = s32[]{:S(6)} parameter(1)\n"
        "  ROOT %f = f32[1,256] fusion(%a, %i), kind=kLoop, calls=%fused"
    )
    assert inside(TAKES_A_ROW, entry) == Moved(KILOBYTE, KILOBYTE)


def test_fusions_in_fusions_are_looked_into():
    outer = """
%outer (p: f32[64,256], i: s32[]) -> f32[1,256] {
  %p = f32[64,256] parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %f = f32[1,256] fusion(%p, %i), kind=kLoop, calls=%fused
  ROOT %n = f32[1,256] negate(%f)
}
"""
    entry = (
        "  %a = f32[64,256] parameter(0)\n  %i = s32[]{:S(6)} parameter(1)\n"
        "  ROOT %f = f32[1,256] fusion(%a, %i), kind=kLoop, calls=%outer"
    )
    assert inside(TAKES_A_ROW + outer, entry) == Moved(KILOBYTE, KILOBYTE)


@pytest.mark.parametrize("use", ["negate(%p)", "add(%p, %p)"])
def test_an_operand_that_is_used_counts_as_a_whole(use):
    fused = f"""
%fused (p: f32[64,256]) -> f32[64,256] {{
  %p = f32[64,256] parameter(0)
  ROOT %n = f32[64,256] {use}
}}
"""
    entry = "  %a = f32[64,256] parameter(0)\n  ROOT %f = f32[64,256] fusion(%a), kind=kLoop, calls=%fused"
    assert inside(fused, entry) == Moved(64 * KILOBYTE, 64 * KILOBYTE)


def fusion_of(body, result):
    """What a fusion of `f32[64,256]`, with an index, reads and writes."""
    fused = f"%fused (p: f32[64,256], i: s32[]) -> {result} {{\n  %p = f32[64,256] parameter(0)\n" + (
        f"  %i = s32[]{{:S(6)}} parameter(1)\n{body}\n}}\n"
    )
    entry = (
        "  %a = f32[64,256] parameter(0)\n  %i = s32[]{:S(6)} parameter(1)\n"
        f"  ROOT %f = {result} fusion(%a, %i), kind=kLoop, calls=%fused"
    )
    return inside(RENAMED + fused, entry)


RENAMED = """
%renamed (q: f32[64,256]) -> f32[64,256] {
  %q = f32[64,256] parameter(0)
  ROOT %b = f32[64,256] bitcast(%q)
}
"""


def test_what_an_inner_fusion_only_renames_is_read_by_those_who_use_it():
    renamed = "  %b = f32[64,256] fusion(%p), kind=kLoop, calls=%renamed"
    whole = fusion_of(f"{renamed}\n  ROOT %n = f32[64,256] negate(%b)", "f32[64,256]")
    row = fusion_of(
        f"{renamed}\n  ROOT %d = f32[1,256] dynamic-slice(%b, %i, %i), dynamic_slice_sizes={{1,256}}", "f32[1,256]"
    )
    assert (whole, row) == (Moved(64 * KILOBYTE, 64 * KILOBYTE), Moved(KILOBYTE, KILOBYTE))


def test_a_row_of_what_is_converted_first_is_a_row():
    body = """  %c = bf16[64,256] convert(%p)
  ROOT %d = bf16[1,256] dynamic-slice(%c, %i, %i), dynamic_slice_sizes={1,256}"""
    assert fusion_of(body, "bf16[1,256]") == Moved(KILOBYTE, KILOBYTE // 2)


def test_what_is_passed_through_is_not_touched():
    body = """  %n = f32[64,256] negate(%p)
  %d = f32[1,256] dynamic-slice(%n, %i, %i), dynamic_slice_sizes={1,256}
  ROOT %t = (f32[64,256], f32[1,256]) tuple(%p, %d)"""
    assert fusion_of(body, "(f32[64,256], f32[1,256])") == Moved(KILOBYTE, KILOBYTE)


def test_an_update_of_something_new_writes_all_of_it():
    body = """  %zero = f32[] constant(0)
  %new = f32[64,256] broadcast(%zero), dimensions={}
  %row = f32[1,256] dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,256}
  ROOT %d = f32[64,256] dynamic-update-slice(%new, %row, %i, %i)"""
    assert fusion_of(body, "f32[64,256]") == Moved(KILOBYTE, 64 * KILOBYTE)


def test_an_update_in_place_writes_what_is_new():
    fused = """
%fused (p: f32[64,256], u: f32[1,256], i: s32[]) -> f32[64,256] {
  %p = f32[64,256] parameter(0)
  %u = f32[1,256]{1,0:S(1)} parameter(1)
  %i = s32[]{:S(6)} parameter(2)
  ROOT %d = f32[64,256] dynamic-update-slice(%p, %u, %i, %i)
}
"""
    entry = (
        "  %a = f32[64,256] parameter(0)\n  %u = f32[1,256]{1,0:S(1)} parameter(1)\n  %i = s32[]{:S(6)} parameter(2)\n"
        "  ROOT %f = f32[64,256] fusion(%a, %u, %i), kind=kLoop, calls=%fused"
    )
    found = inside(fused, entry)
    assert found.device_bytes == 2 * KILOBYTE
    assert found.vmem_bytes >= KILOBYTE
