"""The schedule as a timeline: what overlaps, what is waited for, what is counted how often."""

import pytest
from cost_examples import BLOCK, cycles, fusion, module_text, moved_us, priced
from hypothesis import given
from hypothesis import strategies as st

from hloscope.hlo import parse_module
from hloscope.model.vocabulary import Bound
from hloscope.rules import Facts
from hloscope.tpu.slices import parse_slice

PAIRS = "{{0,1},{1,0}}"
GROUPS = "channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true"
PERMUTED = f"({BLOCK}, {BLOCK}, u32[], u32[])"


def permute_start(operand, name="start"):
    return f"%{name} = {PERMUTED} collective-permute-start(%{operand}), channel_id=1, source_target_pairs={PAIRS}"


def permute_done(start="start", name="done"):
    return f"%{name} = {BLOCK} collective-permute-done(%{start})"


ARGUMENT = f"%a = {BLOCK} parameter(0)"


def overlapped(count):
    return module_text(f"""
      {ARGUMENT}
      {permute_start("a")}
      {fusion("f", "a", count)}
      {permute_done()}
      ROOT %t = ({BLOCK}, {BLOCK}) tuple(%f, %done)
    """)


def test_cycles_become_time_by_the_clock():
    found = priced(module_text(f"{ARGUMENT}\nROOT {fusion('f', 'a', 150_000)}"))
    assert (found.time.step_us, found.time.compute_us, found.time.exposed_us) == (100.0, 100.0, 0.0)
    assert (found.time.basis, found.time.is_scheduled) == ("cycles", True)


def test_a_transfer_hides_behind_what_lies_between():
    found = priced(overlapped(1_500_000))
    (permute,) = found.collectives
    assert permute.exposed_us == 0
    assert found.time.hidden_us == permute.time_us
    assert found.time.step_us == 1000.0


def test_what_is_not_hidden_is_exposed():
    found = priced(overlapped(15_000))
    (permute,) = found.collectives
    assert permute.exposed_us == pytest.approx(permute.time_us - 10.0)
    assert found.time.step_us == pytest.approx(permute.time_us)


@given(st.integers(0, 2_000_000))
def test_a_hidden_collective_and_its_compute_are_never_less_than_either(count):
    found = priced(overlapped(count))
    (permute,) = found.collectives
    compute_us = count / 1.5e3
    assert found.time.step_us >= max(compute_us, permute.time_us) - 1e-6
    assert found.time.step_us <= compute_us + permute.time_us + 1e-6
    assert found.time.step_us == pytest.approx(found.time.compute_us + found.time.exposed_us)
    assert found.time.hidden_us + found.time.exposed_us == pytest.approx(permute.time_us)


def test_transfers_over_the_same_links_wait_for_each_other():
    text = module_text(f"""
      {ARGUMENT}
      {permute_start("a", "start")}
      {permute_start("a", "other")}
      {permute_done("start", "done")}
      {permute_done("other", "last")}
      ROOT %t = ({BLOCK}, {BLOCK}) tuple(%done, %last)
    """)
    found = priced(text)
    assert found.time.step_us == pytest.approx(sum(one.time_us for one in found.collectives))


def test_transfers_over_other_links_do_not():
    elsewhere = permute_start("a", "other").replace(PAIRS, "{{6,7},{7,6}}")
    text = module_text(f"""
      {ARGUMENT}
      {permute_start("a", "start")}
      {elsewhere}
      {permute_done("start", "done")}
      {permute_done("other", "last")}
      ROOT %t = ({BLOCK}, {BLOCK}) tuple(%done, %last)
    """)
    found = priced(text)
    assert found.time.step_us == pytest.approx(found.collectives[0].time_us)


def test_a_synchronous_collective_is_exposed():
    text = module_text(f"""
      {ARGUMENT}
      {fusion("f", "a", 15_000)}
      ROOT %r = {BLOCK} all-reduce(%f), {GROUPS}, to_apply=%sum
    """)
    found = priced(text)
    (reduction,) = found.collectives
    assert reduction.exposed_us == pytest.approx(reduction.time_us)
    assert found.time.step_us == pytest.approx(10.0 + reduction.time_us)


