"""Every collective finds the line that it comes from, and who put it there."""

from __future__ import annotations

import pytest

from hloscope.analysis.analyze import analyze_module
from hloscope.analysis.provenance import find_authored_kind
from hloscope.hlo import parse_module
from hloscope.model import SourceFrame
from hloscope.model.vocabulary import Kind, Origin

GROUPS = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}"
REDUCE = f"{GROUPS}, to_apply=%sum"


def meta(op_name: str, line: int) -> str:
    return f'metadata={{op_name="{op_name}" source_file="m.py" source_line={line}}}'


def only(analysis):
    [found] = analysis.collectives
    return found


def told(found):
    return found.op_name, [frame.line for frame in found.source], found.source_of


def test_its_own_metadata_comes_first(analyze):
    entry = f"""
    %p = f32[4] parameter(0)
    %c = f32[4] all-reduce(%p), {REDUCE}, {meta("jit(f)/own", 1)}
    ROOT %n = f32[4] negate(%c), {meta("jit(f)/neg", 2)}
    """
    assert told(only(analyze(entry))) == ("jit(f)/own", [1], None)


def test_frames_are_innermost_first():
    text = """HloModule m, num_partitions=8

FileNames
1 "inner.py"
2 "outer.py"

FunctionNames
1 "layer"
2 "step"

FileLocations
1 {file_name_id=2 function_name_id=2 line=30 end_line=30 column=4 end_column=9}
2 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=2 end_column=5}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

ENTRY %main (p: f32[4]) -> f32[16] {
  %p = f32[4] parameter(0)
  ROOT %c = f32[16] all-gather(%p), GROUPS, dimensions={0}, metadata={op_name="jit(step)/dot" stack_frame_id=2}
}
""".replace("GROUPS", GROUPS)
    found = only(analyze_module(parse_module(text), target="-", mesh=None))
    assert found.source == (
        SourceFrame(file="inner.py", line=7, function="layer", column=2),
        SourceFrame(file="outer.py", line=30, function="step", column=4),
    )


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ([7, 41, 47, 41, 47, 41, 47, 50], [7, 41, 47, 50]),
        ([7, 30, 30, 38, 30, 38, 30, 38], [7, 30, 38]),
        ([30, 30, 30], [30]),
        ([7, 41, 47, 41], [7, 41, 47, 41]),
    ],
)
def test_frames_that_repeat_are_kept_once(lines, kept):
    places = sorted(set(lines))
    locations = "\n".join(
        f"{n} {{file_name_id=1 function_name_id=1 line={line} end_line={line} column=1 end_column=2}}"
        for n, line in enumerate(places, 1)
    )
    frames = "\n".join(
        f"{n} {{file_location_id={places.index(line) + 1} parent_frame_id={n}}}"
        for n, line in enumerate(reversed(lines), 1)
    )
    tables = f'FileNames\n1 "m.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n{locations}\n\nStackFrames\n{frames}'
    entry = f"""ENTRY %main (p: f32[4]) -> f32[16] {{
  %p = f32[4] parameter(0)
  ROOT %c = f32[16] all-gather(%p), {GROUPS}, dimensions={{0}}, metadata={{op_name="d" stack_frame_id={len(lines)}}}
}}"""
    module = parse_module(f"HloModule m, num_partitions=8\n\n{tables}\n\n{entry}\n")
    found = only(analyze_module(module, target="m", mesh=None))
    assert [frame.line for frame in found.source] == kept


def test_the_nearest_consumer_stands_in(analyze):
    entry = f"""
    %p = f32[4] parameter(0)
    %before = f32[4] negate(%p), {meta("jit(f)/before", 1)}
    %c = f32[16] all-gather(%before), {GROUPS}, dimensions={{0}}
    %t = (f32[4], f32[16]) tuple(%p, %c)
    %other = f32[4] get-tuple-element(%t), index=0, {meta("jit(f)/other", 2)}
    %g = f32[16] get-tuple-element(%t), index=1
    %b = f32[16] bitcast(%g)
    ROOT %use = f32[16] negate(%b), {meta("jit(f)/use", 3)}
    """
    assert told(only(analyze(entry))) == ("jit(f)/use", [3], "use")


