"""Loops in loops whose trip counts, multiplied, are more than any number can tell."""

from __future__ import annotations

import hloscope

_DEPTH = 200
_TRIPS = 'backend_config={"known_trip_count":{"n":"1000"}}'


def nested_loops() -> str:
    """`_DEPTH` loops of 1,000 trips around one permute."""
    bodies = "\n".join(
        f"b{at} {{\n  p = f32[8] parameter(0)\n  ROOT w = f32[8] while(p), condition=c, body=b{at - 1}, {_TRIPS}\n}}\n"
        for at in range(1, _DEPTH)
    )
    return (
        "HloModule m, is_scheduled=true, num_partitions=8\n"
        "c {\n  p = f32[8] parameter(0)\n  ROOT t = pred[] constant(true)\n}\n"
        "b0 {\n  p = f32[8] parameter(0)\n"
        "  ROOT r = f32[8] collective-permute(p), source_target_pairs={{0,1},{1,0}}\n}\n"
        f"{bodies}\nENTRY e {{\n  p = f32[8] parameter(0)\n"
        f"  ROOT w = f32[8] while(p), condition=c, body=b{_DEPTH - 1}, {_TRIPS}\n}}\n"
    )


def test_more_runs_than_can_be_told_are_a_lower_bound_and_have_no_price(says):
    found = hloscope.analyze_text(nested_loops(), slice="v5e:2x4")
    [one] = found.collectives
    assert (one.executions, one.executions_bound) == (2**63 - 1, "at least")
    assert (found.totals.bound, found.time) == ("at least", None)
    assert "trip counts" in says(found.notes[-1])


def test_a_copy_after_them_has_no_time_either():
    copied = nested_loops().replace(
        "  ROOT w = f32[8] while(p), condition=c, body=b199", "  w = f32[8] while(p), condition=c, body=b199"
    )
    assert copied != nested_loops()
    copy = "  s = (f32[8], f32[8], u32[]) copy-start(w)\n  ROOT d = f32[8] copy-done(s)\n}\n"
    found = hloscope.analyze_text(copied.removesuffix("}\n") + copy, slice="v5e:2x4")
    assert found.time is None
    assert "trip counts" in found.notes[-1]
