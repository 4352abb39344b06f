"""Times of single instructions."""

import pytest
from cost_examples import BLOCK, cycles, module_text

from hloscope.cost.operations import Basis, Operations
from hloscope.graph import HloGraph
from hloscope.hardware import chip
from hloscope.hlo import parse_module

HBM_BYTES_PER_US = 819e9 * 0.832 / 1e6
BLOCK_BYTES = 2**22
IN_VMEM = "f32[1024,1024]{1,0:T(8,128)S(1)}"


def operation(*lines):
    """The time of the last instruction of ENTRY."""
    module = parse_module(module_text("\n".join(lines)))
    operations = Operations(graph=HloGraph(module), chip=chip("v5e"))
    last = module.entry.root
    return operations, last


def time_of(*lines):
    operations, last = operation(*lines)
    return operations.time_of(last)


ARGUMENT = f"%a = {BLOCK} parameter(0)"
FAST_ARGUMENT = f"%a = {IN_VMEM} parameter(0)"


def test_a_fusion_takes_its_cycles():
    found = time_of(ARGUMENT, f"ROOT %f = {BLOCK} fusion(%a), kind=kLoop, calls=%fused, {cycles(3000)}")
    assert (found.time_us, found.basis) == (2.0, Basis.CYCLES)
    assert found.memory_us == pytest.approx(2 * BLOCK_BYTES / HBM_BYTES_PER_US)


@pytest.mark.parametrize("opcode", ["copy", "negate"])
def test_copies_and_unfused_operations_take_their_traffic_whatever_the_cycles(opcode):
    found = time_of(ARGUMENT, f"ROOT %c = {BLOCK} {opcode}(%a), {cycles(10**6)}")
    assert (found.time_us, found.basis) == (pytest.approx(2 * BLOCK_BYTES / HBM_BYTES_PER_US), Basis.MEMORY)


def test_within_vmem_a_copy_takes_no_longer_than_its_cycles():
    slow = time_of(FAST_ARGUMENT, f"ROOT %c = {IN_VMEM} copy(%a), {cycles(10**6)}")
    fast = time_of(FAST_ARGUMENT, f"ROOT %c = {IN_VMEM} copy(%a), {cycles(1500)}")
    assert slow.time_us == pytest.approx(2 * BLOCK_BYTES / HBM_BYTES_PER_US)
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
    assert time_of(argument, f"ROOT %r = {shape} {line}").basis is Basis.FREE


def test_an_asynchronous_slice_moves_the_slice():
    operations, start = operation(
        ARGUMENT, f"ROOT %s = (({BLOCK}), f32[8,1024]{{1,0:T(8,128)S(1)}}, s32[]{{:S(2)}}) slice-start(%a)"
    )
    assert operations.copy_us(start) == pytest.approx(8 * 1024 * 4 / HBM_BYTES_PER_US)


def test_the_host_is_reached_over_pcie():
    operations, start = operation(
        ARGUMENT, f"ROOT %s = (f32[1024,1024]{{1,0:T(8,128)S(5)}}, {BLOCK}, u32[]{{:S(2)}}) copy-start(%a)"
    )
    assert operations.copy_us(start) == pytest.approx(BLOCK_BYTES / 16e9 * 1e6)


def test_a_custom_fusion_without_cycles_is_unknown_and_any_other_is_a_roofline():
    custom = time_of(ARGUMENT, f"ROOT %f = {BLOCK} fusion(%a), kind=kCustom, calls=%fused")
    loop = time_of(ARGUMENT, f"ROOT %f = {BLOCK} fusion(%a), kind=kLoop, calls=%fused")
    assert (custom.basis, loop.basis) == (Basis.UNKNOWN, Basis.ROOFLINE)
    assert custom.time_us == loop.time_us == pytest.approx(2 * BLOCK_BYTES / HBM_BYTES_PER_US)


def test_compiler_marks_are_free():
    assert time_of('ROOT %b = f32[8] custom-call(), custom_call_target="AllocateBuffer"').basis is Basis.FREE
