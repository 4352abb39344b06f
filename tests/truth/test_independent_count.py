"""Bytes and counts read from compiled text equal those of the jaxpr, for random programs of shard_map collectives."""

from __future__ import annotations

import os

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from jaxpr_count import Count, Moved, add, count_jaxpr
from random_programs import KINDS, Program, Step, programs, steps_of

import hloscope
from hloscope.compile.devices import make_mesh
from hloscope.model import Analysis

TPU_SLICES = {4: "v5e:2x2", 8: "v5e:2x4"}
TPU_ROWS = (16, 32, 64)
"""Shards of so many rows that v5e scatters sums of f32; it adds up fewer, or odd numbers, on every device."""
WIDENED_ON_CPU = {"bfloat16": "f32", "float8_e4m3fn": "f16", "float8_e5m2": "f16", "int4": "s8", "uint4": "u8"}
PACKED_ON_TPU = ("float8_e4m3fn", "float8_e5m2", "int16", "int8", "uint8", "int4", "uint4")
"""Types whose sums v5e packs into u32 words, and never scatters."""
NOT_SCATTERED = tuple(kind for kind in KINDS if kind != "psum_scatter")


def few(examples: int) -> settings:
    """Compiling takes a moment, so there are few examples and none is too slow; in a search ten times as many."""
    examples *= 10 if "HLOSCOPE_RANDOM" in os.environ else 1
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


def analyzed(program: Program, slice_name: str) -> Analysis:
    """The program's compiled text, which must be understood to the last loop."""
    arguments = (program.argument, program.argument)
    found = hloscope.analyze(program.function(), arguments, mesh=program.sizes, slice=slice_name)
    assert found.unmodelled == ()
    assert found.totals.bound in (("exact",) if everyone_sends(program) else ("exact", "at most"))
    return found


def everyone_sends(program: Program) -> bool:
    """Whether every permute gives every device something to send, so that no device sends less than another."""
    return all(
        {source for source, target in step.pairs if source != target} in (set(), set(range(program.group_size(step))))
        for step in steps_of(program.steps)
        if step.kind == "ppermute"
    )


def count_text(found: Analysis) -> Count:
    """What the analysis says, summed like the count of the jaxpr; collectives that move nothing are left out."""
    total: Count = {}
    for one in found.collectives:
        assert one.executions_bound == "exact"
        assert one.origin != "inserted"  # under shard_map the partitioner has nothing to add
        if one.wire_bytes:
            moved = Moved(one.executions, one.payload_bytes_per_step, one.wire_bytes_per_step)
            add(total, (one.kind.value, frozenset(one.axes)), moved)
    return total


def count_program(program: Program) -> Count:
    """The same from the jaxpr."""
    arguments = (program.argument, program.argument)
    with jax.set_mesh(make_mesh(program.sizes, dict.fromkeys(program.sizes, "auto"))):
        return count_jaxpr(jax.make_jaxpr(program.function())(*arguments), program.sizes)


@given(programs(device_counts=(2, 3, 4, 6, 8, 12), dtypes=("float32", "int32"), rows=(8, 16, 24)))
@few(25)
def test_words_on_cpu(program):
    assert count_text(analyzed(program, f"cpu:{program.devices}")) == count_program(program)


@pytest.mark.tpu_compiler
@given(programs(device_counts=tuple(TPU_SLICES), dtypes=("float32",), rows=TPU_ROWS))
@few(8)
def test_floats_on_a_tpu(program):
    assert count_text(analyzed(program, TPU_SLICES[program.devices])) == count_program(program)


@pytest.mark.tpu_compiler
@given(programs(device_counts=(8,), dtypes=("float32",), rows=TPU_ROWS, kinds=NOT_SCATTERED))
@few(3)
@pytest.mark.parametrize("slice_name", ["v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1"])
def test_floats_on_other_chips(slice_name, program):
    assert count_text(analyzed(program, slice_name)) == count_program(program)


@pytest.mark.tpu_compiler
@given(programs(device_counts=tuple(TPU_SLICES), dtypes=("int32",), rows=TPU_ROWS, kinds=NOT_SCATTERED))
@few(8)
def test_integers_on_a_tpu(program):
    assert count_text(analyzed(program, TPU_SLICES[program.devices])) == count_program(program)


@pytest.mark.tpu_compiler
@given(programs(device_counts=tuple(TPU_SLICES), dtypes=("bfloat16",), rows=TPU_ROWS))
@few(4)
def test_bfloat16_on_a_tpu(program):
    assert count_text(analyzed(program, TPU_SLICES[program.devices])) == count_program(program)


@pytest.mark.tpu_compiler
@given(programs(device_counts=tuple(TPU_SLICES), dtypes=PACKED_ON_TPU, rows=TPU_ROWS, kinds=NOT_SCATTERED))
@few(8)
def test_bytes_of_small_types_on_a_tpu(program):
    assert count_text(analyzed(program, TPU_SLICES[program.devices])) == count_program(program)


@given(programs(device_counts=(4, 8), dtypes=tuple(WIDENED_ON_CPU), rows=(8, 16)))
@few(10)
def test_cpu_widens_some_types_to_twice_their_bytes(program):
    twice = {
        key: Moved(moved.executions, 2 * moved.payload_bytes, 2 * moved.wire_bytes)
        for key, moved in count_program(program).items()
    }
    assert count_text(analyzed(program, f"cpu:{program.devices}")) == twice


@given(programs(device_counts=(4, 8), dtypes=("float16", "int16", "int8", "uint8"), rows=(8, 16)))
@few(10)
def test_cpu_keeps_other_small_types(program):
    assert count_text(analyzed(program, f"cpu:{program.devices}")) == count_program(program)


def one_step(kind: str, dtype: str) -> Program:
    ring = tuple((i, (i + 1) % 4) for i in range(4))
    return Program((("a", 4),), dtype, 32, 256, (Step(kind, ("a",), ring if kind == "ppermute" else ()),))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "printed"), WIDENED_ON_CPU.items())
def test_the_type_that_cpu_widens_to(kind, dtype, printed):
    [found] = analyzed(one_step(kind, dtype), "cpu:4").collectives
    assert {shape.dtype for shape in (*found.operand_shapes, *found.result_shapes)} == {printed}


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("dtype", PACKED_ON_TPU)
def test_a_tpu_packs_sums_of_small_types_and_does_not_scatter_them(dtype):
    """The bytes stay the user's; the type does not, and a psum_scatter pays for an all-reduce."""
    summed, scattered = (analyzed(one_step(kind, dtype), "v5e:2x2").collectives for kind in ("psum", "psum_scatter"))
    for found in (*summed, *scattered):
        assert found.kind == "all-reduce"
        assert found.operand_shapes[0].dtype == "u32"
    [expected] = count_program(one_step("psum", dtype)).values()
    assert [one.payload_bytes for one in (*summed, *scattered)] == [expected.payload_bytes] * 2
