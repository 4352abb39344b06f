"""Structure and communication of two analyses beside each other, and what is made of both; no compiler needed."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import hloscope
from hloscope.base.errors import NotationError
from hloscope.cli import group
from hloscope.compile.environment import find_attached_platform, find_jax_platform
from hloscope.model import Unmodelled, make_shapes
from hloscope.model.finding import Severity
from hloscope.model.vocabulary import Bound, Kind
from hloscope.verification.job import Settings, parse_range
from hloscope.verification.judging import compare_structure, judge_verification
from hloscope.verification.model import Bias, Numerics, NumericsStatus, OutputComparison, Roughness, Untested, Worst

CAPTURED = Path(__file__).parent.parent.parent / "fixtures" / "captured"
COMPARED = OutputComparison(
    name="result",
    against="reference",
    subject="target",
    elements=8,
    copies=1,
    wrong=0,
    shards=8,
    wrong_shards=(),
    worst=None,
    largest_error=0.0,
    informative=True,
)
AGREED = Numerics(status=NumericsStatus.RAN, ran_on="8 simulated CPU devices", comparisons=(COMPARED,))


def captured(name, **mesh):
    path = CAPTURED / f"{name}.jax-0.10.hlo"
    return hloscope.analyze_text(path.read_text(), name=name, mesh=mesh)


@pytest.fixture(scope="module")
def naive():
    return captured("collective_matmul.naive", X=2, Y=4)


@pytest.fixture(scope="module")
def collective():
    return captured("collective_matmul.collective", X=2, Y=4)


def test_an_all_gather_and_its_permutes_are_the_same_traffic(naive, collective):
    for target, reference in ((naive, collective), (collective, naive)):
        found = judge_verification(target, reference, AGREED)
        assert found.communication.same
        assert found.findings == ()
        assert found.passed
        assert found.bytes_ratio == 1


def test_what_moves_beyond_the_reference_is_an_error_with_its_line(says, naive):
    nothing = replace(naive, collectives=())
    found = judge_verification(naive, nothing, AGREED)
    (finding,) = found.findings
    assert (finding.rule, finding.severity) == ("more-than-reference", Severity.ERROR)
    assert re.findall(r"\d all-gather over \w|[\d.]+ MB|added", finding.message) == [
        "1 all-gather over Y",
        "3.15 MB",
        "added",
    ]
    assert re.findall(r"\bY\b|[\d.]+ M?B", finding.cost) == ["Y", "3.15 MB", "0 B"]
    says([finding.message, finding.cost])
    assert finding.source.endswith("collective_matmul.py:22")
    assert finding.line == naive.collectives[0].line
    assert not found.passed
    assert found.bytes_ratio is None
    assert judge_verification(nothing, naive, AGREED).passed
    assert judge_verification(naive, nothing, AGREED, ignore=["more-than-reference"]).passed


def test_another_collective_that_moves_no_more_is_a_note(naive):
    (gather,) = naive.collectives
    reduce = replace(
        gather, kind=Kind.ALL_REDUCE, payload_bytes=1000, wire_bytes=1500, operand_shapes=make_shapes("s32[250]")
    )
    found = judge_verification(replace(naive, collectives=(reduce,)), naive, AGREED)
    assert [(one.rule, one.severity) for one in found.findings] == [("more-than-reference", Severity.NOTE)]
    assert found.passed


def test_what_is_not_known_is_never_the_same(naive):
    (gather,) = naive.collectives
    unsure = replace(naive, collectives=(replace(gather, executions_bound=Bound.AT_LEAST),))
    found = judge_verification(unsure, unsure, AGREED)
    assert not found.communication.same
    assert {one.rule for one in found.findings} == {"communication-unsure"}
    assert found.bytes_ratio is None


def test_unknown_bytes_beyond_the_reference_are_an_error(says, naive):
    (gather,) = naive.collectives
    opaque = replace(gather, kind=Kind.OPAQUE, payload_bytes=None, wire_bytes=None)
    found = judge_verification(replace(naive, collectives=(gather, opaque)), naive, AGREED)
    assert not found.passed
    message = says(found.findings[0].message)
    assert re.findall("1 opaque over Y|unknown|added", message) == ["1 opaque over Y", "unknown", "added"]


def test_outputs_of_other_types_shapes_and_shardings(says, naive):
    (output,) = naive.outputs

    def against(**changes):
        return [
            (one.rule, one.severity, one.message)
            for one in compare_structure(replace(naive, outputs=(replace(output, **changes),)), naive)
        ]

    output = replace(output, global_shape=(1024, 8192), sharding="P('X', 'Y')")
    naive = replace(naive, outputs=(output,))
    assert against() == []
    [(*kind, message)] = against(dtype="f32")
    assert kind == ["other-structure", Severity.ERROR]
    assert re.findall(r"\w+\[\S+\]", says(message, "type")) == ["f32[1024,8192]", "s32[1024,8192]"]
    [(*kind, message)] = against(sharding="P('X', None)", local_shape=(512, 8192))
    assert kind == ["other-sharding", Severity.WARNING]
    assert re.findall(r"P\(.*?\)|\w+\[\S+\]", says(message, "sharding")) == [
        *("P('X', None)", "s32[512,8192]"),
        *("P('X', 'Y')", "s32[512,2048]"),
    ]
    (finding,) = compare_structure(replace(naive, outputs=()), naive)
    assert re.findall(r"\d", says(finding.message, "number")) == ["0", "1"]


def test_outputs_of_other_names_are_told_to_be_paired_by_position(says, naive):
    (output,) = naive.outputs
    named = [
        replace(naive, outputs=tuple(replace(output, name=f"result['{name}']") for name in names))
        for names in ("abcde", "bbcde", "vwxyz")
    ]
    assert list(compare_structure(named[0], named[0])) == []
    (one,) = compare_structure(named[0], named[1])
    assert (one.rule, one.severity) == ("other-structure", Severity.WARNING)
    assert re.findall(r"'\w'", says(one.message)) == ["'a'", "'b'"]
    (all_of_them,) = compare_structure(named[0], named[2])
    assert re.findall(r"'\w'|\d", all_of_them.message)[-3:] == ["'c'", "'x'", "2"]


@pytest.mark.parametrize("status", [status for status in NumericsStatus if status != "ran"])
def test_no_end_of_a_run_but_a_good_one_passes(naive, status):
    found = judge_verification(naive, naive, Numerics(status=status))
    assert not found.passed
    assert found.findings[0].rule == f"numerics-{status.replace(' ', '-')}"


def test_exceptions_fail_a_strict_run_alone(naive, monkeypatch):
    part = Untested(argument="x", shards=("X=0",), parts=8)
    found = judge_verification(naive, naive, replace(AGREED, untested=(part,)))
    assert (found.passed, found.fails(), found.fails(strict=True)) == (True, False, True)
    monkeypatch.setattr("hloscope.app.verifying.find_verification", lambda *_, **__: found)
    command = ("verify", "step.hlo", "--reference", "twin.hlo")
    assert [CliRunner().invoke(group, (*command, *strict)).exit_code for strict in ((), ("--strict",))] == [0, 1]


def test_the_document_is_plain_data(naive, collective):
    infinite = replace(COMPARED, largest_error=float("inf"), wrong=1, wrong_shards=("X=0",))
    found = judge_verification(naive, collective, replace(AGREED, comparisons=(infinite,)))
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["schema"] == 2
    assert document["passed"] is False
    assert document["numerics"]["comparisons"][0]["largest_error"] == "inf"
    assert document["communication"]["same"] is True
    assert {row["kind"] for row in document["communication"]["rows"]} == {"all-gather", "collective-permute"}
    assert document["communication"]["bytes_ratio"] == 1


def test_the_published_schema_has_every_field(naive, collective, schema_of):
    worst = Worst(index=(1, 2), shard="X=0", local_index=(1, 2), found="nan", expected="1", allowed=0.1)
    bias = Bias(ratio=1.02, constant=True, one_way=1.0, shards=("X=0",))
    compared = replace(COMPARED, largest_error=float("inf"), wrong=1, wrong_shards=("X=0",), worst=worst)
    compared = replace(compared, bias=bias, roughness=Roughness(times=9.0))
    untested = (Untested(argument="x", shards=("X=0",), parts=8),)
    numerics = replace(AGREED, comparisons=(compared,), dims={"B": 8}, not_compared={"gradients": "no floats"})
    numerics = replace(numerics, untested=untested)
    document = json.loads(json.dumps(judge_verification(naive, collective, numerics).to_dict()))
    jsonschema.validate(document, schema_of("verify"))


@pytest.mark.parametrize(
    ("text", "read"),
    [("B=0:8", ("B", (0, 8))), ("x=-1:1.5", ("x", (-1, 1.5))), ("params['w'] = 0 : E", ("params['w']", (0, "E")))],
)
def test_ranges_are_read(text, read):
    assert parse_range(text) == read


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [("B", [], "LOW:HIGH"), ("B=8:0", [], None), ("B=0:nan", ["'nan'"], "x=-1:1"), ("B=0:8x", ["'8x'"], "LOW:HIGH")],
)
def test_ranges_that_are_none(says, text, wrong, right):
    with pytest.raises(NotationError) as caught:
        parse_range(text)
    assert re.findall(r"'[^']+'", caught.value.what) == [*wrong, f"'{text}'"]
    assert right is caught.value.fix or right in caught.value.fix
    says(caught)


def test_settings_are_checked(says):
    wrong = {"on": ["moon"], "seed": [-1, 1.5], "timeout_s": [0, -1, float("nan")]}
    named = {"on": "platform", "seed": "seed", "timeout_s": "time limit"}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(NotationError) as caught:
            Settings(**{name: value})
        assert named[name] in caught.value.what
        assert str(value) in caught.value.what
        says(caught, f"{name}={value}")


def test_what_is_attached_is_told_by_device_files(tmp_path):
    assert find_attached_platform(tmp_path) is None
    (tmp_path / "nvidia0").touch()
    assert find_attached_platform(tmp_path) is None  # JAX cannot use it here
    (tmp_path / "accel0").touch()
    assert find_attached_platform(tmp_path) == ("tpu" if "libtpu" in sys.modules or _has_libtpu() else None)


def _has_libtpu():
    from importlib.util import find_spec

    return find_spec("libtpu") is not None


def test_what_was_not_understood_in_the_program_alone_is_told(says, naive):
    item = Unmodelled(
        what="the kernel %k does not say whether it communicates", effect="more may move", instruction="k"
    )
    opaque = replace(naive, unmodelled=(item,))
    (finding,) = judge_verification(opaque, naive, AGREED).findings
    assert (finding.rule, finding.severity, finding.why) == ("communication-unsure", Severity.WARNING, "more may move")
    assert item.what in says(finding.message)
    assert judge_verification(opaque, opaque, AGREED).findings == ()


@pytest.mark.parametrize(
    ("plugins", "platform"), [(("jax_cuda12_plugin",), "cuda"), (("jax_rocm7_plugin",), "rocm"), ((), "cuda")]
)
def test_jax_is_told_of_the_one_kind_of_gpu_that_it_can_use(monkeypatch, plugins, platform):
    monkeypatch.setattr("hloscope.compile.environment.find_spec", lambda name: name if name in plugins else None)
    assert [find_jax_platform(one) for one in ("cpu", "tpu", "gpu")] == ["cpu", "tpu", platform]


def test_a_bias_is_named_by_its_ratio_or_by_its_sign(naive):
    def message(**of):
        bias = Bias(constant=False, shards=(), **of)
        found = judge_verification(naive, naive, replace(AGREED, comparisons=(replace(COMPARED, bias=bias),)))
        return next(finding for finding in found.findings if finding.rule == "biased-result")

    drifted = message(ratio=1.0124, one_way=0.5016, explained=0.0043)
    assert drifted.message == "the elements of result are 1.012 times those of the reference on average"
    assert "0.9957 to 1.0043" in drifted.why
    assert "97% of them have the same sign" in message(ratio=1.0001, one_way=0.97, explained=0.0043).message
