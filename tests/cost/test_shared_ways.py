"""What runs side by side, and what has to wait because it goes the same way."""

import pytest
from cost_examples import BLOCK, fusion, module_text, moved_us, priced

from hloscope.analysis.analyze import analyze_module
from hloscope.cost.price import price_module
from hloscope.hlo import parse_module
from hloscope.model.vocabulary import Bound, Link
from hloscope.tpu import parse_slice
from hloscope.tpu.generation import CONSTANTS

ARGUMENT = f"%a = {BLOCK} parameter(0)"
ON_HOST = "f32[1024,1024]{1,0:T(8,128)S(5)}"
PCIE_US = 2**22 / (16e9 * CONSTANTS.host_share) * 1e6
HBM_US = moved_us(2**22)


def gathers(groups, count):
    result = "f32[2048,1024]{1,0:T(8,128)}"
    starts = [
        f"%s{one} = ({BLOCK}, {result}) all-gather-start(%a), channel_id={one}, replica_groups={groups}, "
        "dimensions={0}, use_global_device_ids=true"
        for one in range(1, count + 1)
    ]
    dones = [f"%d{one} = {result} all-gather-done(%s{one})" for one in range(1, count + 1)]
    return module_text("\n".join((ARGUMENT, *starts, *dones, f"ROOT %t = ({result}) tuple(%d1)")))


def test_transfers_between_slices_share_the_network_of_their_hosts():
    module = parse_module(gathers("{{0,4},{1,5},{2,6},{3,7}}", 2))
    analysis = analyze_module(module, target="two", mesh=None, devices_per_slice=4)
    assert [one.link for one in analysis.collectives] == [Link.DCN, Link.DCN]
    found = price_module(analysis, module, parse_slice("2*v5e:2x2"))
    assert found.time.step_us == pytest.approx(sum(one.time_us for one in found.collectives))


def test_a_very_large_all_to_all_uses_every_link(monkeypatch):
    monkeypatch.setattr("hloscope.cost.network._MOST_ROUTED_PAIRS", 0)
    part = "f32[128,1024]{1,0:T(8,128)}"
    exchange = (
        f"%s = ({BLOCK}, {BLOCK}) all-to-all-start(%a), channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, "
        "dimensions={0}"
    )
    pair = f"%p = ({BLOCK}, {BLOCK}, u32[], u32[]) collective-permute-start(%a), channel_id=2, source_target_pairs"
    found = priced(
        module_text(f"""
          {ARGUMENT}
          {exchange}
          {pair}={{{{0,1}}}}
          %d = {BLOCK} all-to-all-done(%s)
          %e = {BLOCK} collective-permute-done(%p)
          ROOT %t = ({BLOCK}, {part}) tuple(%d, %e)
        """)
    )
    assert len(found.collectives) == 2
    assert found.time.step_us == pytest.approx(sum(one.time_us for one in found.collectives))


def test_a_copy_to_the_host_does_not_hold_up_a_copy_within_the_device():
    found = priced(
        module_text(f"""
          {ARGUMENT}
          %to = ({ON_HOST}, {BLOCK}, u32[]{{:S(2)}}) copy-start(%a)
          %in = ({BLOCK}, {BLOCK}, u32[]{{:S(2)}}) copy-start(%a)
          %c = {BLOCK} copy-done(%in)
          {fusion("f", "c", 15_000_000)}
          %h = {ON_HOST} copy-done(%to)
          ROOT %t = ({BLOCK}, {ON_HOST}) tuple(%f, %h)
        """)
    )
    assert found.time.step_us == pytest.approx(HBM_US + 10_000.0)
    assert HBM_US < PCIE_US < 10_000.0


