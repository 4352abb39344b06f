"""Timelines of random programs add up: what is computed and what is waited for, by cause and by collective."""

from __future__ import annotations

import os

import pytest
from adding_up import check_sums
from hypothesis import HealthCheck, given, seed, settings
from random_programs import Program, programs

import hloscope

SLICES = {"v5e:2x4": 8, "v5p:2x2x1": 4, "v6e:2x4": 8, "tpu7x:2x2x1": 8}
RANDOM = os.environ.get("HLOSCOPE_RANDOM")
MANY = int(RANDOM) if RANDOM and RANDOM.isdigit() else 50
"""Random programs for each generation, of those that take long: the same ones in every run, unless more are asked for.
"""


def check_programs(slice_name: str, count: int) -> None:
    """Compiles and prices so many programs; a second compile of one is taken from the cache."""

    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs(device_counts=(SLICES[slice_name],), dtypes=("float32", "bfloat16"), rows=(16, 64)))
    def check(program: Program) -> None:
        arguments = (program.argument, program.argument)
        found, timeline = (
            ask(program.function(), arguments, mesh=program.sizes, slice=slice_name)
            for ask in (hloscope.analyze, hloscope.timeline)
        )
        check_sums(timeline, found)

    (check if RANDOM else seed(sorted(SLICES).index(slice_name))(check))()


@pytest.mark.tpu_compiler
def test_a_few(cached):
    check_programs("v5e:2x4", 4)


@pytest.mark.long
@pytest.mark.tpu_compiler
@pytest.mark.parametrize("slice_name", SLICES)
def test_two_hundred(slice_name, cached):
    check_programs(slice_name, MANY)
