"""Times of single instructions."""

import pytest
from cost_examples import BLOCK, READ, cycles, module_text, moved_us, priced

from hloscope.cost.operations import Operations
from hloscope.cost.records import TimeBasis
from hloscope.hlo import parse_module
from hloscope.hlo.call_graph import HloGraph
from hloscope.tpu import find_chip
from hloscope.tpu.generation import CONSTANTS

BLOCK_BYTES = 2**22
IN_VMEM = "f32[1024,1024]{1,0:T(8,128)S(1)}"
ON_HOST = "f32[1024,1024]{1,0:T(8,128)S(5)}"
TYPES = ("bf16", "s32")


def operation(*lines, on="v5e"):
    """The time of the last instruction of ENTRY."""
    module = parse_module(module_text("\n".join(lines)))
    operations = Operations(graph=HloGraph(module), chip=find_chip(on))
    last = module.entry.root
    return operations, last


def time_of(*lines, on="v5e"):
    operations, last = operation(*lines, on=on)
    return operations.time_of(last)


ARGUMENT = f"%a = {BLOCK} parameter(0)"
FAST_ARGUMENT = f"%a = {IN_VMEM} parameter(0)"


def test_a_fusion_takes_its_cycles():
    found = time_of(ARGUMENT, f"ROOT %f = {BLOCK} fusion(%a), kind=kLoop, calls=%fused, {cycles(3000)}")
    assert (found.time_us, found.basis) == (2.0, TimeBasis.CYCLES)
    assert found.memory_us == pytest.approx(moved_us(BLOCK_BYTES))


@pytest.mark.parametrize(("kind", "basis"), [("kLoop", TimeBasis.MEMORY), ("kCustom", TimeBasis.CYCLES)])
def test_what_streams_through_memory_takes_its_bytes_and_not_its_cycles(kind, basis):
    found = time_of(ARGUMENT, f"ROOT %f = {BLOCK} fusion(%a), kind={kind}, calls=%fused, {cycles(30_000)}")
    expected_us = moved_us(BLOCK_BYTES) if basis is TimeBasis.MEMORY else 20.0
    assert (found.time_us, found.basis) == (pytest.approx(expected_us), basis)


def test_what_stays_in_the_vector_memory_takes_its_cycles():
    inside = f"%inside (p: f32[1024,1024]) -> f32[1024,1024] {{\n  %p = {IN_VMEM} parameter(0)\n"
    inside += f"  ROOT %n = {IN_VMEM} negate(%p)\n}}\n"
    line = f"ROOT %f = {IN_VMEM} fusion(%a), kind=kLoop, calls=%inside, {cycles(90_000)}"
    module = parse_module(module_text(f"{FAST_ARGUMENT}\n{line}", before=inside))
    found = Operations(graph=HloGraph(module), chip=find_chip("v5e")).time_of(module.entry.root)
    assert (found.time_us, found.basis) == (60.0, TimeBasis.CYCLES)


@pytest.mark.parametrize("opcode", ["copy", "negate"])
def test_copies_and_unfused_operations_take_their_traffic_whatever_the_cycles(opcode):
    found = time_of(ARGUMENT, f"ROOT %c = {BLOCK} {opcode}(%a), {cycles(10**6)}")
    assert (found.time_us, found.basis) == (pytest.approx(moved_us(BLOCK_BYTES)), TimeBasis.MEMORY)


def test_within_vmem_a_copy_takes_no_longer_than_its_cycles():
    slow = time_of(FAST_ARGUMENT, f"ROOT %c = {IN_VMEM} copy(%a), {cycles(10**6)}")
    fast = time_of(FAST_ARGUMENT, f"ROOT %c = {IN_VMEM} copy(%a), {cycles(1500)}")
    assert slow.time_us == pytest.approx(2 * BLOCK_BYTES / 819e3)
    assert fast.time_us == 1.0
    assert slow.memory_us == 0


