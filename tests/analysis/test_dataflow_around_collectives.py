"""What the data flow around a collective tells: what is moved, whether a loop changes it, what becomes of it."""

from __future__ import annotations

import pytest

from hloscope.model import MovedValue

ROWS = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}"


def only(analysis):
    [found] = analysis.collectives
    return found


def loop(operand: str, *lines: str, state: str = "s32[], f32[4,16], bf16[16]", last: str = "%w") -> str:
    """A loop of 3 trips over a counter, weights and a vector, with an all-reduce of `operand` in its body."""
    body = "\n      ".join(lines)
    return f"""
    %casting (a: f32[4,16]) -> f32[4,16] {{
      %a = f32[4,16] parameter(0)
      %t = bf16[4,16] convert(%a)
      ROOT %u = f32[4,16] convert(%t)
    }}
    %adding (a: f32[4,16], q: bf16[16]) -> f32[4,16] {{
      %a = f32[4,16] parameter(0)
      %q = bf16[16] parameter(1)
      %r = f32[16] convert(%q)
      %s = f32[4,16] broadcast(%r), dimensions={{1}}
      ROOT %u = f32[4,16] add(%a, %s)
    }}
    %body (b: ({state})) -> ({state}) {{
      %b = ({state}) parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %w = f32[4,16] get-tuple-element(%b), index=1
      %x = bf16[16] get-tuple-element(%b), index=2
      %one = s32[] constant(1)
      %zero = s32[] constant(0)
      %next = s32[] add(%i, %one)
      {body}
      %c = f32[4,16] all-reduce({operand}), {ROWS}, to_apply=%sum
      %y = bf16[16] negate(%x)
      ROOT %out = ({state}) tuple(%next, {last}, %y)
    }}
    %cond (k: ({state})) -> pred[] {{
      %k = ({state}) parameter(0)
      %i = s32[] get-tuple-element(%k), index=0
      %n = s32[] constant(3)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }}
    """


ENTRY = """
%p = f32[4,16] parameter(0)
%q = bf16[16] parameter(1)
%zero = s32[] constant(0)
%init = (s32[], f32[4,16], bf16[16]) tuple(%zero, %p, %q)
ROOT %loop = (s32[], f32[4,16], bf16[16]) while(%init), condition=%cond, body=%body
"""


def made(computation, instruction, **more):
    return MovedValue(computation=computation, instruction=instruction, **more)


ROW = "{[0:1], [0:16]}"
AT = "%d = f32[1,16] dynamic-slice(%w, {}, %zero), dynamic_slice_sizes={{1,16}}"


@pytest.mark.parametrize(
    ("computations", "invariant", "moved"),
    [
        (loop("%w"), True, made("main", "p")),
        (loop("%d", "%d = f32[4,16] copy(%w)"), True, made("main", "p")),
        (loop("%d", "%d = f32[4,16] fusion(%w), kind=kLoop, calls=%casting"), True, made("main", "p")),
        (loop("%d", "%d = f32[4,16] fusion(%w, %x), kind=kLoop, calls=%adding"), False, made("body", "d")),
        (loop("%d", "%d = f32[4,16] multiply(%w, %w)"), True, made("body", "d")),
        (loop("%d", AT.format("%i")), False, made("main", "p", slices=(None,))),
        (loop("%d", AT.format("%one")), True, made("main", "p", slices=(None,))),
        (loop("%d", "%d = f32[1,16] slice(%w), slice={[0:1], [0:16]}"), True, made("main", "p", slices=(ROW,))),
        (loop("%w", last="%c"), False, made("body", "b", element=(1,))),
        (loop("%d", "%d = f32[4,16] custom-call(%w), custom_call_target=\"TopK\""), None, made("body", "d")),
        (loop("%d", "%d = f32[4,16] iota(), iota_dimension=0"), True, made("body", "d")),
    ],
    ids=[
        "carried", "copied", "converted", "with what changes", "computed from it", "slice at the counter",
        "slice at a constant", "fixed slice", "changed by the body", "custom call", "iota",
    ],
)  # fmt: skip
def test_in_a_loop(analyze, computations, invariant, moved):
    found = only(analyze(ENTRY, computations=computations))
    assert (found.loop_invariant, found.moved_values, found.executions) == (invariant, (moved,), 3)