def test_the_nearest_producer_comes_last(analyze):
    entry = f"""
    %p = f32[4] parameter(0), {meta("x", 9)}
    %before = f32[4] negate(%p), {meta("jit(f)/before", 1)}
    %bc = f32[4] bitcast(%before)
    ROOT %c = f32[16] all-gather(%bc), {GROUPS}, dimensions={{0}}
    """
    assert told(only(analyze(entry))) == ("jit(f)/before", [1], "before")


def test_an_argument_is_no_source(analyze):
    entry = f"""
    %p = f32[4] parameter(0), {meta("x", 9)}
    ROOT %c = f32[16] all-gather(%p), {GROUPS}, dimensions={{0}}
    """
    assert told(only(analyze(entry))) == (None, [], None)


def test_consumers_are_followed_through_fusions_and_loops(analyze):
    state = "(s32[], f32[4])"
    computations = f"""
    %fused (a: f32[4]) -> f32[4] {{
      %a = f32[4] parameter(0)
      ROOT %neg = f32[4] negate(%a), {meta("jit(f)/while/body/neg", 5)}
    }}
    %body (b: {state}) -> {state} {{
      %b = {state} parameter(0)
      %i = s32[] get-tuple-element(%b), index=0
      %v = f32[4] get-tuple-element(%b), index=1
      %one = s32[] constant(1)
      %next = s32[] add(%i, %one), {meta("jit(f)/while/body/add", 4)}
      %use = f32[4] fusion(%v), kind=kLoop, calls=%fused
      %c = f32[4] all-reduce(%use), {REDUCE}
      ROOT %out = {state} tuple(%next, %c)
    }}
    %cond (c: {state}) -> pred[] {{
      %c = {state} parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %n = s32[] constant(3)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }}
    """
    entry = f"""
    %p = f32[4] parameter(0)
    %zero = s32[] constant(0)
    %init = {state} tuple(%zero, %p)
    %w = {state} while(%init), condition=%cond, body=%body, {meta("jit(f)/while", 3)}
    ROOT %res = f32[4] get-tuple-element(%w), index=1
    """
    found = only(analyze(entry, computations=computations))
    assert told(found) == ("jit(f)/while/body/neg", [5], "neg")


def test_the_done_of_a_start_is_its_own(analyze):
    entry = f"""
    %p = f32[4] parameter(0)
    %s = (f32[4], f32[16]) all-gather-start(%p), {GROUPS}, dimensions={{0}}
    %d = f32[16] all-gather-done(%s), {meta("jit(f)/shard_map/all_gather", 6)}
    ROOT %n = f32[16] negate(%d), {meta("jit(f)/neg", 7)}
    """
    found = only(analyze(entry))
    assert told(found) == ("jit(f)/shard_map/all_gather", [6], "d")
    assert found.origin is Origin.AUTHORED


def test_its_own_op_name_is_kept_when_the_source_is_borrowed(analyze):
    entry = f"""
    %p = f32[4] parameter(0)
    %c = f32[4] all-reduce(%p), {REDUCE}, metadata={{op_name="jit(f)/own"}}
    ROOT %n = f32[4] negate(%c), {meta("jit(f)/neg", 2)}
    """
    assert told(only(analyze(entry))) == ("jit(f)/own", [2], "n")


AUTHORED = [
    ("jit(f)/shard_map/psum", Kind.ALL_REDUCE),
    ("jit(f)/shard_map/while/body/psum_invariant", Kind.ALL_REDUCE),
    ("jit(f)/jvp(shard_map)/all_gather", Kind.ALL_GATHER),
    ("jit(f)/shard_map/ppermute", Kind.COLLECTIVE_PERMUTE),
    ("jit(f)/shard_map/reduce_scatter", Kind.REDUCE_SCATTER),
    ("jit(f)/shard_map/ragged_all_to_all", Kind.RAGGED_ALL_TO_ALL),
    ("jit(f)/shard_map/dot_general", None),
    ("jit(f)/psum", None),
    ("jit(f)/my_shard_map/psum", None),
    (None, None),
]


