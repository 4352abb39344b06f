"""Bytes that instructions and fusions read and write."""

import pytest

from hloscope.cost.traffic import Moved, Traffic
from hloscope.graph import HloGraph
from hloscope.hlo import parse_module

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
    return Traffic(HloGraph(module)).inside(module.entry.root)


def test_of_an_operand_that_is_only_sliced_the_slices_count():
    entry = (
        "  %a = f32[64,256] parameter(0)\n  %i = s32[]{:S(6)} parameter(1)\n"
        "  ROOT %f = f32[1,256] fusion(%a, %i), kind=kLoop, calls=%fused"
    )
    assert inside(TAKES_A_ROW, entry) == Moved(hbm_bytes=2 * KILOBYTE)


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
    assert inside(TAKES_A_ROW + outer, entry) == Moved(hbm_bytes=2 * KILOBYTE)


@pytest.mark.parametrize("use", ["negate(%p)", "add(%p, %p)"])
def test_an_operand_that_is_used_counts_as_a_whole(use):
    fused = f"""
%fused (p: f32[64,256]) -> f32[64,256] {{
  %p = f32[64,256] parameter(0)
  ROOT %n = f32[64,256] {use}
}}
"""
    entry = "  %a = f32[64,256] parameter(0)\n  ROOT %f = f32[64,256] fusion(%a), kind=kLoop, calls=%fused"
    assert inside(fused, entry) == Moved(hbm_bytes=128 * KILOBYTE)


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
