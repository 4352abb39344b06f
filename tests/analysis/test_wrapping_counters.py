"""Counters that wrap around and change their type, against an interpreter that does the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.analyze import analyze_module
from hloscope.analysis.trip_counts import CompareDirection, integer_bits, is_in_range, wrap_integer, wrap_signed
from hloscope.hlo import parse_module
from hloscope.model.vocabulary import Bound

LIMIT = 10_000
TYPES = ("s8", "u8", "s32", "u32")
LOOP = """HloModule m, num_partitions=2

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}

%body (b: (STATE[], f32[4])) -> (STATE[], f32[4]) {
  %b = (STATE[], f32[4]) parameter(0)
  %i = STATE[] get-tuple-element(%b), index=0
  %v = f32[4] get-tuple-element(%b), index=1
  %in = INNER[] convert(%i)
  %k = INNER[] constant(AMOUNT)
  %moved = INNER[] STEP(%in, %k)
  %next = STATE[] convert(%moved)
  %r = f32[4] all-reduce(%v), channel_id=1, use_global_device_ids=true, replica_groups={{0,1}}, to_apply=%sum
  ROOT %out = (STATE[], f32[4]) tuple(%next, %r)
}

%cond (c: (STATE[], f32[4])) -> pred[] {
  %c = (STATE[], f32[4]) parameter(0)
  %i = STATE[] get-tuple-element(%c), index=0
  %j = COMPARED[] convert(%i)
  %n = COMPARED[] constant(LIMIT)
  ROOT %more = pred[] compare(%j, %n), direction=DIRECTION
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  %start = GIVEN[] constant(START)
  %zero = STATE[] convert(%start)
  %init = (STATE[], f32[4]) tuple(%zero, %p)
  %w = (STATE[], f32[4]) while(%init), condition=%cond, body=%body
  ROOT %res = f32[4] get-tuple-element(%w), index=1
}
"""


def text(**words: object) -> str:
    filled = LOOP
    for word, value in words.items():
        filled = filled.replace(word.upper(), str(value))
    return filled


def counted(**words: object) -> tuple[int, Bound]:
    [found] = analyze_module(parse_module(text(**words)), target="m", mesh=None).collectives
    return found.executions, found.executions_bound


def numbers(element_type: str) -> st.SearchStrategy[int]:
    bits = integer_bits(element_type)
    assert bits is not None
    lowest = 0 if element_type[0] == "u" else -(1 << (bits - 1))
    highest = lowest + (1 << bits) - 1
    near = st.integers(-40, 40).map(lambda number: wrap_integer(number, element_type))
    return near | st.sampled_from([lowest, lowest + 1, highest - 1, highest]) | st.integers(lowest, highest)


@st.composite
def loops(draw) -> dict[str, object]:
    given_type, state, inner, compared = (draw(st.sampled_from(TYPES)) for _ in range(4))
    if draw(st.booleans()):
        given_type = inner = compared = state
    return {
        "given": given_type,
        "state": state,
        "inner": inner,
        "compared": compared,
        "start": draw(numbers(given_type)),
        "amount": draw(numbers(inner)),
        "limit": draw(numbers(compared)),
        "step": draw(st.sampled_from(["add", "subtract", "multiply"])),
        "direction": draw(st.sampled_from([direction.name for direction in CompareDirection])),
    }


def simulated(words: dict[str, object]) -> int | None:
    """Trips of the loop as a machine makes them; None when there are more than `LIMIT`."""
    steps = {"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__}
    direction, step = CompareDirection[str(words["direction"])], steps[str(words["step"])]
    state = wrap_integer(words["start"], words["state"])
    for trips in range(LIMIT + 1):
        if not direction.holds(wrap_integer(state, words["compared"]) - words["limit"]):
            return trips
        moved = wrap_integer(step(wrap_integer(state, words["inner"]), words["amount"]), words["inner"])
        state = wrap_integer(moved, words["state"])
    return None


@given(words=loops())
def test_counts_agree_with_a_machine_that_wraps_around(words):
    trips = simulated(words)
    count, bound = counted(**words)
    if bound is Bound.EXACT and count <= LIMIT:
        assert count == trips
    elif bound is Bound.EXACT:
        assert trips is None
    else:
        assert (count, bound) == (1, Bound.AT_LEAST)
        assert trips != 0


ONE_TYPE = {"given": "s32", "state": "s32", "inner": "s32", "compared": "s32", "step": "add", "direction": "LT"}
NUMBERS = {"start": 0, "amount": 1, "limit": 8}


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ({}, 8),
        ({"state": "s8", "inner": "s8"}, 8),
        ({"inner": "s8"}, 8),
        ({"inner": "u32"}, 8),
        ({"inner": "s64"}, 8),
        ({"given": "u8", "start": 255, "compared": "u32", "limit": 300}, 45),
        ({"given": "s32", "start": 260, "state": "u8", "inner": "u8", "compared": "u8"}, 4),
        ({"start": -5, "compared": "u32"}, 0),
        ({"limit": 2_000_000_000}, 2_000_000_000),
        ({"given": "u8", "state": "u8", "inner": "u8", "start": 5, "amount": 255, "limit": 0, "direction": "NE"}, 5),
    ],
)
def test_conversions_that_keep_the_count(words, count):
    assert counted(**{**ONE_TYPE, **NUMBERS, **words}) == (count, Bound.EXACT)


@pytest.mark.parametrize(
    "words",
    [
        {"inner": "s8", "limit": 200},
        {"inner": "u8", "limit": 300},
        {"compared": "s8", "limit": 127, "direction": "LE"},
        {"start": -5, "compared": "u32", "direction": "GE"},
        {"state": "s8", "inner": "s8", "limit": 200},
        {"compared": "f32"},
        {"inner": "bf16", "limit": 300},
        {"inner": "f16"},
        {"state": "f32", "inner": "f32", "compared": "f32"},
        {"compared": "pred", "limit": "true"},
    ],
)
def test_conversions_that_may_change_the_count_are_not_exact(words):
    assert counted(**{**ONE_TYPE, **NUMBERS, **words})[1] in (Bound.AT_LEAST, Bound.UNKNOWN)


def test_bits_of_another_kind_are_no_integers():
    words = {**ONE_TYPE, **NUMBERS, "compared": "s32"}
    cast = text(**words).replace("%j = s32[] convert(%i)", "%f = f32[] bitcast-convert(%i)\n %j = s32[] convert(%f)")
    [found] = analyze_module(parse_module(cast), target="m", mesh=None).collectives
    assert found.executions_bound is Bound.UNKNOWN


@given(number=st.integers(-(2**40), 2**40), element_type=st.sampled_from(TYPES))
def test_wrapping_around_keeps_a_number_modulo_its_bits(number, element_type):
    stored, near = wrap_integer(number, element_type), wrap_signed(number, element_type)
    assert is_in_range(stored, element_type)
    assert (stored - number) % 2 ** integer_bits(element_type) == 0
    assert (near - number) % 2 ** integer_bits(element_type) == 0
    assert stored == number or not is_in_range(number, element_type)
