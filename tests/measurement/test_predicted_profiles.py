"""A profile that hloscope wrote itself: it says first that nothing was measured, and is priced as it was predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from profile_examples import CAPTURED, SLICE, as_given, profile_of, written

import hloscope
from hloscope.base.errors import ProfileError
from hloscope.measurement.profiles import PLACE, Profile
from hloscope.report.comparing import NOTHING_MEASURED

SLICES = "2*v5e:2x4"
OVER_SLICES = (
    Path(__file__).parent.parent.parent / "fixtures/spellings/elsewhere.data_parallel_over_slices.jax-0.12.hlo"
)
TEXT = next(path for path in CAPTURED if path.name == "matmul.matmul.jax-0.12.hlo").read_text()


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predicted")
    mesh = {"replica": 2, "data": 2, "model": 4}
    hloscope.timeline(OVER_SLICES, slice=SLICES, mesh=mesh, dcn={"replica": 2}).save(folder, "xplane")
    return folder


@pytest.mark.process
def test_it_is_priced_on_the_slices_and_the_mesh_that_it_was_predicted_for(predicted):
    (program,) = hloscope.compare(profile=predicted).programs
    assert (program.slice, program.slice_chosen_by, program.partitions) == (SLICES, "profile", 8)
    assert program.step.predicted_us == pytest.approx(program.step.median_us)
    assert {(axis.axes, axis.link) for axis in program.axes} == {("data", "ici"), ("model", "ici"), ("replica", "dcn")}


@pytest.mark.process
def test_what_the_user_says_goes_first(predicted):
    (program,) = hloscope.compare(profile=predicted, mesh={"Z": 2, "X": 2, "Y": 4}, slice=SLICES).programs
    assert program.slice_chosen_by == "user"
    assert {axis.axes for axis in program.axes} == {"X", "Y", "Z"}


@pytest.mark.process
def test_every_report_begins_with_that(predicted):
    found = hloscope.compare(profile=predicted)
    assert found.is_prediction
    assert found.to_dict()["is_prediction"]
    assert found.report("text").startswith(NOTHING_MEASURED)
    assert found.report("markdown").startswith(f"> **{NOTHING_MEASURED}**")
    page = found.report("html")
    assert page.index(NOTHING_MEASURED) < page.index("The step took ")
    assert 'class="verdict warn"' in page[: page.index(NOTHING_MEASURED)]
    assert found.notes == ()


@pytest.mark.process
def test_the_chip_has_no_figures_from_it(predicted, tmp_path, says):
    assert hloscope.compare(profile=predicted).calibration == ()
    with pytest.raises(ProfileError) as caught:
        hloscope.compare(profile=predicted, save=tmp_path / "calibration.toml")
    says(str(caught.value).replace(str(predicted), "DIR"))


@pytest.mark.process
def test_of_what_was_measured_nothing_of_it_is_said(tmp_path):
    found = hloscope.compare(profile=written(profile_of(TEXT), tmp_path), slice=SLICE)
    assert not found.is_prediction
    assert all(NOTHING_MEASURED not in found.report(name) for name in ("text", "markdown", "html"))


@pytest.mark.process
@pytest.mark.parametrize(
    "place",
    [
        "",
        "{",
        "[]",
        '{"mesh": null, "device_ids": [1], "slice_of_partition": []}',
        '{"mesh": null, "device_ids": [0, 1, 2, 3, 4, 5, 6, 9], "slice_of_partition": []}',
        '{"mesh": {"axis_names": ["X"], "axis_sizes": [4]}, "device_ids": [], "slice_of_partition": []}',
        '{"mesh": {"axis_names": ["X", "Y"], "axis_sizes": [8]}, "device_ids": [], "slice_of_partition": []}',
        '{"mesh": null, "device_ids": [], "slice_of_partition": [0, 0, 0, 0, 0, 0, 0, 1]}',
    ],
)
def test_a_place_that_does_not_fit_is_none(tmp_path, place):
    found = hloscope.compare(profile=as_given(placed(profile_of(TEXT), place), tmp_path)).programs[0]
    without = hloscope.compare(profile=written(profile_of(TEXT), tmp_path / "other"), slice=SLICE).programs[0]
    assert (found.slice, found.axes, found.step) == (SLICE, without.axes, without.step)


def placed(profile: Profile, place: str) -> Profile:
    (device,) = profile.devices
    stats = tuple((name, place if name == PLACE else value) for name, value in device.stats)
    return replace(profile, devices=(replace(device, stats=stats),))
