"""The profile for XProf: every number in it is one of the timeline's JSON, and its names say that it is predicted."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from jax.profiler import ProfileData
from step_by_step import Told, per_step, told
from timeline_examples import CHOSEN, EVERY, EVIL, LONG, check_every, hostile_text, timeline_of

import hloscope
from hloscope.base.errors import HloscopeError
from hloscope.measurement import profiles as wire
from hloscope.measurement.predicted_profile import make_predicted_profile
from hloscope.measurement.profiles import DeviceRun, find_profile_files, read_profile
from hloscope.model.timeline import Timeline
from hloscope.report import xplane

DEVICE = "/device:TPU:0"
PS = 1e-6
MOVED_US = 1e-3
"""What takes no time takes a picosecond, and moves what follows by that."""


def written(found: Timeline) -> bytes:
    (data,) = xplane.XPlane().files("timeline", found).contents.values()
    return data


def plane_of(data: bytes) -> wire.Plane:
    return next(plane for plane in map(wire.read_plane, wire.read_planes(data)) if plane.name == DEVICE)


def events_of(plane: wire.Plane, name: str) -> list[tuple[wire.EventMetadata, wire.RawEvent]]:
    line = next(line for line in plane.lines if wire.read_name(line) == name)
    return [(plane.events[raw.metadata_id], raw) for raw in wire.read_line_events(line)]


def on_core(document: Any) -> list[Told]:
    """What has an event of its own: no loops, whose parts have, and nothing that is no instruction's."""
    return [
        one
        for one in told(document)
        if one.is_on_core and not one.interval["runs"] and one.interval["name"] is not None
    ]


def check_operations(plane: wire.Plane, document: Any) -> None:
    """What each operation takes, what it computes and what it moves."""
    given, expected = Counter[str](), Counter[str]()
    for metadata, raw in events_of(plane, "XLA Ops"):
        given[metadata.display_name] += raw.duration_ps
    for one in on_core(document):
        expected[one.interval["name"]] += round((one.end_us - one.begin_us) / PS)
    for name, duration_ps in expected.items():
        assert given.pop(name) == pytest.approx(duration_ps, abs=MOVED_US / PS)
    assert all(duration_ps < MOVED_US / PS for duration_ps in given.values()), "starts, and what nobody waits for"


def check_order(plane: wire.Plane) -> None:
    """Operations follow each other."""
    now_ps = 0
    for _, raw in events_of(plane, "XLA Ops"):
        assert raw.begin_ps >= now_ps
        assert raw.duration_ps > 0
        now_ps = raw.begin_ps + raw.duration_ps


def check_counts(plane: wire.Plane, document: Any) -> None:
    operations = Counter(metadata for metadata, _ in events_of(plane, "XLA Ops"))
    for name, field in (("flops", "flops"), ("bytes_accessed", "moved_bytes")):
        counted = sum(times * int(plane.stats(one.stats).get(name, 0)) for one, times in operations.items())
        beside = sum(
            one["executions_beside"] * (interval[field] or 0)
            for one in document["computations"]
            for interval in one["intervals"]
            if interval["unit"] == "core"
        )
        assert counted == per_step(document, field, unit="core") - beside


def check_transfers(plane: wire.Plane, document: Any) -> None:
    """What runs beside the core begins and ends when it does."""
    given = sorted((raw.begin_ps * PS, raw.duration_ps * PS) for _, raw in events_of(plane, "Async XLA Ops"))
    expected = sorted(
        (one.begin_us, one.end_us - one.begin_us)
        for one in told(document)
        if one.interval["issued_us"] is not None and not one.beside
    )
    assert [part for span in given for part in span] == pytest.approx(
        [part for span in expected for part in span], abs=2 * PS
    )


def check(found: Timeline) -> None:
    data, document = written(found), found.to_dict()
    plane = plane_of(data)
    (step,) = events_of(plane, "Steps")
    assert step[1].duration_ps * PS == pytest.approx(document["step_us"], abs=PS)
    check_operations(plane, document)
    check_order(plane)
    check_counts(plane, document)
    check_transfers(plane, document)
    names = {each.name for each in ProfileData.from_serialized_xspace(data).planes}
    assert names == {DEVICE, "/host:metadata", "/host:CPU"}


