"""The whole stage: labels, unknown operations, and the seed's programs as they were compiled."""

import re
from pathlib import Path

import pytest
from cost_examples import BLOCK, HEADER, fusion, module_text, moved_us, priced
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.analyze import analyze_module
from hloscope.cost.price import price_module
from hloscope.hlo import parse_module
from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound
from hloscope.tpu import parse_slice
from hloscope.tpu.generation import CONSTANTS
from hloscope.tpu.slices import override_chip

CAPTURED = Path(__file__).parents[2] / "fixtures" / "captured"
ARGUMENT = f"%a = {BLOCK} parameter(0)"


def captured(name, mesh, slice_name="v5e:2x4"):
    text = (CAPTURED / f"{name}.jax-0.10.hlo").read_text()
    return priced(text, slice_name, Mesh(axis_names=tuple(mesh), axis_sizes=tuple(mesh.values())))


def test_the_naive_matmul_of_the_seed_takes_312_us():
    found = captured("collective_matmul.naive", {"X": 2, "Y": 4})
    assert found.time.step_us == pytest.approx(312, rel=0.01)
    assert found.collectives[0].exposed_us == pytest.approx(89.2, rel=0.02)
    assert found.time.notes == ()


def test_the_collective_matmul_of_the_seed_takes_about_240_us():
    found = captured("collective_matmul.collective", {"X": 2, "Y": 4})
    assert found.time.step_us == pytest.approx(240, rel=0.06)
    assert found.time.hidden_us > found.time.exposed_us > 0


def test_the_mixture_of_experts_is_nearly_all_exposed_all_gather():
    found = captured("mixture_of_experts.mixture_of_experts", {"X": 8})
    (gather,) = found.collectives
    assert found.time.step_us == pytest.approx(73_000, rel=0.06)
    assert gather.executions * gather.exposed_us == pytest.approx(found.time.exposed_us)
    assert found.time.exposed_us > 0.95 * found.time.step_us


def test_every_rule_in_use_says_whether_it_was_calibrated():
    time = captured("collective_matmul.naive", {"X": 2, "Y": 4}).time
    assert time.calibrated == ("cycles", "ring in one direction")
    assert time.uncalibrated == ()
    assert (time.spread.rows, time.spread.worst < 1.25, time.spread.median < 1.05) == (37, True, True)
    elsewhere = captured("collective_matmul.naive", {"X": 2, "Y": 4}, "v4:2x2x2").time
    assert (elsewhere.calibrated, elsewhere.spread) == ((), None)


def test_text_without_cycles_is_a_roofline_and_says_so(says):
    matmul = "f32[512,512] dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    found = priced(
        f"HloModule m, is_scheduled=true\nENTRY %e {{\n  %a = f32[512,512] parameter(0)\n  ROOT %d = {matmul}\n}}\n"
    )
    memory_us = moved_us(2 * 2**20, 2**20)
    assert found.time.basis == "roofline"
    assert found.time.step_us == pytest.approx(max(memory_us, 2 * 512**3 / 197e12 * 1e6))
    assert found.time.flops == 2 * 512**3
    assert found.time.roofline_us == found.time.compute_us == found.time.step_us
    of_computation, of_text = found.time.notes
    assert re.findall("cycle|roofline|lower bound", of_computation) == ["cycle", "roofline", "lower bound"]
    assert "TPU" in of_text
    says(found.time.notes)


def test_text_without_a_schedule_says_so(says):
    found = priced(module_text(f"{ARGUMENT}\nROOT {fusion('f', 'a', 15)}", header="HloModule m, num_partitions=8"))
    assert not found.time.is_scheduled
    assert "no schedule" in says(found.time.notes[-1])


