"""Transfers that run side by side or one after the other: every microsecond of waiting is told once."""

import pytest
from cost_examples import BLOCK, fusion, module_text, priced
from hypothesis import given
from hypothesis import strategies as st

from hloscope.model import Mesh

ARGUMENT = f"%a = {BLOCK} parameter(0)"
PAIRS = ("{{0,1}}", "{{1,0}}", "{{0,1},{1,0}}", "{{6,7}}", "{{0,7},{1,6}}")


def started(name, pairs):
    shape = f"({BLOCK}, {BLOCK}, u32[], u32[])"
    return f"%s{name} = {shape} collective-permute-start(%a), channel_id=1, source_target_pairs={pairs}"


def done(name):
    return f"%d{name} = {BLOCK} collective-permute-done(%s{name})"


def text_of(lines, names):
    shapes = ", ".join([BLOCK] * len(names))
    root = f"ROOT %t = ({shapes}) tuple({', '.join(f'%d{name}' for name in names)})"
    return module_text("\n".join((ARGUMENT, *lines, root)))


@st.composite
def schedules(draw):
    """Permutes that are started, waited for in any order, and computing in between."""
    names = range(draw(st.integers(1, 5)))
    starts = [started(name, draw(st.sampled_from(PAIRS))) for name in names]
    dones = [done(name) for name in draw(st.permutations(names))]
    first = draw(st.integers(0, len(starts)))
    lines = starts[:first]
    for start in starts[first:]:
        lines.append(start)
        if draw(st.booleans()):
            lines.append(fusion(f"f{len(lines)}", "a", draw(st.integers(1, 200_000))))
    for line in dones:
        lines.append(fusion(f"f{len(lines)}", "a", draw(st.integers(1, 200_000))))
        lines.append(line)
    return text_of(lines, names)


@given(schedules())
def test_waiting_is_told_once_and_no_transfer_is_waited_for_longer_than_it_runs(text):
    found = priced(text)
    time, transfers = found.time, found.collectives
    assert time.step_us == pytest.approx(time.compute_us + time.exposed_us)
    assert time.exposed_us == pytest.approx(sum(one.exposed_us for one in transfers))
    assert time.hidden_us == pytest.approx(sum(one.time_us - one.exposed_us for one in transfers), abs=1e-6)
    assert all(0 <= one.exposed_us <= one.time_us * (1 + 1e-9) for one in transfers)
    assert time.step_us >= max(one.time_us for one in transfers) - 1e-6


def test_waiting_behind_another_transfer_is_waiting_for_that_one():
    lines = (started(0, "{{0,1}}"), started(1, "{{0,1}}"), fusion("f", "a", 45_000), done(1), done(0))
    first, second = priced(text_of(lines, (0, 1))).collectives
    assert first.time_us == second.time_us
    assert first.exposed_us == pytest.approx(first.time_us - 30.0)
    assert second.exposed_us == pytest.approx(second.time_us)


GROUPS = "replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%sum"
TWO = f"""
%two (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  %q = {BLOCK} all-reduce(%p), channel_id=1, {GROUPS}
  {fusion("f", "q", 15_000)}
  ROOT %r = {BLOCK} all-reduce(%f), channel_id=2, {GROUPS}
}}, execution_thread="sparsecore"
"""


@pytest.mark.parametrize("count", [1, 30_000, 150_000, 15_000_000])
def test_waiting_for_another_thread_is_waiting_for_what_it_does(count):
    text = module_text(
        f"""
          {ARGUMENT}
          %s = (({BLOCK}), {BLOCK}) call-start(%a), async_execution_thread="sparsecore", to_apply=%two
          {fusion("g", "a", count)}
          %d = {BLOCK} call-done(%s)
          ROOT %t = ({BLOCK}, {BLOCK}) tuple(%g, %d)
        """,
        before=TWO,
    )
    found = priced(text, "v6e:2x4")
    time, transfers = found.time, found.collectives
    beside_us = sum(one.time_us for one in transfers) + 15_000 / 1.75e3
    assert time.step_us == pytest.approx(max(count / 1.75e3, beside_us))
    assert time.exposed_us == pytest.approx(sum(one.exposed_us for one in transfers))
    assert time.exposed_us + time.hidden_us == pytest.approx(sum(one.time_us for one in transfers))


def ring(name, step):
    pairs = ",".join(f"{{{one},{(one + step) % 8}}}" for one in range(8))
    return started(name, f"{{{pairs}}}")


def test_rings_both_ways_slow_each_other_by_the_pairs_that_share_links():
    mesh = Mesh(axis_names=("x",), axis_sizes=(8,))
    alone = priced(text_of((ring(0, 1), done(0)), (0,)), mesh=mesh).time.step_us
    both = priced(text_of((ring(0, 1), ring(1, -1), done(0), done(1)), (0, 1)), mesh=mesh)
    assert all(one.time_us == pytest.approx(alone) for one in both.collectives)
    assert 1.3 * alone < both.time.step_us < 1.9 * alone  # on 2x4 some of their ways cross, and others do not
    assert both.time.exposed_us == pytest.approx(sum(one.exposed_us for one in both.collectives))
