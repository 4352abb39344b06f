"""Trip counts from the text of a loop alone, and what they do to executions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.trip_counts import CompareDirection, Progression, count_trips
from hloscope.model.vocabulary import Bound

REDUCE = "all-reduce(%v), channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum"


def loop(
    *,
    start: str = "constant(0)",
    step: str = "%next = s32[] add(%i, %k)",
    amount: str = "1",
    condition: str = "ROOT %lt = pred[] compare(%i, %n), direction=LT",
    bound: str = "8",
    kind: str = "s32",
    attributes: str = "",
    extra: str = "",
) -> tuple[str, str]:
    """ENTRY's body and the computations of a loop with one all-reduce."""
    state = "(s32[], f32[4])"
    computations = f"""
    {extra}
    %body (b: {state}) -> {state} {{
      %b = {state} parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[4] get-tuple-element(%b), index=1
      %k = s32[] constant({amount})
      {step}
      %r = f32[4] {REDUCE}
      ROOT %out = {state} tuple(%next, %r)
    }}
    %cond (c: {state}) -> pred[] {{
      %c = {state} parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %v = f32[4] get-tuple-element(%c), index=1
      %n = s32[] constant({bound})
      {condition}
    }}
    """
    entry = f"""
    %p = f32[4] parameter(0)
    %zero = s32[] {start}
    %init = {state} tuple(%zero, %p)
    %w = {state} while(%init), condition=%cond, body=%body{attributes}
    ROOT %res = f32[4] get-tuple-element(%w), index=1
    """
    return entry.replace("s32", kind), computations.replace("s32", kind)


def executions(analyze, **parts) -> tuple[int, Bound]:
    entry, computations = loop(**parts)
    [found] = analyze(entry, computations=computations).collectives
    assert found.loops == ("w",)
    return found.executions, found.executions_bound


COUNTED = {
    "zero to eight": ({}, 8),
    "starts at one": ({"start": "constant(1)"}, 7),
    "step of two": ({"amount": "2"}, 4),
    "step that does not divide": ({"amount": "3"}, 3),
    "less or equal": ({"condition": "ROOT %c2 = pred[] compare(%i, %n), direction=LE"}, 9),
    "constant on the left": ({"condition": "ROOT %c2 = pred[] compare(%n, %i), direction=GT"}, 8),
    "not equal": ({"condition": "ROOT %c2 = pred[] compare(%i, %n), direction=NE"}, 8),
    "equal": ({"condition": "ROOT %c2 = pred[] compare(%i, %n), direction=EQ", "bound": "0"}, 1),
    "counting down": (
        {
            "start": "constant(10)",
            "amount": "-2",
            "bound": "0",
            "condition": "ROOT %c2 = pred[] compare(%i, %n), direction=GE",
        },
        6,
    ),
    "subtracting": (
        {
            "start": "constant(10)",
            "amount": "2",
            "bound": "0",
            "step": "%next = s32[] subtract(%i, %k)",
            "condition": "ROOT %c2 = pred[] compare(%i, %n), direction=GT",
        },
        5,
    ),
    "never": ({"start": "constant(8)"}, 0),
    "doubling": ({"start": "constant(1)", "step": "%next = s32[] multiply(%i, %i2)\n", "bound": "1000"}, None),
    "geometric": (
        {"start": "constant(1)", "amount": "2", "step": "%next = s32[] multiply(%i, %k)", "bound": "1000"},
        10,
    ),
    "doubling by adding": ({"start": "constant(1)", "step": "%next = s32[] add(%i, %i)", "bound": "1000"}, 10),
    "through copies": (
        {
            "step": "%ic = s32[] copy(%i)\n%nn = s32[] add(%ic, %k)\n%next = s32[] bitcast(%nn)",
            "condition": "%ic = s32[] copy(%i)\nROOT %c2 = pred[] compare(%ic, %n), direction=LT",
        },
        8,
    ),
    "negated": ({"condition": "%ge = pred[] compare(%i, %n), direction=GE\nROOT %c2 = pred[] not(%ge)"}, 8),
    "compared after adding": (
        {
            "condition": "%one = s32[] constant(1)\n%j = s32[] add(%i, %one)\n"
            "ROOT %c2 = pred[] compare(%j, %n), direction=LT"
        },
        7,
    ),
    "unsigned": ({"kind": "u32"}, 8),
    "unsigned counting down": (
        {
            "kind": "u32",
            "start": "constant(8)",
            "amount": "4294967295",
            "bound": "0",
            "condition": "ROOT %c2 = pred[] compare(%i, %n), direction=NE",
        },
        8,
    ),
    "known to XLA": (
        {"start": "parameter(1)", "attributes": ', backend_config={"known_trip_count":{"n":"5"}}'},
        5,
    ),
    "compare in a fusion": (
        {
            "extra": "%cmp (a: s32[], b: s32[]) -> pred[] {\n%a = s32[] parameter(0)\n%b = s32[] parameter(1)\n"
            "ROOT %c3 = pred[] compare(%a, %b), direction=LT\n}",
            "condition": "ROOT %c2 = pred[] fusion(%i, %n), kind=kLoop, calls=%cmp",
        },
        8,
    ),
    "step in a fusion": (
        {
            "extra": "%inc (a: s32[]) -> s32[] {\n%a = s32[] parameter(0)\n%b = s32[] constant(2)\n"
            "ROOT %c3 = s32[] add(%a, %b)\n}",
            "step": "%next = s32[] fusion(%i), kind=kLoop, calls=%inc",
        },
        4,
    ),
    "one element arrays": ({"bound": "{8}"}, 8),
}
COUNTED.pop("doubling")


