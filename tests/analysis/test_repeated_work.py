"""Repeated work: exact on programs whose repetition is known, and unknown where it cannot be known."""

from __future__ import annotations

import itertools
import json
from math import prod

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P
from repeated_programs import KINDS, make_example

import hloscope
from hloscope.app.analyzing import analyze_hlo
from hloscope.compile import client, compiling
from hloscope.compile.estimates import ShardyRuns, estimate_cost
from hloscope.model.capture import find_evidence
from hloscope.model.vocabulary import Bound, CompileStage

pytestmark = pytest.mark.process
MESH = {"data": 4, "model": 2}


def analyze_function(function, *args, slice="cpu:8", mesh=MESH, **options):
    return hloscope.analyze(function, args=args, mesh=mesh, slice=slice, **options)


def check_example(seed, slice):
    example = make_example(seed)
    analysis = analyze_function(
        example.function, *example.args, mesh=example.mesh, axis_types=example.axis_types, slice=slice
    )
    check_bytes_of_decisions(analysis)
    found = analysis.repeated
    assert (found.bound, found.recomputed) == (Bound.EXACT, 0)
    assert (found.traced_flops, found.compiled_flops) == (example.traced, example.everywhere)
    assert found.padding == pytest.approx(example.padded / example.traced, rel=1e-12)
    assert found.ratio == pytest.approx(example.everywhere / example.padded, rel=1e-12)
    assert found.is_notable == (example.everywhere > example.padded)


def check_bytes_of_decisions(found):
    explained = {name for decision in found.decisions for name in decision.collectives}
    rest = sum(each.wire_bytes_per_step for each in found.collectives if each.name not in explained)
    assert sum(decision.wire_bytes for decision in found.decisions) + rest == found.totals.wire_bytes


FEW = len(KINDS)


@pytest.mark.parametrize("seed", range(FEW))
def test_generated_programs(seed):
    check_example(seed, "cpu:8")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(FEW, 96))
def test_many_generated_programs(seed):
    check_example(seed, "cpu:8")


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("seed", [100, 101, 107])
def test_generated_programs_for_tpu(seed):
    check_example(seed, "v5e:2x4")


@pytest.mark.long
@pytest.mark.tpu_compiler
@pytest.mark.parametrize("seed", range(108, 164))
def test_many_generated_programs_for_tpu(seed):
    check_example(seed, "v5e:2x4")


# ---- the lines


def lost_batch(x, w, v):
    with jax.named_scope("mlp"):
        h = jnp.tanh(x @ w)
    h = jax.lax.with_sharding_constraint(h, P())
    return h @ v


LOST = ("f32[64@data,32]", "f32[32,16]", "f32[16,48]")
FIRST = lost_batch.__code__.co_firstlineno


def test_lines_that_repeat_most_come_first_with_the_axes_that_shard_nothing():
    found = analyze_function(lost_batch, *LOST)
    assert [(each.source[0].line - FIRST, each.ratio, each.axes, each.devices) for each in found.repeated.lines] == [
        (4, 8.0, ("data", "model"), 8),
        (2, 2.0, ("model",), 2),
    ]
    assert [each.module for each in found.repeated.lines] == [None, "mlp"]
    assert found.repeated.ratio == pytest.approx((8 * 48 + 2 * 32) / (48 + 32))
    report = " ".join(str(found).split())
    assert (
        "Repeated work: 5.6 times the FLOPs of the traced program; 8 devices of data x model do the same matmuls at "
        f"test_repeated_work.py:{FIRST + 4} in lost_batch; 2 devices of model do the same matmuls at "
        f"test_repeated_work.py:{FIRST + 2} in lost_batch (mlp)." in report
    )
    assert hloscope.Analysis.from_dict(json.loads(found.report("json"))).repeated == found.repeated


def test_a_report_says_nothing_of_a_program_that_repeats_nothing():
    found = analyze_function(
        lambda x, w, v: jnp.tanh(x @ w) @ v, "f32[64@data,32]", "f32[32,64@model]", "f32[64@model,32]"
    )
    assert (found.repeated.ratio, found.repeated.bound, found.repeated.lines) == (1.0, Bound.EXACT, ())
    assert "Repeated work" not in str(found)


def test_what_the_compiler_merges_is_less_than_one_and_not_called_repeated():
    found = analyze_function(lambda x, w: (x @ w) + jnp.sin(x @ w), "f32[64@(data,model),32]", "f32[32,32]")
    assert found.repeated.ratio == 0.5
    assert not found.repeated.is_notable
    assert found.repeated.lines == ()


# ---- loops, branches, and what cannot be counted


def count_to(end, x, w, step=1):
    return jax.lax.while_loop(lambda c: c[0] < end, lambda c: (c[0] + step, jnp.tanh(c[1] @ w)), (0, x))[1]


