"""Steps that a chip can do: through memory, through the matrix units, and with what is not known."""

import re

import pytest
from cost_examples import BLOCK, HEADER, cycles, fusion, module_text, moved_us, priced

from hloscope.analysis.analyze import analyze_module
from hloscope.cost.price import price_module
from hloscope.hlo import parse_module
from hloscope.model.vocabulary import Bound
from hloscope.report.price import render_time
from hloscope.tpu import parse_slice
from hloscope.tpu.generation import CONSTANTS

ARGUMENT = f"%a = {BLOCK} parameter(0)"
BLOCK_BYTES = 2**22
V5E_HBM = 819e3  # bytes per microsecond
UNKNOWN_CYCLES = 2**63 - 1

# ---- memory

WEIGHTS = "bf16[16384,2048]{1,0:T(8,128)(2,1)}"
WEIGHTS_BYTES = 16384 * 2048 * 2
X, Y = "bf16[8,16384]{1,0:T(8,128)(2,1)}", "f32[8,2048]{1,0:T(8,128)}"
MATVEC_BYTES = WEIGHTS_BYTES + 8 * 16384 * 2 + 8 * 2048 * 4


def matvec(count, *, prefetched):
    """A matmul of few rows as libtpu prints it for v5e, where the step before has its weights prefetched, and v5p."""
    in_vmem = WEIGHTS.replace("}", "S(1)}")
    fetch = f"""
  %start = ({in_vmem}, {WEIGHTS}, u32[]{{:S(2)}}) copy-start(%w), cross_program_prefetch_index=0
  %in = {in_vmem} copy-done(%start)"""
    return f"""{HEADER}
%fused (x: bf16[8,16384], w: bf16[16384,2048]) -> f32[8,2048] {{
  %x = {X} parameter(0)
  %w = {WEIGHTS} parameter(1)
  ROOT %c = {Y} convolution(%x, %w), dim_labels=bf_io->bf
}}
ENTRY %e {{
  %x = {X} parameter(0)
  %w = {WEIGHTS} parameter(1){fetch if prefetched else ""}
  ROOT %f = {Y} fusion(%x, %{"in" if prefetched else "w"}), kind=kOutput, calls=%fused, {cycles(count)}
}}
"""


def test_what_is_prefetched_for_the_next_step_crosses_memory_in_every_step():
    time = priced(matvec(21_780, prefetched=True)).time
    assert time.step_us == time.compute_us == pytest.approx(MATVEC_BYTES / V5E_HBM)
    assert time.hbm_us == pytest.approx(time.step_us - 21_780 / 1.5e3)
    assert time.first_step_us == pytest.approx(21_780 / 1.5e3 + moved_us(WEIGHTS_BYTES, 0))
    assert {use.rule: round(use.time_us) for use in time.rules} == {"cycles": 15, "memory": 68}


def test_a_chip_with_more_bandwidth_is_faster_where_memory_sets_the_pace():
    v5e = priced(matvec(21_780, prefetched=True)).time.step_us
    v5p = priced(matvec(70_400, prefetched=False), "v5p:2x2x1").time.step_us
    assert v5e > 2 * v5p


def test_memory_is_a_bound_for_the_step_and_no_addition_to_it():
    copy = f"%c = {BLOCK} copy(%a)"  # takes its bytes at what copies reach of the bandwidth
    fetch = f"""
      %start = ({BLOCK.replace("}", "S(1)}")}, {BLOCK}, u32[]{{:S(2)}}) copy-start(%b), cross_program_prefetch_index=0
      %done = {BLOCK.replace("}", "S(1)}")} copy-done(%start)"""
    copies = "\n".join(copy.replace("%c", f"%c{index}") for index in range(10))
    text = module_text(f"{ARGUMENT}\n%b = {BLOCK} parameter(1)\n{fetch}\n{copies}\nROOT %t = ({BLOCK}) tuple(%c9)")
    assert priced(text).time.step_us == pytest.approx(10 * moved_us(BLOCK_BYTES))


