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
from hloscope.program.compiling import capture
from hloscope.program.target import TargetFacts

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
    return capture(mapped, facts, name="loop").hlo_text


def check(text, trips, *, linear):
    """The count is exact where it can be, and where it is not it says so."""
    found = hloscope.analyze_text(text, mesh={"x": 4})
    if trips == 0 and not found.collectives:
        return
    [psum] = found.collectives
    if linear or psum.executions_bound == "exact":
        assert (psum.executions, psum.executions_bound, found.unmodelled) == (trips, "exact", ())
    elif psum.executions_bound == "at least":
        assert psum.executions <= trips
    if psum.executions_bound != "exact":
        assert found.unmodelled


few = settings(deadline=None, suppress_health_check=list(HealthCheck))


@given(counters)
@settings(few, max_examples=25)
def test_a_loop_without_a_known_trip_count(counter):
    trips = counter.trips()
    assume(trips is not None)
    text = KNOWN.sub("", text_of(looped(counter, lambda x: lax.psum(x * x, "x")), "cpu:4"))
    assert '"known_trip_count"' not in text
    check(text, trips, linear=counter.advance != "*")


@pytest.mark.tpu_compiler
@given(counters)
@settings(few, max_examples=10)
def test_a_loop_on_a_tpu(counter):
    trips = counter.trips()
    assume(trips is not None)
    text = text_of(looped(counter, lambda x: lax.psum(x * x, "x")), "v5e:2x2")
    assert '"known_trip_count"' not in text
    check(text, trips, linear=counter.advance != "*")


@given(counters, counters)
@settings(few, max_examples=10)
def test_a_loop_in_a_loop(outer, inner):
    trips = outer.trips(), inner.trips()
    assume(None not in trips)
    function = looped(outer, looped(inner, lambda x: lax.psum(x * x, "x")))
    check(
        KNOWN.sub("", text_of(function, "cpu:4")), trips[0] * trips[1], linear="*" not in outer.advance + inner.advance
    )
