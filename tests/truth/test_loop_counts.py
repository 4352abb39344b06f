"""Loops that count in any way, compiled, against the same loops run in Python."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

import jax
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.compile.compiling import start_compile
from hloscope.compile.lowering import lower
from hloscope.compile.target import TargetFacts

MOST_TRIPS = 60
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}
ADVANCE = {"+": operator.add, "-": operator.sub, "*": operator.mul}
KNOWN = re.compile(r'"known_trip_count":\{"n":"\d+"\},?')


@dataclass(frozen=True)
class Counter:
    """`i = start`, then while `i compare end` (or `end compare i`, turned round): `i = i advance by`."""

    start: int
    compare: str
    end: int
    turned: bool
    advance: str
    by: int

    def proceeds(self, i):
        compare = COMPARE[self.compare]
        return compare(self.end, i) if self.turned else compare(i, self.end)

    def after(self, i):
        return ADVANCE[self.advance](i, self.by)

    def trips(self):
        """How often the loop runs; None when that is more than a test should wait for."""
        i = self.start
        for trip in range(MOST_TRIPS):
            if not self.proceeds(i):
                return trip
            i = self.after(i)
        return None


def is_miscounted_by_xla(counter):
    """XLA of jaxlib 0.10 runs loops that count up from below zero in larger steps once too little, or says so.

    `while i < -4: i += 6` from -11 runs once on CPU, where Python runs it twice; jaxlib 0.12 is right. And one that
    never runs, as it starts past its end by less than a step, is compiled to one trip: `while i < 2: i += 2` from 3.
    """
    below_zero = counter.start < 0 and counter.advance == "+" and counter.by > 1
    return below_zero or (abs(counter.start - counter.end) < counter.by and counter.trips() == 0)


counters = st.builds(
    Counter,
    start=st.integers(-20, 20),
    compare=st.sampled_from(sorted(COMPARE)),
    end=st.integers(-40, 200),
    turned=st.booleans(),
    advance=st.sampled_from(sorted(ADVANCE)),
    by=st.integers(1, 7),
).filter(lambda counter: not is_miscounted_by_xla(counter))


def looped(counter, body):
    def loop(x):
        return lax.while_loop(
            lambda state: counter.proceeds(state[1]),
            lambda state: (body(state[0]), counter.after(state[1])),
            (x, counter.start),
        )[0]

    return loop


def text_of(function, slice_name):
    mapped = jax.shard_map(function, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    facts = TargetFacts(mesh={"x": 4}, slice=slice_name, args=("f32[32@x,128]",))
    return start_compile(lower(mapped, facts, name="loop")).capture().compiled.text


def is_told(text, trips, *, linear):
    """Whether the count is exact where it can be, and where it is not says so."""
    found = hloscope.analyze_text(text, mesh={"x": 4})
    if trips == 0 and not found.collectives:
        return True
    [psum] = found.collectives
    if psum.executions_bound == "exact" or linear:
        return (psum.executions, psum.executions_bound, found.unmodelled) == (trips, "exact", ())
    return bool(found.unmodelled) and (psum.executions_bound != "at least" or psum.executions <= trips)


few = settings(deadline=None, suppress_health_check=list(HealthCheck))


@given(counters)
@settings(few, max_examples=25)
def test_a_loop_without_a_known_trip_count(counter):
    trips = counter.trips()
    assume(trips is not None)
    text = KNOWN.sub("", text_of(looped(counter, lambda x: lax.psum(x * x, "x")), "cpu:4"))
    assert '"known_trip_count"' not in text
    assert is_told(text, trips, linear=counter.advance != "*")


@pytest.mark.tpu_compiler
@given(counters)
@settings(few, max_examples=10)
def test_a_loop_on_a_tpu(counter):
    trips = counter.trips()
    assume(trips is not None)
    text = text_of(looped(counter, lambda x: lax.psum(x * x, "x")), "v5e:2x2")
    assert '"known_trip_count"' not in text
    assert is_told(text, trips, linear=counter.advance != "*")


@given(counters, counters)
@settings(few, max_examples=10)
def test_a_loop_in_a_loop(outer, inner):
    trips = outer.trips(), inner.trips()
    assume(None not in trips)
    function = looped(outer, looped(inner, lambda x: lax.psum(x * x, "x")))
    text = KNOWN.sub("", text_of(function, "cpu:4"))
    assert is_told(text, trips[0] * trips[1], linear="*" not in outer.advance + inner.advance)


MISCOUNTED = (
    Counter(-11, "<", -4, False, "+", 6),
    Counter(3, "<", 2, False, "+", 2),
    Counter(-7, "<", 3, False, "+", 3),
)
"""Loops of 2, 0 and 4 trips, of which some XLA runs 1, 1 and 4, or prints 3."""


@pytest.mark.parametrize("slice_name", ["cpu:4", pytest.param("v5e:2x2", marks=pytest.mark.tpu_compiler)])
@pytest.mark.parametrize("counter", MISCOUNTED)
def test_a_loop_that_xla_miscounts_is_told_as_the_text_has_it(counter, slice_name):
    text = text_of(looped(counter, lambda x: lax.psum(x * x, "x")), slice_name)
    trips = counter.trips() if " while(" in text else text.count(" all-reduce(")
    found = hloscope.analyze_text(text, mesh={"x": 4})
    assert is_miscounted_by_xla(counter)
    assert [(one.executions, one.executions_bound) for one in found.collectives] == [(trips, "exact")] * (trips > 0)
    printed = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', text)
    contradicted = printed is not None and int(printed[1]) != trips
    assert ["known_trip_count" in one.what for one in found.unmodelled] == [True] * contradicted