ROWS = ("f32[64@data,32]", "f32[32,32]")


def test_trips_are_counted_by_start_end_and_step():
    found = analyze_function(lambda x, w: count_to(10, x, w, step=3), *ROWS)
    assert (found.repeated.ratio, found.repeated.bound) == (2.0, Bound.EXACT)
    assert found.repeated.traced_flops == 4 * 2 * 64 * 32 * 32


@pytest.mark.parametrize("loop", [count_to, lambda n, x, w: jax.lax.cond(n > 0, lambda x: x @ w, lambda x: x, x)])
def test_an_unknown_number_of_runs_is_of_no_account_where_all_is_repeated_alike(loop):
    found = analyze_function(loop, "i32[]", *ROWS).repeated
    assert (found.ratio, found.bound) == (2.0, Bound.EXACT)


def test_an_unknown_number_of_runs_leaves_the_ratio_open_where_not_all_is_repeated_alike():
    def program(n, x, w, v):
        x = count_to(n, x, w)
        return x @ v

    found = analyze_function(program, "i32[]", *ROWS, "f32[32,32@model]").repeated
    assert (found.ratio, found.bound) == (1.5, Bound.UNKNOWN)


def test_a_factorization_is_not_counted_and_leaves_the_ratio_open():
    def program(x, w):
        factor = jnp.linalg.cholesky(w)
        return x @ factor

    found = analyze_function(program, "f32[64@(data,model),32]", "f32[32,32]").repeated
    assert (found.ratio, found.bound) == (1.0, Bound.AT_LEAST)
    assert found.traced_flops == 2 * 64 * 32 * 32


def test_a_program_without_matmuls_has_no_ratio():
    found = analyze_function(jnp.sin, "f32[64@data,32]").repeated
    assert (found.ratio, found.bound) == (None, Bound.UNKNOWN)


def test_uneven_shards_in_a_function_that_shardy_does_not_look_into_bound_the_ratio():
    @jax.jit
    def inner(x, w):
        return x @ w

    def program(x, w):
        x = jax.lax.with_sharding_constraint(x, P("data"))
        return inner(x, w)

    found = analyze_function(program, "f32[10,32]", "f32[32,16]").repeated
    padded = analyze_function(
        lambda x, w: inner.__wrapped__(jax.lax.with_sharding_constraint(x, P("data")), w), *UNEVEN
    )
    assert padded.repeated.padding == pytest.approx(1.2)
    assert (found.padding, found.bound) in [(1.0, Bound.AT_MOST), (pytest.approx(1.2), Bound.EXACT)]
    assert found.ratio * found.padding == pytest.approx(padded.repeated.ratio * 1.2)


UNEVEN = ("f32[10,32]", "f32[32,16]")


def test_lines_of_the_same_axes_are_in_one_sentence():
    def program(x, w):
        h = jnp.tanh(x @ w)
        return h @ w

    words = " ".join(str(analyze_function(program, *ROWS)).split())
    line = program.__code__.co_firstlineno
    assert f"2 devices of model do the same matmuls at test_repeated_work.py:{line + 1}" in words
    assert f"and test_repeated_work.py:{line + 2}" in words


def test_text_alone_does_not_say_what_is_repeated():
    text = find_evidence(analyze_function(lost_batch, *LOST)).program.compiled.text
    assert analyze_hlo(text, mesh=MESH).repeated is None


# ---- convolutions and kernels


def count_convolution(size, kernel, outputs, stride, hole, spread, low):
    """The pairs of positions that meet an element, by walking over them."""
    return sum(
        at >= 0 and at % hole == 0 and at // hole < size
        for output, offset in itertools.product(range(outputs), range(kernel))
        for at in [output * stride + offset * spread - low]
    )


@pytest.mark.parametrize(("stride", "hole", "spread", "low"), [(1, 1, 1, 1), (2, 1, 1, 0), (1, 2, 1, 2), (1, 1, 2, 2)])
def test_convolutions(stride, hole, spread, low):
    def program(x, kernel):
        dimensions = ("NHC", "HIO", "NHC")
        options = {"lhs_dilation": (hole,), "rhs_dilation": (spread,), "dimension_numbers": dimensions}
        return jax.lax.conv_general_dilated(x, kernel, (stride,), [(low, low)], **options)

    found = analyze_function(program, "f32[8@data,16,4]", "f32[3,4,8]")
    outputs = found.outputs[0].global_shape[1]
    flops = 2 * 8 * 4 * 8 * count_convolution(16, 3, outputs, stride, hole, spread, low)
    assert (found.repeated.traced_flops, found.repeated.ratio) == (flops, 2.0)


