"""What lies badly in memory: updates of single rows of tiles, arrays that are turned around, and where that is said."""

from __future__ import annotations

import pytest
from cost_examples import HEADER, cycles, priced

from hloscope.tpu.generation import CONSTANTS

ONE = HEADER.replace("8", "1")
STACK = "f32[512,16,7168]{2,1,0:T(8,128)}"
HBM = 2765e3
"""Bytes per microsecond of v5p."""


def updated(layer: str, at: str, *, stack: str = STACK):
    """The time of an update of a stack by a layer."""
    text = f"""{ONE}

ENTRY %main {{
  %s = {stack} parameter(0)
  %l = {layer} parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %u = {stack} dynamic-update-slice(%s, %l, {at}), {cycles(15_834)}
}}
"""
    return priced(text, "v5p:1x1x1").time


def test_an_update_of_one_row_of_each_tile_takes_a_thirtieth_of_the_bandwidth():
    found = updated("f32[512,1,7168]{2,1,0:T(1,128)}", "%z, %i, %z")
    written = 512 * 7168 * 4
    assert found.step_us == pytest.approx(2 * written / (HBM * CONSTANTS.single_rows_share))
    assert 344 < found.step_us < 391  # as measured
    (use,) = (use for use in found.rules if use.rule == "update of single rows")
    assert (use.measured_once, use.calibrated, use.error) == (True, False, 0.35)


@pytest.mark.parametrize(
    ("layer", "at", "stack"),
    [
        ("f32[1,16,7168]{2,1,0:T(8,128)}", "%i, %z, %z", STACK),  # along the major dimension
        ("f32[512,8,7168]{2,1,0:T(8,128)}", "%z, %i, %z", STACK),  # whole tiles
        ("f32[512,1,7168]{2,0,1:T(8,128)}", "%z, %i, %z", "f32[512,16,7168]{2,0,1:T(8,128)}"),  # the major one here
    ],
)
def test_other_updates_do_not(layer, at, stack):
    assert [use.rule for use in updated(layer, at, stack=stack).rules] == ["memory"]


def fused(layout: str) -> str:
    block = "f32[4096,4096]{1,0:T(8,128)}"
    turned = f"f32[4096,4096]{{{layout}:T(8,128)}}"
    return f"""{ONE}

%fused (p: f32[4096,4096], q: f32[4096,4096]) -> f32[4096,4096] {{
  %p = {block} parameter(0)
  %q = {turned} parameter(1)
  %c = {block} copy(%q)
  ROOT %a = {block} add(%p, %c)
}}

ENTRY %main {{
  %x = {block} parameter(0)
  %y = {turned} parameter(1)
  ROOT %f = {block} fusion(%x, %y), kind=kLoop, calls=%fused, {cycles(160_000)}
}}
"""


def test_an_array_that_is_turned_around_takes_longer():
    straight, turned = (priced(fused(layout), "v5p:1x1x1").time for layout in ("1,0", "0,1"))
    assert turned.step_us == pytest.approx(straight.step_us / CONSTANTS.transposed_share)
    assert [use.rule for use in turned.rules] == ["transposed layouts"]