def test_unknown_operations_are_listed_with_their_bytes():
    found = priced(
        module_text(f"""
      {ARGUMENT}
      %s = {BLOCK} sort(%a), dimensions={{0}}, to_apply=%sum
      %k = {BLOCK} custom-call(%s), custom_call_target="SomeKernel"
      ROOT {fusion("f", "k", 15_000)}
    """)
    )
    sort, kernel = sorted(found.time.unknown_operations, key=lambda one: one.what, reverse=True)
    assert (sort.what, sort.count, sort.bytes) == ("sort", 1, 2 * 2**22)
    assert (kernel.what, kernel.count, kernel.bytes) == ("custom-call SomeKernel", 1, 2 * 2**22)
    assert found.time.step_us == pytest.approx(10.0 + sort.time_us + kernel.time_us)


@pytest.mark.parametrize(("cycles", "bound"), [(150_000, Bound.AT_LEAST), (15_000_000, Bound.EXACT)])
def test_a_step_takes_at_least_what_a_notable_share_of_it_takes_by_its_bytes_alone(cycles, bound):
    time = priced(
        module_text(f"""
      {ARGUMENT}
      %s = {BLOCK} sort(%a), dimensions={{0}}, to_apply=%sum
      ROOT {fusion("f", "s", cycles)}
    """)
    ).time
    (sort,) = time.unknown_operations
    assert (sort.time_us >= 0.01 * time.step_us) == (bound is Bound.AT_LEAST)
    assert (time.bound, time.has_range) == (bound, bound is Bound.EXACT)


def test_a_kernel_that_says_what_it_costs_is_not_unknown():
    config = '{"custom_call_config":{"cost_estimate":{"flops":"197000000000","bytes_accessed":"1000"}}}'
    found = priced(
        module_text(f"""
      {ARGUMENT}
      ROOT %k = {BLOCK} custom-call(%a), custom_call_target="tpu_custom_call", backend_config={config}
    """)
    )
    assert found.time.unknown_operations == ()
    assert (found.time.step_us, found.time.flops) == (pytest.approx(1000.0), 197_000_000_000)


def test_a_transfer_that_is_not_understood_makes_the_step_a_lower_bound(says):
    config = '{"custom_call_config":{"has_communication":true}}'
    found = priced(
        module_text(f"""
      {ARGUMENT}
      ROOT %k = {BLOCK} custom-call(%a), custom_call_target="tpu_custom_call", backend_config={config}
    """)
    )
    assert found.collectives[0].time_us is None
    assert found.time.bound is Bound.AT_LEAST
    assert re.findall("not understood|zero time", says(found.time.notes[-1])) == ["not understood", "zero time"]


def test_text_for_more_devices_than_the_mesh_tells_says_what_it_assumes(says):
    found = priced(module_text(f"{ARGUMENT}\nROOT {fusion('f', 'a', 15)}"))
    (note,) = found.time.notes
    assert re.findall(r"by their numbers|jax\.make_mesh|v5e:2x4", says(note)) == [
        "by their numbers",
        *("jax.make_mesh", "v5e:2x4"),
    ]


def test_devices_that_are_no_tpu_are_not_priced():
    assert priced(module_text(f"{ARGUMENT}\nROOT {fusion('f', 'a', 15)}"), "cpu:8").time is None


def test_an_override_changes_the_price():
    module = parse_module(module_text(f"{ARGUMENT}\nROOT {fusion('f', 'a', 15_000)}"))
    analysis = analyze_module(module, target="m", mesh=None)
    slower = override_chip(parse_slice("v5e:2x4"), ["clock_hz=0.75e9"])
    assert price_module(analysis, module, slower).time.step_us == 20.0


@given(st.permutations(range(8)))
def test_the_device_order_decides_what_a_permute_costs(order):
    ring = "{" + ",".join(f"{{{source},{(source + 1) % 8}}}" for source in range(8)) + "}"
    text = module_text(f"""
      {ARGUMENT}
      ROOT %p = {BLOCK} collective-permute(%a), channel_id=1, source_target_pairs={ring}
    """)
    module = parse_module(text)
    analysis = analyze_module(module, target="m", mesh=None)
    chosen = parse_slice("v5e:2x4")
    best = price_module(analysis, module, chosen, device_ids=(0, 1, 3, 5, 7, 6, 4, 2))
    other = price_module(analysis, module, chosen, device_ids=tuple(order))
    assert other.time.step_us >= best.time.step_us - 1e-9