def test_a_condition_is_believed_rather_than_what_xla_says_of_it(says, analyze):
    known = ', backend_config={"known_trip_count":{"n":"COUNT"}}'
    parts = {"start": "constant(-7)", "amount": "3", "bound": "3"}
    entry, computations = loop(**parts, attributes=known.replace("COUNT", "3"))
    analysis = analyze(entry, computations=computations)
    assert [(found.executions, found.executions_bound) for found in analysis.collectives] == [(4, Bound.EXACT)]
    [said] = analysis.unmodelled
    assert re.findall(r"known_trip_count|%\w+|\b\d\b", said.what) == ["known_trip_count", "3", "%w", "4"]
    says([said.what, said.effect])
    entry, computations = loop(**parts, attributes=known.replace("COUNT", "4"))
    assert analyze(entry, computations=computations).unmodelled == ()


@pytest.mark.parametrize(("parts", "count"), COUNTED.values(), ids=COUNTED.keys())
def test_counted_loops(analyze, parts, count):
    assert executions(analyze, **parts) == (count, Bound.EXACT)


ERROR_SMALL = "%lim = f32[] constant(0.1)\n%e = f32[] constant(1)\n%big = pred[] compare(%e, %lim), direction=GT"
AT_MOST = {
    "conjunction": f"{ERROR_SMALL}\n%lt = pred[] compare(%i, %n), direction=LT\nROOT %c2 = pred[] and(%lt, %big)",
    "negated disjunction": (
        f"{ERROR_SMALL}\n%ge = pred[] compare(%i, %n), direction=GE\n%or = pred[] or(%big, %ge)\n"
        "ROOT %c2 = pred[] not(%or)"
    ),
}


@pytest.mark.parametrize("condition", AT_MOST.values(), ids=AT_MOST.keys())
def test_a_constant_of_a_conjunction_is_an_upper_bound(analyze, condition):
    assert executions(analyze, condition=condition) == (8, Bound.AT_MOST)


def test_a_conjunction_of_counters_is_exact(analyze):
    condition = (
        "%m = s32[] constant(5)\n%a = pred[] compare(%i, %n), direction=LT\n"
        "%d = pred[] compare(%i, %m), direction=LE\nROOT %c2 = pred[] and(%a, %d)"
    )
    assert executions(analyze, condition=condition) == (6, Bound.EXACT)


