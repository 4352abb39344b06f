"""Collectives that contradict themselves or leave something out: reported, never counted as exact."""

from __future__ import annotations

import re

import pytest

from hloscope.model.vocabulary import Bound, Kind

GLOBAL = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}"
ABOUT = ("shapes", "pairs", "replica groups", "size", "participants")
"""What may be wrong with a collective; a doubt about the shapes names the size of groups too."""


def reduce(shape: str = "f32[4]", *, result: str = "", rest: str = GLOBAL) -> str:
    return f"%p = {shape} parameter(0)\nROOT %c = {result or shape} all-reduce(%p), {rest}, to_apply=%sum"


def doubt(analysis) -> tuple[str, str]:
    """What the doubt about the one collective is about, and its text; the collective must be a lower bound."""
    [found] = analysis.collectives
    [entry] = analysis.unmodelled
    assert (found.wire_bytes, entry.instruction) == (None, found.name)
    assert f"%{found.name} " in entry.what
    assert "lower bound" in entry.effect
    assert analysis.totals.bound is Bound.AT_LEAST
    return next(word for word in ABOUT if word in entry.what), f"{entry.what}: {entry.effect}"


INCONSISTENT = {
    "twice in a group": "{{0,0,1,2},{4,5,6,7}}",
    "overlapping": "{{0,1,2,3},{3,4,5,6}}",
    "negative": "{{0,-1},{2,3}}",
    "beyond the devices": "{{0,1,2,8}}",
    "iota beyond the devices": "[2,8]<=[16]",
}


@pytest.mark.parametrize("groups", INCONSISTENT.values(), ids=INCONSISTENT.keys())
def test_groups_that_contradict_themselves(says, analyze, groups):
    rest = f"channel_id=1, use_global_device_ids=true, replica_groups={groups}"
    about, text = doubt(analyze(reduce(rest=rest)))
    assert about == "replica groups"
    says(text)


@pytest.mark.parametrize(
    ("groups", "contradictory"),
    [
        ("[4,4]<=[8]", ("[4, 4]", "[8]")),
        ("[2,4]<=[2,4]T(0,0)", ("T(0, 0)", " 2 ")),
        ("mesh['a'=2,'b'=4] {'b':(1)3}", ("'b'", " 4")),
    ],
    ids=["not as many", "no permutation", "sub-axis"],
)
def test_groups_that_contradict_their_tile_are_unsupported(says, analyze, groups, contradictory):
    rest = f"channel_id=1, use_global_device_ids=true, replica_groups={groups}"
    about, text = doubt(analyze(reduce(rest=rest)))
    assert about == "replica groups"
    assert all(part in text for part in contradictory)
    says(text)


def test_no_groups_of_a_tile_are_not_taken_for_groups(says, analyze):
    rest = "channel_id=1, use_global_device_ids=true, replica_groups=[0,2]<=[0]"
    about, text = doubt(analyze(reduce(rest=rest)))
    assert about == "replica groups"
    says(text)


def test_one_device_of_a_maximal_mesh_sends_nothing(analyze):
    rest = "channel_id=1, use_global_device_ids=true, replica_groups=maximal_mesh[device_id=1] {}"
    found = analyze(reduce(rest=rest))
    assert [(one.groups, one.wire_bytes) for one in found.collectives] == [(((1,),), 0)]
    assert (found.totals.bound, found.unmodelled) == (Bound.EXACT, ())


@pytest.mark.parametrize("pairs", ["{{0,8}}", "{{-1,0}}"])
def test_pairs_of_devices_that_there_are_not(says, analyze, pairs):
    entry = f"%p = f32[4] parameter(0)\nROOT %c = f32[4] collective-permute(%p), source_target_pairs={pairs}, "
    about, text = doubt(analyze(f"{entry}channel_id=1"))
    assert about == "pairs"
    says(text)


