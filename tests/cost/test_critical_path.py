"""The critical path: what has to wait for what, whatever the schedule."""

from __future__ import annotations

import subprocess
import sys

import networkx as nx
import pytest

import hloscope
from hloscope.app.requests import read_hlo_text
from hloscope.hlo import parse_module
from hloscope.judge.rules.collective_on_critical_path import CollectiveOnCriticalPath
from hloscope.rules import Facts
from hloscope.tpu.slices import parse_slice

ADD = "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT sum = f32[] add(x, y)\n}\n"
GROUPS = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true"
SQUARE = "f32[1024,1024]"
MULTIPLIED = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def facts_of(text: str, slice_name: str | None = "v5e:2x2") -> Facts:
    chosen = None if slice_name is None else parse_slice(slice_name)
    found = hloscope.analyze_text(text, slice=slice_name)
    return Facts(found, parse_module(text, name="text"), chosen)


def captured(root, name: str) -> Facts:
    return facts_of((root / "fixtures" / "captured" / f"{name}.jax-0.10.hlo").read_text(), "v5e:2x4")


def module(entry: str, before: str = "") -> str:
    return f"HloModule m, is_scheduled=true, num_partitions=4\n\n{ADD}\n{before}\nENTRY main {{\n{entry}}}\n"


def path_of(text: str) -> dict[str, int]:
    """The names on the path, without what takes no time."""
    path = facts_of(text).critical_path
    free = ("p", "q", "s", "t", "i", "n", "zero", "one", "more")
    return {name: count for (_, name), count in path.executions.items() if name.rstrip("0123456789") not in free}


INDEPENDENT = module(f"""\
  p = {SQUARE} parameter(0)
  q = {SQUARE} parameter(1)
  r = {SQUARE} all-reduce(p), {GROUPS}, to_apply=add
  d = {SQUARE} dot(q, q), {MULTIPLIED}
  ROOT t = ({SQUARE}, {SQUARE}) tuple(r, d)
""")
NEEDED = INDEPENDENT.replace("dot(q, q)", "dot(r, q)")


def test_what_needs_each_other_is_one_chain_and_what_does_not_is_two():
    apart, together = facts_of(INDEPENDENT), facts_of(NEEDED)
    (transfer,) = apart.collectives
    assert path_of(INDEPENDENT) == {"r": 1}
    assert apart.critical_path.time_us == pytest.approx(transfer.time_us)
    assert path_of(NEEDED) == {"r": 1, "d": 1}
    assert together.critical_path.time_us == pytest.approx(together.step_us)


BODY = f"""\
condition {{
  s = (s32[], s32[], {SQUARE}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT more = pred[] compare(i, n), direction=LT
}}

body {{
  s = (s32[], s32[], {SQUARE}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  q = {SQUARE} get-tuple-element(s), index=2
  one = s32[] constant(1)
  i2 = s32[] add(i, one)
  r = {SQUARE} all-reduce(q), {GROUPS}, to_apply=add
  ROOT t = (s32[], s32[], {SQUARE}) tuple(i2, n, r)
}}
"""
LOOP = module(
    f"""\
  zero = s32[] constant(0)
  n = s32[] constant(5)
  p = {SQUARE} parameter(0)
  s = (s32[], s32[], {SQUARE}) tuple(zero, n, p)
  ROOT w = (s32[], s32[], {SQUARE}) while(s), condition=condition, body=body
""",
    BODY,
)


def test_the_body_of_a_loop_stands_there_as_often_as_it_runs():
    facts = facts_of(LOOP)
    assert facts.critical_path.executions["body", "r"] == 5
    assert facts.critical_path.time_us == pytest.approx(facts.step_us, rel=0.01)


def test_of_branches_the_longest_counts():
    branches = f"""\
short {{
  ROOT p = {SQUARE} parameter(0)
}}

long {{
  p = {SQUARE} parameter(0)
  ROOT d = {SQUARE} dot(p, p), {MULTIPLIED}
}}
"""
    entry = f"""\
  p = pred[] parameter(0)
  q = {SQUARE} parameter(1)
  ROOT c = {SQUARE} conditional(p, q, q), true_computation=short, false_computation=long
"""
    assert path_of(module(entry, branches)) == {"d": 1}


def test_a_started_copy_is_on_the_path_and_a_prefetch_for_the_next_step_is_not():
    entry = """\
  p = f32[4194304]{0} parameter(0)
  c = (f32[4194304]{0:S(1)}, f32[4194304]{0}, u32[]) copy-start(p)EXTRA
  ROOT d = f32[4194304]{0:S(1)} copy-done(c)
"""
    assert path_of(module(entry.replace("EXTRA", ""))) == {"c": 1}
    assert path_of(module(entry.replace("EXTRA", ", cross_program_prefetch_index=0"))) == {}