DATA = (
    "%z = f32[] constant(0)\n%s = f32[] reduce(%v, %z), dimensions={0}, to_apply=%sum\n"
    "%dynamic = pred[] compare(%s, %z), direction=GT\n"
)
RUNS_ONCE = {
    "known of no integer that there is": {
        "amount": "0", "attributes": f', backend_config={{"known_trip_count":{{"n":"{"9" * 5000}"}}}}'
    },
    "never ends": {"amount": "0"},
    "wrong way": {"amount": "-1"},
    "jumps over": {"amount": "3", "condition": "ROOT %c2 = pred[] compare(%i, %n), direction=NE"},
    "wraps around": {"kind": "u32", "start": "constant(8)", "amount": "4294967295", "bound": "0",
                     "condition": "ROOT %c2 = pred[] compare(%i, %n), direction=GE"},
    "unknown step": {"step": "%next = s32[] remainder(%i, %k)"},
    "always": {"condition": "ROOT %c2 = pred[] constant(true)"},
    "always or data": {"condition": f"{DATA}%t = pred[] constant(true)\nROOT %c2 = pred[] or(%dynamic, %t)"},
    "counter or data": {
        "condition": f"{DATA}%lt = pred[] compare(%i, %n), direction=LT\nROOT %c2 = pred[] or(%lt, %dynamic)"
    },
}  # fmt: skip
MAY_NOT_RUN = {
    "traced start": {"start": "parameter(1)"},
    "data-dependent": {"condition": f"{DATA}ROOT %c2 = pred[] copy(%dynamic)"},
    "finished counter or data": {
        "start": "constant(8)",
        "condition": f"{DATA}%lt = pred[] compare(%i, %n), direction=LT\nROOT %c2 = pred[] or(%lt, %dynamic)",
    },
    "endless counter and data": {
        "amount": "0",
        "condition": f"{DATA}%lt = pred[] compare(%i, %n), direction=LT\nROOT %c2 = pred[] and(%lt, %dynamic)",
    },
}


def unread(analyze, parts):
    """What is reported of a loop that is not read, which is counted for one trip, as a bound that it says."""
    entry, computations = loop(**parts)
    analysis = analyze(entry, computations=computations)
    [found] = analysis.collectives
    [reported] = analysis.unmodelled
    assert (found.executions, reported.instruction) == (1, "w")
    assert re.findall(r"trip count|%\w+", reported.what) == ["trip count", "%w"]
    assert analysis.totals.bound is found.executions_bound
    claims = {Bound.AT_LEAST: ["lower"], Bound.UNKNOWN: ["lower", "upper"]}  # a lower bound; neither of both
    assert re.findall("lower|upper", reported.effect) == claims[found.executions_bound]
    return found.executions_bound, f"{reported.what}: {reported.effect}"


@pytest.mark.parametrize("parts", RUNS_ONCE.values(), ids=RUNS_ONCE.keys())
def test_unread_loops_that_begin_are_a_lower_bound_and_reported(says, analyze, parts):
    bound, text = unread(analyze, parts)
    assert bound is Bound.AT_LEAST
    says(text)


@pytest.mark.parametrize("parts", MAY_NOT_RUN.values(), ids=MAY_NOT_RUN.keys())
def test_unread_loops_that_may_not_begin_have_no_bound_and_are_reported(says, analyze, parts):
    bound, text = unread(analyze, parts)
    assert bound is Bound.UNKNOWN
    says(text)


def test_loops_that_do_not_begin_run_zero_times_whatever_their_step(analyze):
    assert executions(analyze, start="constant(8)", step="%next = s32[] remainder(%i, %k)") == (0, Bound.EXACT)


def test_the_condition_of_an_unread_loop_runs_at_least_once(analyze):
    condition = f"%red = f32[4] {REDUCE}\nROOT %lt = pred[] compare(%i, %n), direction=LT"
    entry, computations = loop(start="parameter(1)", condition=condition)
    found = {c.computation: c for c in analyze(entry, computations=computations).collectives}
    assert (found["cond"].executions, found["cond"].executions_bound) == (1, Bound.AT_LEAST)
    assert (found["body"].executions, found["body"].executions_bound) == (1, Bound.UNKNOWN)


