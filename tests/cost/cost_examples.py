"""Programs and slices that several tests of the cost model use."""

from __future__ import annotations

import textwrap

from hloscope.analysis.analyze import analyze_module
from hloscope.cost.price import price_module
from hloscope.hlo import parse_module
from hloscope.model import Analysis, Mesh
from hloscope.tpu import parse_slice
from hloscope.tpu.generation import CONSTANTS

HEADER = "HloModule test, is_scheduled=true, num_partitions=8"
SUM = """
%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
"""
FUSED = """
%fused (p: f32[1024,1024]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  ROOT %n = f32[1024,1024]{1,0:T(8,128)} negate(%p)
}
"""
BLOCK = "f32[1024,1024]{1,0:T(8,128)}"


READ, WRITTEN = 819e3 * CONSTANTS.hbm_read_share, 819e3 * CONSTANTS.hbm_write_share
"""Bytes per microsecond that v5e reads from and writes to HBM."""


def moved_us(read_bytes: float, written_bytes: float | None = None) -> float:
    """How long v5e takes to read some bytes and to write as many, or others."""
    return read_bytes / READ + (read_bytes if written_bytes is None else written_bytes) / WRITTEN


def cycles(count: int) -> str:
    """The configuration of an instruction that the compiler expects to take so many cycles."""
    return f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}'


def fusion(name: str, operand: str, count: int) -> str:
    """A fusion over `BLOCK` of which nothing is known but its cycles."""
    return f"%{name} = {BLOCK} fusion(%{operand}), kind=kCustom, calls=%fused, {cycles(count)}"


def module_text(entry: str, *, before: str = "", header: str = HEADER) -> str:
    """A module around the lines of ENTRY."""
    return f"{header}\n{SUM}{FUSED}{textwrap.dedent(before)}\nENTRY %main {{\n{textwrap.dedent(entry)}\n}}\n"


def priced(text: str, slice_name: str = "v5e:2x4", mesh: Mesh | None = None) -> Analysis:
    """A text's analysis with times."""
    module = parse_module(text)
    return price_module(analyze_module(module, target="test", mesh=mesh), module, parse_slice(slice_name))
