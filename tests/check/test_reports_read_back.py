"""A JSON report is read back to the analysis that it was made from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import hloscope
from hloscope.app.config import TargetConfig
from hloscope.app.diffing import read_side
from hloscope.base.documents import read_document
from hloscope.base.errors import HloscopeError
from hloscope.model import Analysis, ReasonKind, SourceFrame
from hloscope.model.reason import AskedBy, Operation, Reason, Tensor

CAPTURED = sorted((Path(__file__).parent.parent.parent / "fixtures" / "captured").glob("*.hlo"))


def read_back(document, name="r.json"):
    return read_document(Analysis, document, name=name, key="collectives")


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.stem)
def test_captured_programs(path):
    found = hloscope.analyze_text(path.read_text(), name=path.name, slice="v5e:2x4")
    document = json.loads(json.dumps(found.to_dict()))
    again = read_back(document)
    assert again.to_dict() == document == found.to_dict()
    assert replace(again, findings=found.findings, notes=found.notes) == found  # their messages speak Python


def test_what_several_have_stands_once_and_is_read_back():
    (known, *_) = hloscope.analyze_text(CAPTURED[0].read_text()).collectives
    frames = (SourceFrame(file="m.py", line=2), SourceFrame(file="m.py", line=9))
    tensor = Tensor(name="x", named=True, element_type="f32", shape=(2,), letters=("B",), sharding=(("X",),))
    made = Operation(name="dot_general", op_name=None, source=frames)
    asker = AskedBy(axis="X", by="constraint", name=None, source=frames[1:])
    reason = Reason(kind=ReasonKind.HALO, moved=tensor, operands=(tensor, tensor), producer=made, held_by=(asker,))
    other = replace(reason, consumer=replace(made, source=()), certain=False)
    several = tuple(replace(known, source=frames, reason=each) for each in (reason, reason, other, None))
    found = replace(hloscope.analyze_text(CAPTURED[0].read_text()), collectives=several)
    document = found.to_dict()
    assert [collective["reason"] for collective in document["collectives"]] == [0, 0, 1, None]
    assert document["frames"][:2] == [{"file": "m.py", "line": line} for line in (2, 9)]
    assert [document["device_groups"][each["groups"]] for each in document["collectives"]] == [
        [list(group) for group in known.groups]
    ] * 4
    assert len(document["device_groups"]) == 1
    assert [len(document[name]) for name in ("reasons", "tensors", "operations", "askers")] == [2, 1, 2, 1]
    assert read_back(document) == found


@pytest.fixture(scope="module")
def document():
    return hloscope.analyze_text(CAPTURED[0].read_text()).to_dict()


def with_collective(document, **changes):
    return {**document, "collectives": [{**document["collectives"][0], **changes}]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: [], "r.json"),
        (lambda d: {**d, "schema": 1}, "schema 1"),
        (lambda d: {**d, "module": 3}, "$.module"),
        (lambda d: {key: value for key, value in d.items() if key != "totals"}, "totals"),
        (lambda d: with_collective(d, kind="all-gahter"), "$.collectives[0].kind"),
        (lambda d: with_collective(d, operand_shapes=["f32[2", "f32[2]"]), "$.collectives[0].operand_shapes[0]"),
        (lambda d: with_collective(d, result_shapes=[7]), "$.collectives[0].result_shapes[0]"),
        (lambda d: with_collective(d, source=1000), "$.stacks"),
        (lambda d: with_collective(d, source=-1), "$.stacks"),
        (lambda d: {**with_collective(d, source=0), "frames": 7, "stacks": [[0]]}, "$.frames"),
        (lambda d: {**d, "mesh": {"axis_names": ["X", "X"], "axis_sizes": [2, 2]}}, "$.mesh"),
    ],
    ids=["list", "schema", "type", "missing", "kind", "shape", "shape type", "no row", "negative", "no table", "mesh"],
)
def test_other_documents(says, document, change, named):
    with pytest.raises(HloscopeError) as caught:
        read_back(change(document))
    assert caught.value.what.startswith("r.json ")
    assert named in says(caught)


def test_what_follows_from_other_fields_is_not_read(document):
    (collective,) = read_back(with_collective(document, wire_bytes=6, executions=7, wire_bytes_per_step=1)).collectives
    assert collective.wire_bytes_per_step == 42


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a": "\\ud8"}'])
def test_files_that_are_no_json(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(HloscopeError, match=r"^error: r\.json is not valid JSON"):
        read_side(path, "r.json", TargetConfig(name="t"))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_report_is_checked_as_the_analysis_that_it_holds(tmp_path, kind):
    path = tmp_path / "a.json"
    found = hloscope.analyze_text(CAPTURED[0].read_text(), slice="v5e:2x4")
    path.write_text(found.report("json"))
    ours, theirs = (hloscope.check(one, contract="none") for one in (kind(path), found))
    assert ours.to_dict() == theirs.to_dict()
    with pytest.raises(HloscopeError, match="mesh does not apply to an analysis"):
        hloscope.check(kind(path), contract="none", mesh={"X": 8})


def test_what_is_no_report_is_not_checked_as_one(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{}")
    with pytest.raises(HloscopeError, match="is not a report of hloscope"):
        hloscope.check(path, contract="none")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(number):
    document = hloscope.analyze_text(CAPTURED[0].read_text(), name="m.hlo", slice="v5e:2x4").to_dict()
    document["time"]["step_us"] = number
    for read in (read_back, Analysis.from_dict):
        with pytest.raises(HloscopeError) as error:
            read(document)
        assert error.value.what.endswith("is not a complete report of hloscope")
        assert error.value.why == f"`$.time.step_us` is {number}, and the numbers of a report are finite"


def test_a_file_with_a_number_that_is_not_finite_is_one_message_of_a_comparison(tmp_path):
    document = hloscope.analyze_text(CAPTURED[0].read_text(), name="m.hlo", slice="v5e:2x4").to_dict()
    document["collectives"][0]["time_us"] = float("nan")
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(HloscopeError, match=r"r\.json is not a complete report of hloscope") as error:
        hloscope.diff(tmp_path / "r.json", tmp_path / "r.json")
    assert error.value.why.startswith("`$.collectives[0].time_us` is nan")
