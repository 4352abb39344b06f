"""Profiles as they lie in files: read back as written, and refused where they are none of a TPU."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from jax.profiler import ProfileData

from hloscope.base.errors import ProfileError
from hloscope.base.protobuf import encode_field, encode_message
from hloscope.compile.hlo_files import read_unpacked
from hloscope.measurement.profiles import (
    DeviceRun,
    Profile,
    ProfiledDevice,
    ProfiledOperation,
    ProfileEvent,
    find_profile_files,
    read_profile,
    write_xspace,
)

NAME = "jit_step(77)"
MATMUL = ProfiledOperation("fusion.1", "%fusion.1 = f32[8,8]{1,0:T(8,128)} fusion(%a, %b)")
START = ProfiledOperation("copy-start", "%copy-start = (f32[8]{0}, f32[8]{0:S(5)}, u32[]) copy-start(%fusion.1)")
RUN = DeviceRun(
    program=NAME,
    begin_ps=5_000_000,
    duration_ps=3_000_000,
    operations=(ProfileEvent(MATMUL, 5_000_250, 1_000_000), ProfileEvent(START, 6_000_250, 5_000)),
    transfers=(ProfileEvent(START, 6_000_250, 1_500_000),),
)
DEVICE = ProfiledDevice(
    name="/device:TPU:0",
    kind="TPU v6 Lite",
    chip_id=4,
    runs=(RUN, replace(RUN, begin_ps=9_000_000, operations=(), transfers=())),
)
PROFILE = Profile(name="here", devices=(DEVICE,), protos={NAME: b"\x0a\x02\x0a\x00"})


def read(data: bytes, **how: bool) -> Profile:
    return read_profile("here", [("host.xplane.pb", data)], **how)


def test_what_is_written_is_read():
    assert read(write_xspace(PROFILE)) == PROFILE


@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute")  # an error there ends the process
def test_jaxs_own_reader_reads_the_same():
    (plane, _) = ProfileData.from_serialized_xspace(write_xspace(PROFILE)).planes
    assert dict(plane.stats)["device_type_string"] == "TPU v6 Lite"
    lines = {
        line.name: [(event.name, event.start_ns, event.duration_ns) for event in line.events] for line in plane.lines
    }
    assert lines["XLA Modules"] == [(NAME, 5000.0, 3000.0), (NAME, 9000.0, 3000.0)]
    assert lines["XLA Ops"] == [(MATMUL.text, 5000.0, 1000.0), (START.text, 6000.0, 5.0)]  # begins are whole there


def test_a_profile_of_several_hosts_has_the_devices_of_all():
    found = read_profile("here", [("a", write_xspace(PROFILE)), ("b", write_xspace(replace(PROFILE, protos={})))])
    assert [device.name for device in found.devices] == ["/device:TPU:0"] * 2
    assert list(found.protos) == [NAME]


@pytest.mark.parametrize("below", ["plugins/profile/run_2", "run_2", "."])
@pytest.mark.parametrize("ending", ["xplane.pb", "xplane.pb.gz"])
def test_folders_as_jax_writes_them(tmp_path, below, ending):
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)
    data = write_xspace(PROFILE)
    for host in ("a", "b"):
        (folder / f"{host}.{ending}").write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    files, notes = find_profile_files(tmp_path)
    assert [file.name for file in files] == [f"a.{ending}", f"b.{ending}"]
    assert notes == ()
    assert read_profile("x", [(str(file), read_unpacked(file)) for file in files]).devices == (DEVICE, DEVICE)


def test_of_several_runs_the_last_is_read_and_that_is_said(tmp_path, says):
    for run in ("2026_01_01", "2026_01_02"):
        (tmp_path / "plugins" / "profile" / run).mkdir(parents=True)
        (tmp_path / "plugins" / "profile" / run / "h.xplane.pb").write_bytes(b"")
    files, (note,) = find_profile_files(tmp_path)
    assert files[0].parent.name == "2026_01_02"
    assert "2026_01_02" in says(note.replace(str(tmp_path), "DIR"))


def plane(name: str, *lines: bytes) -> bytes:
    return encode_field(1, encode_message([(2, name), *((3, line) for line in lines)]))


CPU = plane("/host:CPU", encode_message([(2, "python")]))
WHOLE = write_xspace(PROFILE)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (WHOLE[: len(WHOLE) // 2], "not a complete profile"),
        (WHOLE[:-1], "not a complete profile"),
        (b"HloModule m\nENTRY e {\n}\n", "not a complete profile"),
        (CPU, "without a TPU"),
        (plane("/device:GPU:0") + CPU, "of a GPU"),
        (plane("/device:TPU:0") + CPU, "no program ran to completion"),
    ],
    ids=["empty", "half", "without its last byte", "text", "cpu", "gpu", "nothing ran"],
)
def test_what_is_no_profile_of_a_tpu_is_one_message(says, data, words):
    with pytest.raises(ProfileError) as caught:
        read(data)
    assert words in caught.value.what
    assert caught.value.fix
    says(caught)


def test_where_no_profile_is(says, tmp_path):
    for path, key in ((tmp_path / "nowhere", "nowhere"), (tmp_path, "empty folder")):
        with pytest.raises(ProfileError) as caught:
            find_profile_files(path)
        assert str(path) in caught.value.what
        says(str(caught.value).replace(str(tmp_path), "DIR"), key)


def test_a_file_that_is_cut_off_at_any_byte_is_refused_or_holds_less():
    for size in range(len(WHOLE)):
        try:
            found = read(WHOLE[:size])
        except ProfileError:
            continue
        assert found.devices == PROFILE.devices
        assert found.protos != PROFILE.protos


def test_what_cpu_devices_ran(tmp_path):
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x: jnp.sin(x @ x).sum())
    x = jnp.ones((64, 64))
    step(x).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        step(x).block_until_ready()
    files, _ = find_profile_files(Path(tmp_path))
    found = read_profile("cpu", [(str(file), read_unpacked(file)) for file in files], of_cpu=True)
    ran = [run for device in found.devices for run in device.runs if run.program.startswith("jit__lambda")]
    assert [device.kind for device in found.devices] == ["CPU"]
    assert any(event.duration_ps > 0 for run in ran for event in run.operations)
    assert {run.program for run in ran} <= set(found.protos)
    with pytest.raises(ProfileError, match="without a TPU"):
        read_profile("cpu", [(str(file), read_unpacked(file)) for file in files])
