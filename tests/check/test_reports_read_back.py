"""A JSON report is read back to the analysis that it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hloscope
from hloscope.analysis.from_document import from_document
from hloscope.errors import HloscopeError

CAPTURED = sorted((Path(__file__).parent.parent.parent / "fixtures" / "captured").glob("*.hlo"))


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.stem)
def test_captured_programs(path):
    found = hloscope.analyze_text(path.read_text(), name=path.name)
    document = json.loads(json.dumps(found.to_dict()))
    read = from_document(document, name="report.json")
    assert json.loads(json.dumps(read.to_dict())) == document
    assert read.collectives == found.collectives
    assert read.totals == found.totals


@pytest.mark.parametrize(
    ("change", "what", "why"),
    [
        (lambda d: [], "r.json is no report of hloscope", None),
        (lambda d: {**d, "schema": 0}, "r.json is a report of schema 0, and this hloscope reads 1", None),
        (lambda d: {**d, "module": 3}, "r.json is no whole report of hloscope", "report.module is 3"),
        (
            lambda d: {key: value for key, value in d.items() if key != "totals"},
            "r.json is no whole report of hloscope",
            "report has no totals",
        ),
        (
            lambda d: {**d, "collectives": [{**d["collectives"][0], "kind": "all-gahter"}]},
            "r.json is no whole report of hloscope",
            "'all-gahter' is not a valid Kind",
        ),
    ],
)
def test_other_documents(change, what, why):
    document = json.loads(json.dumps(hloscope.analyze_text(CAPTURED[0].read_text()).to_dict()))
    with pytest.raises(HloscopeError) as caught:
        from_document(change(document), name="r.json")
    assert (caught.value.what, caught.value.why) == (what, why)
