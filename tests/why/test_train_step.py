"""A train step with FSDP and tensor parallelism: every weight's gather and every sum finds its place."""

from __future__ import annotations

import re

import pytest

from hloscope.model import ReasonKind
from hloscope.model.vocabulary import Kind, Origin

pytestmark = pytest.mark.tpu_compiler


@pytest.fixture(scope="module")
def step(explained):
    return explained("train_step.py:train_step")


def test_each_weight_is_gathered_because_fsdp_shards_the_batch(step):
    gathers = [one for one in step.collectives if one.kind is Kind.ALL_GATHER and one.axes == ("fsdp",)]
    sure = [one.reason for one in gathers if one.reason.certain and one.reason.conflicting == "B"]
    assert sorted(reason.moved.argument for reason in sure) == [
        "parameters['embedding']",
        "parameters['layers'][0]['wi']",
        "parameters['layers'][0]['wo']",
        "parameters['layers'][1]['wi']",
        "parameters['layers'][1]['wo']",
    ]
    for reason in sure:
        assert reason.kind is ReasonKind.OPERAND_CONFLICT
        assert [asked.by for asked in reason.held_by] == ["argument"]
        assert [asked.by for asked in reason.asked_by] == ["constraint"]


def test_tensor_parallel_sums_name_the_contracted_dimension(step):
    sums = [one for one in step.collectives if one.kind is Kind.ALL_REDUCE and one.axes == ("tensor",)]
    letters = [one.reason.summed for one in sums if one.reason.producer.name == "dot_general"]
    assert sorted(set(letters)) == [("F",), ("V",)]
    assert letters.count(("F",)) >= 3
    maximum = next(one for one in sums if one.reason.producer.name == "reduce_max")
    assert "partial maximum" in maximum.why


def test_permutes_of_a_windowed_einsum_are_the_reduce_scatter_of_a_gradient(step):
    permutes = [one for one in step.collectives if one.kind is Kind.COLLECTIVE_PERMUTE and one.axes == ("fsdp",)]
    assert permutes
    for one in permutes:
        assert (one.origin, one.reason.kind) == (Origin.REWRITTEN, ReasonKind.PARTIAL_SUM)
        assert one.reason.rewritten_from == "reduce-scatter"
        assert (one.reason.summed, one.reason.certain) == (("B",), True)
        assert re.search("collective-permute over fsdp, .* reduce-scatter$", one.why)


def test_nothing_is_left_unknown_and_no_origin_is_guessed(step):
    assert all(one.reason.kind is not ReasonKind.UNKNOWN for one in step.collectives)
    assert {one.origin for one in step.collectives} == {Origin.INSERTED, Origin.REWRITTEN}
    uncertain = [one for one in step.collectives if not one.reason.certain]
    assert len(uncertain) <= 5
    assert all(one.why.startswith("likely: ") for one in uncertain)
