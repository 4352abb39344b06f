"""What one run tells of transfers: their begin and end are seen only where the device waits."""

from __future__ import annotations

import pytest

from hloscope.measurement.joining import ObservedWait, find_observed_programs, find_waits, parse_printed_form
from hloscope.measurement.profiles import DeviceRun, ProfiledDevice, ProfiledOperation, ProfileEvent

STARTS = {"done.a": "start.a", "done.b": "start.b"}
BOTH = {"start.a": "from the host", "start.b": "from the host"}


def observed(*operations: tuple[str, float, float]):
    """One run of operations with when they begin and how long they take, in microseconds."""
    events = tuple(
        ProfileEvent(ProfiledOperation(name), round(begin * 1e6), round(duration * 1e6))
        for name, begin, duration in operations
    )
    run = DeviceRun(program="p(1)", begin_ps=0, duration_ps=1_000_000_000, operations=events)
    (found,) = find_observed_programs([ProfiledDevice(name="d", kind="TPU v5 lite", chip_id=0, runs=(run,))])
    return found


def waits(*operations, queues=BOTH):
    return {name: each[0] for name, each in find_waits(observed(*operations), STARTS, queues).items()}


def waited(flight_us, waited_us, *, exact):
    return ObservedWait(flight_us=pytest.approx(flight_us), waited_us=pytest.approx(waited_us), is_exact=exact)


def test_the_second_of_a_queue_begins_when_the_first_ends():
    found = waits(("start.a", 0, 0), ("start.b", 0, 0), ("done.a", 0, 100), ("done.b", 110, 90))
    assert found == {"start.a": waited(100, 100, exact=True), "start.b": waited(100, 90, exact=True)}


def test_without_a_queue_both_are_on_their_way_from_their_start():
    found = waits(("start.a", 0, 0), ("start.b", 0, 0), ("done.a", 0, 100), ("done.b", 110, 90), queues={})
    assert found["start.b"] == waited(200, 90, exact=True)


def test_what_nobody_waits_for_has_no_end_that_is_seen():
    found = waits(("start.a", 0, 0), ("done.a", 500, 0.2), ("start.b", 600, 0), ("done.b", 600, 50))
    assert found == {"start.a": waited(500.2, 0.2, exact=False), "start.b": waited(50, 50, exact=True)}


def test_behind_such_a_one_nobody_sees_the_beginning():
    found = waits(("start.a", 0, 0), ("start.b", 10, 0), ("done.a", 60, 0.2), ("done.b", 70, 50))
    assert found["start.b"] == waited(110, 50, exact=False)


def test_time_inside_a_loop_is_counted_once():
    found = observed(("while", 0, 100), ("add", 10, 30), ("add", 50, 20), ("multiply", 100, 5))
    assert {name: found.time_us(name) for name in found.operations} == {"while": 50.0, "add": 50.0, "multiply": 5.0}
    assert found.executions("add") == 2


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("%a.1 = f32[8,8]{1,0:T(8,128)} fusion(%b)", ("f32[8,8]", "fusion")),
        (
            "%c = (f32[8]{0}, f32[8]{0:T(128)S(5)}, u32[]{:S(2)}) copy-start(%d)",
            ("(f32[8],f32[8],u32[])", "copy-start"),
        ),
        ("%e = ((f32[8]{0}), f32[2,3]{1,0}) all-gather-start(%d)", ("((f32[8]),f32[2,3])", "all-gather-start")),
        ("fusion.3", None),
    ],
)
def test_the_form_of_a_printed_line(line, form):
    assert parse_printed_form(ProfiledOperation("x", line)) == form
