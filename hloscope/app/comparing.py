"""`compare` compares a TPU profile with the predictions for its programs; `measure` does so for a run made here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from hloscope.app.analyzing import make_slice_fact
from hloscope.app.requests import (
    PROFILE_PROGRAM,
    Request,
    Text,
    add_guesses,
    check_target,
    follow,
    make_capture,
)
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.errors import (
    Command,
    HloParseError,
    HloscopeError,
    NotationError,
    Option,
    ProfileError,
    TargetError,
    say,
)
from hloscope.base.outputs import check_report_file, write_text
from hloscope.compile.environment import DEFAULT_DEVICES, find_attached_platform
from hloscope.compile.functions import Function, captured_function
from hloscope.compile.hlo_files import decode_hlo, extract_module, read_device_ids, read_unpacked
from hloscope.compile.target import TargetFacts, TargetOptions, accept_options, find_target_name
from hloscope.cost import price_capture
from hloscope.cost.predictions import predict_step
from hloscope.hlo import HloModule, parse_module
from hloscope.measurement.fitting import fit_figures, render_calibration_file
from hloscope.measurement.joining import JoinedProgram, ObservedProgram, compare_program, find_observed_programs
from hloscope.measurement.model import CompareDocument, UncomparedProgram
from hloscope.measurement.predicted_profile import restore_partition_places
from hloscope.measurement.profiles import PLACE, SLICE, Profile, find_profile_files, read_profile
from hloscope.model.capture import Capture, Mesh
from hloscope.tpu.chips import find_chip
from hloscope.tpu.generation import Chip
from hloscope.tpu.slices import Slice, find_smallest_slice, is_figure, override_chip, parse_slice
from hloscope.verification.run_location import ProfiledRun, name_if_importable, profile_in_child

_LEAST_MATCHED = 0.5
"""A share of the time in operations: if less of it is in the compiled module, the profile is of another program."""

_MOST_PROGRAMS = 8
"""A training script compiles hundreds of small programs: only those that take the most time are compared."""


@front_door
@accept_options(TargetOptions)
def compare(
    target: Callable[..., Any] | str | Path | None = None,
    args: Any = None,
    *,
    profile: str | Path,
    only: str | None = None,
    save: str | Path | None = None,
    **options: Unpack[TargetOptions],
) -> CompareDocument:
    """Compares a TPU profile with the prediction: the step, each operation and each collective.

    Example:
        >>> found = hloscope.compare(profile="/tmp/trace")
        >>> found.programs[0].step.median_us, found.programs[0].step.predicted_us

    Args:
        target: As for `analyze`; by default the programs stored in the profile.
        args: One entry per positional argument, as for `analyze`.
        profile: The folder passed to `jax.profiler.start_trace`, the folder of a run in it, or an `xplane.pb` file.
        only: Restricts the profile's programs to those with this name, such as `jit_step`.
        save: A file to write the chip's figures calibrated from the profile to, for use with `chip_overrides`.
        {options}

    Returns:
        Measured and predicted times; prints as the report, and `to_dict()` returns it as plain data.

    Raises:
        HloscopeError: The input is invalid, the profile is not from a TPU, or it belongs to a different program than
            the target.
    """
    folder = calls.path("profile", profile, example='profile="/tmp/trace"') or Path()
    name = None if only is None else calls.text("only", only, example='only="jit_step"')
    file = calls.path("save", save, example='save="calibration.toml"')
    check_report_file(file)
    request = Request(target=PROFILE_PROGRAM if target is None else target, said={"args": args, **options})
    found = find_comparison(request, folder, only=name)
    if file is not None:
        write_text(render_calibration_file(found, is_figure), file, "the file of figures")
    return found


def find_comparison(request: Request, profile: Path, *, only: str | None = None) -> CompareDocument:
    """Compares a profile with the prediction for a request's target.

    Args:
        request: The request; without a target the programs in the profile are compared.
        profile: The folder or file of the profile.
        only: The program of the profile to compare; None for all that may be the target.

    Raises:
        HloscopeError: The input is invalid, or the profile belongs to a different program than the target.
    """
    if request.target == PROFILE_PROGRAM:
        with request.door.quiet():
            return compare_own(profile, request.facts_of_text(), only=only)
    return follow(
        request,
        of_function=lambda function, _: compare_function(function, profile, only=only),
        of_text=lambda text: compare_text(text, profile, only=only),
    )


def open_profile(path: Path) -> Profile:
    """Opens a profile of a TPU.

    Raises:
        ProfileError: There is no profile, or it is not from a TPU.
    """
    files, notes = find_profile_files(path)
    found = read_profile(str(path), ((str(file), read_unpacked(file)) for file in files))
    return replace(found, notes=notes)


def compare_own(path: Path, facts: TargetFacts, *, only: str | None = None) -> CompareDocument:
    """Compares a profile with the predictions for the programs stored in it.

    Raises:
        HloscopeError: The profile cannot be read, or the options do not fit it.
    """
    profile = open_profile(path)
    chip = find_profile_chip(profile)
    programs = _choose_programs(profile, only)
    holding = {found.program: profile.protos[found.program] for found in programs if found.program in profile.protos}
    chosen, chosen_by = _choose_slice(
        facts, profile, chip, [len(read_device_ids(extract_module(proto))) for proto in holding.values()]
    )
    chosen = override_chip(chosen, facts.chip_overrides or ())
    joined: list[JoinedProgram] = []
    uncompared: list[UncomparedProgram] = []
    for found in programs:
        if found.program not in holding:
            uncompared.append(_make_uncompared(found, "the profile does not contain it"))
        elif len(joined) >= _MOST_PROGRAMS:
            uncompared.append(_make_uncompared(found, say("others take longer; compare it with ", Option("only"))))
        else:
            try:
                program, module = _capture_proto(found, holding[found.program], facts, chosen, chosen_by)
                if chosen.name == profile.prediction.get(SLICE) and not facts.mesh:
                    program = restore_partition_places(program, profile.prediction.get(PLACE, ""))
                program = add_guesses(program, module, facts, is_said=True)
                joined.append(_join_program(found, program, module, found.program))
            except HloParseError as error:
                uncompared.append(_make_uncompared(found, error.on_one_line()))
    if not joined:
        raise ProfileError(
            f"{path} contains none of its programs",
            why=say(f"{programs[0].program}: ", uncompared[0].why),
            fix=say("name the target, or its compiled HLO text, before ", Option("profile")),
        )
    return _make_comparison(profile, chip, joined, uncompared, target=None)


def compare_text(text: Text, path: Path, *, only: str | None = None) -> CompareDocument:
    """Compares a profile with the prediction for HLO text.

    Raises:
        HloscopeError: The profile or the text cannot be read, or they belong to different programs.
    """
    facts, name = text.facts, text.name
    profile, module = open_profile(path), parse_module(text.text, name=name)
    chip = find_profile_chip(profile)
    chosen, chosen_by = _choose_slice(facts, profile, chip, [module.device_count])
    chosen = override_chip(chosen, facts.chip_overrides or ())
    program = replace(make_capture(text.text, module, facts, chosen, name=name), slice_chosen_by=chosen_by)
    program = add_guesses(program, module, facts, is_said=True)
    return _compare_capture(profile, chip, program, module, name, only)


def compare_function(function: Function, path: Path, *, only: str | None = None) -> CompareDocument:
    """Compares a profile with the prediction for a function, which is compiled for the profiled slice.

    Raises:
        HloscopeError: The input is invalid, or the profile belongs to another program.
    """
    profile = open_profile(path)
    chip = find_profile_chip(profile)
    chosen, _ = _choose_slice(
        function.facts, profile, chip, [_count_requested_devices(function.facts)], of_one_slice=False
    )
    if function.facts.slice is None:
        function = replace(function, facts=replace(function.facts, slice=chosen.name))
    program, _ = captured_function(function)
    function.stage("reading the compiled program")
    module = parse_module(program.compiled.text, name=f"{function.name} (compiled)")
    return _compare_capture(profile, chip, program, module, function.name, only)


def find_profile_chip(profile: Profile) -> Chip:
    """Returns the chip generation that a profile was taken on.

    Raises:
        ProfileError: The profile names no known generation, or several.
    """
    kinds = sorted({device.kind for device in profile.devices})
    try:
        (kind,) = kinds
        return find_chip(kind)
    except (ValueError, HloscopeError):
        raise ProfileError(
            f"{profile.name} does not show which TPU it was taken on",
            why=f"its devices are called {', '.join(map(repr, kinds))}",
            fix="take it again with a newer JAX",
        ) from None


def _count_requested_devices(facts: TargetFacts) -> int:
    sizes = facts.mesh.values() if isinstance(facts.mesh, dict) else ()
    return prod(sizes) if sizes else 0


def _choose_slice(
    facts: TargetFacts, profile: Profile, chip: Chip, partitions: Sequence[int], *, of_one_slice: bool = True
) -> tuple[Slice, str]:
    """The slice that programs ran on, and the source of that fact.

    The user's slice takes precedence, then that of a profile written by hloscope, then the smallest slice that fits.

    Args:
        facts: The user's options.
        profile: The profile.
        chip: Its generation.
        partitions: The number of devices of each program; 0 if unknown.
        of_one_slice: Whether these are the devices of one slice of several.

    Raises:
        ProfileError: The user's slice is of another generation.
    """
    if facts.slice is not None:
        said = parse_slice(facts.slice)
        if said.chip is None or said.chip.name != chip.name:
            raise ProfileError(
                f"{profile.name} was taken on {chip.name}, but the slice is {said.name}",
                fix=f"name a {chip.name} slice, or none, to use the slice of the profile",
            )
        return said, "user"
    predicted = profile.prediction.get(SLICE)
    if predicted is not None:
        said = parse_slice(predicted)
        if said.chip == chip and max(partitions) <= (said.devices_per_slice if of_one_slice else said.device_count):
            return said, "profile"
    chips = max((device.chip_id + 1 for device in profile.devices if device.chip_id is not None), default=0)
    return find_smallest_slice(max(chips * chip.devices_per_chip, *partitions, 1), chip.name), "profile"


def _choose_programs(profile: Profile, only: str | None) -> tuple[ObservedProgram, ...]:
    """The programs with the requested name, or all of them.

    Raises:
        ProfileError: No program has this name.
    """
    programs = find_observed_programs(profile.devices)
    found = tuple(each for each in programs if only is None or only in (each.program, _strip_number(each)))
    if not found:
        raise _make_no_run_error(profile, f"the program {only}", programs)
    return found


def _make_no_run_error(profile: Profile, what: str, programs: Sequence[ObservedProgram]) -> ProfileError:
    names = list(dict.fromkeys(map(_strip_number, programs)))
    shown = ", ".join(names[:_MOST_PROGRAMS]) + (f" and {len(names) - _MOST_PROGRAMS} more" * (len(names) > 8))
    return ProfileError(
        f"{profile.name} contains no run of {what}",
        why=f"it has runs of {shown}",
        fix="pass the profile of this program, or leave the target out to compare the profile's own programs",
    )


def _strip_number(observed: ObservedProgram) -> str:
    """The name of a program without its number."""
    return observed.program.partition("(")[0]


def _make_uncompared(found: ObservedProgram, why: str) -> UncomparedProgram:
    return UncomparedProgram(program=found.program, runs=len(found.runs), measured_us=found.total_us, why=why)


def _capture_proto(
    found: ObservedProgram, proto: bytes, facts: TargetFacts, chosen: Slice, chosen_by: str
) -> tuple[Capture, HloModule]:
    """A program and its module, from the serialized module in the profile."""
    name = found.program
    text = decode_hlo(proto, name=f"{name}.hlo.pb")
    module, devices = parse_module(text, name=name), read_device_ids(extract_module(proto))
    program = make_capture(text, module, facts, chosen, name=name)
    if len(devices) == module.device_count and sorted(devices) == list(range(chosen.device_count)):
        program = replace(program, compiled=replace(program.compiled, device_ids=devices))
    return replace(program, slice_chosen_by=chosen_by), module


def _join_program(found: ObservedProgram, program: Capture, module: HloModule, name: str) -> JoinedProgram:
    analysis = price_capture(program, module, target=name)
    analysis = replace(analysis, slice=make_slice_fact(program))
    return JoinedProgram(
        observed=found, module=module, analysis=analysis, prediction=predict_step(program, module, analysis)
    )


def _compare_capture(
    profile: Profile, chip: Chip, program: Capture, module: HloModule, name: str, only: str | None
) -> CompareDocument:
    """Compares a profile with one compiled program.

    Raises:
        ProfileError: The profile is of another program, or of another generation.
    """
    if program.slice is None or program.slice.chip is None or program.slice.chip.name != chip.name:
        slice_name = "no slice" if program.slice is None else program.slice.name
        raise ProfileError(f"{profile.name} was taken on {chip.name}, but {name} is compiled for {slice_name}")
    programs = _choose_programs(profile, only)
    alike = [found for found in programs if only is not None or _strip_number(found) == module.name]
    if not alike:
        raise _make_no_run_error(profile, module.name, programs)
    tried = [_join_program(found, program, module, name) for found in alike]
    best = max(tried, key=lambda joined: joined.matched_share or 0.0)
    if (best.matched_share or 0.0) < _LEAST_MATCHED:
        raise ProfileError(
            f"{profile.name} is of a different program than {name}",
            why=f"of the {len(best.observed.operations)} operations of {best.observed.program} {len(best.matched)} "
            "are in the compiled module with the same name, opcode and shape",
            fix="pass the arguments and options that the profiled program was compiled with, or leave the target out "
            "to price the profile's own program",
        )
    rest = [_make_uncompared(found, "it is not the target") for found in programs if found is not best.observed]
    return _make_comparison(profile, chip, [best], rest, target=name)


def _make_comparison(
    profile: Profile,
    chip: Chip,
    joined: Sequence[JoinedProgram],
    uncompared: Sequence[UncomparedProgram],
    *,
    target: str | None,
) -> CompareDocument:
    return CompareDocument(
        target=target,
        profile=profile.name,
        chip=chip.name,
        device_kind=profile.devices[0].kind,
        devices=len(profile.devices),
        is_prediction=bool(profile.prediction),
        programs=tuple(map(compare_program, joined)),
        uncompared=tuple(uncompared),
        calibration=() if profile.prediction else fit_figures(joined),
        notes=profile.notes,
    )


# ---- runs made here


_LIMIT_S = 600.0
_PLATFORMS = ("tpu", "cpu")


@front_door
@accept_options(TargetOptions)
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
    target = check_target(target)
    if not isinstance(on, str) or on not in _PLATFORMS:
        raise NotationError(
            f"{calls.format_value(on)} is not a platform to measure on", fix=f"use one of {', '.join(_PLATFORMS)}"
        )
    times = calls.whole("runs", runs, least=1, example="runs=10")
    named = name_if_importable(target)
    if not isinstance(named, str):
        raise TargetError(
            f"{find_target_name(target)} cannot be imported in the process that runs it", fix="put it in a module"
        )
    folder = calls.path("save", save, example='save="profile"')
    request = Request(target=named, said={"args": args, **options})
    return find_measurement(request, on=on, runs=times, folder=folder)


def find_measurement(request: Request, *, on: str, runs: int, folder: Path | None) -> CompareDocument:
    """Runs a request's function, and compares its profile with the prediction; arguments as for `measure`.

    Raises:
        HloscopeError: The input is invalid, no TPU is attached, or JAX rejects the program.
    """
    if request.is_text:
        raise TargetError(f"{request.target} cannot be run", why="it is HLO text", fix="name the function: module:fn")

    def measured(function: Function, _: object) -> CompareDocument:
        return _measure_function(function, on=on, runs=runs, folder=folder)

    return follow(request, of_function=measured, compiles=False)


def _measure_function(function: Function, *, on: str, runs: int, folder: Path | None) -> CompareDocument:
    if on == "tpu" and find_attached_platform() != "tpu":
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
        facts, target = function.facts, function.name
        function.stage(f"running {target} {runs} times")
        devices = prod(facts.mesh.values()) if isinstance(facts.mesh, dict) else DEFAULT_DEVICES
        run = ProfiledRun(
            target=target, facts=replace(facts, slice=None), platform=on, devices=devices, folder=str(where), runs=runs
        )
        text, mesh = profile_in_child(run, timeout_s=_LIMIT_S if facts.timeout_s is None else facts.timeout_s)
        if on == "tpu":
            return compare_function(function, where)
        return _make_cpu_comparison(target, text, mesh, where, facts)


def _make_cpu_comparison(
    target: str, text: str, mesh: Mesh | None, folder: Path, facts: TargetFacts
) -> CompareDocument:
    """The measured times of simulated devices, without a prediction."""
    files, notes = find_profile_files(folder)
    profile = read_profile(str(folder), ((str(file), read_unpacked(file)) for file in files), of_cpu=True)
    module = parse_module(text, name=f"{target} (compiled for CPU)")
    named = [
        found for found in find_observed_programs(profile.devices) if found.program.partition("(")[0] == module.name
    ]
    if not named:
        raise ProfileError(f"the profile of {target} contains no run of it", why=f"it is compiled as {module.name}")
    known = replace(facts, mesh=None, chip_overrides=None)
    program = make_capture(text, module, known, parse_slice(f"cpu:{max(module.device_count, 1)}"), name=target)
    program = add_guesses(replace(program, mesh=mesh), module, known, is_said=True)
    analysis = replace(price_capture(program, module, target=target), slice=make_slice_fact(program))
    joined = JoinedProgram(observed=named[0], module=module, analysis=analysis, prediction=None)
    return CompareDocument(
        target=target,
        profile="a run on CPU devices",
        chip=None,
        device_kind="CPU",
        devices=len(profile.devices),
        programs=(compare_program(joined),),
        notes=(*notes, "these are simulated devices of this machine: their times say nothing about a TPU"),
    )