@pytest.mark.process
@pytest.mark.parametrize("path", CHOSEN, ids=lambda path: path.name)
def test_every_number_is_that_of_the_json(path):
    check(timeline_of(path))


@pytest.mark.long
def test_so_it_is_of_every_fixture():
    check_every(check)


@pytest.mark.process
def test_jax_reads_the_same_events():
    data = written(timeline_of(CHOSEN[0]))
    read = next(plane for plane in ProfileData.from_serialized_xspace(data).planes if plane.name == DEVICE)
    assert [line.name for line in read.lines] == ["Steps", "XLA Modules", "XLA Ops", "Async XLA Ops", "Loops"]
    for line in read.lines:
        own = [raw.duration_ps // 1000 for _, raw in events_of(plane_of(data), line.name)]
        assert [int(event.duration_ns) for event in line.events] == own


@pytest.mark.process
def test_its_names_say_that_it_is_predicted(tmp_path):
    found = timeline_of(CHOSEN[0])
    (said,) = found.save(tmp_path, "xplane")
    (file,) = tmp_path.rglob("*.pb")
    assert re.fullmatch(
        r"plugins/profile/predicted_jit_mixture_of_experts_v5e-2x4_[0-9a-f]{8}/predicted_by_hloscope\.xplane\.pb",
        str(file.relative_to(tmp_path)),
    )
    assert said == f"{tmp_path} is written: XProf opens it"
    plane = plane_of(file.read_bytes())
    stats = plane.stats(plane.own_stats)
    assert str(stats["predicted_by"]).startswith("hloscope ")
    assert (stats["device_type_string"], stats["slice"], stats["has_megacore"]) == ("TPU v5 Lite", "v5e:2x4", 0)
    assert stats["peak_teraflops_per_second"] == pytest.approx(197, rel=0.01)


@pytest.mark.process
def test_each_program_has_a_run_of_its_own_and_replaces_only_that(tmp_path):
    text = CHOSEN[0].read_text()
    changed = text.replace('"estimated_cycles":"', '"estimated_cycles":"1', 1)
    for program in (text, changed, text):
        (tmp_path / "step.hlo").write_text(program)
        hloscope.timeline(tmp_path / "step.hlo", slice="v5e:2x4").save(tmp_path, "xplane")
    runs = list(tmp_path.glob("plugins/profile/*"))
    assert len(runs) == len(list(tmp_path.rglob("*.xplane.pb"))) == 2
    assert all(run.name.startswith("predicted_jit_mixture_of_experts_v5e-2x4_") for run in runs)


@pytest.mark.process
def test_operations_are_of_the_kinds_that_xprof_groups_by():
    (path,) = (path for path in EVERY if path.name == "authored.async_fusions_share_one_channel.jax-0.12.hlo")
    found = timeline_of(path)
    plane = plane_of(written(found))
    kinds = {
        metadata.display_name: plane.stats(metadata.stats)["hlo_category"]
        for metadata, _ in events_of(plane, "XLA Ops")
    }
    assert "all-gather fusion" in kinds.values()
    assert {kind for name, kind in kinds.items() if name.startswith("copy-start")} <= {"copy-start"}
    one = next(metadata for metadata, _ in events_of(plane, "XLA Ops") if metadata.display_name.startswith("fusion"))
    stats = plane.stats(one.stats)
    said = [plane.stats(each.stats) for each, _ in events_of(plane, "XLA Ops")]
    told = [each for each in said if str(each.get("collective", "")).startswith("all-gather over ")]
    known = {one.wire_bytes for one in found.collectives}
    assert all(each["wire_bytes"] in known and each["why"] for each in told)
    assert told
    shape = str(stats["shape_with_layout"])
    assert "{1,0:T(8,128)" in shape
    assert one.name.startswith(f"%{one.display_name} = {re.sub('{[^{}]*}', '', shape)} fusion(%")
    assert int(stats["program_id"]) > 0


@pytest.mark.process
def test_what_xprof_has_made_of_another_profile_goes(tmp_path):
    found = timeline_of(CHOSEN[0])
    found.save(tmp_path, "xplane")
    (file,) = tmp_path.rglob("*.pb")
    stale, kept = file.with_name("ALL_HOSTS.op_stats_v2.pb"), file.with_name("notes.txt")
    stale.write_text("old")
    kept.write_text("mine")
    found.save(tmp_path, "xplane")
    assert (stale.exists(), kept.read_text(), file.exists()) == (False, "mine", True)


@pytest.mark.process
def test_what_was_measured_is_read_rather_than_what_was_predicted(tmp_path):
    found = timeline_of(CHOSEN[0])
    found.save(tmp_path, "xplane")
    (predicted,), notes = find_profile_files(tmp_path)
    assert notes == ()
    run = predicted.parent.name
    assert run.startswith("predicted_jit_mixture_of_experts_v5e-2x4_")
    measured = tmp_path / "plugins/profile/2026_11_25_08_00_00/host.xplane.pb"
    measured.parent.mkdir()
    measured.write_bytes(predicted.read_bytes())
    files, notes = find_profile_files(tmp_path)
    assert files == [measured]
    assert notes == (f"of 2 profiles in {tmp_path}, the last one is used: 2026_11_25_08_00_00",)


def test_of_a_long_loop_the_rest_is_one_event_and_that_is_said():
    found = timeline_of(CHOSEN[0])
    profile = make_predicted_profile(found, found.evidence.program, found.evidence.module(), most_events=50)
    (note,) = profile.notes
    assert note.startswith(
        "the step has more than 50 events: of each loop the first 2 iterations are shown, and the rest as one"
    )
    (run,) = profile.devices[0].runs
    (rest,) = (event for event in run.operations if event.operation.name == "while.10")
    assert rest.end_ps == pytest.approx(run.begin_ps + run.duration_ps, abs=100)
    assert total_ps(run) == pytest.approx(run.duration_ps, abs=100)
    assert [event.operation.name for event in run.loops] == ["while.10", "iteration 1 of 8", "iteration 2 of 8"]


def total_ps(run: DeviceRun) -> int:
    return sum(event.duration_ps for event in run.operations)


@pytest.mark.process
def test_hostile_text_is_text(tmp_path):
    file = tmp_path / "step.hlo"
    file.write_text(hostile_text())
    plane = plane_of(written(hloscope.timeline(file, slice="v5e:2x2")))
    found = defaultdict[str, list[Any]](list)
    for metadata, _ in events_of(plane, "XLA Ops"):
        for name, value in plane.stats(metadata.stats).items():
            found[name].append(value)
        found["name"].append(metadata.display_name)
    assert found["name"] == [LONG, "g", "t"]
    assert set(found["tf_op"]) == {f"jit(f)/{EVIL}:"}
    assert set(found["source"]) == {f"/src/{EVIL}.py:3"}


@pytest.mark.process
def test_text_that_jaxlib_does_not_read_has_a_profile_without_its_graph(tmp_path):
    file = tmp_path / "step.hlo"
    file.write_text(hostile_text().replace("negate(%g)", "no-such-opcode(%g)"))
    found = hloscope.timeline(file, slice="v5e:2x2")
    (note,) = xplane.XPlane().files("timeline", found).notes
    assert note.startswith(
        "the profile holds no HLO, so that XProf's graph viewer and memory viewer stay empty: jaxlib"
    )
    assert read_profile("here", [("a", written(found))]).protos == {}


def test_without_its_program_a_timeline_is_no_profile(says):
    found = timeline_of(CHOSEN[0])
    with pytest.raises(HloscopeError) as caught:
        Timeline.from_dict(found.to_dict()).save("nowhere", "xplane")
    says(str(caught.value).replace(found.target, "step.hlo"))