def test_tiles_are_counted_with_their_padding():
    found = time_of(
        "%a = bf16[3,100]{1,0:T(8,128)(2,1)} parameter(0)", "ROOT %c = bf16[3,100]{1,0:T(8,128)(2,1)} copy(%a)"
    )
    assert found.moved_bytes == 2 * 8 * 128 * 2


def test_a_slice_and_an_update_move_only_their_part():
    index = "%i = s32[] constant(0)"
    part = "f32[8,1024]{1,0:T(8,128)}"
    sliced = time_of(ARGUMENT, index, f"ROOT %s = {part} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={{8,1024}}")
    updated = time_of(
        ARGUMENT, index, f"%u = {part} parameter(1)", f"ROOT %s = {BLOCK} dynamic-update-slice(%a, %u, %i, %i)"
    )
    assert sliced.moved_bytes == updated.moved_bytes == 2 * 8 * 1024 * 4


@pytest.mark.parametrize("line", ["tuple(%a)", "get-tuple-element(%a), index=0", "bitcast(%a)"])
def test_what_only_renames_is_free(line):
    shape = f"({BLOCK})" if line.startswith("tuple") else BLOCK
    argument = f"%a = ({BLOCK}) parameter(0)" if line.startswith("get") else ARGUMENT
    assert time_of(argument, f"ROOT %r = {shape} {line}").basis is TimeBasis.FREE


def test_an_asynchronous_slice_moves_the_slice():
    operations, start = operation(
        ARGUMENT, f"ROOT %s = (({BLOCK}), f32[8,1024]{{1,0:T(8,128)S(1)}}, s32[]{{:S(2)}}) slice-start(%a)"
    )
    assert operations.copy_time(start).time_us == pytest.approx(8 * 1024 * 4 / READ)


@pytest.mark.parametrize(
    ("sliced", "operands"),
    [
        ("slice(%p), slice={[0:8], [0:1024]}", "%a"),
        ("dynamic-slice(%p, %i, %i), dynamic_slice_sizes={8,1024}", "%a, %n, %n"),
    ],
)
def test_an_asynchronous_slice_takes_as_long_as_a_dump_writes_it(sliced, operands):
    small, opcode = "f32[8,1024]{1,0:T(8,128)S(1)}", sliced.partition("(")[0]
    wrapped = f"%sliced {{\n  %p = {BLOCK} parameter(0)\n  %i = s32[] parameter(1)\n  ROOT %s = {small} {sliced}\n}}\n"
    begin = f"{ARGUMENT}\n%n = s32[] parameter(1)\n%s = (({BLOCK}, s32[]), {small}, s32[])"
    direct = f"{begin} {opcode}-start({operands})\nROOT %d = {small} {opcode}-done(%s)"
    dumped = f"{begin} async-start({operands}), calls=%sliced\nROOT %d = {small} async-done(%s)"
    executable, dump = priced(module_text(direct)), priced(module_text(dumped, before=wrapped))
    assert dump.time == executable.time
    assert executable.time.step_us >= 8 * 1024 * 4 / READ


TO_HOST = f"ROOT %s = ({ON_HOST}, {BLOCK}, u32[]{{:S(2)}}) copy-start(%a)"
PCIE_US = BLOCK_BYTES / (16e9 * CONSTANTS.host_share) * 1e6


def test_the_host_is_reached_over_pcie():
    operations, start = operation(ARGUMENT, TO_HOST)
    found = operations.copy_time(start)
    assert (found.time_us, found.basis, found.is_over_host) == (pytest.approx(PCIE_US), TimeBasis.LINK_TO_HOST, True)
    waited_for = time_of(ARGUMENT, f"ROOT %c = {ON_HOST} copy(%a)")
    assert (waited_for.time_us, waited_for.basis) == (pytest.approx(PCIE_US), TimeBasis.LINK_TO_HOST)


def test_a_link_to_the_host_whose_pace_is_not_published_is_unknown():
    operations, start = operation(ARGUMENT, TO_HOST, on="v7x")
    assert operations.copy_time(start).basis is TimeBasis.UNKNOWN
    assert time_of(ARGUMENT, f"ROOT %c = {ON_HOST} copy(%a)", on="v7x").basis is TimeBasis.UNKNOWN


