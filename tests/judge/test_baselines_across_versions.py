"""One program compiled by two versions of JAX and libtpu has one baseline, where it moves the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hloscope
from hloscope.judge.baseline_files import format_baselines
from hloscope.judge.baselines import make_baseline
from hloscope.judge.judging import judge
from hloscope.judge.matching import match

CAPTURED = Path(__file__).parent.parent.parent / "fixtures" / "captured"
PROGRAMS = sorted(path.name.removesuffix(".jax-0.10.hlo") for path in CAPTURED.glob("*.jax-0.10.hlo"))
MESHES = {name: facts["mesh"] for name, facts in json.loads((CAPTURED / "facts.json").read_text()).items()}


def analyzed(name, version):
    text = (CAPTURED / f"{name}.jax-{version}.hlo").read_text()
    return hloscope.analyze_text(text, name=f"{name}.hlo", mesh=MESHES.get(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_upgrade_changes_no_baseline(name):
    old, new = analyzed(name, "0.10"), analyzed(name, "0.12")
    assert judge(make_baseline(old), new).judged.causes == ()
    assert _rows(old) == _rows(new)
    assert match(old.collectives, new.collectives).changes == ()


def _rows(analysis):
    return [line for line in format_baselines(make_baseline(analysis)).splitlines() if "@" in line]
