"""What a profile says of the chip, from runs that were slower by known factors; `--chip-override` uses it."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
from profile_examples import prediction_of, profile_of, slowed, written

import hloscope
from hloscope.base.errors import SliceError
from hloscope.measurement.fitting import render_calibration_file
from hloscope.tpu.chips import find_chip
from hloscope.tpu.slices import is_figure, override_chip, parse_slice

BIG = "f32[4096,4096]{1,0:T(8,128)}"
TEXT = f"""HloModule jit_step, is_scheduled=true, num_partitions=8
%sum (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}
%fused (p: f32[8,128]) -> f32[8,128] {{
  %p = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  ROOT %n = f32[8,128]{{1,0:T(8,128)}} negate(%p)
}}
ENTRY %main (a: {BIG}, b: f32[8,128]) -> ({BIG}, f32[8,128]) {{
  %a = {BIG} parameter(0)
  %b = f32[8,128]{{1,0:T(8,128)}} parameter(1)
  %slow = f32[8,128]{{1,0:T(8,128)}} fusion(%b), kind=kLoop, calls=%fused, backend_config={{"window_config":{{"estimated_cycles":"300000"}}}}
  %move = {BIG} copy(%a)
  %large = {BIG} all-reduce(%move), channel_id=1, replica_groups={{{{0,1}},{{2,3}},{{4,5}},{{6,7}}}}, use_global_device_ids=true, to_apply=%sum
  %small = f32[8,128]{{1,0:T(8,128)}} all-reduce(%slow), channel_id=2, replica_groups={{{{0,1}},{{2,3}},{{4,5}},{{6,7}}}}, use_global_device_ids=true, to_apply=%sum
  ROOT %t = ({BIG}, f32[8,128]{{1,0:T(8,128)}}) tuple(%large, %small)
}}
"""  # noqa: E501
FACTORS = {"slow": 1.1, "move": 1.05, "large": 1.25, "small": 1.5}


@pytest.fixture
def compared(tmp_path):
    return hloscope.compare(profile=written(slowed(profile_of(TEXT), FACTORS), tmp_path / "trace"), slice="v5e:2x4")


@pytest.mark.process
def test_each_figure_is_what_made_the_run_slower(compared):
    figures = {figure.name: figure for figure in compared.calibration}
    assert figures["clock_hz"].value == pytest.approx(find_chip("v5e").clock_hz / 1.1, rel=1e-4)
    assert figures["hbm_bytes_per_s"].value == pytest.approx(find_chip("v5e").hbm_bytes_per_s / 1.05, rel=1e-4)
    assert figures["link_share"].value == pytest.approx(figures["link_share"].before / 1.25, rel=5e-3)
    small = prediction_of(TEXT).operations["main", "small"].time_us
    assert figures["start_us"].value == pytest.approx(figures["start_us"].before + 0.5 * small, rel=1e-4)
    assert {name for name, figure in figures.items() if figure.value is None} == {
        "pcie_bytes_per_s",
        "one_way_ring_share",
        "grid_share",
        "dma_grid_share",
        "permute_start_us",
    }
    assert all((figure.value is None) == (figure.why is not None) for figure in compared.calibration)


@pytest.mark.process
def test_the_written_file_makes_the_prediction_what_was_measured(compared, tmp_path):
    file = tmp_path / "calibration.toml"
    file.write_text(render_calibration_file(compared, is_figure))
    again = hloscope.compare(profile=tmp_path / "trace", slice="v5e:2x4", chip_overrides=[str(file)]).programs[0]
    assert again.step.predicted_us == pytest.approx(again.step.median_us, rel=2e-3)
    assert compared.programs[0].step.predicted_us < 0.95 * again.step.median_us
    assert any("calibration.toml" in note for note in again.notes)
    table = tomllib.loads(file.read_text())["v5e"]
    assert table["fitted_to"]["programs"] == [compared.programs[0].program]


@pytest.mark.process
def test_its_use_is_said(compared, tmp_path, says):
    file = tmp_path / "calibration.toml"
    file.write_text(render_calibration_file(compared, is_figure))
    found = hloscope.analyze_text(TEXT, slice="v5e:2x4", chip_overrides=[str(file)])
    (note,) = (note for note in found.time.notes if "calibration.toml" in note)
    assert "clock_hz" in says(note.replace(str(tmp_path), "DIR"))
    assert not any("calibration" in note for note in hloscope.analyze_text(TEXT, slice="v5e:2x4").time.notes)


@pytest.mark.process
def test_it_is_refused_on_another_generation(compared, tmp_path, says):
    file = tmp_path / "calibration.toml"
    file.write_text(render_calibration_file(compared, is_figure))
    with pytest.raises(SliceError) as caught:
        override_chip(parse_slice("v6e:2x4"), [str(file)])
    assert "v6e" in says(str(caught.value).replace(str(tmp_path), "DIR"))


def test_constants_that_are_none_are_refused(tmp_path, says):
    file = tmp_path / "calibration.toml"
    for line in ("link_shar = 0.5", "link_share = -1", "link_share = true"):
        file.write_text(f"[v5e.measured]\n{line}\n")
        with pytest.raises(SliceError) as caught:
            hloscope.analyze_text(TEXT, slice="v5e:2x4", chip_overrides=[str(file)])
        assert "link_shar" in says(str(caught.value).replace(str(tmp_path), "DIR"), line)


@pytest.mark.process
@pytest.mark.parametrize("factors", [{"slow": 4.0}, {"large": 0.5}])
def test_what_no_chip_is_like_is_refused(tmp_path, factors):
    name = {"slow": "clock_hz", "large": "link_share"}[next(iter(factors))]
    folder = written(slowed(profile_of(TEXT), factors), tmp_path / "trace")
    document = hloscope.compare(profile=folder, slice="v5e:2x4")
    (figure,) = (figure for figure in document.calibration if figure.name == name)
    assert (figure.value, figure.rests_on) == (None, 1)
    assert "outside" in figure.why


def test_a_program_of_other_flags_settles_nothing(tmp_path):
    profile = profile_of(TEXT)
    other = tmp_path / "step.hlo"
    other.write_text(TEXT.replace("%move", "%renamed"))
    document = hloscope.compare(other, profile=written(profile, tmp_path / "trace"), slice="v5e:2x4")
    assert 0.5 < document.programs[0].matched_share < 0.95
    assert all(figure.value is None for figure in document.calibration)
    with pytest.raises(hloscope.HloscopeError, match="determines no figure"):
        render_calibration_file(document, is_figure)


def ran(*command, cwd) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hloscope", *command], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.process
def test_on_the_command_line(tmp_path):
    written(slowed(profile_of(TEXT), FACTORS), tmp_path / "trace")
    done = ran("compare", "--profile", "trace", "--slice", "v5e:2x4", "--save", "c.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "): 1 run on 1 device" in done.stdout
    assert "--chip-override c.toml" in done.stderr
    assert 0.9e9 < tomllib.loads((tmp_path / "c.toml").read_text())["v5e"]["clock_hz"] < 1.5e9
    page = ran("compare", "--profile", "trace", "--format", "markdown", cwd=tmp_path)
    assert page.stdout.startswith("### hloscope compare: trace compared with the profile's own programs")
    missing = ran("compare", "--profile", "nowhere", cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("error: there is no profile nowhere")
    assert "Traceback" not in missing.stderr
