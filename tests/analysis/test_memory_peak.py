"""What buffers at the peak of HBM are told as: by argument, by what made them, equal layers as one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import hloscope
from hloscope.analysis.memory import find_memory_peak
from hloscope.hlo import parse_module
from hloscope.model import Memory
from hloscope.model.analysis import BufferRole, summarize_memory
from hloscope.model.capture import HbmPeak, LiveBuffer
from hloscope.report.analysis import render_memory_peak

TEXT = """HloModule m, num_partitions=4, is_scheduled=true

body {
  carried = (s32[], f32[8,1024]) parameter(0)
  i = s32[] get-tuple-element(carried), index=0
  saved = f32[8,1024] get-tuple-element(carried), index=1
  kept = f32[8,1024] negate(saved), metadata={op_name="jit(f)/jvp()/while/body/layer/dynamic_update_slice"}
  ROOT next = (s32[], f32[8,1024]) tuple(i, kept)
}

cond {
  carried.1 = (s32[], f32[8,1024]) parameter(0)
  ROOT go = pred[] constant(true)
}

ENTRY main {
  w.0 = f32[1024] parameter(0), metadata={op_name="w['layers'][0]['up']"}
  w.1 = f32[1024] parameter(1), metadata={op_name="w['layers'][1]['up']"}
  x = f32[256] parameter(2), metadata={op_name="x"}
  zero = s32[] constant(0)
  start = f32[8,1024] broadcast(zero), dimensions={}
  init = (s32[], f32[8,1024]) tuple(zero, start)
  loop = (s32[], f32[8,1024]) while(init), condition=cond, body=body, metadata={op_name="jit(f)/jvp()/while"}
  stack = f32[8,1024] get-tuple-element(loop), index=1
  whole = f32[1024] all-gather(x), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, \
use_global_device_ids=true, metadata={op_name="jit(f)/gather"}
  back = f32[8,1024] negate(stack), metadata={op_name="jit(f)/transpose(jvp())/mul"}
  ROOT out = (f32[8,1024], f32[1024]) tuple(back, whole)
}
"""


def peak(*buffers):
    return HbmPeak(
        at="back",
        buffers=buffers,
        other_bytes=0,
        live_bytes=sum(one.bytes for one in buffers),
        heap_bytes=50_000,
        temporary_bytes=sum(one.bytes for one in buffers if one.is_temporary),
    )


@pytest.mark.parametrize(("known", "temp_bytes"), [(True, 50_000), (False, 61_000)])
def test_temporaries_are_those_that_the_compiler_assigns_where_it_says(known, temp_bytes):
    figures = {"argument_size_in_bytes": 8000, "output_size_in_bytes": 2000, "alias_size_in_bytes": 1000}
    figures |= {"temp_size_in_bytes": 61_000, "generated_code_size_in_bytes": 500}
    compiled = SimpleNamespace(
        memory_bytes=figures, hbm_peak=EVERYTHING if known else None, too_large=None, stage="compiled"
    )
    found = summarize_memory(SimpleNamespace(compiled=compiled, slice=None, is_text=False))
    assert found.temp_bytes == temp_bytes
    assert found.peak_bytes == 8000 + 2000 - 1000 + temp_bytes + 500


EVERYTHING = peak(
    LiveBuffer(bytes=32768, values=(("loop", (1,)),), is_temporary=True),
    LiveBuffer(bytes=8192, values=(("back", ()),), is_output=True),
    LiveBuffer(bytes=4096, values=(("whole", ()),), is_temporary=True),
    LiveBuffer(bytes=4096, values=(("w.0", ()),), parameter=0, is_output=True),
    LiveBuffer(bytes=4096, values=(("w.1", ()),), parameter=1, is_output=True),
    LiveBuffer(bytes=8192, values=(("x", ()),), parameter=2),
)


@pytest.fixture(scope="module")
def found():
    collectives = hloscope.analyze_text(TEXT, mesh={"X": 4}).collectives
    return find_memory_peak(EVERYTHING, parse_module(TEXT), collectives)


def test_each_buffer_is_told_by_what_it_is_there_for(found):
    assert [(one.role, one.name, one.bytes, one.count) for one in found.buffers] == [
        (BufferRole.SAVED, "kept", 32768, 1),
        (BufferRole.OUTPUT, "back", 8192, 1),
        (BufferRole.ARGUMENT, "w['layers'][*]['up']", 4096, 2),
        (BufferRole.ARGUMENT, "x", 8192, 1),
        (BufferRole.GATHERED, "whole", 4096, 1),
    ]
    assert found.buffers[0].op_name == "jit(f)/jvp()/while/body/layer/dynamic_update_slice"
    assert str(found.buffers[0].shape) == "f32[8,1024]"


def test_only_an_argument_that_an_output_could_have_lain_in_is_freed_by_donating_it(found):
    assert [one.name for one in found.buffers if one.donation_frees] == ["x"]


def test_the_sums_are_those_of_the_compiler(found):
    assert sum(one.bytes * one.count for one in found.buffers) + found.other_bytes == found.live_bytes
    assert found.fragmentation_bytes == 50_000 - 32768 - 4096
    assert (found.at, found.op_name) == ("back", "jit(f)/transpose(jvp())/mul")


def test_small_buffers_are_told_together():
    small = LiveBuffer(bytes=1, values=(("zero", ()),), is_temporary=True)
    whole = peak(*EVERYTHING.buffers, small)
    told = find_memory_peak(whole, parse_module(TEXT), ())
    assert told.other_bytes == 1


def test_what_nobody_knows_is_not_told():
    assert hloscope.analyze_text(TEXT, mesh={"X": 4}).memory_peak is None


@pytest.mark.parametrize(
    ("memory", "is_shown"),
    [
        (Memory(peak_bytes=95, hbm_bytes=100, fits=True), True),
        (Memory(peak_bytes=None, hbm_bytes=100, fits=False), True),
        (Memory(peak_bytes=80, hbm_bytes=100, fits=True), False),
        (Memory(), False),
    ],
)
def test_it_is_shown_where_there_is_hardly_room(found, memory, is_shown):
    analysis = replace(hloscope.analyze_text(TEXT, mesh={"X": 4}), memory=memory, memory_peak=found)
    text = "\n".join(line.plain for line in render_memory_peak(analysis, 120))
    assert ("%kept f32[8,1024]" in text) is is_shown
    assert ("jax.checkpoint" in text) is is_shown
