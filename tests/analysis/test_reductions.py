"""What a reduction combines elements with."""

from __future__ import annotations

import pytest

REST = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}"
REDUCER = """
%reducer (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  BODY
}
"""


def one(analyze, body: str, kind: str = "all-reduce", result: str = "bf16[16]"):
    dimensions = ", dimensions={0}" if kind == "reduce-scatter" else ""
    entry = f"%p = bf16[16] parameter(0)\nROOT %c = {result} {kind}(%p), {REST}, to_apply=%reducer{dimensions}"
    [found] = analyze(entry, computations=REDUCER.replace("BODY", body)).collectives
    return found


@pytest.mark.parametrize("opcode", ["add", "maximum", "minimum", "multiply", "and", "or"])
def test_one_operation(analyze, opcode):
    assert one(analyze, f"ROOT %r = bf16[] {opcode}(%x, %y)").reduction == opcode


def test_an_operation_of_converted_elements(analyze):
    lines = ["%a = f32[] convert(%x)", "%b = f32[] convert(%y)", "%s = f32[] add(%a, %b)"]
    body = "\n  ".join([*lines, "ROOT %r = bf16[] convert(%s)"])
    assert one(analyze, body, "reduce-scatter", "bf16[4]").reduction == "add"


@pytest.mark.parametrize(
    "body", ["%s = bf16[] add(%x, %y)\n  ROOT %r = bf16[] maximum(%s, %y)", "ROOT %r = bf16[] subtract(%x, %y)"]
)
def test_more_than_one_operation_and_another_one_have_no_name(analyze, body):
    assert one(analyze, body).reduction is None


def test_what_reduces_nothing_has_none(analyze):
    entry = f"%p = f32[16] parameter(0)\nROOT %c = f32[64] all-gather(%p), {REST}, dimensions={{0}}"
    assert analyze(entry).collectives[0].reduction is None