def multiply(x, w, flops=None):
    def kernel(x, w, out):
        out[...] = jnp.dot(x[...], w[...], preferred_element_type=jnp.float32)

    cost = None if flops is None else pl.CostEstimate(flops=flops, bytes_accessed=1, transcendentals=0)
    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), jnp.float32)
    return pl.pallas_call(kernel, out_shape=shape, cost_estimate=cost, name="tiled")(x, w)


def with_kernel(x, w, v, flops=None):
    specs = {"in_specs": (P("data"), P(None, "model")), "out_specs": P("data", "model")}
    x = jax.shard_map(lambda x, w: multiply(x, w, flops), check_vma=False, **specs)(x, w)
    return x @ v


TILES = ("f32[512@data,256]", "f32[256,512@model]", "f32[512@model,256]")
OF_KERNEL = 2 * 128 * 256 * 256


@pytest.mark.tpu_compiler
def test_a_kernel_of_unknown_cost_may_repeat_work():
    found = analyze_function(with_kernel, *TILES, slice="v5e:2x4").repeated
    assert (found.ratio, found.bound, found.traced_flops) == (1.0, Bound.AT_LEAST, 2 * 512 * 512 * 256)


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(("flops", "costs"), [(OF_KERNEL, {}), (None, {"tiled": (OF_KERNEL, 1)})])
def test_a_kernel_of_known_cost_counts(flops, costs):
    found = analyze_function(
        lambda x, w, v: with_kernel(x, w, v, flops), *TILES, slice="v5e:2x4", kernel_costs=costs
    ).repeated
    assert (found.ratio, found.bound) == (1.0, Bound.EXACT)
    assert found.traced_flops == 2 * 512 * 512 * 256 + 8 * OF_KERNEL


# ---- what the compiler computes again


def test_copies_that_save_memory_are_told_apart(analyze):
    fused = """
    %fused.1 (x: f32[8,8]) -> f32[8,8] {
      %x = f32[8,8] parameter(0)
      ROOT %d.1 = f32[8,8] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }
    %fused.2 (x: f32[8,8]) -> f32[8,8] {
      %x = f32[8,8] parameter(0)
      ROOT %d.2 = f32[8,8] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }"""
    body = """
    %a = f32[8,8] parameter(0)
    %lone.remat = f32[8,8] dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    %fusion.3 = f32[8,8] fusion(%lone.remat), kind=kOutput, calls=%fused.1
    %fusion.3.remat2 = f32[8,8] fusion(%fusion.3), kind=kOutput, calls=%fused.2
    ROOT %end = f32[8,8] add(%fusion.3, %fusion.3.remat2)"""
    [row] = analyze(body, computations=fused).matmuls
    assert (row.executions, row.flops, row.recomputed_flops) == (3, 3 * 2 * 8**3, 2 * 8**3)


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_the_compilers_own_rematerialization_has_its_share():
    def program(weights, x):
        def loss(weights):
            y = x
            for number in range(24):
                y = jnp.tanh(y @ weights[number].T @ weights[number])
            return y.astype(jnp.float32).sum()

        return jax.grad(loss)(weights)

    arguments = ("bf16[24,512,4096]", "bf16[131072,4096]")
    analysis = analyze_function(program, *arguments, slice="v5e:1x1", mesh={"data": 1})
    found = analysis.repeated
    assert found.recomputed > 0.05
    assert found.ratio == pytest.approx(1 / (1 - found.recomputed))
    assert "of them are computed again to save memory" in " ".join(str(analysis).split())


# ---- the same counts in estimates, and at the earlier stage


def test_estimates_count_all_devices_of_manual_axes_and_the_steps_of_loops():
    def program(x, w):
        return jax.shard_map(lambda x, w: count_to(8, x, w, step=2), in_specs=(P("data"), P()), out_specs=P("data"))(
            x, w
        )

    shardy = find_evidence(analyze_function(program, *ROWS)).program.compiled.shardy
    found = estimate_cost(shardy)
    assert (found.flops, found.whole_flops) == (4 * 2 * 16 * 32**2, 8 * 4 * 2 * 16 * 32**2)
    runs = ShardyRuns(shardy)
    [of_dot] = [runs.of(op) for op in shardy.ops if op.flops is not None]
    assert (of_dot.times, of_dot.times_everywhere, of_dot.manual) == (4, 4 * prod(MESH.values()), frozenset(MESH))


@pytest.mark.tpu_compiler
def test_it_is_known_when_the_program_is_scheduled(monkeypatch):
    monkeypatch.setattr(client.Question, "is_answered", False)
    monkeypatch.setattr(compiling, "SOON_COMPILED_CHARS", 0)
    found = analyze_function(lost_batch, *LOST, slice="v5e:2x4", stage="scheduled")
    assert (found.stage, found.repeated.ratio) == (CompileStage.SCHEDULED, pytest.approx(5.6))
