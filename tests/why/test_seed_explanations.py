"""The seed programs' explanations beside a golden that a person read as sense: array, dimension, axis, line.

`pytest tests/why --update-goldens` writes the golden anew; read it before it is kept.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from sampled import every_other

from hloscope.why.sentences import render_equations, suggest_changes

pytestmark = pytest.mark.tpu_compiler
SEEDS = Path(__file__).parents[2] / "fixtures" / "programs"
GOLDEN = Path(__file__).parent / "goldens" / "seed_explanations.json"


def every_target() -> list[str]:
    """`file.py:function` of each program among the seeds that says of itself that it moves something."""
    found = []
    for file in sorted(SEEDS.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "SeedProgram":
                told = {keyword.arg: keyword.value for keyword in node.keywords}
                found += [f"{file.name}:{told['function'].value}"] if "moves" in told else []
    return found


TARGETS = every_target()


def told(analysis) -> list[dict[str, object]]:
    """What is said of the collectives, each different thing once."""
    each = [
        {
            "kind": one.kind.value,
            "origin": one.origin.value,
            "why": one.why,
            "notation": render_equations(one.reason, one.kind),
            "advice": suggest_changes(one.reason),
        }
        for one in analysis.collectives
    ]
    unique = {json.dumps(one, sort_keys=True): one for one in each}
    return [json.loads(text) for text in sorted(unique)]


@pytest.mark.parametrize("target", every_other(TARGETS))
def test_the_explanation_is_the_one_that_was_read(explained, target, request):
    if target.startswith("nnx_linear"):
        pytest.importorskip("flax")
    found = told(explained(target))
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if request.config.getoption("--update-goldens"):
        golden[target] = found
        GOLDEN.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")
    assert golden[target] == found
    assert all(not one["why"].startswith(("likely", "not known")) for one in found)


def test_no_golden_is_left_over():
    assert set(json.loads(GOLDEN.read_text())) == set(TARGETS)
