"""The contract that is written for a program: the program keeps to it, and one that does a little more does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from contract_examples import GATHER, REDUCE, program

import hloscope
from hloscope.analysis.totals import compute_totals
from hloscope.judge.evaluate import evaluate, leaves_device, make_exact_contract
from hloscope.judge.model import Contract
from hloscope.judge.notation import parse_contract
from hloscope.model import Collectives, Unmodelled
from hloscope.model.vocabulary import Bound, Kind, Link

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
CAPTURED = json.loads((FIXTURES / "captured" / "facts.json").read_text())
TEXTS = sorted((FIXTURES / "captured").glob("*.jax-0.12.hlo"))
SPELLINGS = sorted((FIXTURES / "spellings").glob("*.jax-0.12.hlo"))


def exact(analysis, beside=""):
    return str(make_exact_contract(analysis, parse_contract(beside) if beside else Contract()))


def with_moves(analysis, *collectives):
    return replace(analysis, collectives=Collectives(collectives), totals=compute_totals(collectives))


def changed(analysis):
    """The program with one of its collectives larger, once more or gone."""
    moves = analysis.collectives
    for place, moved in enumerate(moves):
        rest = (*moves[:place], *moves[place + 1 :])
        if leaves_device(moved) and moved.payload_bytes is not None:
            yield with_moves(analysis, *rest, replace(moved, payload_bytes=moved.payload_bytes + 1))
            yield with_moves(analysis, *rest, replace(moved, executions=moved.executions + 1))
            yield with_moves(analysis, *rest, replace(moved, kind=Kind.COLLECTIVE_BROADCAST))


@pytest.mark.parametrize("path", [*TEXTS, *SPELLINGS], ids=lambda path: path.name.partition(".jax")[0])
def test_a_program_keeps_to_its_own_contract_and_no_larger_one_does(path):
    mesh = CAPTURED.get(path.name.partition(".jax")[0], {}).get("mesh")
    analysis = hloscope.analyze_text(path.read_text(), name=path.name, mesh=mesh)
    contract = make_exact_contract(analysis, Contract())
    assert parse_contract(str(contract)) == contract
    verdict = evaluate(contract, analysis)
    assert verdict.holds or not analysis.collectives, str(verdict)
    if contract.at_least_ok:
        return
    for other in changed(analysis):
        assert not evaluate(contract, other).holds


def test_sizes_that_differ_are_limited_together():
    small = replace(GATHER, name="all-gather.9", payload_bytes=1024, executions=2)
    assert exact(program(GATHER, small, REDUCE)) == (
        "all-gather@X <= 12290KiB/step x8; all-reduce@Y by add <= 32KiB x1; nothing else"
    )


def test_what_crosses_slices_is_told_apart():
    crossing = replace(REDUCE, link=Link.DCN)
    contract = make_exact_contract(program(REDUCE, crossing), Contract())
    assert str(contract) == "all-reduce@Y by add over dcn <= 32KiB x1; all-reduce@Y by add <= 32KiB x1; nothing else"
    assert not evaluate(contract, program(crossing, crossing)).holds


def test_nothing_is_said_of_what_is_not_known():
    endless = replace(GATHER, executions_bound=Bound.AT_LEAST)
    perhaps = replace(REDUCE, executions_bound=Bound.AT_MOST)
    unread = Unmodelled(what="trip count of %while.3 cannot be read", effect="a lower bound", instruction="while.3")
    analysis = program(endless, perhaps, unmodelled=(unread,))
    assert exact(analysis) == "all-gather@X <= 2MiB; all-reduce@Y by add <= 32KiB x1; nothing else; at-least-ok"
    assert exact(analysis, 'trips "%while.3" = 5') == (
        'all-gather@X <= 2MiB x30; all-reduce@Y by add <= 32KiB x1; trips "%while.3" = 5; nothing else'
    )


def test_what_else_is_said_stays():
    beside = "all-gather@X x1; no all-to-all; hbm <= 1GiB; equivalent"
    assert exact(program(REDUCE), beside) == (
        "all-reduce@Y by add <= 32KiB x1; no all-to-all; hbm <= 1GiB; nothing else; equivalent"
    )
    assert exact(program()) == "none"
