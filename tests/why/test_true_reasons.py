"""What hloscope says of programs whose true reasons a person wrote down (`true_reasons.py` says how)."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from true_reasons import PROGRAMS, SLOW, each, judged, key_of, moves_of, table_of, told_programs

pytestmark = pytest.mark.tpu_compiler
TOLD = list(told_programs())
QUICK = [program for program in TOLD if program not in SLOW]
LIKELY_AT_MOST = 0.1
"""The share of right reasons that say `likely` where a person is certain, of all programs together."""


@pytest.mark.parametrize("program", each(TOLD))
def test_the_truth_is_about_each_collective(explained, program):
    found = explained(program).collectives
    assert Counter(key_of(one) for one in found) == Counter(move.key for move in moves_of(program))
    assert len(judged(program, found)) == len(found)


@pytest.mark.parametrize("program", each(TOLD))
def test_nothing_wrong_is_said_with_certainty(explained, program):
    pairs = judged(program, explained(program).collectives)
    wrong = [pair for pair in pairs if pair.verdict == "wrong certain"]
    assert not wrong, f"{program}\n{table_of(wrong)}"


@pytest.mark.parametrize("program", each(TOLD))
def test_every_reason_is_the_true_one(explained, program):
    wrong = [pair for pair in judged(program, explained(program).collectives) if pair.wrong]
    assert not wrong, f"{program}\n{table_of(wrong)}"


@pytest.mark.parametrize("programs", [QUICK, pytest.param(TOLD, marks=pytest.mark.long)], ids=["quick", "all"])
def test_few_are_likely_of_which_a_person_is_certain(explained, programs):
    pairs = [pair for program in programs for pair in judged(program, explained(program).collectives)]
    likely = [pair for pair in pairs if pair.needlessly_likely]
    verdicts = Counter(pair.verdict for pair in pairs)
    assert len(likely) < LIKELY_AT_MOST * len(pairs), f"{verdicts}\n{table_of(likely)}"


@pytest.mark.parametrize("family", sorted({program.partition(":")[0] for program in TOLD}))
def test_every_program_of_a_family_has_its_truth(family):
    parsed = ast.parse((PROGRAMS / family).read_text())
    functions = [node for node in parsed.body if isinstance(node, ast.FunctionDef)]
    decorators = {node.name: [ast.unparse(decorator) for decorator in node.decorator_list] for node in functions}
    targets = {name for name, ours in decorators.items() if any("hloscope.target(" in text for text in ours)}
    assert {name for file, _, name in (program.partition(":") for program in TOLD) if file == family} == targets


def test_there_are_over_seventy_programs_and_each_family_has_quick_ones():
    assert len(TOLD) > 70
    assert set(TOLD) >= SLOW
    families = Counter(program.partition(":")[0] for program in QUICK)
    assert set(families) == {program.partition(":")[0] for program in TOLD}
    assert min(families.values()) >= 2
    assert len(QUICK) >= 45
