"""Baselines compare steps of one version of the cost model: it rises with each release that predicts them otherwise."""

import json
from pathlib import Path

import pytest
from cost_examples import priced

from hloscope.model import Mesh
from hloscope.version import MODEL_VERSION

CAPTURED = Path(__file__).parents[2] / "fixtures" / "captured"
FACTS = json.loads((CAPTURED / "facts.json").read_text(encoding="utf-8"))
STEPS = Path(__file__).parent / "goldens" / "steps.json"
SLICES = ("v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4", "7x:2x2x1")


def _step_us(name, slice_name):
    mesh = FACTS[name.partition(".jax-")[0]]["mesh"]
    text = (CAPTURED / f"{name}.hlo").read_text(encoding="utf-8")
    return priced(text, slice_name, Mesh(axis_names=tuple(mesh), axis_sizes=tuple(mesh.values()))).time.step_us


def test_steps_are_predicted_otherwise_only_by_another_version(request):
    names = sorted(path.stem for path in CAPTURED.glob("*.hlo"))
    now = {f"{name} on {where}": round(_step_us(name, where), 3) for name in names for where in SLICES}
    if request.config.getoption("--update-goldens"):
        STEPS.write_text(json.dumps({"model": MODEL_VERSION, "steps_us": now}, indent=1) + "\n", encoding="utf-8")
    golden = json.loads(STEPS.read_text(encoding="utf-8"))
    assert golden["model"] == MODEL_VERSION, "MODEL_VERSION has risen: pytest tests/cost --update-goldens"
    assert now == pytest.approx(golden["steps_us"], rel=1e-3), (
        "steps are predicted otherwise: raise MODEL_VERSION if a release has the present one, "
        "then pytest tests/cost --update-goldens"
    )
