"""One contract gives one verdict on every spelling that has misled tests on HLO text."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import pytest

import hloscope
from hloscope.judge.baseline_files import format_baselines, parse_baselines
from hloscope.judge.baselines import make_baseline
from hloscope.judge.evaluate import evaluate
from hloscope.judge.judging import judge
from hloscope.judge.notation import parse_contract
from hloscope.judge.verdict import BreachKind
from hloscope.model import Memory

SUM = """
sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT add = f32[] add(x, y)
}
"""
MESH = {"X": 2, "Y": 4}
TYPE = "f32[16,128]"
EXPLICIT = "{{0,1,2,3},{4,5,6,7}}"
ATTRIBUTES = "channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=sum"


def module(entry, computations=""):
    return f"HloModule m, num_partitions=8\n{SUM}{computations}\nENTRY main {{\n{indent(entry.strip(), '  ')}\n}}\n"


def reduced(groups):
    return module(f"p = {TYPE} parameter(0)\nROOT r = {TYPE} all-reduce(p), {ATTRIBUTES.format(groups=groups)}")


ALL_REDUCE_OVER_Y = {
    "sync": reduced(EXPLICIT),
    "iota": reduced("[2,4]<=[8]"),
    "mesh": reduced("mesh['X'=2,'Y'=4] {'Y'}"),
    "invented mesh names": reduced("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}"),
    "unlike order": reduced("{{3,2,1,0},{7,4,5,6}}"),
    "start and done": module(
        f"p = {TYPE} parameter(0)\n"
        f"s = {TYPE} all-reduce-start(p), {ATTRIBUTES.format(groups=EXPLICIT)}\n"
        f"ROOT d = {TYPE} all-reduce-done(s)"
    ),
    "wrapped": module(
        f"p = {TYPE} parameter(0)\n"
        f"s = (({TYPE}), {TYPE}, u32[]) async-start(p), calls=wrapped\n"
        f"ROOT d = {TYPE} async-done(s)",
        f"wrapped {{\n  q = {TYPE} parameter(0)\n"
        f"  ROOT r = {TYPE} all-reduce(q), {ATTRIBUTES.format(groups=EXPLICIT)}\n}}\n",
    ),
    "in a fusion": module(
        f"p = {TYPE} parameter(0)\nROOT f = {TYPE} fusion(p), kind=kCustom, calls=fused",
        f"fused {{\n  q = {TYPE} parameter(0)\n"
        f"  ROOT r = {TYPE} all-reduce(q), {ATTRIBUTES.format(groups=EXPLICIT)}\n}}\n",
    ),
}


def in_a_loop(bound="constant(5)", start="constant(0)"):
    """An all-reduce in a loop that counts up to a constant, or to what the program is given."""
    state = f"(s32[], {TYPE}, s32[])"
    return module(
        f"first = s32[] {start}\np = {TYPE} parameter(0)\nn = s32[] parameter(1)\n"
        f"state = {state} tuple(first, p, n)\n"
        f"w = {state} while(state), condition=more, body=body\n"
        f"ROOT r = {TYPE} get-tuple-element(w), index=1",
        f"""