def test_a_roofline_counts_the_passes_of_the_matrix_unit():
    array, dot = "[2048,2048]", "dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    narrow, wide = (time_of(f"%m = {kind}{array} parameter(0)", f"ROOT %d = {kind}{array} {dot}") for kind in TYPES)
    assert wide.flops == narrow.flops == 2 * 2048**3
    assert wide.time_us == pytest.approx(10 * narrow.time_us) == pytest.approx(20 * 2048**3 / 197e6)


@pytest.mark.parametrize(
    ("kind", "on", "passes"),
    [
        ("s8", "v5e", 0.5), ("s4", "v5e", 0.5), ("f8e5m2", "v6e", 0.5), ("f8e4m3fn", "v6e", 1), ("s8", "v7x", 1),
        ("f8e4m3fn", "v7x", 0.5), ("s8", "v4", 1), ("s8", "v2", 1), ("s16", "v5e", 4),
    ],
)  # fmt: skip
def test_narrow_types_are_faster_where_the_chip_multiplies_them(kind, on, passes):
    dot = "dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    found = time_of(f"%m = {kind}[4096,4096] parameter(0)", f"ROOT %d = f32[4096,4096] {dot}", on=on)
    entry = find_chip(on)
    peak = entry.bf16_flops_per_s / entry.devices_per_chip
    assert found.time_us == pytest.approx(passes * 2 * 4096**3 / peak * 1e6, rel=3e-2)


def test_a_matmul_that_is_not_understood_is_unknown():
    found = time_of(ARGUMENT, f"ROOT %c = {BLOCK} convolution(%a, %a), dim_labels=b01f_01io->b01f")
    assert (found.basis, found.moved_bytes) == (TimeBasis.UNKNOWN, 3 * BLOCK_BYTES)


def test_a_custom_fusion_without_cycles_is_unknown_and_any_other_is_a_roofline():
    custom = time_of(ARGUMENT, f"ROOT %f = {BLOCK} fusion(%a), kind=kCustom, calls=%fused")
    loop = time_of(ARGUMENT, f"ROOT %f = {BLOCK} fusion(%a), kind=kLoop, calls=%fused")
    assert (custom.basis, loop.basis) == (TimeBasis.UNKNOWN, TimeBasis.ROOFLINE)
    assert custom.time_us == loop.time_us == pytest.approx(moved_us(BLOCK_BYTES))


def test_compiler_marks_are_free():
    assert time_of('ROOT %b = f32[8] custom-call(), custom_call_target="AllocateBuffer"').basis is TimeBasis.FREE


def test_halves_of_wide_values_are_split_by_moving_their_bytes():
    words = "%a = u64[1024,128] parameter(0)"
    split = time_of(words, 'ROOT %b = u32[1024,128] custom-call(%a), custom_call_target="X64SplitLow"')
    assert (split.basis, split.moved_bytes) == (TimeBasis.ROOFLINE, 1024 * 128 * (8 + 4))


def test_a_reshape_moves_its_tiles_and_otherwise_only_renames():
    flat = "f32[1048576]{0:T(1024)}"
    moved = time_of(f"%a = {flat} parameter(0)", f"ROOT %r = {BLOCK} reshape(%a)")
    assert (moved.basis, moved.moved_bytes) == (TimeBasis.MEMORY, 2 * BLOCK_BYTES)
    named = time_of("%a = f32[1048576] parameter(0)", "ROOT %r = f32[1024,1024]{1,0} reshape(%a)")
    assert named.basis is TimeBasis.FREE


def test_a_kernel_whose_estimate_is_empty_is_unknown():
    config = '{"custom_call_config":{"cost_estimate":{"flops":"0","transcendentals":"0","bytes_accessed":"0"}}}'
    kernel = f'custom-call(%a), custom_call_target="tpu_custom_call", backend_config={config}'
    found = time_of(ARGUMENT, f"ROOT %k = {BLOCK} {kernel}")
    assert (found.basis, found.moved_bytes) == (TimeBasis.UNKNOWN, 2 * BLOCK_BYTES)