MALFORMED = {
    "compare of one": "ROOT %c2 = pred[] compare(%i), direction=LT",
    "compare of none": "ROOT %c2 = pred[] compare(), direction=LT",
    "compare without direction": "ROOT %c2 = pred[] compare(%i, %n)",
    "not of nothing": "ROOT %c2 = pred[] not()",
    "and of one": "%lt = pred[] compare(%i, %n), direction=LT\nROOT %c2 = pred[] and(%lt)",
    "index out of range": "%t = (pred[]) tuple(%i)\nROOT %c2 = pred[] get-tuple-element(%t), index=3",
    "element of nothing": "ROOT %c2 = pred[] get-tuple-element(), index=0",
    "copy of nothing": "ROOT %c2 = pred[] copy()",
    "add of one": "%j = s32[] add(%i)\nROOT %c2 = pred[] compare(%j, %n), direction=LT",
    "compare of types": "%m = u32[] constant(8)\nROOT %c2 = pred[] compare(%i, %m), direction=LT",
    "unsigned compare": "ROOT %c2 = pred[] compare(%i, %n), direction=LT, type=UNSIGNED",
    "bitwise not": "%lt = pred[] compare(%i, %n), direction=GE\n%w = s32[] convert(%lt)\n%x = s32[] not(%w)\n"
    "ROOT %c2 = pred[] convert(%x)",
    "deep": "%c0 = pred[] compare(%i, %n), direction=LT\n"
    + "".join(f"%c{n} = pred[] not(%c{n - 1})\n" for n in range(1, 5001))
    + "ROOT %c2x = pred[] not(%c5000)",
}


@pytest.mark.parametrize("condition", MALFORMED.values(), ids=MALFORMED.keys())
def test_conditions_that_do_not_fit_together_are_reported(analyze, condition):
    assert unread(analyze, {"condition": condition})[0] in (Bound.UNKNOWN, Bound.AT_LEAST)


def test_a_conjunction_that_doubles_sixty_times_is_read_in_part(analyze):
    joined = "".join(f"%c{n} = pred[] and(%c{n - 1}, %c{n - 1})\n" for n in range(1, 61))
    condition = f"%c0 = pred[] compare(%i, %n), direction=LT\n{joined}ROOT %c2x = pred[] copy(%c60)"
    assert executions(analyze, condition=condition) == (8, Bound.AT_MOST)


def test_a_step_that_doubles_sixty_times_is_not_followed(analyze):
    doubled = "".join(f"%d{n} = s32[] add(%d{n - 1}, %d{n - 1})\n" for n in range(1, 61))
    assert executions(analyze, step=f"%d0 = s32[] add(%i, %k)\n{doubled}%next = s32[] copy(%d60)")[1] is Bound.AT_LEAST


STATE = "(s32[], f32[4], s32[])"


def test_bound_carried_through_nested_loops(analyze):
    """The inner loop's start and bound are constants that the outer loop carries unchanged."""
    computations = f"""
    %inner (b: {STATE}) -> {STATE} {{
      %b = {STATE} parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[4] get-tuple-element(%b), index=1
      %n = s32[] get-tuple-element(%b), index=2
      %k = s32[] constant(1)
      %next = s32[] add(%i, %k)
      %r = f32[4] {REDUCE}
      ROOT %out = {STATE} tuple(%next, %r, %n)
    }}
    %inner_cond (c: {STATE}) -> pred[] {{
      %c = {STATE} parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %n = s32[] get-tuple-element(%c), index=2
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }}
    %outer (b: {STATE}) -> {STATE} {{
      %b = {STATE} parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[4] get-tuple-element(%b), index=1
      %n = s32[] get-tuple-element(%b), index=2
      %zero = s32[] constant(0)
      %k = s32[] constant(1)
      %init = {STATE} tuple(%zero, %v, %n)
      %in = {STATE} while(%init), condition=%inner_cond, body=%inner
      %r = f32[4] get-tuple-element(%in), index=1
      %next = s32[] add(%i, %k)
      ROOT %out = {STATE} tuple(%next, %r, %n)
    }}
    %outer_cond (c: {STATE}) -> pred[] {{
      %c = {STATE} parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %four = s32[] constant(4)
      ROOT %lt = pred[] compare(%i, %four), direction=LT
    }}
    """
    entry = f"""
    %p = f32[4] parameter(0)
    %zero = s32[] constant(0)
    %three = s32[] constant(3)
    %copy-start = (s32[], s32[], u32[]) copy-start(%three)
    %copied = s32[] copy-done(%copy-start)
    %init = {STATE} tuple(%zero, %p, %copied)
    ROOT %w = {STATE} while(%init), condition=%outer_cond, body=%outer
    """
    [found] = analyze(entry, computations=computations).collectives
    assert (found.executions, found.executions_bound, found.loops) == (12, Bound.EXACT, ("w", "in"))


