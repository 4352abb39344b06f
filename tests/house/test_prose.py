"""Docstrings and comments name a thing and begin with it, in English word order.

`OFFENDERS` counts, by module, the matches of `OPENINGS` and `PHRASES` that are left; the counts may only shrink.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest
from imports import ROOT, find_modules

OPENINGS = re.compile(r"(What|How|Whether|Who)\b")
"""First words of docstrings that describe a thing by a question about it."""
PHRASES = re.compile(r"\b(is none|there are not|as far as|[Ss]omebody|[Nn]obody|but for|stands)\b")
OFFENDERS = {
    "hloscope.analysis.groups": 2,
    "hloscope.analysis.model_parts": 3,
    "hloscope.analysis.provenance": 2,
    "hloscope.app.accepting": 1,
    "hloscope.app.jobs": 2,
    "hloscope.app.requests": 1,
    "hloscope.base.errors": 1,
    "hloscope.compile.compiling": 1,
    "hloscope.compile.dumps": 3,
    "hloscope.compile.importing": 1,
    "hloscope.compile.jax_private": 1,
    "hloscope.compile.recording.checkpoints": 1,
    "hloscope.compile.recording.guard": 10,
    "hloscope.compile.recording.libraries": 1,
    "hloscope.compile.recording.overlay": 6,
    "hloscope.compile.recording.scripts": 2,
    "hloscope.compile.recording.watching": 4,
    "hloscope.compile.recording.writes": 1,
    "hloscope.compile.sharding_change": 1,
    "hloscope.cost.collectives": 1,
    "hloscope.hlo.ir": 1,
    "hloscope.measurement.profiles": 1,
    "hloscope.model.analysis": 1,
    "hloscope.model.capture": 1,
    "hloscope.model.collectives": 3,
    "hloscope.model.finding": 3,
    "hloscope.model.reason": 1,
    "hloscope.model.trial": 1,
    "hloscope.plain_types": 2,
    "hloscope.report.checks": 2,
    "hloscope.report.collectives": 1,
    "hloscope.report.diffs": 3,
    "hloscope.report.graphs": 1,
    "hloscope.report.html.analysis_page": 2,
    "hloscope.report.html.privacy": 1,
    "hloscope.report.price": 1,
    "hloscope.report.timeline": 1,
    "hloscope.search.ranking": 1,
    "hloscope.search.space": 1,
    "hloscope.tpu.torus": 1,
    "hloscope.verification.jaxpr_facts": 1,
    "hloscope.verification.model": 1,
    "hloscope.verification.running": 1,
    "hloscope.why.matching": 1,
    "hloscope.why.reshards": 1,
    "hloscope.why.sentences": 1,
    "hloscope.why.shardings": 1,
}


def find_prose(text: str) -> Iterator[str]:
    """The docstrings of a file, those below assignments included, and its comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield " ".join(node.value.value.split())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def find_offences(text: str) -> list[str]:
    """The openings and phrases in a file, each with the prose that it is in."""
    prose = list(find_prose(text))
    openings = [words[:90] for words in prose if OPENINGS.match(words)]
    return [*openings, *(f"{found[0]}: {words[:90]}" for words in prose for found in PHRASES.finditer(words))]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""What a slice is."""', 1),
        ('X = 1\n"""How far figures may grow."""', 1),
        ("x = 1  # but for its last letter", 1),
        ('"""The shape of a slice."""', 0),
        ('x = "nobody"', 0),
    ],
)
def test_prose_is_found(text: str, count: int) -> None:
    assert len(find_offences(text)) == count


def test_new_prose_begins_with_the_thing() -> None:
    modules = find_modules(ROOT)
    found = {name: find_offences(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    assert {name: each for name, each in found.items() if len(each) > OFFENDERS.get(name, 0)} == {}
    assert {name: count for name, count in OFFENDERS.items() if len(found.get(name, ())) < count} == {}, "lower these"
