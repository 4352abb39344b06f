"""What is read of a buffer assignment and its live ranges: what is there when most of HBM is taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.protobuf import read_fields
from hloscope.compile.buffers import _HeapValue, _sum_heap_over_time, encode_peak, find_hbm_peak
from hloscope.compile.step import serialize_text
from hloscope.model.capture import HbmPeak, LiveBuffer

ASSIGNMENT = """BufferAssignment:
allocation 0: size 512, thread-local:
 value: <1 add.1 @0> (size=512,offset=0): f32[]
allocation 1: size 4096, parameter 1, shape |f32[1024]| at ShapeIndex {}, maybe-live-out:
 value: <2 p.1 @0> (size=4096,offset=0): f32[1024]{0}
 value: <3 sub.1{0} @0> (size=4096,offset=0): f32[1024]{0}
allocation 2: size 2048, parameter 0, shape |f32[512]| at ShapeIndex {}:
 value: <4 p.0 @0> (size=2048,offset=0): f32[512]{0}
allocation 3: size 64, constant:
 value: <5 c.1 @0> (size=64,offset=0): s32[]
allocation 4: size 8000, preallocated-temp:
 value: <6 a @0> (size=3000,offset=0): f32[750]{0}
 value: <7 b @0> (size=2000,offset=3000): f32[500]{0}
 value: <8 loop{1} (phi) @0> (size=3000,offset=0): f32[750]{0}
 value: <9 c @0> (size=4000,offset=4000): f32[1000]{0}
 value: <10 d @0> (size=100,offset=3000): f32[25]{0}
allocation 5: size 9000, color 1, preallocated-temp:
 value: <11 v @1> (size=9000,offset=0): f32[2250]{0:S(1)}

Used values:
<6 a @0>
 positions:
  a
"""
RANGES = """HloLiveRange (max 9):
  InstructionSequence:
    0:p.0
    1:p.1
    2:a
    3:b
    4:body
    5:loop
    6:v
    7:c
    8:d
    9:sub.1
  BufferLiveRange:
    a{}:2-4
    b{}:3-4
    loop{1}:5-8
    c{}:7-9
    d{}:8-8
    v{}:6-9
  Live ranges at 3 (peak):
    a{}: 3000 bytes (cumulative: 3000 bytes)
"""


def test_what_is_there_when_most_is_taken():
    found = find_hbm_peak(ASSIGNMENT, RANGES)
    assert found.at == "d"
    assert found.buffers == (
        LiveBuffer(bytes=4096, values=(("p.1", ()), ("sub.1", (0,))), parameter=1, is_output=True),
        LiveBuffer(bytes=4000, values=(("c", ()),), is_temporary=True),
        LiveBuffer(bytes=3000, values=(("loop", (1,)),), is_temporary=True),
        LiveBuffer(bytes=2048, values=(("p.0", ()),), parameter=0),
        LiveBuffer(bytes=100, values=(("d", ()),), is_temporary=True),
        LiveBuffer(bytes=64, values=(("c.1", ()),)),
    )
    assert found.live_bytes == 4096 + 2048 + 64 + 4000 + 3000 + 100
    assert (found.heap_bytes, found.temporary_bytes, found.other_bytes) == (8000, 7100, 0)


def test_values_at_one_place_are_one_buffer():
    in_place = RANGES.replace("a{}:2-4", "a{}:2-8")
    assert find_hbm_peak(ASSIGNMENT, in_place).live_bytes == find_hbm_peak(ASSIGNMENT, RANGES).live_bytes


def test_where_it_is_not_said_of_a_value_when_it_is_there_nothing_is_known():
    assert find_hbm_peak(ASSIGNMENT, RANGES.replace("    c{}:7-9\n", "")) is None
    assert find_hbm_peak(ASSIGNMENT, "") is None
    assert find_hbm_peak("", RANGES) is None


def test_what_is_taken_over_time():
    always = 4096 + 2048 + 64
    taken = {"p.0": 0, "p.1": 0, "a": 3000, "b": 5000, "body": 5000, "loop": 3000, "v": 3000}
    taken |= {"c": 7000, "d": 7100, "sub.1": 4000}
    found = find_hbm_peak(ASSIGNMENT, RANGES)
    assert found.live_bytes_at == {name: always + count for name, count in taken.items()}
    assert max(found.live_bytes_at.values()) == found.live_bytes == found.live_bytes_at[found.at]
    in_place = find_hbm_peak(ASSIGNMENT, RANGES.replace("a{}:2-4", "a{}:2-8"))
    assert in_place.live_bytes_at["d"] == found.live_bytes_at["d"]


@given(st.lists(st.tuples(*[st.integers(0, 12)] * 4), max_size=12))
def test_what_overlaps_counts_once(values):
    placed = [
        _HeapValue(start, start + size + 1, first, first + time, ("x", ())) for start, size, first, time in values
    ]
    there, taken = 0, _sum_heap_over_time(placed)
    for time in range(26):
        there = taken.get(time, there)
        alive = [one for one in placed if one.first <= time <= one.last]
        assert there == len({byte for one in alive for byte in range(one.start, one.end)})


TEXT = """HloModule m, is_scheduled=true