def test_a_branch_runs_at_most_once(analyze):
    computations = f"""
    %yes (v: f32[4]) -> f32[4] {{
      %v = f32[4] parameter(0)
      ROOT %r = f32[4] {REDUCE}
    }}
    %no (v: f32[4]) -> f32[4] {{
      ROOT %v = f32[4] parameter(0)
    }}
    """
    entry = """
    %p = f32[4] parameter(0)
    %b = s32[] parameter(1)
    ROOT %c = f32[4] conditional(%b, %p, %p), branch_computations={%no, %yes}
    """
    analysis = analyze(entry, computations=computations)
    [found] = analysis.collectives
    assert (found.executions, found.executions_bound) == (1, Bound.AT_MOST)
    assert analysis.totals.bound is Bound.AT_MOST


def test_a_condition_runs_once_more_than_the_body(analyze):
    condition = f"""%red = f32[4] {REDUCE}
      ROOT %lt = pred[] compare(%i, %n), direction=LT"""
    entry, computations = loop(condition=condition)
    found = {c.computation: c.executions for c in analyze(entry, computations=computations).collectives}
    assert found == {"body": 8, "cond": 9}


@given(
    start=st.integers(-200, 200),
    step=st.integers(-9, 9),
    bound=st.integers(-200, 200),
    direction=st.sampled_from(list(CompareDirection)),
)
def test_arithmetic_counts_agree_with_running_the_loop(start, step, bound, direction):
    trips, counter = 0, start
    while direction.holds(counter - bound) and trips <= 1000:
        counter += step
        trips += 1
    left, right = Progression(start=start, factor=1, step=step), Progression(start=bound, factor=1, step=0)
    assert count_trips(left, right, direction, "s32") == (trips if trips <= 1000 else None)


@given(start=st.integers(1, 5), factor=st.integers(2, 5), step=st.integers(0, 5), bound=st.integers(0, 10**6))
def test_geometric_counts_agree_with_running_the_loop(start, factor, step, bound):
    trips, counter = 0, start
    while counter < bound:
        counter = factor * counter + step
        trips += 1
    left, right = Progression(start=start, factor=factor, step=step), Progression(start=bound, factor=1, step=0)
    assert count_trips(left, right, CompareDirection.LT, "s32") == trips


@pytest.mark.parametrize("element_type", ["f32", "pred", "bf16"])
def test_only_integers_are_counted(element_type):
    left, right = Progression(start=0, factor=1, step=1), Progression(start=4, factor=1, step=0)
    assert count_trips(left, right, CompareDirection.LT, element_type) is None


@given(gap=st.integers(-3, 3), direction=st.sampled_from(list(CompareDirection)))
def test_the_opposite_direction_holds_when_this_one_does_not(gap, direction):
    assert direction.holds(gap) != direction.opposite.holds(gap)