def test_the_bytes_of_a_transfer_and_of_a_loop_count_too():
    loop = f"""
%body (p: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {{
  %p = (s32[], {BLOCK}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = {BLOCK} get-tuple-element(%p), index=1
  %f = {BLOCK} fusion(%x), kind=kLoop, calls=%fused, {cycles(15)}
  ROOT %t = (s32[], {BLOCK}) tuple(%next, %f)
}}
%condition (p: (s32[], f32[1024,1024])) -> pred[] {{
  %p = (s32[], {BLOCK}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(7)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}
"""
    entry = f"""
      {ARGUMENT}
      %zero = s32[] constant(0)
      %init = (s32[], {BLOCK}) tuple(%zero, %a)
      %w = (s32[], {BLOCK}) while(%init), condition=%condition, body=%body
      ROOT %o = {BLOCK} get-tuple-element(%w), index=1
    """
    assert priced(module_text(entry, before=loop)).time.step_us == pytest.approx(14 * BLOCK_BYTES / V5E_HBM, rel=1e-3)


# ---- matrix units


def matmul(kind, count, slice_name="v5e:2x4"):
    array = f"{kind}[4096,4096]{{1,0:T(8,128)}}"
    dot = f"convolution(%a, %a), dim_labels=bf_io->bf, {cycles(count)}"
    out = f"{'s32' if kind == 's8' else 'f32'}[4096,4096]{{1,0:T(8,128)}}"
    text = f"{HEADER}\nENTRY %e {{\n  %a = {array} parameter(0)\n  ROOT %d = {out} {dot}\n}}\n"
    return priced(text, slice_name).time


def test_a_share_of_the_peak_is_that_of_the_type_multiplied():
    flops = 2 * 4096**3
    int8, bf16 = matmul("s8", 542_476), matmul("bf16", 1_083_000)
    assert int8.peak_flops_share == pytest.approx(flops / (542_476 / 1.5e9) / 394e12)
    assert bf16.peak_flops_share == pytest.approx(flops / (1_083_000 / 1.5e9) / 197e12)
    assert 0.9 < int8.peak_flops_share < 1
    assert int8.flops == bf16.flops == flops


@pytest.mark.parametrize(("kind", "peak"), [("bf16", 197e12), ("s8", 394e12), ("s32", 197e12)])
def test_no_matmul_is_faster_than_the_matrix_units(kind, peak):
    time = matmul(kind, 1500)
    assert time.step_us == pytest.approx(2 * 4096**3 / peak * 1e6)
    assert time.peak_flops_share == pytest.approx(1.0)


# ---- gathers and scatters

TABLE, ROWS, INDICES = "f32[500000,1024]{1,0:T(8,128)}", "f32[32,1024]{1,0:T(8,128)}", "s32[32]{0:T(128)}"
ROWS_BYTES = 32 * 1024 * 4
GATHER = f"""
%gathered (t: f32[500000,1024], i: s32[32]) -> f32[32,1024] {{
  %t = {TABLE} parameter(0)
  %i = {INDICES} parameter(1)
  %in = {INDICES} custom-call(%i), custom_call_target="AssumeGatherIndicesInBound"
  ROOT %g = {ROWS} gather(%t, %in), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, \
index_vector_dim=1, slice_sizes={{1,1024}}
}}
"""
SCATTER = f"""
%scattered (t: f32[500000,1024], i: s32[32], u: f32[32,1024]) -> f32[500000,1024] {{
  %t = {TABLE} parameter(0)
  %i = {INDICES} parameter(1)
  %u = {ROWS} parameter(2)
  ROOT %s = {TABLE} scatter(%t, %i, %u), update_window_dims={{1}}, inserted_window_dims={{0}}, \
scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%sum
}}
"""
OF_TABLE = f"%t = {TABLE} parameter(0)\n%i = {INDICES} parameter(1)\n%u = {ROWS} parameter(2)"


@pytest.mark.parametrize("config", ["", f", {cycles(UNKNOWN_CYCLES)}"])
def test_a_gather_costs_what_it_touches_whatever_the_compiler_knows_of_its_cycles(config):
    fusion = f"ROOT %f = {ROWS} fusion(%t, %i), kind=kCustom, calls=%gathered{config}"
    time = priced(module_text(f"{OF_TABLE}\n{fusion}", before=GATHER), "tpu7x:2x2x1").time
    assert time.step_us == pytest.approx(moved_us(ROWS_BYTES) * 819 / (7380 / 2), rel=0.01)
    assert ([use.rule for use in time.rules], time.unknown_operations) == (["memory"], ())


def test_cycles_that_the_compiler_does_not_know_are_no_number():
    text = module_text(f"{ARGUMENT}\nROOT %f = {BLOCK} fusion(%a), kind=kLoop, calls=%fused, {cycles(UNKNOWN_CYCLES)}")
    time = priced(text).time
    assert time.step_us == pytest.approx(moved_us(BLOCK_BYTES))
    assert [use.rule for use in time.rules] == ["roofline"]
    assert time.basis == "roofline"