more {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] {bound}
  ROOT less = pred[] compare(i, n), direction=LT
}}
body {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = {TYPE} get-tuple-element(s), index=1
  n = s32[] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  r = {TYPE} all-reduce(x), {ATTRIBUTES.format(groups=EXPLICIT)}
  ROOT out = {state} tuple(next, r, n)
}}
""",
    )


def verdict(text, contract):
    return evaluate(parse_contract(contract), hloscope.analyze_text(text, name="m.hlo", mesh=MESH))


CONTRACTS = {
    "all-reduce@Y <= 8KiB x1; nothing else": True,
    "all-reduce@Y; nothing else": True,
    "wire@Y <= 12288B/step": True,
    "wire@Y <= 12287B/step": False,
    "no all-reduce": False,
    "no all-gather": True,
    "none": False,
    "all-reduce@X": False,
    "all-reduce@Y <= 8191B": False,
    "all-reduce@(X,Y)": False,
}


@pytest.mark.parametrize("spelling", ALL_REDUCE_OVER_Y)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_spelling_gives_the_same_verdict(spelling, contract):
    found = verdict(ALL_REDUCE_OVER_Y[spelling], contract)
    assert found.holds is CONTRACTS[contract], str(found)
    assert all(breach.kind is BreachKind.BROKEN for breach in found.breaches)


def test_a_loop_is_counted():
    assert verdict(in_a_loop(), "all-reduce@Y <= 8KiB x5; nothing else").holds
    assert not verdict(in_a_loop(), "all-reduce@Y <= 8KiB x4; nothing else").holds
    assert not verdict(in_a_loop(), "wire <= 12288B/step").holds


def test_the_users_word_for_a_loop_that_the_program_ends():
    unknown = in_a_loop("get-tuple-element(s), index=2")
    assert {breach.kind for breach in verdict(unknown, "all-reduce@Y").breaches} == {BreachKind.UNDECIDED}
    told = verdict(unknown, 'all-reduce@Y <= 8KiB x5; nothing else; trips "%w" = 5')
    assert told.holds, str(told)
    assert not verdict(unknown, 'all-reduce@Y x4; trips "%w" = 5').holds
    assert not verdict(unknown, 'wire@Y <= 61439B/step; trips "%w" = 5').holds
    assert verdict(unknown, 'wire@Y <= 61440B/step; trips "%w" = 5').holds


_SENT_OVER_DCN = (
    "channel_id=2, is_host_transfer=true, frontend_attributes={"
    '_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="r",'
    '_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_reduce_operation="SUM",'
    '_xla_megascale_transfer_type="ALL_REDUCE"}'
)
_WITHIN_SLICES = "channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, dimensions={0}"


def across_slices_in_a_loop(bound):
    """An all-reduce over 2 slices and 2 devices of each, 6,144 B on the wire and 2,048 of these over DCN, in a loop."""
    summed = f"""rs = f32[512] reduce-scatter(x), {_WITHIN_SLICES}, to_apply=sum
  tok = token[] after-all()
  send = (f32[512], u32[], token[]) send(rs, tok), {_SENT_OVER_DCN}
  recv = (f32[512], u32[], token[]) recv(tok), {_SENT_OVER_DCN}
  sent = token[] send-done(send), channel_id=2, is_host_transfer=true
  received = (f32[512], token[]) recv-done(recv), channel_id=2, is_host_transfer=true
  shard = f32[512] get-tuple-element(received), index=0
  r = f32[1024] all-gather(shard), {_WITHIN_SLICES}"""
    one_slice = f"r = {TYPE} all-reduce(x), {ATTRIBUTES.format(groups=EXPLICIT)}"
    return in_a_loop(bound).replace(one_slice, summed).replace(TYPE, "f32[1024]")


def verdict_across_slices(bound, contract):
    text = across_slices_in_a_loop(bound)
    mesh = {"dcn": 2, "data": 2, "model": 4}
    found = hloscope.analyze_text(text, name="m.hlo", mesh=mesh, slice="2*v5e:2x4", dcn={"dcn": 2})
    assert [(whole.kind, len(whole.parts)) for whole in found.collectives] == [("all-reduce", 3)]
    return evaluate(parse_contract(contract), found)


@pytest.mark.parametrize(
    ("contract", "holds"),
    [
        ("wire <= 98304B/step", True),
        ("wire <= 98303B/step", False),
        ("wire over dcn <= 32768B/step", True),
        ("wire over dcn <= 32767B/step", False),
        ("wire@data <= 98303B/step", True),
        ("payload over dcn <= 32767B/step", False),
        ("all-reduce@(dcn,data) x16; nothing else", True),
    ],
)
def test_the_users_word_for_a_loop_holds_for_the_parts_of_a_collective_across_slices(contract, holds):
    told = verdict_across_slices("get-tuple-element(s), index=2", f'{contract}; trips "%w" = 16')
    assert told.holds is holds, str(told)
    assert told.holds is verdict_across_slices("constant(16)", contract).holds  # as in a loop whose trips can be read


@pytest.mark.parametrize(
    ("limit", "holds"),
    [
        ("wire <= 98304B/step", True),
        ("wire <= 98303B/step", False),
        ("wire over dcn <= 32768B/step", True),
        ("wire over dcn <= 32767B/step", False),
    ],
)
def test_another_spelling_of_a_collective_across_slices_sends_as_much(limit, holds):
    halves = "reduce-scatter@(dcn,data); all-gather@(dcn,data); nothing else; equivalent"
    found = verdict_across_slices("constant(16)", f"{halves}; {limit}")
    assert found.holds is holds, str(found)


def test_a_loop_of_no_trips_moves_nothing():
    never = in_a_loop(start="constant(9)")
    assert verdict(never, "none").holds
    assert not verdict(never, "all-reduce@Y").holds


def test_two_with_one_channel_are_two():
    line = f"{TYPE} all-reduce(p), {ATTRIBUTES.format(groups=EXPLICIT)}"
    twice = module(f"p = {TYPE} parameter(0)\na = {line}\nb = {line}\nROOT t = ({TYPE}, {TYPE}) tuple(a, b)")
    assert not verdict(twice, "all-reduce@Y x1").holds
    assert verdict(twice, "all-reduce@Y x2").holds


FUSED_SCATTER = module(
    "p = f32[16,128] parameter(0)\nROOT f = f32[4,128] fusion(p), kind=kCustom, calls=all-reduce-scatter.1",
    f"""
