"""Every way in which compiled text spells communication, against facts worked out from the program's shapes.

The texts in `fixtures/spellings` were compiled from the programs beside them by `fixtures/capture.py`, or written by
hand where no compiler at hand prints that spelling. `text` in their facts counts what the text must hold, so that one
that a new compiler spells in another way does not pass for the spelling it is there for; null is "at least once".
"""

from __future__ import annotations

import json
import lzma
from math import prod
from pathlib import Path

import pytest

import hloscope
from hloscope.analysis.analyze import analyze_module
from hloscope.analysis.groups import Placement
from hloscope.hlo import parse_module
from hloscope.model import Mesh

SPELLINGS = Path(__file__).parent.parent.parent / "fixtures" / "spellings"
FACTS = json.loads((SPELLINGS / "facts.json").read_text())
BY_HAND = "by hand"
COMPILED = "compiled"
VERSIONS = ("0.10", "0.12")
TEXTS = [
    (name, version) for name, facts in FACTS.items() for version in ((BY_HAND,) if "written" in facts else VERSIONS)
]


def compiles_here(facts: dict) -> bool:
    """Whether the tests' simulated devices are enough for it, and it is no text that somebody wrote."""
    return "written" not in facts and prod(facts["mesh"].values()) <= 16


def path_of(name: str, version: str) -> Path:
    plain = SPELLINGS / (f"{name}.hlo" if version == BY_HAND else f"{name}.jax-{version}.hlo")
    return plain if plain.exists() else plain.with_name(f"{plain.name}.xz")


def read(name: str, version: str) -> str:
    path = path_of(name, version)
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode()


def placement_of(facts: dict) -> Placement | None:
    """The devices of all partitions, slice by slice, for a program of several slices."""
    ids = facts.get("device_ids")
    return None if ids is None else Placement(tuple(one // 100_000 - 1 for one in ids), tuple(ids))


def expected_of(facts: dict) -> list[dict]:
    """One entry for each collective, without the short form for several equal ones."""
    plain = [({"executions_bound": "exact", **row}, row.get("count", 1)) for row in facts["collectives"]]
    return [{key: row[key] for key in row if key != "count"} for row, count in plain for _ in range(count)]


def matching(record: dict, wanted: dict) -> bool:
    """Whether a record says what is wanted of it, and of its parts in their order."""
    parts = wanted.get("parts", [])
    return all(record[key] == wanted[key] for key in wanted if key != "parts") and (
        len(record.get("parts", [])) == len(parts)
        and all(matching(*pair) for pair in zip(record.get("parts", []), parts, strict=True))
    )


def told_by(wanted: dict, version: str) -> dict:
    """What is wanted of one version: `origin` may differ, since 0.10 prints less of it than 0.12.

    A program compiled here tells it best, because its module is also seen before and after partitioning.
    """
    origin = wanted.get("origin")
    return wanted if not isinstance(origin, dict) else {**wanted, "origin": origin[version]}


def test_every_spelling_has_its_texts_and_every_text_its_facts():
    texts = {path.name for path in SPELLINGS.iterdir() if path.name != "facts.json" and path.is_file()}
    assert texts == {path_of(name, version).name for name, version in TEXTS}


@pytest.mark.parametrize(("name", "version"), TEXTS)
def test_the_text_holds_the_spelling(name, version):
    text = read(name, version)
    for needle, count in {**FACTS[name].get("text", {}), **FACTS[name].get(f"text of {version}", {})}.items():
        assert needle in text if count is None else text.count(needle) == count, f"{text.count(needle)} of {needle!r}"


def differences(found: dict, facts: dict, version: str) -> list[str]:
    """How a document differs from the facts: collectives, what was not understood, and the bound of the totals."""
    left, told = list(found["collectives"]), []
    for wanted in (told_by(row, version) for row in expected_of(facts)):
        record = next((one for one in left if matching(one, wanted)), None)
        if record is None:
            told.append(f"none is {wanted}")
        else:
            left.remove(record)
    told += [f"not expected: {json.dumps(record)}" for record in left]
    unmodelled = [entry["what"] for entry in found["unmodelled"]]
    if unmodelled != facts.get("unmodelled", []):
        told.append(f"not understood: {unmodelled}")
    if found["totals"]["bound"] != facts.get("bound", "exact"):
        told.append(f"the totals are {found['totals']['bound']}")
    return told


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "version"), TEXTS)
def test_the_facts_of_a_spelling(name, version):
    facts = FACTS[name]
    mesh = Mesh(axis_names=tuple(facts["mesh"]), axis_sizes=tuple(facts["mesh"].values()))
    module = parse_module(read(name, version), name=name)
    found = analyze_module(module, target=name, mesh=mesh, placement=placement_of(facts)).to_dict()
    assert differences(found, facts, version) == []


@pytest.mark.long
@pytest.mark.tpu_compiler
@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if compiles_here(facts)])
def test_the_program_of_a_spelling_compiled_anew(name):
    """What the installed compiler makes of it, whatever it prints, has the same facts."""
    file, _, function = name.partition(".")
    found = hloscope.analyze(f"{SPELLINGS}/programs/{file}.py:{function}").to_dict()
    assert differences(found, FACTS[name], COMPILED) == []