def test_a_scatter_reads_and_writes_the_rows_that_it_touches():
    fusion = f"ROOT %f = {TABLE} fusion(%t, %i, %u), kind=kCustom, calls=%scattered"
    fused = priced(module_text(f"{OF_TABLE}\n{fusion}", before=SCATTER)).time
    alone = priced(module_text(f"{OF_TABLE}\n{SCATTER.splitlines()[5]}")).time
    assert fused.step_us == alone.step_us == pytest.approx(moved_us(2 * ROWS_BYTES, ROWS_BYTES), rel=0.01)


# ---- what was computed


def test_the_basis_is_true_where_nothing_is_computed(says):
    reduced = f"ROOT %r = {BLOCK} all-reduce(%a), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, to_apply=%sum"
    copied = f'ROOT %c = {BLOCK} copy(%a), backend_config={{"used_scoped_memory_configs":[]}}'
    bases = [priced(module_text(f"{ARGUMENT}\n{root}")).time.basis for root in (reduced, copied)]
    assert bases == ["none", "memory"]
    time = priced(module_text(f"{ARGUMENT}\n{reduced}")).time
    basis, _, spread = render_time(time, 120)[2].plain.partition("; ")
    assert "nothing" in says(basis)
    assert spread.startswith("error factor on 37 ")


# ---- the host


def test_copies_from_and_to_the_host_run_at_once_and_slow_each_other():
    on_host = BLOCK.replace("}", "S(5)}")
    there, back = f"({on_host}, {BLOCK}, u32[]{{:S(2)}})", f"({BLOCK}, {on_host}, u32[]{{:S(2)}})"
    text = module_text(f"""
      {ARGUMENT}
      %h = {on_host} parameter(1)
      %there = {there} copy-start(%a)
      %back = {back} copy-start(%h)
      %again = {there} copy-start(%a)
      %t = {on_host} copy-done(%there)
      %b = {BLOCK} copy-done(%back)
      %u = {on_host} copy-done(%again)
      ROOT %r = ({on_host}, {BLOCK}, {on_host}) tuple(%t, %b, %u)
    """)
    alone = BLOCK_BYTES / (16e3 * CONSTANTS.host_share)
    at_once = BLOCK_BYTES / (16e3 * CONSTANTS.host_both_ways_share)
    assert priced(text).time.step_us == pytest.approx(at_once + alone)


# ---- kernels


def kernel(config="{}", name="splash.3", result=BLOCK, more=""):
    called = f'custom-call(%a), custom_call_target="tpu_custom_call", backend_config={config}{more}'
    metadata = 'metadata={op_name="jit(step)/attention/pallas_call"}'
    return f"%{name} = {result} {called}, {metadata}"


ESTIMATE = '{"custom_call_config":{"cost_estimate":{"flops":"197000000000","bytes_accessed":"8190000"}}}'


def with_kernel(line, costs=None, slice_name="v5e:2x4"):
    long = fusion("f", "a", 150_000)
    name, _, rest = line.partition(" = ")
    result = rest.partition(" custom-call")[0]
    text = module_text(f"{ARGUMENT}\n{long}\n{line}\nROOT %t = ({BLOCK}, {result}) tuple(%f, {name})")
    module = parse_module(text)
    analysis = analyze_module(module, target="test", mesh=None)
    return price_module(analysis, module, parse_slice(slice_name), kernel_costs=costs)


def test_a_kernel_costs_what_its_author_says():
    time = with_kernel(kernel(ESTIMATE)).time
    assert time.step_us == pytest.approx(100 + 1000)
    assert (time.bound, time.unpriced_kernels, time.spread.rows) == (Bound.EXACT, (), 37)


@pytest.mark.parametrize(
    ("types", "step_us"), [(("s8", "s8"), 1000), (("s8", "bf16"), 2000), (("s8", "s8", "bf16"), 1000)]
)
def test_a_kernel_of_narrow_types_is_not_held_to_the_pace_of_bf16(types, step_us):
    config = ESTIMATE.replace("197000000000", "394000000000")
    given = [f"%p{index} = {one}[8192,8192] parameter({index})" for index, one in enumerate(types)]
    called = ", ".join(f"%p{index}" for index in range(len(types)))
    call = f'ROOT %k = s32[8,128] custom-call({called}), custom_call_target="tpu_custom_call", backend_config={config}'
    time = priced(module_text("\n".join([*given, call]))).time
    assert time.step_us == pytest.approx(step_us)
    assert time.peak_flops_share == pytest.approx(1)