def test_outside_loops_nothing_is_said_of_iterations(analyze):
    entry = f"%p = f32[4] parameter(0)\nROOT %c = f32[4] all-reduce(%p), {ROWS}, to_apply=%sum"
    assert only(analyze(entry)).loop_invariant is None


def test_after_a_loop_that_carried_it_unchanged_it_is_still_the_same(analyze):
    entry = ENTRY.replace("ROOT %loop", "%loop") + (
        "%g = f32[4,16] get-tuple-element(%loop), index=1\n"
        f"ROOT %again = f32[4,16] all-reduce(%g), {ROWS}, to_apply=%sum"
    )
    assert {found.moved_values for found in analyze(entry, computations=loop("%w")).collectives} == {
        (made("main", "p"),)
    }
    entry = entry.replace("f32[4,16] get-tuple-element(%loop), index=1", "bf16[16] get-tuple-element(%loop), index=2")
    names = {found.name: found.moved_values for found in analyze(entry, computations=loop("%w")).collectives}
    assert names["again"] == (made("main", "loop", element=(2,)),)


def test_two_gathers_of_one_value_have_one_name(analyze):
    entry = f"""
    %p = f32[4] parameter(0)
    %q = f32[4] parameter(1)
    %b = f32[2,2] bitcast(%p)
    %h = bf16[4] convert(%p)
    %one = f32[16] all-gather(%p), {ROWS}, dimensions={{0}}
    %two = f32[8,2] all-gather(%b), {ROWS}, dimensions={{0}}
    %three = bf16[16] all-gather(%h), {ROWS}, dimensions={{0}}
    ROOT %four = f32[16] all-gather(%q), {ROWS}, dimensions={{0}}
    """
    names = {found.name: found.moved_values for found in analyze(entry).collectives}
    assert names == {
        "one": (made("main", "p"),),
        "two": (made("main", "p"),),
        "three": (made("main", "p"),),
        "four": (made("main", "q"),),
    }


def test_late_operands_of_an_asynchronous_call(analyze):
    computations = f"""
    %called_computation (v: f32[16,4]) -> f32[64,4] {{
      %v = f32[16,4] parameter(0)
      ROOT %inner = f32[64,4] all-gather(%v), {ROWS}, dimensions={{0}}
    }}, execution_thread="sparsecore"
    """
    entry = """
    %p = f32[16,4] parameter(0)
    %s = ((), (), (s32[1])) call-start(), async_execution_thread="sparsecore", to_apply=%called_computation
    %u = ((f32[16,4]), f32[64,4]) call-update(%s, %p)
    ROOT %d = f32[64,4] call-done(%u)
    """
    assert only(analyze(entry, computations=computations)).moved_values == (made("main", "p"),)


NARROW = """
%widen (a: bf16[8]) -> f32[8] {
  %a = bf16[8] parameter(0)
  %n = bf16[8] negate(%a)
  ROOT %c = f32[8] convert(%n)
}
%narrow (r: f32[8]) -> bf16[8] {
  %r = f32[8] parameter(0)
  %s = bf16[8] convert(%r)
  ROOT %t = bf16[8] negate(%s)
}
"""