LOOP = f"""
%body (p: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {{
  %p = (s32[], {BLOCK}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = {BLOCK} get-tuple-element(%p), index=1
  {fusion("f", "x", 15_000)}
  %r = {BLOCK} all-reduce(%f), {GROUPS}, to_apply=%sum
  ROOT %t = (s32[], {BLOCK}) tuple(%next, %r)
}}
%condition (p: (s32[], f32[1024,1024])) -> pred[] {{
  %p = (s32[], {BLOCK}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(7)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}
"""


def test_loops_are_multiplied():
    entry = f"""
      {ARGUMENT}
      %zero = s32[] constant(0)
      %init = (s32[], {BLOCK}) tuple(%zero, %a)
      %w = (s32[], {BLOCK}) while(%init), condition=%condition, body=%body
      ROOT %o = {BLOCK} get-tuple-element(%w), index=1
    """
    found = priced(module_text(entry, before=LOOP))
    (reduction,) = found.collectives
    assert reduction.executions == 7
    assert reduction.exposed_us == pytest.approx(reduction.time_us)
    assert found.time.exposed_us == pytest.approx(7 * reduction.time_us)
    assert found.time.compute_us == pytest.approx(70.0, rel=1e-3)
    assert found.time.bound is Bound.EXACT


def test_a_branch_is_a_bound():
    branches = f"""
%small (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  ROOT {fusion("f", "p", 15_000)}
}}
%large (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  ROOT {fusion("f", "p", 150_000)}
}}
"""
    entry = f"""
      {ARGUMENT}
      %which = s32[] constant(0)
      ROOT %c = {BLOCK} conditional(%which, %a, %a), branch_computations={{%small, %large}}
    """
    found = priced(module_text(entry, before=branches))
    assert (found.time.step_us, found.time.bound) == (100.0, Bound.AT_MOST)
    assert found.time.conditional_us == pytest.approx(90.0)


COPIED = f"({BLOCK}, {BLOCK}, u32[])"


def copies(attributes=""):
    return module_text(f"""
      {ARGUMENT}
      %start = {COPIED} copy-start(%a){attributes}
      %c = {BLOCK} copy-done(%start)
      ROOT {fusion("f", "c", 150_000)}
    """)


def test_a_copy_is_waited_for():
    found = priced(copies())
    copy_us = moved_us(2**22)
    assert found.time.step_us == pytest.approx(100.0 + copy_us)
    assert found.time.hbm_us == pytest.approx(copy_us)


def test_a_prefetch_of_the_step_before_is_free_but_for_the_first():
    found = priced(copies(", cross_program_prefetch_index=0"))
    assert found.time.step_us == 100.0
    assert found.time.first_step_us == pytest.approx(priced(copies()).time.step_us)


LINK = f'%g = f32[2048,1024] all-gather(%p), {GROUPS}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}'
CHAIN = f"""
%chain_start (p: f32[1024,1024]) -> (f32[1024,1024], f32[2048,1024]) {{
  %p = {BLOCK} parameter(0)
  {LINK}
  ROOT %s = ({BLOCK}, f32[2048,1024]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}
%async_collective_fusion (p: f32[1024,1024], q: f32[1024,1024]) -> (f32[1024,1024], f32[1024,1024]) {{
  %p = {BLOCK} parameter(0)
  %q = {BLOCK} parameter(1)
  %n = {BLOCK} negate(%q)
  {LINK}
  ROOT %t = ({BLOCK}, {BLOCK}) tuple(%n, %p)
}}
%chain_done (p: f32[1024,1024]) -> f32[2048,1024] {{
  %p = {BLOCK} parameter(0)
  {LINK}
  ROOT %d = f32[2048,1024] custom-call(%g), custom_call_target="AsyncCollectiveDone"
}}
"""


