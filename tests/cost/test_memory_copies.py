"""Copies within the device's memory: what they have left of the bandwidth, and when they end."""

from __future__ import annotations

import pytest

from hloscope.cost.walk import CopyQueues
from hloscope.model.timeline import Unit


def test_a_copy_alone_takes_its_time():
    copies = CopyQueues()
    copies.start("a", Unit.HBM, 10.0, 5.0)
    copies.go_on(25.0)
    assert copies.times_us("a", 25.0) == (5.0, 15.0)


def test_copies_go_one_after_the_other():
    copies = CopyQueues()
    copies.start("a", Unit.HBM, 10.0, 0.0)
    copies.start("b", Unit.HBM, 10.0, 2.0)
    assert copies.times_us("b", 4.0) == (10.0, 20.0)
    assert copies.times_us("a", 4.0) == (0.0, 10.0)


def test_a_copy_has_what_computing_leaves():
    copies = CopyQueues()
    copies.start("a", Unit.HBM, 10.0, 0.0)
    copies.go_on(8.0, 0.25)  # the core takes three quarters
    assert copies.times_us("a", 8.0) == pytest.approx((0.0, 16.0))


def test_beside_what_streams_nothing_is_copied():
    copies = CopyQueues()
    copies.start("a", Unit.HBM, 10.0, 0.0)
    copies.go_on(100.0, 0.0)
    assert copies.times_us("a", 100.0) == (100.0, 110.0)


def test_a_copy_that_ends_while_the_core_computes_has_ended_then():
    copies = CopyQueues()
    copies.start("a", Unit.HBM, 10.0, 0.0)
    copies.go_on(100.0, 0.5)
    assert copies.times_us("a", 100.0) == (0.0, 20.0)
