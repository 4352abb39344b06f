"""Twins that are right stay silent, and twins that are wrong are named: what a tolerance is worth."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from verify_helpers import USER_CODE, job

from hloscope.verification.judging import judge_numerics
from hloscope.verification.running import both_prepared, compare_prepared

sys.path.insert(0, str(USER_CODE))
import right_pairs
import wrong_pairs

DEVICES = {"positive_parts_of_sixteen": 16}


def test_there_are_enough_of_each():
    assert len(right_pairs.PAIRS) >= 20
    assert len(wrong_pairs.PAIRS) >= 20


def findings_of_seeds(file, name, seeds, **options):
    """The findings with each seed; both programs are compiled once."""
    first = job(file, f"{name}_twin", name, devices=DEVICES.get(name, 8), **options)
    programs = both_prepared(first)
    return [list(judge_numerics(compare_prepared(*programs, replace(first, seed=seed)))) for seed in seeds]


@pytest.mark.parametrize("name", right_pairs.PAIRS)
def test_a_right_twin_passes_on_five_seeds(name):
    assert findings_of_seeds("right_pairs", name, range(5)) == [[]] * 5


@pytest.mark.parametrize("name", [name for name, grad in right_pairs.PAIRS.items() if grad])
def test_gradients_of_a_right_twin_pass(name):
    assert findings_of_seeds("right_pairs", name, [0], grad=True) == [[]]


@pytest.mark.parametrize("name", wrong_pairs.PAIRS)
def test_a_wrong_twin_is_named(name):
    options = dict(wrong_pairs.PAIRS[name])
    message = options.pop("message")
    for found in findings_of_seeds("wrong_pairs", name, [0], **options):
        assert message in " | ".join(f"{one.message}; {one.why}" for one in found)
