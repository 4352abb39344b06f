"""The seed programs as two JAX versions compiled them, read without JAX, against facts written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hloscope

FIXTURES = Path(__file__).parent.parent / "fixtures"
FACTS = json.loads((FIXTURES / "captured" / "facts.json").read_text())
TEXTS = sorted((FIXTURES / "captured").glob("*.hlo"))


def program(path):
    return path.name.partition(".jax-")[0]


def test_every_text_has_facts_and_every_program_a_text_of_each_jax():
    assert {program(path) for path in TEXTS} == set(FACTS)
    assert {path.name for path in TEXTS} == {f"{name}.jax-{jax}.hlo" for name in FACTS for jax in ("0.10", "0.12")}


@pytest.mark.smoke
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_the_facts_of_a_captured_program(path):
    facts = FACTS[program(path)]
    found = hloscope.analyze_text(path.read_text(), name=path.name, mesh=facts["mesh"])
    seen = [{key: one[key] for key in facts["collectives"][0]} for one in found.to_dict()["collectives"]]
    assert seen == facts["collectives"]
    assert found.unmodelled == ()
    assert found.totals.bound == facts.get("bound", "exact")
    file, words = facts["source"]
    for collective in found.collectives:
        frame = collective.source[0]
        assert Path(frame.file).name == file
        assert words in (FIXTURES / "programs" / file).read_text().splitlines()[frame.line - 1]


@pytest.mark.parametrize("name", FACTS)
def test_both_versions_of_jax_give_the_same_shapes(name):
    old, new = (
        hloscope.analyze_text(
            (FIXTURES / "captured" / f"{name}.jax-{jax}.hlo").read_text(), mesh=FACTS[name]["mesh"]
        ).to_dict()
        for jax in ("0.10", "0.12")
    )
    for arrays in ("arguments", "outputs"):
        assert [a["local_shape"] for a in old[arrays]] == [a["local_shape"] for a in new[arrays]]
    assert old["totals"] == new["totals"]
