"""Profiles that hloscope writes from its own predictions, as if a slice had run a program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from jaxlib import _hlo

from hloscope.app.analyses import predict_timeline_of_text
from hloscope.app.requests import Text, add_guesses, make_capture
from hloscope.base.protobuf import encode_field
from hloscope.compile.target import make_facts
from hloscope.cost import price_capture
from hloscope.cost.predictions import Prediction, predict_step
from hloscope.hlo import parse_module
from hloscope.measurement.predicted_profile import make_predicted_profile
from hloscope.measurement.profiles import DeviceRun, Profile, ProfiledDevice, ProfileEvent, write_xspace
from hloscope.tpu.slices import parse_slice

CAPTURED = sorted((Path(__file__).parent.parent.parent / "fixtures" / "captured").glob("*.hlo"))
SLICE = "v5e:2x4"


def prediction_of(text: str, slice_name: str = SLICE) -> Prediction:
    """What is predicted of a text."""
    module = parse_module(text)
    program = make_capture(text, module, make_facts(), parse_slice(slice_name), name="test")
    program = add_guesses(program, module, make_facts(), is_said=True)
    found = predict_step(program, module, price_capture(program, module, target="test"))
    assert found is not None
    return found


def proto_of(text: str) -> bytes:
    """The `HloProto` of a text, with the device of each partition as libtpu adds it."""
    module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    count = parse_module(text).device_count
    devices = b"".join(encode_field(3, encode_field(1, bytes([number]))) for number in range(count))
    return encode_field(1, module + encode_field(15, encode_field(1, 1) + encode_field(2, count) + devices))


def profile_of(text: str, slice_name: str = SLICE, *, devices: int = 1, runs: int = 1) -> Profile:
    """The profile of a text that runs as predicted."""
    found = predict_timeline_of_text(Text(name="test", text=text, facts=make_facts(slice=slice_name)))
    once = make_predicted_profile(found, found.evidence.program, parse_module(text), proto=proto_of(text))
    ((device,), (run,)) = once.devices, once.devices[0].runs
    every = tuple(_moved_run(run, number * (run.duration_ps + _BETWEEN_RUNS_PS)) for number in range(runs))
    names = [(f"/device:TPU:{number}", number) for number in range(devices)]
    return replace(once, devices=tuple(replace(device, name=name, chip_id=id, runs=every) for name, id in names))


_BETWEEN_RUNS_PS = 10_000_000


def _moved_run(run: DeviceRun, later_ps: int) -> DeviceRun:
    """A run that begins later, with everything in it."""
    moved = {
        name: tuple(event._replace(begin_ps=event.begin_ps + later_ps) for event in getattr(run, name))
        for name in ("operations", "transfers", "loops", "counters")
    }
    return replace(run, begin_ps=run.begin_ps + later_ps, **moved)


def written(profile: Profile, folder: Path) -> Path:
    """The folder of a profile, laid out as `jax.profiler` does it; it says nothing of where it comes from."""
    return as_given(as_measured(profile), folder)


def as_given(profile: Profile, folder: Path) -> Path:
    """The folder of a profile with all that it says."""
    run = folder / "plugins" / "profile" / "2026_11_23_10_00_00"
    run.mkdir(parents=True)
    (run / "host.xplane.pb").write_bytes(write_xspace(profile))
    return folder


def as_measured(profile: Profile) -> Profile:
    """A profile that does not say that hloscope wrote it."""
    return replace(profile, stats=(), devices=tuple(replace(device, stats=()) for device in profile.devices))


def slowed(profile: Profile, factors: dict[str, float]) -> Profile:
    """A profile in which operations take longer by a factor, and what follows begins later."""
    return replace(profile, devices=tuple(_slowed_device(device, factors) for device in profile.devices))


def _slowed_device(device: ProfiledDevice, factors: dict[str, float]) -> ProfiledDevice:
    return replace(device, runs=tuple(_slowed_run(run, factors) for run in device.runs))


def _slowed_run(run: DeviceRun, factors: dict[str, float]) -> DeviceRun:
    """Of a run without loops: an operation lasts longer where its name begins with one of the given words."""
    later, operations = 0, []
    for event in run.operations:
        factor = next((each for word, each in factors.items() if event.operation.name.startswith(word)), 1.0)
        duration_ps = round(event.duration_ps * factor)
        operations.append(ProfileEvent(event.operation, event.begin_ps + later, duration_ps))
        later += duration_ps - event.duration_ps
    return replace(run, duration_ps=run.duration_ps + later, operations=tuple(operations), transfers=())
