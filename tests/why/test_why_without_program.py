"""A bare HLO file: everything works, and `why` says what is missing and how to get it."""

from __future__ import annotations

import pytest

import hloscope
from hloscope.base.errors import TargetError
from hloscope.model import ReasonKind
from hloscope.why.explanation import explain_collectives

TEXT = """HloModule m, num_partitions=8

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY main {
  p = f32[64,32] parameter(0)
  summed = f32[64,32] all-reduce(p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, \
to_apply=add, metadata={op_name="jit(f)/dot_general"}
  ROOT mine = f32[64,32] all-reduce(summed), channel_id=2, replica_groups={{0,1,2,3},{4,5,6,7}}, \
use_global_device_ids=true, to_apply=add, metadata={op_name="jit(f)/shard_map/psum"}
}
"""


def test_each_collective_says_what_is_missing_or_that_the_user_wrote_it(says):
    found = hloscope.analyze_text(TEXT, mesh={"X": 2, "Y": 4})
    by_name = {one.name: one for one in found.collectives}
    assert by_name["summed"].reason.kind is ReasonKind.UNKNOWN
    assert "`psum` over Y" in by_name["mine"].why
    says([by_name["summed"].why, by_name["mine"].why])
    assert found.rematerializations == ()
    document = found.to_dict()
    assert document["reasons"][document["collectives"][0]["reason"]]["kind"] in ("unknown", "authored")


def test_one_is_found_by_name_with_or_without_percent_and_by_number():
    found = hloscope.analyze_text(TEXT, mesh={"X": 2, "Y": 4})
    for named in ("summed", "%summed", str([one.name for one in found.collectives].index("summed") + 1)):
        (one,) = explain_collectives(found, named)
        assert (one.collective.name, one.copies, one.place, one.steps) == ("summed", 1, None, ())
    assert len(explain_collectives(found)) == 2


@pytest.mark.parametrize("named", ["nope", "0", "3"])
def test_a_name_that_is_none_is_refused(says, named):
    with pytest.raises(TargetError) as refused:
        explain_collectives(hloscope.analyze_text(TEXT), named)
    assert f"'{named}'" in refused.value.what
    assert refused.value.why.endswith("%summed, %mine")
    says(refused)


def test_a_name_that_is_nearly_one_is_answered_with_that_one(says):
    with pytest.raises(TargetError) as refused:
        explain_collectives(hloscope.analyze_text(TEXT), "sumed")
    assert " summed?" in refused.value.fix
    says(refused)


def test_a_program_without_collectives_says_so(says):
    text = "HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    with pytest.raises(TargetError) as refused:
        explain_collectives(hloscope.analyze_text(text), "x")
    says(refused)
    assert explain_collectives(hloscope.analyze_text(text)) == ()