def test_a_step_that_the_loop_carries(analyze):
    computations = f"""
    %body (b: {STATE}) -> {STATE} {{
      %b = {STATE} parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[4] get-tuple-element(%b), index=1
      %k = s32[] get-tuple-element(%b), index=2
      %next = s32[] add(%i, %k)
      %r = f32[4] {REDUCE}
      ROOT %out = {STATE} tuple(%next, %r, %k)
    }}
    %cond (c: {STATE}) -> pred[] {{
      %c = {STATE} parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %n = s32[] constant(9)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }}
    """
    entry = f"""
    %p = f32[4] parameter(0)
    %one = s32[] constant(1)
    %two = s32[] constant(2)
    %init = {STATE} tuple(%one, %p, %two)
    ROOT %w = {STATE} while(%init), condition=%cond, body=%body
    """
    [found] = analyze(entry, computations=computations).collectives
    assert (found.executions, found.executions_bound) == (4, Bound.EXACT)


def two_words(
    analyze,
    *,
    high_start: str = "0",
    low_start: str = "0",
    high_bound: str = "0",
    low_bound: str = "7",
    step: str = "1",
    carry: str = "compare(%next, %low), direction=LT",
    choice: str = "select(%carry, %more, %high)",
    outer: str = "LT",
    inner: str = "LT",
) -> tuple[int, Bound]:
    """Executions of an all-reduce in a loop with a 64-bit counter, as libtpu prints one."""
    state = "(u32[], u32[], f32[4])"
    computations = f"""
    %body (b: {state}) -> {state} {{
      %b = {state} parameter(0)
      %one = u32[] constant(1)
      %step = u32[] constant({step})
      %low.1 = u32[] get-tuple-element(%b), index=0
      %low = u32[] copy(%low.1)
      %next = u32[] add(%low, %step)
      %carry = pred[] {carry}
      %high = u32[] get-tuple-element(%b), index=1
      %more = u32[] add(%high, %one)
      %chosen = u32[] {choice}
      %v = f32[4] get-tuple-element(%b), index=2
      %r = f32[4] {REDUCE}
      ROOT %out = {state} tuple(%next, %chosen, %r)
    }}
    %cond (c: {state}) -> pred[] {{
      %signed = s32[] constant({high_bound})
      %c = {state} parameter(0)
      %word = u32[] constant({int(high_bound) % 2**32})
      %n = u32[] constant({low_bound})
      %high = u32[] get-tuple-element(%c), index=1
      %cast = s32[] bitcast-convert(%high)
      %less = pred[] compare(%cast, %signed), direction={outer}
      %same = pred[] compare(%high, %word), direction=EQ
      %low = u32[] get-tuple-element(%c), index=0
      %below = pred[] compare(%low, %n), direction={inner}
      %both = pred[] and(%same, %below)
      ROOT %go = pred[] or(%less, %both)
    }}
    """
    entry = f"""
    %p = f32[4] parameter(0)
    %low = u32[] constant({low_start})
    %high = u32[] constant({high_start})
    %init = {state} tuple(%low, %high, %p)
    %w = {state} while(%init), condition=%cond, body=%body
    ROOT %res = f32[4] get-tuple-element(%w), index=2
    """
    [found] = analyze(entry, computations=computations).collectives
    return found.executions, found.executions_bound


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ({}, 7),
        ({"low_start": "3", "low_bound": "20"}, 17),
        ({"step": "2"}, 4),
        ({"inner": "LE"}, 8),
        ({"high_start": "4294967295", "high_bound": "-1"}, 7),
        ({"low_bound": "0"}, 0),
        ({"high_start": "1"}, 0),
        ({"inner": "EQ"}, 0),
    ],
)
def test_a_counter_in_two_words(analyze, parts, count):
    assert two_words(analyze, **parts) == (count, Bound.EXACT)


@pytest.mark.parametrize(
    "parts",
    [
        {"high_bound": "1"},
        {"step": "4294967295"},
        {"step": "0"},
        {"step": "4", "low_bound": "4294967295"},
        {"outer": "LE"},
        {"carry": "compare(%low, %next), direction=LT"},
        {"carry": "compare(%next, %low), direction=LE"},
        {"carry": "compare(%next, %step), direction=LT"},
        {"choice": "select(%carry, %high, %more)"},
        {"choice": "add(%high, %one)"},
    ],
)
def test_other_counters_in_two_words_are_a_lower_bound(analyze, parts):
    assert two_words(analyze, **parts) == (1, Bound.AT_LEAST)
