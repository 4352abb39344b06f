"""Programs beside those that a rule is about: what it must not say of them, and which advice fits which of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rule_cases import across_slices, chain_of_all_reduces, compiled, judged_with

import hloscope
from hloscope.base.canvas import Canvas
from hloscope.report.formats import render

GROUPS = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}"
REDUCERS = """
sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}

largest {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] maximum(x, y)
}
"""
BRANCHES = f"""
branch_a {{
  u = f32[512,1024] parameter(0)
  ROOT r = f32[512,1024] all-reduce(u), {GROUPS}, to_apply=sum
}}

branch_b {{
  u = f32[512,1024] parameter(0)
  q = f32[512,1024] all-reduce(u), {GROUPS}, to_apply=sum
  ROOT n = f32[512,1024] negate(q)
}}
"""


def findings(entry: str, rule: str, computations: str = ""):
    text = f"HloModule m, num_partitions=8\n{REDUCERS}{computations}\nENTRY main {{\n{entry}\n}}\n"
    return judged_with(hloscope.analyze_text(text, mesh={"X": 2, "Y": 4}), select=[rule]).findings


def loop_over(name: str, trips: int, gathered: str) -> str:
    """A loop that counts to `trips` and carries `v`; `gathered` are lines that make `r` of it."""
    return f"""
{name}_condition {{
  s = (s32[], f32[512,1024]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({trips})
  ROOT more = pred[] compare(i, n), direction=LT
}}

{name}_body {{
  s = (s32[], f32[512,1024]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[512,1024] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
{gathered}
  ROOT out = (s32[], f32[512,1024]) tuple(next, r)
}}
"""


def run(name: str, start: str = "constant(0)", value: str = "p", to: str = "w") -> str:
    state = "(s32[], f32[512,1024])"
    return (
        f"  {to}_zero = s32[] {start}\n  {to}_state = {state} tuple({to}_zero, {value})\n"
        f"  {to} = {state} while({to}_state), condition={name}_condition, body={name}_body"
    )


GATHER = f"  g = f32[2048,1024] all-gather(v), {GROUPS}, dimensions={{0}}\n  r = f32[512,1024] copy(v)"
SUM = f"f32[512,1024] all-reduce(p), {GROUPS}, to_apply=sum"
GATHERED = f"f32[2048,1024] all-gather(p), {GROUPS}, dimensions={{0}}"
ARGUMENT = "  p = f32[512,1024] parameter(0)\n"


def pair(first: str, second: str) -> str:
    return f"{ARGUMENT}  h = bf16[512,1024] convert(p)\n  a = {first}\n  b = {second}\n  ROOT t = f32[512,1024] copy(p)"


def seeded(name: str, start: str) -> str:
    """Lines that pass `start` from device to device, as a compiler prints it; `name` ends its `op_name`."""
    return (
        f"  zero = f32[] constant({start})\n  seed = f32[512,1024] broadcast(zero), dimensions={{}}\n"
        "  p = f32[512,1024] collective-permute(seed), channel_id=2, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}, "
        f'metadata={{op_name="jit(f)/{name}"}}\n  r = f32[512,1024] add(v, p)'
    )


@pytest.mark.parametrize("zero", ["0", "-0", "0.0", "0e+00"])
def test_zeros_that_start_a_sum_in_a_ring_are_no_array_of_the_users_in_text_alone(zero):
    body = loop_over("l", 5, seeded("dot_general", zero))
    assert findings(f"{ARGUMENT}{run('l')}", "collective-in-loop", body) == ()


@pytest.mark.parametrize(("name", "start"), [("dot_general", "1"), ("shard_map/ppermute", "0")])
def test_ones_and_what_the_user_sends_are_told(name, start):
    [found] = findings(f"{ARGUMENT}{run('l')}", "collective-in-loop", loop_over("l", 5, seeded(name, start)))
    assert found.instruction == "p"


def test_the_same_values_reduced_in_the_same_way_are_a_duplicate(says):
    [found] = findings(pair(SUM, SUM), "duplicate-collective")
    assert "%a" in says(found.message)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SUM, SUM.replace("=sum", "=largest")),
        (GATHERED, f"f32[512,4096] all-gather(p), {GROUPS}, dimensions={{1}}"),
        (GATHERED, f"bf16[2048,1024] all-gather(h), {GROUPS}, dimensions={{0}}"),
    ],
    ids=["sum and maximum", "two dimensions", "two element types"],
)
def test_the_same_values_for_something_else_are_no_duplicate(first, second):
    assert findings(pair(first, second), "duplicate-collective") == ()


def test_of_two_branches_only_one_runs():
    entry = f"{ARGUMENT}  i = s32[] parameter(1)\n  ROOT c = f32[512,1024] conditional(i, p, p), "
    assert findings(f"{entry}branch_computations={{branch_a, branch_b}}", "duplicate-collective", BRANCHES) == ()


def test_what_runs_anyway_and_again_in_a_branch_is_a_duplicate(says):
    entry = (
        f"{ARGUMENT}  i = s32[] parameter(1)\n  a = f32[512,1024] all-reduce(p), {GROUPS}, to_apply=sum\n"
        "  c = f32[512,1024] conditional(i, p, p), branch_computations={branch_a, branch_b}\n"
        "  ROOT t = f32[512,1024] add(a, c)"
    )
    found = findings(entry, "duplicate-collective", BRANCHES)
    assert {one.instruction for one in found} == {"r", "q"}
    [message] = {one.message for one in found}
    assert "%a" in says(message)


def test_one_body_in_two_loops_with_different_values_is_no_duplicate():
    entry = f"{ARGUMENT}  q = f32[512,1024] parameter(1)\n{run('l')}\n{run('l', value='q', to='ROOT last')}"
    entry = entry.replace("ROOT last_", "last_")
    assert findings(entry, "duplicate-collective", loop_over("l", 5, GATHER)) == ()


def test_iterations_are_those_of_the_innermost_loop(says):
    inside = f"  fresh = f32[512,1024] negate(v)\n{run('inner', value='fresh', to='deep')}"
    inside += "\n  r = f32[512,1024] get-tuple-element(deep), index=1"
    computations = loop_over("inner", 4, GATHER) + loop_over("outer", 8, inside)
    [found] = findings(f"{ARGUMENT}{run('outer')}", "collective-in-loop", computations)
    assert re.findall(r"[\d.]+", found.message) == ["8.39", "4"]
    assert re.findall(r"[\d.]+", found.cost) == ["6.29", "32", "201"]
    says([found.message, found.cost])


def test_a_loop_of_one_trip_in_a_loop_moves_something_else_each_time():
    inside = f"  fresh = f32[512,1024] negate(v)\n{run('inner', value='fresh', to='deep')}"
    inside += "\n  r = f32[512,1024] get-tuple-element(deep), index=1"
    computations = loop_over("inner", 1, GATHER) + loop_over("outer", 8, inside)
    assert findings(f"{ARGUMENT}{run('outer')}", "collective-in-loop", computations) == ()


def test_a_loop_whose_trips_are_not_known_is_a_loop(says):
    entry = f"{ARGUMENT}{run('l', start='parameter(1)')}"
    [found] = findings(entry, "collective-in-loop", loop_over("l", 5, GATHER))
    assert re.findall(r"[\d.]+|%w", found.message) == ["8.39", "%w"]
    says(found.message)


OWN_PART = f"""  p = f32[64] parameter(0)
  id = u32[] partition-id()
  four = u32[] constant(4)
  position = u32[] remainder(id, four)
  sixteen = u32[] constant(16)
  offset = u32[] multiply(position, sixteen)
  a = f32[64] all-reduce(p), {GROUPS}, to_apply=REDUCER, metadata={{op_name="jit(f)/NAME"}}
  ROOT part = f32[16] dynamic-slice(a, offset), dynamic_slice_sizes={{16}}"""


@pytest.mark.parametrize(
    ("reducer", "name", "called"),
    [
        ("sum", "dot_general", {"psum_scatter", "shard_map"}),
        ("sum", "reduce_scatter", {"psum_scatter", "tiled"}),
        ("largest", "reduce_max", {"all_to_all", "shard_map"}),
    ],
    ids=["sum", "written as a scatter", "maximum"],
)
def test_the_way_to_scatter_fits_what_is_reduced_and_what_was_written(says, reducer, name, called):
    [found] = findings(OWN_PART.replace("REDUCER", reducer).replace("NAME", name), "all-reduce-then-slice")
    assert set(re.findall(r"psum_scatter|all_to_all|shard_map|tiled", says(found.fix))) == called


def four(lines: list[str]) -> str:
    return "\n".join([*lines, "  ROOT t = f32[16] parameter(0)"])


def reduced(number: int, element_type: str = "f32", reducer: str = "sum") -> str:
    shape = f"{element_type}[{16 + number}]"
    argument = f"  p{number} = {shape} parameter({number + 1})\n"
    return f"{argument}  r{number} = {shape} all-reduce(p{number}), {GROUPS}, to_apply={reducer}"


@pytest.mark.parametrize(("reducer", "called"), [("sum", "psum"), ("largest", "pmax")])
def test_small_collectives_are_combined_by_the_function_that_does_it(says, reducer, called):
    [found] = findings(four([reduced(n, reducer=reducer) for n in range(4)]), "small-collectives")
    assert re.findall(r"\d+", found.message) == ["4", "280"]
    assert re.findall(r"jax\.lax\.(\w+)", found.fix) == [called]
    says([found.message, found.fix])


def test_small_collectives_of_another_type_or_reduction_cannot_be_one():
    types = [reduced(n, element_type) for n, element_type in enumerate(("f32", "f32", "bf16", "s32"))]
    reducers = [reduced(n, reducer=reducer) for n, reducer in enumerate(("sum", "sum", "largest", "largest"))]
    assert findings(four(types), "small-collectives") == ()
    assert findings(four(reducers), "small-collectives") == ()


def test_one_small_collective_in_several_loops_is_not_several():
    small = GATHER.replace("f32[2048,1024] all-gather(v)", "f32[64] all-gather(few)")
    body = loop_over("l", 5, f"  few = f32[16] constant({{...}})\n{small}")
    loops = "\n".join(run("l", value=value, to=to) for value, to in (("p", "w"), ("p", "x"), ("p", "y"), ("p", "z")))
    assert findings(f"{ARGUMENT}{loops}", "small-collectives", body) == ()


def test_the_axis_that_should_stay_in_a_slice_is_named(says):
    found = judged_with(
        across_slices("all-gather", "f32[1024,1024]", "f32[2048,1024]"), select=["model-parallel-over-dcn"]
    )
    assert re.findall("outer|model |--dcn", says(found.findings[0].fix)) == ["outer", "--dcn"]


def test_reduction_is_what_the_reducer_does():
    [one] = chain_of_all_reduces(1, 8).collectives
    assert (one.reduction, one.loop_trips) == ("add", ())
    assert replace(one, reduction=None).reduction is None


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_zeros_that_start_a_sum_in_a_ring_are_no_array_of_the_users():
    found = judged_with(compiled("gradients_in_parts"), select=["collective-in-loop"])
    zeros = [one for one in found.collectives if one.loop_invariant and one.kind.value == "collective-permute"]
    assert zeros
    assert found.findings == ()


@pytest.mark.tpu_compiler
def test_outputs_that_take_donated_memory_are_not_donated_in_vain():
    found = compiled("donated_and_reused")
    *updated, made = found.outputs
    assert [one.reused for one in found.arguments] == [True, True, True, None]
    assert [(one.donated, one.reused) for one in updated] == [(True, None)] * 3
    assert (made.donated, made.reused) == (False, None)
    assert "in vain" not in render("analysis", "text", found, Canvas())


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("name", ["how_many", "how_many_of_each_part"])
def test_a_sum_of_booleans_is_a_count_and_not_widened(name):
    found = compiled(name)
    assert [str(one.operand_shapes[0]) for one in found.collectives] == ["s32[32,131072]"]
    assert [one for one in found.findings if one.rule == "widened-collective"] == []


@pytest.mark.tpu_compiler
def test_fewer_elements_than_devices_are_not_to_be_made_more(says):
    (one,) = judged_with(compiled("rolled_by_one"), select=["uneven-sharding"]).findings
    assert re.findall(r"\d+", one.message) == ["0", "1", "8", "1", "88"]
    assert "with_sharding_constraint" in one.fix
    says([one.message, one.fix])


@pytest.mark.tpu_compiler
def test_a_donated_argument_is_told_apart_from_one_whose_memory_is_reused():
    def step(kept, dropped):
        return kept * 0.9, dropped.sum()

    found = hloscope.analyze(
        step, ("f32[8192@X,1024]", "f32[8192,1024]"), mesh={"X": 8}, slice="v5e:2x4", donate=(0, 1), trials=False
    )
    (said,) = [each.message for each in found.findings if each.rule == "unusable-donation"]
    assert said == "dropped is donated, but no output reuses its memory"