@pytest.mark.parametrize(
    ("pairs", "wire"),
    [("{{0,1},{0,2},{0,3}}", 48), ("{{0,1},{0,0},{1,2}}", 16), ("{{0,1},{0,1}}", 16), ("{{0,0}}", 0)],
)
def test_a_source_that_sends_to_several(analyze, pairs, wire):
    entry = f"%p = f32[4] parameter(0)\nROOT %c = f32[4] collective-permute(%p), source_target_pairs={pairs}, "
    [found] = analyze(f"{entry}channel_id=1").collectives
    assert (found.payload_bytes, found.wire_bytes) == (16, wire)


@pytest.mark.parametrize("groups", [", replica_groups={}", ""])
@pytest.mark.parametrize("rest", ["channel_id=1", "channel_id=1, use_global_device_ids=true", ""])
@pytest.mark.parametrize("header", ["num_partitions=2000000000", "num_partitions=50000, replica_count=50000"])
def test_more_devices_than_there_are_anywhere_are_not_listed(analyze, header, rest, groups):
    attributes = f"{rest}{groups}".removeprefix(", ")
    entry = reduce(rest=attributes) if attributes else reduce().replace(f", {GLOBAL}", "")
    about, _ = doubt(analyze(entry, header=header))
    assert about == "participants"


@pytest.mark.parametrize("shape", ["f32[?]", "f99[4]", "opaque[]", "(f32[4], f32[?])"])
def test_sizes_that_are_not_known(says, analyze, shape):
    about, text = doubt(analyze(reduce(shape)))
    assert about == "size"
    says(text)


def test_a_collective_of_nothing_is_not_known_to_move_nothing(says, analyze):
    entry = f"ROOT %c = f32[4] all-reduce(), {GLOBAL}, to_apply=%sum"
    about, text = doubt(analyze(entry))
    assert about == "size"
    says(text)


def test_an_all_gather_of_unknown_size(says, analyze):
    entry = f"%p = f32[4] parameter(0)\nROOT %c = f32[?] all-gather(%p), {GLOBAL}, dimensions={{0}}"
    about, text = doubt(analyze(entry))
    assert about == "size"
    says(text)


@pytest.mark.parametrize("sizes", ["{{,}}", "{}", "{{a}}"])
def test_slices_of_unknown_size(says, analyze, sizes):
    entry = f"""
    %p = f32[4] parameter(0)
    ROOT %c = f32[4] collective-permute(%p), channel_id=1, source_target_pairs={{{{0,1}}}}, slice_sizes={sizes}
    """
    about, text = doubt(analyze(entry))
    assert about == "size"
    says(text)


@pytest.mark.parametrize(
    ("operand", "result", "bound"),
    [
        ("f32[<=64]", "f32[<=64]", Bound.AT_MOST),
        ("f32[4,<=64]", "f32[4,<=64]", Bound.AT_MOST),
        ("f32[64]", "bf16[64]", Bound.AT_MOST),
        ("bf16[64]", "f32[64]", Bound.AT_LEAST),
        ("bf16[<=64]", "f32[<=64]", Bound.UNKNOWN),
        ("f32[64]", "s32[64]", Bound.EXACT),
        ("f32[64]", "f32[64]", Bound.EXACT),
    ],
)
def test_bounded_sizes_and_mixed_types_are_bounds(analyze, operand, result, bound):
    analysis = analyze(reduce(operand, result=result))
    assert (analysis.totals.bound, analysis.unmodelled) == (bound, ())
    assert {total.bound for total in analysis.totals.by_kind.values()} == {bound}


def test_the_bound_of_an_all_gather_is_that_of_its_result(analyze):
    entry = f"%p = f32[<=4] parameter(0)\nROOT %c = f32[<=16] all-gather(%p), {GLOBAL}, dimensions={{0}}"
    assert analyze(entry).totals.bound is Bound.AT_MOST


SCATTER = """
%all-reduce-scatter.1 (a: f32[16]) -> f32[RESULT] {
  %a = f32[16] parameter(0)
  %inner = f32[16] all-reduce(%a), GLOBAL, to_apply=%sum
  %zero = s32[] constant(0)
  ROOT %last = f32[RESULT] LAST
}
"""


