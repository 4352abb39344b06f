"""A handful of the table's programs on simulated devices: what `run.py` judges of all, without times and trials."""

from __future__ import annotations

import pytest
from decisions.table import PROGRAMS, TABLE, compute_unexplained, read_dims

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


TURNED = {
    "serving:decode": 'write x = constrained(x, P(None, "data"))',
    "serving:idle": "argument x: P('data', None) -> P(('data', 'model'), None)",
    "networks:experts": 'write x = constrained(p["emb"][tokens], P("data", None, None))',
    "serving:six_heads": 'constrained(q, P("data", "model", None, None)), k)',
    "states:weights_replicated": "result[0]: P(None, None) -> P('data', None)",
    "states:state_transposed": "result[1]: P(None, 'data') -> P('data', None)",
    "language:explicit": 'out_sharding=P("data", None, "model")',
    "language:whole_by_constraint": "P('data', None, None) -> P('data', None, 'model')",
}
"""A part of the cure that is printed first, for decisions of several kinds."""
LITTLE = {"states:state_transposed": 0.85}
"""The share of the step that is left, where the twin by hand gains less than a fifth too."""


@pytest.mark.tpu_compiler
@pytest.mark.filterwarnings("ignore:jax.nn.one_hot input")
@pytest.mark.parametrize("name", TURNED)
def test_the_cure_that_is_printed_first_makes_the_step_faster(name):
    found = hloscope.analyze(ROWS[name].target, stage="scheduled", try_s=120)
    lost = next(each for each in found.decisions if each.is_lost)
    assert ROWS[name].lost.matches(lost, read_dims(ROWS[name]))
    best = lost.trials.helping[0]
    assert TURNED[name] in "; ".join(best.change)
    assert best.after.step_us < LITTLE.get(name, 0.8) * lost.trials.before.step_us


@pytest.mark.tpu_compiler
def test_the_two_lines_of_a_cure_are_printed_as_they_are_written(tmp_path):
    found = hloscope.analyze(ROWS["serving:decode"].target, try_s=120)
    best = next(each for each in found.decisions if each.is_lost).trials.helping[0]
    inside, first = (line.removeprefix("write ") for line in best.change if line.startswith("write "))
    text = (PROGRAMS / "serving.py").read_text().partition("\n\n\n@hloscope.target(**DECODING")
    rest = (text[1] + text[2]).partition("\n    return x\n")
    function = rest[0].replace("    for up, down", f"    {first}\n    for up, down")
    written = function.replace("        x = x + jax.nn.gelu(x @ up) @ down", f"        {inside}")
    assert written.count("constrained(") == 2
    (tmp_path / "pasted.py").write_text(text[0] + written + rest[1])
    pasted = hloscope.analyze(f"{tmp_path / 'pasted.py'}:decode", trials=False)
    assert pasted.time.step_us == pytest.approx(best.after.step_us, rel=1e-6)
    assert pasted.totals.wire_bytes == best.after.wire_bytes
