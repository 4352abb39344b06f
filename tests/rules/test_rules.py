"""Each rule fires on HLO that shows its fault and stays silent beside it."""

from __future__ import annotations

import hloscope
from hloscope.findings import Severity
from hloscope.rules import RULES

KERNEL = """HloModule kernel, num_partitions=2
ENTRY main {
  p = f32[8] parameter(0)
  ROOT k = f32[8] custom-call(p), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{CONFIG}}
}
"""
LOOP = """HloModule loop, num_partitions=2

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

condition {
  s = (s32[], s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT more = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  x = f32[8] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  r = f32[8] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  ROOT out = (s32[], s32[], f32[8]) tuple(next, n, r)
}

ENTRY main {
  zero = s32[] constant(0)
  n = s32[] BOUND
  x = f32[8] parameter(0)
  state = (s32[], s32[], f32[8]) tuple(zero, n, x)
  ROOT w = (s32[], s32[], f32[8]) while(state), condition=condition, body=body
}
"""


def test_a_kernel_that_communicates_is_reported():
    (finding,) = hloscope.analyze_text(KERNEL.replace("CONFIG", '"has_communication":true')).findings
    assert (finding.rule, finding.severity, finding.instruction) == ("opaque-communication", Severity.WARNING, "k")


def test_a_kernel_that_does_not_is_not():
    assert hloscope.analyze_text(KERNEL.replace("CONFIG", '"body":"x"')).findings == ()


def test_a_bound_decided_at_run_time_is_reported_and_the_total_has_no_bound():
    found = hloscope.analyze_text(LOOP.replace("BOUND", "parameter(1)"))
    assert [finding.rule for finding in found.findings] == ["unmodelled-text"]
    assert found.findings[0].instruction == "w"
    assert found.totals.bound == "unknown"
    assert (found.collectives[0].executions, found.collectives[0].executions_bound) == (1, "unknown")


def test_a_constant_bound_is_not():
    found = hloscope.analyze_text(LOOP.replace("BOUND", "constant(5)"))
    assert found.findings == ()
    assert (found.collectives[0].executions, found.totals.bound) == (5, "exact")


def test_every_rule_has_a_documented_page():
    for rule in RULES:
        page = __import__(rule.__module__, fromlist=["check"]).__doc__
        for heading in ("What it does:", "Why it matters:", "Example:", "Use instead:"):
            assert heading in page, rule.__module__
