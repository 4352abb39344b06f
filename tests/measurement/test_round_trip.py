"""A profile that was written from a prediction holds nothing that differs from it."""

from __future__ import annotations

import pytest
from profile_examples import CAPTURED, SLICE, prediction_of, profile_of, written

import hloscope
from hloscope.base.documents import to_plain
from hloscope.measurement.model import MeasuredProgram

ROUNDED_US = 1e-3
"""Events lie on whole picoseconds; thousands of them are added up."""


def differences(program: MeasuredProgram) -> list[str]:
    """All that is not as predicted."""
    found = [] if same(program.step.median_us, program.step.predicted_us) else ["step"]
    found += [part.part for part in program.parts if not same(part.measured_us, part.predicted_us)]
    for operation in program.operations:
        if not same(operation.measured_us, operation.predicted_us):
            found.append(operation.name)
        if operation.executions and operation.executions != operation.predicted_executions:
            found.append(f"{operation.name} runs otherwise")
    for transfer in program.transfers:
        exact = transfer.measured_bound == "exact"
        if not same(transfer.measured_exposed_us, transfer.predicted_exposed_us):
            found.append(f"{transfer.name} waits otherwise")
        if exact and not same(transfer.measured_us, transfer.predicted_us):
            found.append(f"{transfer.name} takes another time")
        if not exact and transfer.measured_us < transfer.predicted_us - ROUNDED_US:
            found.append(f"{transfer.name} takes more than at most")
    return found


def same(measured_us: float | None, predicted_us: float | None) -> bool:
    return measured_us is not None and predicted_us is not None and abs(measured_us - predicted_us) <= ROUNDED_US


@pytest.mark.process
@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.stem)
def test_nothing_differs(path, tmp_path):
    text = path.read_text()
    folder = written(profile_of(text), tmp_path)
    for target in (None, path):
        document = hloscope.compare(target, profile=folder, slice=SLICE)
        (program,) = document.programs
        assert differences(program) == []
        assert (program.matched_operations, program.matched_share) == (program.measured_operations, 1.0)
        assert program.step.predicted_us == pytest.approx(prediction_of(text).step_us)
        assert sum(part.measured_us for part in program.parts) == pytest.approx(program.step.median_us)
        assert {one.name for one in program.operations} >= {
            name for (_, name), one in prediction_of(text).operations.items() if one.time_us > 0
        }


@pytest.mark.process
def test_loops_are_measured_as_often_as_they_run(tmp_path):
    (path,) = (path for path in CAPTURED if path.name == "mixture_of_experts.mixture_of_experts.jax-0.12.hlo")
    folder = written(profile_of(path.read_text(), devices=4, runs=3), tmp_path)
    (program,) = hloscope.compare(profile=folder, slice=SLICE).programs
    assert (program.runs, program.devices) == (12, 4)
    (gather,) = program.transfers
    assert (gather.kind, gather.executions, gather.measured_bound) == ("all-gather", 8, "exact")
    assert differences(program) == []


@pytest.mark.process
def test_the_profile_says_the_slice_and_the_generation(tmp_path):
    text = CAPTURED[0].read_text()
    document = hloscope.compare(profile=written(profile_of(text, "v6e:2x4", devices=8), tmp_path))
    assert (document.chip, document.device_kind, document.devices) == ("v6e", "TPU v6 Lite", 8)
    assert (document.programs[0].slice, document.programs[0].slice_chosen_by) == ("v6e:2x4", "profile")
    assert to_plain(document)["programs"][0]["partitions"] == 8


def test_axes_have_the_users_names_and_their_rates(tmp_path):
    (path,) = (path for path in CAPTURED if path.name == "mixture_of_experts.mixture_of_experts.jax-0.12.hlo")
    folder = written(profile_of(path.read_text()), tmp_path)
    (program,) = hloscope.compare(path, profile=folder, slice=SLICE, mesh={"X": 4, "Y": 2}).programs
    (axis,) = program.axes
    (gather,) = program.transfers
    assert (axis.axes, axis.collectives, axis.wire_bytes) == ("X,Y", 1, 8 * gather.wire_bytes)
    assert axis.measured_exposed_us == pytest.approx(8 * gather.measured_exposed_us)
    assert axis.measured_exposed_us == pytest.approx(axis.predicted_exposed_us, rel=1e-4)
    assert axis.measured_bytes_per_s == pytest.approx(gather.wire_bytes / gather.predicted_us * 1e6, rel=1e-4)
    assert axis.measured_bytes_per_s == pytest.approx(axis.predicted_bytes_per_s, rel=1e-4)