def chained(before_steps, in_steps):
    return module_text(
        f"""
      {ARGUMENT}
      %cs = ({BLOCK}, f32[2048,1024]) fusion(%a), kind=kCustom, calls=%chain_start
      %cs0 = {BLOCK} get-tuple-element(%cs), index=0
      {fusion("f", "a", before_steps)}
      %step = ({BLOCK}, {BLOCK}) fusion(%cs0, %f), kind=kOutput, calls=%async_collective_fusion, {cycles(in_steps)}
      %step1 = {BLOCK} get-tuple-element(%step), index=1
      ROOT %cd = f32[2048,1024] fusion(%step1), kind=kCustom, calls=%chain_done
    """,
        before=CHAIN,
    )


def test_an_asynchronous_collective_fusion_is_paid_once_and_hides_behind_all_that_lies_in_it():
    found = priced(chained(before_steps=7_500, in_steps=7_500))
    (gather,) = found.collectives
    assert gather.asynchronous
    assert found.time.compute_us == pytest.approx(10.0)
    assert gather.exposed_us == pytest.approx(gather.time_us - 10.0)
    assert found.time.step_us == pytest.approx(gather.time_us)
    hidden = priced(chained(before_steps=0, in_steps=1_500_000))
    assert hidden.time.exposed_us == 0


def test_on_the_critical_path_a_transfer_that_steps_drive_is_not_counted_beside_them():
    text = chained(before_steps=0, in_steps=1_500_000)
    path = Facts(priced(text), parse_module(text), parse_slice("v5e:2x4")).critical_path
    assert path.time_us == pytest.approx(1000.0)


def test_a_sparse_core_call_overlaps_from_its_operands_on():
    def calls(update):
        late = f"%u = (({BLOCK}), {BLOCK}) call-update(%s, %f)" if update else ""
        start = "call-start()" if update else "call-start(%a)"
        return module_text(
            f"""
          {ARGUMENT}
          %s = (({BLOCK}), {BLOCK}) {start}, async_execution_thread="sparsecore", to_apply=%called
          {fusion("f", "a", 15_000)}
          {late}
          %d = {BLOCK} call-done(%{"u" if update else "s"})
          ROOT %t = ({BLOCK}, {BLOCK}) tuple(%f, %d)
        """,
            before=f"""
%called (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  ROOT %r = {BLOCK} all-reduce(%p), {GROUPS}, to_apply=%sum
}}, execution_thread="sparsecore"
""",
        )

    early, late = priced(calls(update=False)), priced(calls(update=True))
    (reduction,) = early.collectives
    assert early.time.step_us == pytest.approx(max(10.0, reduction.time_us))
    assert late.time.step_us == pytest.approx(10.0 + late.collectives[0].time_us)


def test_what_is_never_waited_for_is_waited_for_at_the_end():
    text = module_text(f"{ARGUMENT}\n{permute_start('a')}\nROOT {fusion('f', 'a', 15)}")
    found = priced(text)
    assert found.time.step_us == pytest.approx(found.collectives[0].time_us, rel=1e-2)


def test_no_nesting_is_too_deep():
    body = f"  %p = {BLOCK} parameter(0)\n  ROOT {fusion('f', 'p', 150_000)}\n"
    deepest = f"%c0 (p: f32[1024,1024]) -> f32[1024,1024] {{\n{body}}}\n"
    calls = "".join(
        f"%c{level} (p: f32[1024,1024]) -> f32[1024,1024] {{\n  %p = {BLOCK} parameter(0)\n"
        f"  ROOT %r = {BLOCK} call(%p), to_apply=%c{level - 1}\n}}\n"
        for level in range(1, 2000)
    )
    entry = f"{ARGUMENT}\nROOT %r = {BLOCK} call(%a), to_apply=%c1999"
    found = priced(module_text(entry, before=deepest + calls))
    assert found.time.step_us == pytest.approx(100.0)