@pytest.mark.parametrize(
    ("last", "result", "kind", "wire"),
    [
        ("dynamic-slice(%inner, %zero), dynamic_slice_sizes={4}", 4, Kind.REDUCE_SCATTER, 48),
        ("slice(%inner), slice={[0:4]}", 4, Kind.REDUCE_SCATTER, 48),
        ("negate(%inner)", 16, Kind.ALL_REDUCE, 96),
        ("dynamic-slice(%inner, %zero), dynamic_slice_sizes={16}", 16, Kind.ALL_REDUCE, 96),
        ('custom-call(%inner), custom_call_target="TopK"', 4, Kind.ALL_REDUCE, 96),
    ],
)
def test_a_fusion_named_after_a_reduce_scatter_must_take_a_slice(analyze, last, result, kind, wire):
    computations = SCATTER.replace("GLOBAL", GLOBAL).replace("LAST", last).replace("RESULT", str(result))
    entry = f"%p = f32[16] parameter(0)\nROOT %f = f32[{result}] fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1"
    [found] = analyze(entry, computations=computations).collectives
    assert (found.kind, found.payload_bytes, found.wire_bytes) == (kind, 64, wire)


CALLLESS = {
    "while(%p)": [["while", "condition"], ["while", "body"]],
    "fusion(%p), kind=kLoop": [["fusion", "computation"]],
    "call(%p)": [["call", "computation"]],
    "conditional(%b, %p, %p)": [["conditional", "computation"]],
    "conditional(%b, %p, %p), true_computation=%same": [["conditional", "branch"]],
    "while(%p), body=%same": [["while", "condition"]],
    "async-start(%p)": [["async-start", "computation"]],
}


@pytest.mark.parametrize(("call", "missing"), CALLLESS.items(), ids=CALLLESS.keys())
def test_calls_that_name_no_computation(says, analyze, call, missing):
    same = "%same (a: f32[4]) -> f32[4] {\n  ROOT %a = f32[4] parameter(0)\n}"
    entry = f"%p = f32[4] parameter(0)\n%b = pred[] parameter(1)\nROOT %c = f32[4] {call}"
    analysis = analyze(entry, computations=same)
    named = r"(?<= )(?:while|fusion|call|conditional|async-start|condition|body|computation|branch)\b"
    assert [re.findall(named, entry.what) for entry in analysis.unmodelled] == missing
    assert {entry.instruction for entry in analysis.unmodelled} == {"c"}
    says([f"{entry.what}: {entry.effect}" for entry in analysis.unmodelled])
    assert analysis.totals.bound is Bound.AT_LEAST


def test_a_loop_without_a_condition_has_no_trip_count(says, analyze):
    body = f"""%body (a: f32[4]) -> f32[4] {{
      %a = f32[4] parameter(0)
      ROOT %r = f32[4] all-reduce(%a), {GLOBAL}, to_apply=%sum
    }}"""
    analysis = analyze("%p = f32[4] parameter(0)\nROOT %w = f32[4] while(%p), body=%body", computations=body)
    [found] = analysis.collectives
    assert (found.executions, found.executions_bound) == (1, Bound.UNKNOWN)
    whats = [entry.what for entry in analysis.unmodelled]
    assert [re.findall(r"%\w+|trip count|condition", what) for what in whats] == [
        ["trip count", "%w"],
        ["%w", "%main", "condition"],
    ]
    says(whats)


LEVEL = """
%cond_LEVEL (c: f32[4]) -> pred[] {
  %c = f32[4] parameter(0)
  %first = f32[1] slice(%c), slice={[0:1]}
  %number = f32[] reshape(%first)
  ROOT %go = pred[] compare(%number, %number), direction=LE
}
%level_LEVEL (v: f32[4]) -> f32[4] {
  %v = f32[4] parameter(0)
  %one_LEVEL = f32[4] while(%v), condition=%cond_LEVEL, body=%level_NEXT, backend_config={"known_trip_count":{"n":"2"}}
  ROOT %two_LEVEL = f32[4] while(%one_LEVEL), condition=%cond_LEVEL, body=%level_NEXT,
    backend_config={"known_trip_count":{"n":"3"}}
}
"""


