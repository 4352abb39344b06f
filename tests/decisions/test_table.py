"""A handful of the table's programs on simulated devices: what `run.py` judges of all, without times and trials."""

from __future__ import annotations

import pytest
from decisions.table import TABLE, compute_unexplained, read_dims

import hloscope

WRONG = ("lookups:image_codes", "networks:module")
RIGHT = ("networks:larger_activations", "serving:contracted", "serving:context_parallel")
ROWS = {row.name: row for row in TABLE}


@pytest.fixture(scope="module")
def analyze():
    """The analysis of a program of the table on simulated devices."""
    known = {}

    def analysis(name: str):
        if name not in known:
            known[name] = hloscope.analyze(ROWS[name].target, slice="cpu:8", trials=False)
        return known[name]

    return analysis


@pytest.mark.parametrize("name", WRONG)
def test_the_lost_decision_is_the_expected_one(analyze, name):
    lost = [each for each in analyze(name).decisions if each.is_lost]
    assert lost
    assert ROWS[name].lost.matches(lost[0], read_dims(ROWS[name]))
    assert lost[0].places


@pytest.mark.parametrize("name", RIGHT)
def test_no_decision_is_lost_in_a_right_program(analyze, name):
    assert not [each for each in analyze(name).decisions if each.is_lost]


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_the_decisions_explain_every_byte(analyze, name):
    assert analyze(name).collectives
    assert abs(compute_unexplained(analyze(name))) < 0.001


def test_every_program_of_the_table_exists_and_so_does_its_twin():
    for row in TABLE:
        file = row.target.rpartition(":")[0]
        with open(file, encoding="utf-8") as text:
            source = text.read()
        for target in filter(None, (row.target, row.cured)):
            assert f"\ndef {target.rpartition(':')[2]}(" in source
