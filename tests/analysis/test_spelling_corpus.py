"""Compiled text with known facts, where there is a corpus: `spellings/*.hlo` with `spellings/expected.json`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest

from hloscope.analysis.analyze import analyze_module
from hloscope.hlo import parse_module
from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound

CORPUS = os.environ.get("HLOSCOPE_CORPUS")
SPELLINGS = Path(CORPUS) / "spellings" if CORPUS else None
EXPECTED = json.loads((SPELLINGS / "expected.json").read_text()) if SPELLINGS else {}
EXPLAINED = {"pallas_remote_copy": [["Pallas", "%shard_map.12"]]}


def expected_rows(facts):
    """What the file says."""
    rows = []
    for collective in facts["collectives"]:
        exact = collective.get("executions_exact", True)
        executions = collective["executions"] if exact else collective["upper"]
        bound = Bound.EXACT if exact else Bound.AT_MOST
        row = (*row_of(collective), executions, bound, [row_of(part) for part in collective.get("parts", [])])
        rows.extend([row] * collective["count"])
    return sorted(rows, key=str)


def row_of(facts):
    return facts["kind"], facts["axes"], facts["payload_bytes"], facts.get("link", "ici")


def row_found(one):
    return one.kind.value, None if one.axes is None else list(one.axes), one.payload_bytes, one.link.value


@pytest.mark.skipif(SPELLINGS is None, reason="HLOSCOPE_CORPUS names no corpus")
@pytest.mark.parametrize("name", sorted(EXPECTED) or ["none"])
def test_spellings(name, root):
    facts = EXPECTED[name]
    module = parse_module((SPELLINGS / f"{name}.hlo").read_text(encoding="utf-8"), name=f"{name}.hlo")
    mesh = Mesh(axis_names=tuple(facts["mesh"]), axis_sizes=tuple(facts["mesh"].values()))
    analysis = analyze_module(module, target=f"{name}.hlo", mesh=mesh)
    found = [
        (*row_found(c), c.executions, c.executions_bound, [row_found(part) for part in c.parts])
        for c in analysis.collectives
    ]
    assert sorted(found, key=str) == expected_rows(facts)
    explained = [re.findall(r"Pallas|%[\w.]+", entry.what) for entry in analysis.unmodelled]
    assert explained == EXPLAINED.get(name, [])
    schema = json.loads((root / "hloscope" / "schemas" / "analysis.json").read_text(encoding="utf-8"))
    jsonschema.validate(analysis.to_dict(), schema)


ASYNCHRONOUS = {
    "shard_map_async_fusion_one_channel": 2,
    "fsdp_tp_grad": 1,
    "scan_grad_async_fusion": 3,
    "scan_unroll2_remainder": 1,
    "pipelined_forward": 1,
    "sparsecore_calls": 2,
    "sparsecore_late_operands": 7,
    "windowed_loop_step_two": 5,
}


@pytest.mark.skipif(SPELLINGS is None, reason="HLOSCOPE_CORPUS names no corpus")
@pytest.mark.parametrize(("name", "count"), ASYNCHRONOUS.items())
def test_asynchronous_spellings(name, count):
    module = parse_module((SPELLINGS / f"{name}.hlo").read_text(encoding="utf-8"), name=f"{name}.hlo")
    collectives = analyze_module(module, target=name, mesh=None).collectives
    assert sum(collective.asynchronous for collective in collectives) == count
