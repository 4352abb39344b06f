"""A profile that is of something else than it is compared with is refused, by what differs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from profile_examples import CAPTURED, SLICE, profile_of, written

import hloscope
from hloscope.base.errors import ProfileError

TEXT = next(path for path in CAPTURED if path.name == "matmul.matmul.jax-0.12.hlo").read_text()


@pytest.fixture
def folder(tmp_path):
    return written(profile_of(TEXT), tmp_path / "trace")


def refusal(says, tmp_path, **how) -> str:
    with pytest.raises(ProfileError) as caught:
        hloscope.compare(**how)
    says(str(caught.value).replace(str(tmp_path), "DIR"))
    return str(caught.value)


def test_a_program_of_another_name(says, folder, tmp_path):
    other = tmp_path / "other.hlo"
    other.write_text(TEXT.replace("HloModule jit_matmul", "HloModule jit_other", 1))
    assert "no run of jit_other" in refusal(says, tmp_path, target=other, profile=folder)


def test_a_program_of_other_shapes(says, folder, tmp_path):
    other = tmp_path / "other.hlo"
    other.write_text(TEXT.replace("8192", "4096"))
    assert "a different program" in refusal(says, tmp_path, target=other, profile=folder)


def test_another_generation(says, folder, tmp_path):
    assert "taken on v5e" in refusal(says, tmp_path, profile=folder, slice="v6e:2x4")


def test_a_program_that_did_not_run(says, folder, tmp_path):
    assert "no run of the program jit_step" in refusal(says, tmp_path, profile=folder, only="jit_step")


def test_a_profile_without_its_programs(says, tmp_path):
    folder = written(replace(profile_of(TEXT), protos={}), tmp_path / "trace")
    assert "none of its programs" in refusal(says, tmp_path, profile=folder)


def test_a_generation_that_nobody_knows(says, tmp_path):
    profile = profile_of(TEXT)
    devices = tuple(replace(device, kind="TPU v99") for device in profile.devices)
    folder = written(replace(profile, devices=devices), tmp_path / "trace")
    assert "TPU v99" in refusal(says, tmp_path, profile=folder)


@pytest.mark.process
def test_an_operation_that_the_module_does_not_have_is_told(tmp_path):
    profile = profile_of(TEXT)
    (device,) = profile.devices
    (run,) = device.runs
    *rest, last = run.operations
    strange = last._replace(operation=last.operation._replace(name="strange.7", text=""))
    changed = replace(device, runs=(replace(run, operations=(*rest, strange)),))
    (program,) = hloscope.compare(
        profile=written(replace(profile, devices=(changed,)), tmp_path / "trace"), slice=SLICE
    ).programs
    (found,) = (one for one in program.operations if one.name == "strange.7")
    assert (found.predicted_us, found.rule, found.computation) == (None, None, None)
    assert program.matched_operations == program.measured_operations - 1
    (part,) = (part for part in program.parts if part.part == "not matched")
    assert part.measured_us == pytest.approx(found.measured_us)


@pytest.mark.process
def test_hlo_text_beside_a_profile_needs_no_jax(folder, tmp_path):
    (tmp_path / "step.hlo").write_text(TEXT)
    program = (
        "import sys, hloscope; from hloscope.base.documents import to_plain\n"
        f"found = hloscope.compare({str(tmp_path / 'step.hlo')!r}, profile={str(folder)!r})\n"
        "print(found.programs[0].matched_share, {'jax', 'jaxlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "1.0 set()\n", done.stderr


def test_what_only_a_function_can_obey_is_refused_beside_a_profile_alone(says, folder):
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.compare(profile=folder, donate=0)
    assert caught.value.what.startswith("donate")
    says(caught)


@pytest.mark.process
def test_a_comparison_prints_as_its_report_and_is_one_line_as_repr(folder):
    found = hloscope.compare(profile=folder, slice=SLICE)
    assert "compared with the profile's own programs: 1 device, TPU v5 Lite" in " ".join(str(found).split())
    assert repr(found).startswith("<CompareDocument of ")
    assert len(repr(found).splitlines()) == 1
    assert found.to_dict()["programs"][0]["step"]["median_us"] == found.programs[0].step.median_us
    assert found.report("markdown").startswith("### hloscope.compare: ")