@pytest.mark.parametrize("depth", [3, 16])
def test_loops_in_loops_are_added_up_without_listing_every_way(analyze, depth):
    levels = "".join(LEVEL.replace("LEVEL", str(n)).replace("NEXT", str(n + 1)) for n in reversed(range(depth)))
    leaf = f"""
    %level_{depth} (v: f32[4]) -> f32[4] {{
      %v = f32[4] parameter(0)
      ROOT %r = f32[4] all-reduce(%v), {GLOBAL}, to_apply=%sum
    }}"""
    entry = "%p = f32[4] parameter(0)\nROOT %c = f32[4] call(%p), to_apply=%level_0"
    analysis = analyze(entry, computations=leaf + levels)
    assert len(analysis.collectives) == min(2**depth, 65)
    assert (analysis.totals.executions, analysis.totals.bound) == (5**depth, Bound.EXACT)
    assert analysis.totals.wire_bytes == 24 * 5**depth
    shortest = min(len(found.loops) for found in analysis.collectives)
    assert shortest == depth if depth == 3 else shortest < depth


@pytest.mark.parametrize("text", ["{,}x{0:1}", "{0:1}x{:}", "{0:9999999999}x{0}", "{0:2000}x{0:2000}", "{3:1}x{0}"])
def test_broken_or_endless_megascale_targets_are_opaque(analyze, text):
    attributes = (
        '_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="r",'
        f'_xla_megascale_target={{{text}}},_xla_megascale_transfer_type="ALL_REDUCE"'
    )
    entry = f"""
    %p = f32[4] parameter(0)
    %t = token[] after-all()
    %s = (f32[4], u32[], token[]) send(%p, %t), channel_id=1, is_host_transfer=true,
      frontend_attributes={{{attributes}}}
    ROOT %d = token[] send-done(%s), channel_id=1, is_host_transfer=true
    """
    analysis = analyze(entry)
    assert [found.kind for found in analysis.collectives] == [Kind.OPAQUE]
    assert analysis.totals.bound is Bound.AT_LEAST


@pytest.mark.parametrize(
    ("kind", "operand", "result"),
    [
        ("all-gather", "f32[4]", "f32[32]"),
        ("reduce-scatter", "f32[16]", "f32[8]"),
        ("all-to-all", "f32[16]", "f32[4]"),
        ("all-reduce", "f32[16]", "f32[4]"),
        ("collective-broadcast", "f32[16]", "f32[4]"),
    ],
)
def test_shapes_that_do_not_fit_the_groups(says, analyze, kind, operand, result):
    dimensions = ", dimensions={0}" if kind in ("all-gather", "reduce-scatter", "all-to-all") else ""
    reducer = ", to_apply=%sum" if "reduce" in kind else ""
    entry = f"%p = {operand} parameter(0)\nROOT %c = {result} {kind}(%p), {GLOBAL}{dimensions}{reducer}"
    about, text = doubt(analyze(entry))
    assert about == "shapes"
    says(text)


def test_a_gather_of_twice_as_much_is_not_over_groups_of_one(says, analyze):
    entry = "%p = f32[4] parameter(0)\nROOT %c = f32[8] all-gather(%p), dimensions={0}, replica_groups={}"
    about, text = doubt(analyze(entry, header="num_partitions=2"))
    assert about == "shapes"
    says(text)


@pytest.mark.parametrize(
    ("caller", "opcode"),
    [
        ("map(%p), dimensions={0}, to_apply=%inner", "map"),
        ('custom-call(%p), custom_call_target="TopK", called_computations={%inner}', "custom-call"),
    ],
)
def test_a_caller_that_does_not_say_how_often_it_calls(says, analyze, caller, opcode):
    computations = (
        "%inner (a: f32[4]) -> f32[4] {\n  %a = f32[4] parameter(0)\n"
        f"  ROOT %r = f32[4] all-reduce(%a), {GLOBAL}, to_apply=%sum\n}}"
    )
    found = analyze(f"%p = f32[4] parameter(0)\nROOT %c = f32[4] {caller}", computations=computations)
    [item] = found.unmodelled
    assert {"%c", opcode, "%inner"} <= set(re.findall(r"%?[\w-]+", item.what))
    says([item.what, item.effect])
    assert (found.totals.wire_bytes, found.totals.bound) == (24, Bound.UNKNOWN)