@pytest.mark.parametrize(("op_name", "kind"), AUTHORED)
def test_what_the_user_wrote(op_name, kind):
    assert find_authored_kind(op_name) is kind


ORIGINS = [
    (f'{REDUCE}, metadata={{op_name="jit(f)/shard_map/psum"}}', Origin.AUTHORED),
    (f'{REDUCE}, metadata={{op_name="jit(f)/shard_map/reduce_scatter"}}', Origin.REWRITTEN),
    (f'{REDUCE}, frontend_attributes={{is_spmd_generated="true"}}', Origin.INSERTED),
    (f'{REDUCE}, metadata={{op_name="jit(f)/dot_general"}}', Origin.UNKNOWN),
    (f'{GROUPS}, to_apply=%make_reduction_computation, metadata={{op_name="jit(f)/while"}}', Origin.REWRITTEN),
]


@pytest.mark.parametrize(("rest", "origin"), ORIGINS)
def test_origins(analyze, rest, origin):
    computations = """
    %make_reduction_computation (x: f32[], y: f32[]) -> f32[] {
      %x = f32[] parameter(0)
      %y = f32[] parameter(1)
      ROOT %add = f32[] add(%x, %y)
    }
    """
    entry = f"%p = f32[4] parameter(0)\nROOT %c = f32[4] all-reduce(%p), {rest}"
    assert only(analyze(entry, computations=computations)).origin is origin


def test_permutes_of_a_windowed_einsum_are_rewritten(analyze):
    entry = """
    %p = f32[4] parameter(0)
    ROOT %c = f32[4] collective-permute(%p), channel_id=1, source_target_pairs={{0,1}},
      metadata={op_name="jit(f)/dot_general"}
    """
    assert only(analyze(entry)).origin is Origin.REWRITTEN


def test_a_scatter_whose_slice_alone_kept_its_name_is_rewritten(analyze):
    entry = f"""
    %p = f32[8] parameter(0)
    %z = s32[] constant(0)
    %c = f32[8] all-reduce(%p), {REDUCE}
    ROOT %s = f32[2] dynamic-slice(%c, %z), dynamic_slice_sizes={{2}}, {meta("jit(f)/shard_map/reduce_scatter", 3)}
    """
    assert only(analyze(entry)).origin is Origin.REWRITTEN


def test_another_collective_does_not_lend_its_origin(analyze):
    entry = f"""
    %p = f32[8] parameter(0)
    %c = f32[8] all-reduce(%p), {REDUCE}
    ROOT %d = f32[8] all-reduce(%c), {REDUCE}, {meta("jit(f)/shard_map/psum", 3)}
    """
    origins = {found.name: found.origin for found in analyze(entry).collectives}
    assert origins == {"c": Origin.UNKNOWN, "d": Origin.AUTHORED}


def test_an_async_fusion_takes_its_origin_from_its_done(analyze):
    gather = f'all-gather(%a), {GROUPS}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}'
    computations = f"""
    %start (a: f32[4]) -> (f32[4], f32[16]) {{
      %a = f32[4] parameter(0)
      %g1 = f32[16] {gather}
      ROOT %cc1 = (f32[4], f32[16]) custom-call(%g1), custom_call_target="AsyncCollectiveStart"
    }}
    %done (a: f32[4]) -> f32[16] {{
      %a = f32[4] parameter(0)
      %g2 = f32[16] {gather}
      ROOT %cc2 = f32[16] custom-call(%g2), custom_call_target="AsyncCollectiveDone"
    }}
    """
    entry = """
    %p = f32[4] parameter(0)
    %s = (f32[4], f32[16]) fusion(%p), kind=kCustom, calls=%start
    %v = f32[4] get-tuple-element(%s), index=0
    ROOT %d = f32[16] fusion(%v), kind=kCustom, calls=%done, frontend_attributes={is_spmd_generated="true"}
    """
    assert only(analyze(entry, computations=computations)).origin is Origin.INSERTED