all-reduce-scatter.1 {{
  q = f32[16,128] parameter(0)
  r = f32[16,128] all-reduce(q), {ATTRIBUTES.format(groups=EXPLICIT)}
  id = u32[] partition-id()
  table = u32[8] constant({{0,4,8,12,0,4,8,12}})
  at = u32[1] dynamic-slice(table, id), dynamic_slice_sizes={{1}}
  row = u32[] reshape(at)
  zero = u32[] constant(0)
  ROOT s = f32[4,128] dynamic-slice(r, row, zero), dynamic_slice_sizes={{4,128}}
}}
""",
)
PLAIN_SCATTER = module(
    "p = f32[16,128] parameter(0)\n"
    f"ROOT r = f32[4,128] reduce-scatter(p), {ATTRIBUTES.format(groups=EXPLICIT)}, dimensions={{0}}"
)


@pytest.mark.parametrize("text", [FUSED_SCATTER, PLAIN_SCATTER], ids=["fused", "plain"])
def test_a_fused_reduce_scatter_is_one(text):
    assert verdict(text, "reduce-scatter@Y <= 8KiB x1; wire <= 6144B/step; nothing else").holds
    assert not verdict(text, "all-reduce@Y").holds
    assert verdict(text, "no all-reduce").holds


def test_local_copies_are_no_traffic():
    copies = module("p = f32[8] parameter(0)\ns = (f32[8], f32[8], u32[]) copy-start(p)\nROOT d = f32[8] copy-done(s)")
    assert verdict(copies, "none").holds


def test_text_without_entry_does_not_pass():
    with pytest.raises(hloscope.HloscopeError):
        hloscope.analyze_text("HloModule m, num_partitions=8\nsum {\n  x = f32[] parameter(0)\n")


def test_text_that_breaks_off_does_not_pass():
    whole = module("ROOT p = f32[4] parameter(0)")
    assert verdict(whole, "none").holds
    cut = verdict(whole + "body {\n  x = f32[8] param", "none")
    assert [breach.kind for breach in cut.breaches] == [BreachKind.UNDECIDED]
    assert "cut off" in str(cut)
    assert verdict(whole + "body {\n  x = f32[8] param", "none; at-least-ok").holds


def test_a_kernel_that_communicates_does_not_pass():
    kernel = module(
        'p = f32[8] parameter(0)\nROOT k = f32[8] custom-call(p), custom_call_target="tpu_custom_call", '
        'backend_config={"custom_call_config":{"has_communication":true}}'
    )
    assert {breach.kind for breach in verdict(kernel, "no all-gather").breaches} == {BreachKind.UNDECIDED}


def test_groups_that_are_no_axis_do_not_pass():
    odd = reduced("{{0,5},{1,4},{2,7},{3,6}}")
    assert {breach.kind for breach in verdict(odd, "no all-reduce@X").breaches} == {BreachKind.UNDECIDED}
    assert not verdict(odd, "none").holds
    assert not verdict(odd, "wire@Y <= 1GB/step").holds


CORPUS = os.environ.get("HLOSCOPE_CORPUS")
SPELLINGS = Path(CORPUS) / "spellings" if CORPUS else None
EXPECTED = json.loads((SPELLINGS / "expected.json").read_text()) if SPELLINGS else {}


@pytest.mark.skipif(SPELLINGS is None, reason="HLOSCOPE_CORPUS names no corpus")
@pytest.mark.parametrize("name", sorted(EXPECTED) or ["none"])
def test_what_is_found_in_compiled_text_can_be_accepted(name):
    text = (SPELLINGS / f"{name}.hlo").read_text(encoding="utf-8")
    analysis = hloscope.analyze_text(text, name=f"{name}.hlo", mesh=EXPECTED[name]["mesh"])
    failed = evaluate(parse_contract("none; at-least-ok"), analysis)
    moving = [one for one in analysis.collectives if one.axes != () or one.wire_bytes]
    assert {id(one) for breach in failed.breaches for one in breach.offenders} == {id(one) for one in moving}
    lines = [breach.accept for breach in failed.breaches] + ["nothing else", "at-least-ok"]
    accepted = evaluate(parse_contract("; ".join(lines)), analysis)
    assert accepted.holds, str(accepted)
    baseline = make_baseline(analysis)
    assert parse_baselines(format_baselines(baseline), name=name) == (replace(baseline, memory=Memory()),)
    assert judge(baseline, analysis).judged.causes == ()
