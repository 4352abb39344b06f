"""A bare HLO file: everything works, and `why` says what is missing and how to get it."""

from __future__ import annotations

import pytest

import hloscope
from hloscope.analysis.model import ReasonKind
from hloscope.errors import TargetError
from hloscope.why import explain

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
MISSING = (
    "not known: HLO text keeps no shardings of the program it was compiled from; name the function itself (module:fn) "
    "to have it compiled and explained"
)


def test_each_collective_says_what_is_missing_or_that_the_user_wrote_it():
    found = hloscope.analyze_text(TEXT, mesh={"X": 2, "Y": 4})
    by_name = {one.name: one for one in found.collectives}
    assert by_name["summed"].why == MISSING
    assert by_name["summed"].reason.kind is ReasonKind.UNKNOWN
    assert by_name["mine"].why == "written by the user: `psum` over Y"
    assert found.rematerializations == ()
    assert found.to_dict()["collectives"][0]["reason"]["kind"] in ("unknown", "authored")


def test_one_is_found_by_name_with_or_without_percent_and_by_number():
    found = hloscope.analyze_text(TEXT, mesh={"X": 2, "Y": 4})
    for named in ("summed", "%summed", str([one.name for one in found.collectives].index("summed") + 1)):
        (one,) = explain(found, named)
        assert (one.collective.name, one.copies, one.place, one.steps) == ("summed", 1, None, ())
    assert len(explain(found)) == 2


@pytest.mark.parametrize("named", ["nope", "0", "3"])
def test_a_name_that_is_none_is_refused(named):
    with pytest.raises(TargetError) as refused:
        explain(hloscope.analyze_text(TEXT), named)
    assert str(refused.value) == (
        f"error: there is no collective '{named}' in the compiled program\n"
        "   = why: it has %summed, %mine\n"
        "   = fix: name one of them, or give its number in the list that `hloscope analyze` prints, counted from 1"
    )


def test_a_name_that_is_nearly_one_is_answered_with_that_one():
    with pytest.raises(TargetError) as refused:
        explain(hloscope.analyze_text(TEXT), "sumed")
    assert refused.value.fix == (
        "did you mean summed? Else name one of them, or give its number in the list that `hloscope analyze` prints, "
        "counted from 1"
    )


def test_a_program_without_collectives_says_so():
    text = "HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    with pytest.raises(TargetError, match="it has no collectives at all"):
        explain(hloscope.analyze_text(text), "x")
    assert explain(hloscope.analyze_text(text)) == ()