def test_a_copy_to_the_host_at_an_unknown_pace_is_listed(says):
    text = module_text(f"""
      {ARGUMENT}
      %to = ({ON_HOST}, {BLOCK}, u32[]{{:S(2)}}) copy-start(%a)
      ROOT %h = {ON_HOST} copy-done(%to)
    """)
    (unknown,) = priced(text, "tpu7x:2x2x1").time.unknown_operations
    assert (says(unknown.what).split()[0], unknown.count, unknown.bytes) == ("copy-start", 1, 2**22)
    assert priced(text).time.unknown_operations == ()


def test_work_beside_the_device_is_not_lost():
    kernel = 'custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"has_communication":true}}'
    text = module_text(
        f"""
          {ARGUMENT}
          %s = (({BLOCK}), {BLOCK}) async-start(%a), calls=%beside
          {fusion("f", "a", 15_000_000)}
          %d = {BLOCK} async-done(%s)
          ROOT %t = ({BLOCK}, {BLOCK}) tuple(%f, %d)
        """,
        before=f"""
%beside (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  %m = {BLOCK} dot(%p, %p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %s = {BLOCK} sort(%m), dimensions={{0}}, to_apply=%sum
  %o = {BLOCK} custom-call(%s), {kernel}
  ROOT %k = {BLOCK} custom-call(%o), {kernel}
}}
""",
    )
    time = priced(text).time
    assert time.step_us == pytest.approx(10_000.0)
    assert (time.flops, time.bound) == (2 * 1024**3, Bound.AT_LEAST)
    assert [one.what for one in time.unknown_operations] == ["sort"]


HOST = f"""
%on_host (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  ROOT %s = {BLOCK} sine(%p)
}}, execution_thread="host"
"""
CALLED = 'custom-call-start(%a), async_execution_thread="host", custom_call_target="HostExecute"'


def test_what_the_host_computes_is_at_least_as_long_as_its_data_are_on_the_way(says):
    text = module_text(
        f"""
          {ARGUMENT}
          %s = (({BLOCK}), {BLOCK}, u32[]{{:S(2)}}) {CALLED}, called_computations={{%on_host}}
          ROOT %d = {BLOCK} custom-call-done(%s)
        """,
        before=HOST,
    )
    time = priced(text).time
    assert time.step_us == pytest.approx(2 * PCIE_US)
    assert (time.bound, time.hbm_us) == (Bound.AT_LEAST, 0)
    (unknown,) = time.unknown_operations
    assert (says(unknown.what).split()[0], unknown.bytes) == ("custom-call-start", 2**23)


@pytest.mark.parametrize(
    "line",
    [
        f"%s = ({BLOCK}, u32[], token[]) send(%a, %k), channel_id=2, is_host_transfer=true",
        f"%s = ({BLOCK}, u32[], token[]) recv(%k), channel_id=2, is_host_transfer=true",
        f"%s = ({BLOCK}, token[]) infeed(%k)",
        f"%s = token[] outfeed(%a, %k), outfeed_shape={BLOCK}",
    ],
)
def test_transfers_to_and_from_the_host_go_over_its_link(line):
    time = priced(module_text(f"{ARGUMENT}\n%k = token[] after-all()\n{line}\nROOT {fusion('f', 'a', 15_000)}")).time
    assert time.step_us == pytest.approx(10.0 + PCIE_US)
    assert (time.bound, time.hbm_us) == (Bound.AT_LEAST, 10.0)  # the fusion is as long as its traffic
    assert [one.bytes for one in time.unknown_operations] == [pytest.approx(2**22, abs=4)]


def test_waiting_for_the_host_is_not_waiting_for_memory():
    text = module_text(f"""
      {ARGUMENT}
      %to = ({ON_HOST}, {BLOCK}, u32[]{{:S(2)}}) copy-start(%a)
      ROOT %h = {ON_HOST} copy-done(%to)
    """)
    time = priced(text).time
    assert (time.step_us, time.hbm_us, time.bound) == (pytest.approx(PCIE_US), 0, Bound.EXACT)
    assert priced(text, "tpu7x:2x2x1").time.bound is Bound.AT_LEAST