@pytest.mark.parametrize(
    ("before", "after", "narrow"),
    [
        ("%v = f32[8] convert(%h)", "%r = f32[8] negate(%c)", "bf16"),
        ("%v = f32[8] fusion(%h), kind=kLoop, calls=%widen", "%r = f32[8] negate(%c)", "bf16"),
        ("%v = f32[8] negate(%p)", "%r = bf16[8] convert(%c)", "bf16"),
        ("%v = f32[8] negate(%p)", "%r = bf16[8] fusion(%c), kind=kLoop, calls=%narrow", "bf16"),
        ("%v = f32[8] negate(%p)", "%r = f8e4m3fn[8] convert(%c)", "f8e4m3fn"),
        ("%v = f32[8] negate(%p)", "%r = f32[8] negate(%c)", None),
        ("%v = f32[8] convert(%k)", "%r = f32[8] negate(%c)", None),
        ("%v = f32[8] negate(%p)", "%r = f64[8] convert(%c)", None),
        ("%v = f32[8] negate(%p)", "%x = f32[8] negate(%c)\n%r = bf16[8] convert(%c)", None),
        ("%v = f32[8] negate(%p)", "%x = bf16[8] convert(%c)\n%r = f16[8] convert(%c)", None),
    ],
)
def test_a_narrower_type_on_either_side(analyze, before, after, narrow):
    lines = [
        "%p = f32[8] parameter(0)",
        "%h = bf16[8] parameter(1)",
        "%k = s8[8] parameter(2)",
        before,
        f"%c = f32[8] all-reduce(%v), {ROWS}, to_apply=%sum",
        after,
        "ROOT %o = f32[] constant(0)",
    ]
    assert only(analyze("\n".join(lines), computations=NARROW)).narrow_type == narrow


OFFSET = """
%id = u32[] partition-id()
%table = s32[8] constant({0, 4, 8, 12, 0, 4, 8, 12})
%row = s32[1] dynamic-slice(%table, %id), dynamic_slice_sizes={1}
%offset = s32[] bitcast(%row)
"""


AT_SECOND = "dynamic-slice(%h, %offset, %offset), dynamic_slice_sizes={4,1}"
OWN = "dynamic-slice(%g, %offset), dynamic_slice_sizes={4}"


@pytest.mark.parametrize(
    ("lines", "undone"),
    [
        (f"ROOT %s = f32[4] {OWN}", "s"),
        (f"%n = bf16[16] convert(%g)\nROOT %s = bf16[4] {OWN.replace('%g', '%n')}", "s"),
        (f"%o = s32[] copy(%offset)\nROOT %s = f32[4] {OWN.replace('%offset', '%o')}", "s"),
        (f"%k = s32[] constant(0)\n%o = s32[] add(%offset, %k)\nROOT %s = f32[4] {OWN.replace('%offset', '%o')}", "s"),
        (f"%k = s32[] constant(4)\n%o = s32[] add(%offset, %k)\nROOT %s = f32[4] {OWN.replace('%offset', '%o')}", None),
        ("ROOT %s = f32[2] dynamic-slice(%g, %offset), dynamic_slice_sizes={2}", None),
        (f"ROOT %s = f32[4] reduce-scatter(%g), {ROWS}, dimensions={{0}}, to_apply=%sum", None),
        (f"%h = f32[4,4] bitcast(%g)\nROOT %s = f32[4,1] {AT_SECOND}", None),
        ("ROOT %s = f32[4] slice(%g), slice={[0:4]}", None),
        (f"%s = f32[4] {OWN}\nROOT %n = f32[16] multiply(%g, %g)", None),
        ("ROOT %n = f32[16] negate(%g)", None),
    ],
)
def test_a_gather_that_is_undone(analyze, lines, undone):
    entry = f"%p = f32[4] parameter(0)\n{OFFSET}\n%g = f32[16] all-gather(%p), {ROWS}, dimensions={{0}}\n{lines}"
    found = next(one for one in analyze(entry).collectives if one.name == "g")
    assert found.undone_by == undone


