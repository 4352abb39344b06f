"""The peak of HBM as the buffer assignment that XProf's memory viewer reads."""

from __future__ import annotations

from hloscope.compiler.assignments import assignment_of
from hloscope.compiler.buffers import HbmPeak, LiveBuffer
from hloscope.compiler.step import text_proto
from hloscope.protobuf import fields

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
    return [dict(fields(value)) for key, value in fields(message) if key == number and isinstance(value, bytes)]


def test_everything_at_the_peak_is_told_once():
    module = text_proto(TEXT)
    (computation,) = parts(module, 3)
    ids = {one[1]: one.get(35, 0) for one in parts(next(value for key, value in fields(module) if key == 3), 2)}
    assert computation[1] == b"main"
    found = assignment_of(PEAK, module)
    buffers = parts(found, 1)
    assert [one.get(2) for one in buffers] == [1024, 1000, 900, 800, 750]
    assert [dict(fields(one[3]))[4] for one in buffers] == [ids[name] for name in (b"a", b"d", b"c", b"b", b"b")]
    assert dict(fields(buffers[2][3]))[3] == 1
    argument, output, heap = parts(found, 3)
    assert (argument[2], argument[5], argument[6], argument.get(7)) == (1024, 1, 0, None)
    assert (output[2], output.get(5), output[7]) == (1000, None, 1)
    assert (heap[1], heap[2]) == (2, 900 + 800 + 750)


def test_temporaries_lie_side_by_side_and_all_are_there_at_once():
    found = assignment_of(PEAK, text_proto(TEXT))
    heap = [value for key, value in fields(found) if key == 3][-1]
    assert [(one[1], one.get(2, 0), one[3]) for one in parts(heap, 9)] == [(2, 0, 900), (3, 900, 800), (4, 1700, 750)]
    (trace,) = (value for key, value in fields(found) if key == 4)
    assert [(one.get(1, 0), one[2]) for one in parts(trace, 1)] == [
        (kind, number) for kind in (0, 1) for number in (2, 3, 4)
    ]
