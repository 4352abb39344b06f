"""Before there is machine code, cycles and algorithms are estimated, and what they may be off by is said."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from cost_examples import BLOCK, cycles, module_text

from hloscope.analysis.analyze import analyze_module
from hloscope.cost.collectives import estimate_algorithm
from hloscope.cost.network import UNPRINTED_ALGORITHM, RouteKind, make_algorithm
from hloscope.cost.price import WITHOUT_MACHINE_CODE, price_module
from hloscope.hlo import parse_module
from hloscope.model.vocabulary import Bound, CompileStage
from hloscope.tpu import parse_slice
from hloscope.tpu.chips import CHIPS
from hloscope.tpu.estimates import AlgorithmFacts, find_estimates

ESTIMATED = ("v4", "v5e", "v5p", "v6e", "v7x")
LOOP = """
%loop (p: f32[1024,1024]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0:T(8,128)S(1)} parameter(0)
  ROOT %e = f32[1024,1024]{1,0:T(8,128)S(1)} exponential(%p)
}
"""


def priced_at(stage: CompileStage, text: str, slice_name: str = "v5e:2x4"):
    module = parse_module(text)
    found = replace(analyze_module(module, target="test", mesh=None), stage=stage)
    return price_module(found, module, parse_slice(slice_name))


def multiplied(rows: int, kind: str = "kOutput") -> str:
    left, right, result = (
        f"bf16[{size}]{{1,0:T(8,128)(2,1)}}" for size in (f"{rows},2048", "2048,2048", f"{rows},2048")
    )
    before = f"""
%multiply (a: {left}, b: {right}) -> {result} {{
  %a = {left} parameter(0)
  %b = {right} parameter(1)
  ROOT %c = {result} convolution(%a, %b), dim_labels=bf_io->bf
}}
"""
    entry = f"""
  %x = {left} parameter(0)
  %y = {right} parameter(1)
  ROOT %z = {result} fusion(%x, %y), kind={kind}, calls=%multiply
"""
    return module_text(entry, before=before)


@pytest.mark.parametrize("name", ["mixture_of_experts.mixture_of_experts_shard_map", "collective_matmul.collective"])
def test_a_program_is_priced_within_its_own_range(root, name):
    text = (root / "fixtures" / "captured" / f"{name}.jax-0.10.hlo").read_text()
    bare = re.sub(r'"(estimated_cycles"|emitter|strategy)', r'"no \1', text)
    late, early = priced_at(CompileStage.COMPILED, text).time, priced_at(CompileStage.SCHEDULED, bare).time
    assert early.has_range
    assert early.least_us <= late.step_us <= early.most_us


def test_printed_cycles_count_for_nothing_before_there_is_machine_code():
    entry = f"  %x = {BLOCK} parameter(0)\n  ROOT %y = {BLOCK} fusion(%x), kind=kLoop, calls=%fused"
    times = [
        priced_at(CompileStage.SCHEDULED, module_text(f"{entry}{said}")).time.step_us
        for said in ("", f", {cycles(1499)}", f", {cycles(10**9)}")
    ]
    assert times[0] == times[1] == times[2] > 0


@pytest.mark.parametrize("generation", ESTIMATED)
def test_more_work_takes_longer(generation):
    slice_name = {"v7x": "7x:2x2x1", "v5e": "v5e:2x4", "v6e": "v6e:2x4"}.get(generation, f"{generation}:2x2x1")
    times = [
        priced_at(CompileStage.SCHEDULED, multiplied(rows), slice_name).time.step_us
        for rows in (256, 1024, 4096, 16384)
    ]
    assert times == sorted(times)
    assert times[-1] > 8 * times[0]


def test_the_basis_is_said_from_the_stage():
    found = priced_at(CompileStage.SCHEDULED, multiplied(4096)).time
    assert (found.basis, found.bound) == ("estimates", Bound.EXACT)
    assert WITHOUT_MACHINE_CODE in {use.rule for use in found.rules}
    assert any("estimated without machine code, ±" in note for note in found.notes)
    assert WITHOUT_MACHINE_CODE not in {
        use.rule for use in priced_at(CompileStage.COMPILED, multiplied(4096)).time.rules
    }


def test_a_generation_without_estimates_keeps_its_lower_bound():
    found = priced_at(CompileStage.SCHEDULED, multiplied(4096), "v3:2x2").time
    assert found.basis == "roofline"
    assert any("a lower bound" in note for note in found.notes)
    assert {chip.name for chip in CHIPS if find_estimates(chip.name) is not None} == set(ESTIMATED)


def test_what_may_do_anything_is_not_made_up():
    known, unknown = (priced_at(CompileStage.SCHEDULED, multiplied(4096, kind)).time for kind in ("kOutput", "kCustom"))
    assert not known.unknown_operations
    assert [operation.what for operation in unknown.unknown_operations]


def test_vector_work_is_estimated():
    in_vmem = "f32[1024,1024]{1,0:T(8,128)S(1)}"
    entry = f"""
  %x = {BLOCK} parameter(0)
  %v = {in_vmem} copy(%x)
  %y = {in_vmem} fusion(%v), kind=kLoop, calls=%loop
  ROOT %z = {BLOCK} copy(%y)
"""
    found = priced_at(CompileStage.SCHEDULED, module_text(entry, before=LOOP)).time
    assert dict.fromkeys(use.rule for use in found.rules).keys() >= {"cycles", "memory"}


@pytest.mark.parametrize("generation", ESTIMATED)
def test_known_collectives_have_their_own_algorithm(generation):
    for known in find_estimates(generation).algorithms:
        found = estimate_algorithm(known.facts, find_estimates(generation).algorithms)
        assert found.algorithm == known.algorithm
        assert make_algorithm(found).way is not RouteKind.UNKNOWN


def test_a_kind_that_was_never_seen_stays_unprinted():
    facts = AlgorithmFacts("collective-broadcast", 1, 4, 4096)
    assert make_algorithm(estimate_algorithm(facts, find_estimates("v5e").algorithms)) is UNPRINTED_ALGORITHM