ENTRY main {
  %a = f32[256]{0} parameter(0)
  %b = f32[256]{0} negate(%a)
  %c = (f32[256]{0}, f32[256]{0}) tuple(%b, %a)
  ROOT %d = f32[256]{0} add(%a, %b)
}
"""
PEAK = HbmPeak(
    at="b",
    buffers=(
        LiveBuffer(bytes=1024, values=(("a", ()),), parameter=0),
        LiveBuffer(bytes=1000, values=(("d", ()),), is_output=True),
        LiveBuffer(bytes=900, values=(("c", (1,)),), is_temporary=True),
        LiveBuffer(bytes=800, values=(("b", ()),), is_temporary=True),
        LiveBuffer(bytes=700, values=(("gone", ()),), is_temporary=True),
    ),
    other_bytes=50,
    live_bytes=4474,
    heap_bytes=3000,
    temporary_bytes=2450,
)


def parts(message: bytes, number: int) -> list[dict[int, object]]:
    return [
        dict(read_fields(value)) for key, value in read_fields(message) if key == number and isinstance(value, bytes)
    ]


def test_everything_at_the_peak_is_told_once():
    module = serialize_text(TEXT)
    (computation,) = parts(module, 3)
    ids = {one[1]: one.get(35, 0) for one in parts(next(value for key, value in read_fields(module) if key == 3), 2)}
    assert computation[1] == b"main"
    found = encode_peak(PEAK, module)
    buffers = parts(found, 1)
    assert [one.get(2) for one in buffers] == [1024, 1000, 900, 800, 750]
    assert [dict(read_fields(one[3]))[4] for one in buffers] == [ids[name] for name in (b"a", b"d", b"c", b"b", b"b")]
    assert dict(read_fields(buffers[2][3]))[3] == 1
    argument, output, heap = parts(found, 3)
    assert (argument[2], argument[5], argument[6], argument.get(7)) == (1024, 1, 0, None)
    assert (output[2], output.get(5), output[7]) == (1000, None, 1)
    assert (heap[1], heap[2]) == (2, 900 + 800 + 750)


def test_temporaries_lie_side_by_side_and_all_are_there_at_once():
    found = encode_peak(PEAK, serialize_text(TEXT))
    heap = [value for key, value in read_fields(found) if key == 3][-1]
    assert [(one[1], one.get(2, 0), one[3]) for one in parts(heap, 9)] == [(2, 0, 900), (3, 900, 800), (4, 1700, 750)]
    (trace,) = (value for key, value in read_fields(found) if key == 4)
    assert [(one.get(1, 0), one[2]) for one in parts(trace, 1)] == [
        (kind, number) for kind in (0, 1) for number in (2, 3, 4)
    ]
