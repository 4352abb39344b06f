"""Fusions with a part for each core, as libtpu prints them for v4 and v5p: the larger part is what they take."""

from __future__ import annotations

import pytest
from adding_up import check_sums
from cost_examples import BLOCK, FUSED, SUM, priced
from test_timeline import timed

GROUPS = "replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%sum"


def on_core(number: int, cycles: int | None = None) -> str:
    window = "" if cycles is None else f'"window_config":{{"estimated_cycles":"{cycles}"}},'
    return f'backend_config={{{window}"megacore_config":{{"use_single_core":true,"core_id":"{number}"}}}}'


def text(cycles: int, *, scatters: int = 1, behind: int | None = None) -> str:
    """A fusion that sums on one core and computes on the other, and on the first too behind its sums."""
    sums = "\n".join(
        f"  %r{number} = {BLOCK} all-reduce(%p), channel_id={number + 1}, {GROUPS}, {on_core(0)}"
        for number in range(scatters)
    )
    late = "" if behind is None else f"  %g = {BLOCK} fusion(%p), kind=kCustom, calls=%fused, {on_core(0, behind)}\n"
    return f"""HloModule test, is_scheduled=true, num_partitions=4
{SUM}{FUSED}
%megacore_fusion (p: f32[1024,1024], q: f32[1024,1024]) -> (f32[1024,1024], f32[1024,1024]) {{
  %p = {BLOCK} parameter(0)
  %q = {BLOCK} parameter(1)
{sums}
{late}  %f = {BLOCK} fusion(%q), kind=kCustom, calls=%fused, {on_core(1, cycles)}
  ROOT %t = ({BLOCK}, {BLOCK}) tuple(%r0, %f)
}}

ENTRY %main {{
  %a = {BLOCK} parameter(0)
  %b = {BLOCK} parameter(1)
  ROOT %both = ({BLOCK}, {BLOCK}) fusion(%a, %b), kind=kCustom, calls=%megacore_fusion
}}
"""


@pytest.mark.parametrize("scatters", [1, 3])
def test_it_takes_as_long_as_its_transfers_where_they_take_longer(scatters):
    found = priced(text(17_500, scatters=scatters), "v5p:2x2x1")
    assert len(found.collectives) == scatters
    moved = sum(one.time_us for one in found.collectives)
    assert moved > 10
    assert found.time.step_us == pytest.approx(moved)
    assert found.time.compute_us == pytest.approx(10.0)
    assert sum(one.exposed_us for one in found.collectives) == pytest.approx(moved - 10.0)


def test_it_takes_as_long_as_what_it_computes_where_that_takes_longer():
    found = priced(text(1_750_000), "v5p:2x2x1")
    (reduction,) = found.collectives
    assert (found.time.step_us, reduction.exposed_us) == (pytest.approx(1000.0), 0.0)
    assert found.time.hidden_us == pytest.approx(reduction.time_us)


def test_a_core_computes_behind_its_transfers():
    found = priced(text(17_500, behind=350_000), "v5p:2x2x1")
    (reduction,) = found.collectives
    assert found.time.step_us == pytest.approx(reduction.time_us + 200.0)


@pytest.mark.parametrize("behind", [None, 175_000])
def test_its_timeline_adds_up(behind):
    check_sums(*timed(text(35_000, scatters=2, behind=behind), "v5p"))