@pytest.mark.parametrize(
    ("table", "undone"),
    [("{0, 4, 8, 12, 0, 4, 8, 12}", "s"), ("{4, 0, 8, 12, 4, 0, 8, 12}", None), ("{...}", None)],
    ids=["own", "exchanged", "left out of the text"],
)
def test_only_the_part_that_was_put_in_counts(analyze, table, undone):
    offset = OFFSET.replace("{0, 4, 8, 12, 0, 4, 8, 12}", table)
    entry = f"%p = f32[4] parameter(0)\n{offset}\n%g = f32[16] all-gather(%p), {ROWS}, dimensions={{0}}\n"
    assert only(analyze(entry + f"ROOT %s = f32[4] {OWN}")).undone_by == undone


@pytest.mark.parametrize(
    ("groups", "undone"),
    [("{{0,1,2,3},{4,5,6,7}}", "s"), ("{{1,0,2,3},{5,4,6,7}}", None), ("{{0,2,4,6},{1,3,5,7}}", None)],
)
def test_positions_are_those_in_the_group(analyze, groups, undone):
    entry = f"""
    %p = f32[4] parameter(0)
    %id = u32[] partition-id()
    %three = u32[] constant(3)
    %low = u32[] and(%id, %three)
    %two = u32[] constant(2)
    %offset = u32[] shift-left(%low, %two)
    %g = f32[16] all-gather(%p), channel_id=1, use_global_device_ids=true, replica_groups={groups}, dimensions={{0}}
    ROOT %s = f32[4] {OWN}
    """
    assert only(analyze(entry)).undone_by == undone


@pytest.mark.parametrize(
    ("steps", "undone"),
    [
        ("%past = s32[] add(%offset, %size)\n%o = s32[] select(%below, %past, %offset)", "s"),
        ("%past = s32[] add(%offset, %size)\n%o = s32[] select(%below, %offset, %past)", None),
        ("%o = s32[] clamp(%zero, %offset, %last)", "s"),
        ("%o = s32[] clamp(%last, %offset, %size)", None),
        ("%yes = pred[] constant(true)\n%o = s32[] select(%yes, %offset, %size)", "s"),
    ],
    ids=["of JAX", "the other way round", "clipped", "clipped too far", "constant"],
)
def test_offsets_that_jax_normalizes(analyze, steps, undone):
    """`lax.dynamic_slice` counts negative offsets from the end, and XLA keeps that of `axis_index`."""
    entry = f"""
    %p = f32[4] parameter(0)
    {OFFSET}
    %zero = s32[] constant(0)
    %last = s32[] constant(12)
    %size = s32[] constant(16)
    %below = pred[] compare(%offset, %zero), direction=LT
    {steps}
    %g = f32[16] all-gather(%p), {ROWS}, dimensions={{0}}
    ROOT %s = f32[4] {OWN.replace("%offset", "%o")}
    """
    assert only(analyze(entry)).undone_by == undone


def test_a_branch_in_a_loop_sees_what_is_passed_to_it(analyze):
    branches = f"""
    %yes (v: f32[4,16]) -> f32[4,16] {{
      %v = f32[4,16] parameter(0)
      ROOT %c = f32[4,16] all-reduce(%v), {ROWS}, to_apply=%sum
    }}
    %no (n: f32[4,16]) -> f32[4,16] {{
      ROOT %n = f32[4,16] parameter(0)
    }}
    """
    inner = loop("%w", "%which = pred[] compare(%i, %one), direction=LT").replace(
        f"%c = f32[4,16] all-reduce(%w), {ROWS}, to_apply=%sum",
        "%k = f32[4,16] conditional(%which, OPERANDS), true_computation=%yes, false_computation=%no",
    )
    found = only(analyze(ENTRY, computations=branches + inner.replace("OPERANDS", "%w, %w")))
    assert (found.loop_invariant, found.moved_values, found.executions_bound) == (True, (made("main", "p"),), "at most")
    changed = inner.replace("OPERANDS", "%m, %w").replace(
        "%which =", "%m = f32[4,16] broadcast(%x), dimensions={1}\n%which ="
    )
    found = only(analyze(ENTRY, computations=branches + changed))
    assert (found.loop_invariant, found.moved_values) == (False, (made("body", "b", element=(2,)),))
