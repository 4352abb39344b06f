"""`measure`: runs a program under the profiler and compares its profile with the prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from hloscope import given
from hloscope.api.analyzing import Stage, slice_fact
from hloscope.api.comparing import compare_function
from hloscope.api.texts import capture_of_text, meant, with_guesses
from hloscope.calls import front_door
from hloscope.cost.captures import price_capture
from hloscope.errors import NotationError, ProfileError, TargetError
from hloscope.hardware.slices import parse_slice
from hloscope.hlo import parse_module
from hloscope.measured.joined import Joined
from hloscope.measured.joining import compared
from hloscope.measured.model import CompareDocument
from hloscope.measured.observed import observed_programs
from hloscope.messages import Command, Option, say
from hloscope.profiles.reading import profile_files, read_profile
from hloscope.program.capture import Mesh
from hloscope.program.environment import DEFAULT_DEVICES
from hloscope.program.files import unpacked
from hloscope.program.loading import name_of
from hloscope.program.target import TargetFacts, TargetOptions, make_facts, with_options
from hloscope.progress import waiting
from hloscope.store import Store, default_store
from hloscope.verification.machine import attached_platform
from hloscope.verification.profiling import ProfiledRun, profiled_in_child
from hloscope.verification.where import by_name

_LIMIT_S = 600.0
_PLATFORMS = ("tpu", "cpu")


@front_door
@with_options(TargetOptions)
def measure(
    target: Callable[..., Any] | str,
    args: Any = None,
    *,
    on: str = "tpu",
    runs: int = 10,
    save: str | Path | None = None,
    **options: Unpack[TargetOptions],
) -> CompareDocument:
    """Runs a function on random arguments under JAX's profiler, and compares the measured times with the prediction.

    Example:
        >>> hloscope.measure("model:step", ("f32[64@X,512]",), mesh={"X": 4}, on="cpu").programs[0].step.median_us

    Args:
        target: A function that another process can import, or its name: `module:fn`, `file.py:fn`.
        args: One entry per positional argument, as for `analyze`.
        on: Where to run: `tpu` for attached TPUs; `cpu` for simulated devices, without a prediction.
        runs: Number of profiled runs.
        save: Folder to save the profile in; by default it is discarded.
        {options}

    Returns:
        Measured and predicted times; prints as the report, and `to_dict()` returns it as plain data.

    Raises:
        HloscopeError: The input is invalid, no TPU is attached, or JAX rejects the program.
    """
    target = meant(target)
    if not isinstance(on, str) or on not in _PLATFORMS:
        raise NotationError(
            f"{given.shown(on)} is not a platform to measure on", fix=f"use one of {', '.join(_PLATFORMS)}"
        )
    times = given.whole("runs", runs, least=1, example="runs=10")
    named = by_name(target)
    if not isinstance(named, str):
        raise TargetError(f"{name_of(target)} cannot be imported in the process that runs it", fix="put it in a module")
    facts, folder = make_facts(args=args, **options), given.path("save", save, example='save="profile"')
    with waiting() as stage:
        return measure_function(named, facts, on=on, runs=times, folder=folder, stage=stage, store=default_store())


def measure_function(
    target: str,
    facts: TargetFacts,
    *,
    on: str = "tpu",
    runs: int = 10,
    folder: Path | None = None,
    stage: Stage = lambda _: None,
    store: Store | None = None,
) -> CompareDocument:
    """Runs a function on random arguments under JAX's profiler, and compares the measured times with the prediction.

    Args:
        target: `module:fn` or `file.py:fn`.
        facts: How to call it.
        on: Where to run: `tpu` for attached TPUs; `cpu` for simulated devices, without a prediction.
        runs: Number of profiled runs.
        folder: Folder to save the profile in; None to discard it.
        stage: Called with what is happening.
        store: Where compiles are kept.

    Raises:
        HloscopeError: The input is invalid, no TPU is attached, or JAX rejects the program.
    """
    if on == "tpu" and attached_platform() != "tpu":
        raise ProfileError(
            "no TPU is attached here",
            fix=say(
                "run it on a TPU host; or take a profile there with jax.profiler and pass it to ",
                Command("compare"),
                "; ",
                Option("on", "cpu"),
                " measures simulated CPU devices, for which no times are predicted",
            ),
        )
    with TemporaryDirectory(prefix="hloscope-profile-") as scratch:
        where = Path(scratch) if folder is None else folder
        stage(f"running {target} {runs} times")
        devices = prod(facts.mesh.values()) if isinstance(facts.mesh, dict) else DEFAULT_DEVICES
        run = ProfiledRun(
            target=target, facts=replace(facts, slice=None), platform=on, devices=devices, folder=str(where), runs=runs
        )
        text, mesh = profiled_in_child(run, timeout_s=_LIMIT_S if facts.timeout_s is None else facts.timeout_s)
        if on == "tpu":
            return compare_function(target, where, facts, stage=stage, store=store)
        return _of_cpu(target, text, mesh, where, facts)


def _of_cpu(target: str, text: str, mesh: Mesh | None, folder: Path, facts: TargetFacts) -> CompareDocument:
    """What simulated devices took; of them nothing is predicted."""
    files, notes = profile_files(folder)
    profile = read_profile(str(folder), ((str(file), unpacked(file)) for file in files), of_cpu=True)
    module = parse_module(text, name=f"{target} (compiled for CPU)")
    named = [found for found in observed_programs(profile.devices) if found.program.partition("(")[0] == module.name]
    if not named:
        raise ProfileError(f"the profile of {target} contains no run of it", why=f"it is compiled as {module.name}")
    known = replace(facts, mesh=None, chip_overrides=None)
    program = capture_of_text(text, module, known, parse_slice(f"cpu:{max(module.device_count, 1)}"), name=target)
    program = with_guesses(replace(program, mesh=mesh), module, known, is_said=True)
    analysis = replace(price_capture(program, module, target=target), slice=slice_fact(program))
    joined = Joined(observed=named[0], module=module, analysis=analysis, prediction=None)
    return CompareDocument(
        target=target,
        profile="a run on CPU devices",
        chip=None,
        device_kind="CPU",
        devices=len(profile.devices),
        programs=(compared(joined),),
        notes=(*notes, "these are simulated devices of this machine: their times say nothing about a TPU"),
    )
