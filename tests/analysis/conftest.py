"""Helpers to analyze small HLO written by hand."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from hloscope.analysis.analyze import analyze_module
from hloscope.analysis.groups import Placement
from hloscope.hlo import parse_module
from hloscope.model import Analysis, Mesh

ADD = """
%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}
"""

Analyze = Callable[..., Analysis]


def hlo(entry: str, *, computations: str = "", header: str = "num_partitions=8") -> str:
    """A module with a reducer `%sum`, some computations and an ENTRY with the given body."""
    head = f"HloModule test, {header}" if header else "HloModule test"
    body = dedent(entry).strip()
    return f"{head}\n{ADD}\n{dedent(computations).strip()}\n\nENTRY %main () -> f32[] {{\n{body}\n}}\n"


@pytest.fixture
def analyze() -> Analyze:
    def run(
        entry: str,
        *,
        computations: str = "",
        header: str = "num_partitions=8",
        mesh: Mesh | None = None,
        devices_per_slice: int | None = None,
        placement: Placement | None = None,
    ) -> Analysis:
        module = parse_module(hlo(entry, computations=computations, header=header))
        return analyze_module(
            module, target="test.hlo", mesh=mesh, devices_per_slice=devices_per_slice, placement=placement
        )

    return run


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(axis_names=("X", "Y"), axis_sizes=(2, 4))