def test_calls_in_calls_are_counted_and_not_listed_again_and_again():
    levels = [f"f0 {{\n  p = {SQUARE} parameter(0)\n  ROOT d = {SQUARE} dot(p, p), {MULTIPLIED}\n}}\n"]
    for level in range(1, 41):
        levels.append(
            f"f{level} {{\n  p = {SQUARE} parameter(0)\n  a = {SQUARE} call(p), to_apply=f{level - 1}\n"
            f"  ROOT b = {SQUARE} call(a), to_apply=f{level - 1}\n}}\n"
        )
    entry = f"  p = {SQUARE} parameter(0)\n  ROOT c = {SQUARE} call(p), to_apply=f40\n"
    assert path_of(module(entry, "\n".join(levels))) == {"d": 2**40}


def test_a_collective_matmul_takes_its_transfers_off_the_path(root):
    naive = captured(root, "collective_matmul.naive")
    (gather,) = naive.collectives
    assert naive.critical_path.executions[gather.computation, gather.name] == 1
    assert naive.critical_path.time_us == pytest.approx(naive.step_us, rel=0.001)
    parts = captured(root, "collective_matmul.collective")
    assert not any((one.computation, one.name) in parts.critical_path.executions for one in parts.collectives)
    assert parts.critical_path.time_us < naive.critical_path.time_us


@pytest.mark.parametrize("folder", ["captured", "spellings"])
def test_no_path_is_longer_than_the_step_as_it_is_scheduled(root, folder):
    compared = 0
    for path in sorted((root / "fixtures" / folder).glob("*.jax-0.10.hlo")):
        text = path.read_text()
        count = parse_module(text, name=path.name).num_partitions
        if count != 8:
            continue
        facts = facts_of(text, "v5e:2x4")
        if facts.critical_path is not None and facts.analysis.time.is_scheduled:
            compared += 1
            assert facts.critical_path.time_us <= facts.step_us * 1.001, path.name
    assert compared >= 5


@pytest.mark.parametrize(
    "name", ["elsewhere.gradients_that_travel_later.jax-0.10", "by_hand.unknown_transfer_between_slices"]
)
def test_what_travels_between_slices_makes_no_path_longer_than_the_step(root, name):
    """In a loop each part of a transfer between slices may be another iteration's."""
    (path,) = (root / "fixtures").rglob(f"{name}.hlo*")
    facts = facts_of(read_hlo_text(str(path)), "v5e:4x8")
    assert facts.collectives
    assert facts.critical_path.time_us <= facts.step_us


def test_a_collective_in_a_fusion_takes_its_time(root):
    (path,) = (root / "fixtures").rglob("partitioned.split_axis.jax-0.10.hlo")
    facts = facts_of(path.read_text(), "v5e:4x8")
    times = sum(moved.time_us for moved in facts.collectives)
    assert times <= facts.critical_path.time_us <= facts.step_us
    assert len(facts.critical_path.executions.keys() & {(one.computation, one.name) for one in facts.collectives}) == 2


def test_a_collective_of_two_loops_is_reported_as_often_as_it_is_on_the_path():
    loop = f"(s32[], s32[], {SQUARE}) while(s), condition=condition, body=body"
    twice = LOOP.replace("  ROOT w =", f"  v = {loop}\n  ROOT w =")
    facts = facts_of(twice)
    assert len(facts.collectives) == 2
    assert facts.critical_path.executions["body", "r"] == 5
    assert len(list(CollectiveOnCriticalPath().check(facts))) == 1


def test_nothing_is_claimed_without_a_price_or_without_the_text():
    assert facts_of(NEEDED, None).critical_path is None
    assert Facts(facts_of(NEEDED).analysis).critical_path is None
    assert Facts(facts_of(NEEDED).analysis).dataflow("main") is None


def test_the_dataflow_answers_what_is_needed_and_cannot_be_changed():
    flow = facts_of(NEEDED).dataflow("main")
    assert nx.ancestors(flow, "d") == {"p", "q", "r"}
    assert flow.nodes["r"]["instruction"].opcode == "all-reduce"
    with pytest.raises(nx.NetworkXError):
        flow.remove_node("r")


@pytest.mark.process
@pytest.mark.parametrize(("rules", "loaded"), [("", "False"), ("select=['collective-on-critical-path'],", "True")])
def test_networkx_is_loaded_where_the_path_is_asked_for(root, tmp_path, rules, loaded):
    path = tmp_path / "step.hlo"
    path.write_text(NEEDED)
    code = f"import hloscope, sys; hloscope.analyze({str(path)!r}, {rules} slice='v5e:2x2')"
    code += "\nprint('networkx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == loaded