def test_the_order_of_make_mesh_is_taken_for_a_known_mesh():
    text = module_text(f"{ARGUMENT}\nROOT {fusion('f', 'a', 15)}", header=HEADER)
    found = priced(text, mesh=Mesh(axis_names=("X",), axis_sizes=(8,)))
    assert found.time.notes == ()


def test_a_part_of_the_peak():
    matmul = "f32[512,512] dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    time = priced(
        f"HloModule m, is_scheduled=true\nENTRY %e {{\n  %a = f32[512,512] parameter(0)\n  ROOT %d = {matmul}\n}}\n"
    ).time
    assert time.peak_flops_share == pytest.approx(time.flops / (time.step_us * 1e-6) / 197e12)


ALL_REDUCE = f"ROOT %r = {BLOCK} all-reduce(%a), channel_id=1, replica_groups={{{{0,1,2,3}}}}, to_apply=%sum"


@pytest.mark.parametrize(
    "header",
    [
        "HloModule m, is_scheduled=true, num_partitions=4",
        "HloModule m, is_scheduled=true, replica_count=4",
        "HloModule m, is_scheduled=true",
    ],
)
def test_a_collective_without_a_printed_algorithm_is_priced_from_first_principles(header):
    found = priced(module_text(f"{ARGUMENT}\n{ALL_REDUCE}", header=header), "v5e:2x2")
    payload_us = 2 * 3 / 4 * 2**22 / 45e9 * 1e6
    assert found.time.uncalibrated == ("first principles",)
    assert found.collectives[0].time_us == pytest.approx(payload_us / 2 / CONSTANTS.grid_share, rel=0.1)


def test_a_slice_that_is_too_small_prices_nothing_that_it_cannot_hold(says):
    found = priced(module_text(f"{ARGUMENT}\n{ALL_REDUCE}", header="HloModule m, num_partitions=4"), "v5e:1x2")
    assert found.collectives[0].time_us is None
    assert found.time.bound is Bound.AT_LEAST
    assert re.findall("%r|v5e:1x2|lower bound", says(found.time.notes[-1])) == ["%r", "v5e:1x2", "lower bound"]


def test_a_branch_that_is_not_the_longest_may_hold_what_cannot_be_priced():
    config = '{"custom_call_config":{"has_communication":true}}'
    branches = f"""
%opaque (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  ROOT %k = {BLOCK} custom-call(%p), custom_call_target="tpu_custom_call", backend_config={config}
}}
%long (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  ROOT {fusion("f", "p", 150_000)}
}}
"""
    which = "%which = s32[] constant(0)"
    taken = f"ROOT %c = {BLOCK} conditional(%which, %a, %a), branch_computations={{%opaque, %long}}"
    found = priced(module_text(f"{ARGUMENT}\n{which}\n{taken}", before=branches))
    assert (found.time.step_us, found.time.bound) == (100.0, Bound.UNKNOWN)


def test_the_algorithm_of_an_offloaded_reduce_scatter_is_read_from_the_called_computation():
    rings = '{"phase_rings":[{"ring_type":"CW"}]},{"phase_rings":[{"ring_type":"CCW"}]}'
    config = f'{{"collective_offload_config":{{"ici_strategy_config":{{"color_strategies":[{rings}]}}}}}}'
    part = "f32[128,1024]{1,0:T(8,128)}"
    text = module_text(
        f'{ARGUMENT}\n%s = (({BLOCK}), {part}) call-start(%a), async_execution_thread="sparsecore", to_apply=%c\n'
        f"ROOT %d = {part} call-done(%s)",
        before=f"%c (p: f32[1024,1024]) -> f32[128,1024] {{\n  %p = {BLOCK} parameter(0)\n"
        f"  ROOT %r = {part} reduce-scatter(%p), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, "
        f'to_apply=%sum, backend_config={config}\n}}, execution_thread="sparsecore"\n',
    )
    found = priced(text, "v6e:2x4")
    assert "ring in both directions" in {use.rule for use in found.time.rules}
    assert found.collectives[0].time_us > CONSTANTS.offloaded_start_us