@pytest.mark.parametrize("name", ["splash", "splash.3", "attention", "tpu_custom_call"])
@pytest.mark.parametrize("config", ["{}", ESTIMATE])
def test_a_kernel_costs_what_the_user_says(name, config):
    time = with_kernel(kernel(config), {name: (0.0, 8.19e6)}).time
    assert time.step_us == pytest.approx(100 + moved_us(8.19e6 - BLOCK_BYTES, BLOCK_BYTES))
    assert (time.bound, time.unpriced_kernels, time.unknown_operations) == (Bound.EXACT, (), ())
    assert not any("kernel" in note for note in time.notes)


@pytest.mark.parametrize("costs", [None, {"splash": (1.0, 1000.0)}])
def test_a_kernel_takes_at_least_what_its_result_takes_whatever_is_said(says, costs):
    low = '{"custom_call_config":{"cost_estimate":{"flops":"1","bytes_accessed":"1000"}}}'
    time = with_kernel(kernel(low), costs).time
    assert time.step_us == pytest.approx(100 + moved_us(0, BLOCK_BYTES))
    assert re.findall(r"splash|[\d.]+ \wB", says(time.notes[-1])) == ["splash", "1 kB", "4.19 MB"]
    aliased = with_kernel(kernel(low, more=", output_to_operand_aliasing={{}: (0, {})}"), costs).time
    assert aliased.step_us == pytest.approx(100, rel=1e-3)
    assert not any("kernel" in note for note in aliased.notes)


def test_a_kernel_of_which_nothing_is_known_takes_at_least_what_its_result_takes(says):
    found = with_kernel(kernel())
    time = found.time
    assert time.step_us == pytest.approx(100 + moved_us(0, BLOCK_BYTES))
    assert (time.bound, time.spread, time.unpriced_kernels) == (Bound.AT_LEAST, None, ("splash",))
    assert time.peak_flops_share is None  # neither the kernel's FLOPs nor the step's length is known
    assert [(one.what, one.bytes) for one in time.unknown_operations] == [("kernel splash", 2 * BLOCK_BYTES)]
    lines = [line.plain for line in render_time(time, 300)]
    assert lines[0].startswith("≥107 us")
    assert re.findall(r"lower bound|splash(?= )|--kernel-cost \S+(?=,)|cost_estimate", says(lines[2])) == [
        *("lower bound", "splash"),
        *("--kernel-cost splash=FLOPS,BYTES", "cost_estimate"),
    ]


def test_a_result_that_takes_the_memory_of_an_operand_may_not_be_written_at_all():
    aliased = kernel(more=", output_to_operand_aliasing={{}: (0, {})}")
    two = kernel(result=f"({BLOCK}, {BLOCK})", more=", output_to_operand_aliasing={{1}: (0, {})}")
    assert with_kernel(aliased).time.step_us == pytest.approx(100)
    assert with_kernel(two).time.step_us == pytest.approx(100 + moved_us(0, BLOCK_BYTES))


def test_a_kernel_that_communicates_takes_what_is_said_of_it_and_more():
    config = ESTIMATE.replace('{"cost_estimate"', '{"has_communication":true,"cost_estimate"')
    nothing = '{"custom_call_config":{"has_communication":true}}'
    known, unknown = with_kernel(kernel(config)).time, with_kernel(kernel(nothing)).time
    assert (known.step_us, known.bound) == (pytest.approx(1100), Bound.AT_LEAST)
    assert (unknown.step_us, unknown.bound, unknown.spread) == (pytest.approx(100), Bound.AT_LEAST, None)


def test_a_cost_for_a_kernel_that_is_not_there_is_reported(says):
    notes = with_kernel(kernel(ESTIMATE), {"splosh": (1.0, 1.0)}).time.notes
    assert "splosh" in says(notes[-1])


def test_price_claims_nothing_for_a_kernel_that_is_not_known():
    from hloscope.base.canvas import Canvas
    from hloscope.report.formats import render

    found = with_kernel(kernel())
    shown = render("prices", "text", (found,), Canvas(width=120))
    assert "unknown" in shown
    assert "within" not in shown
