"""`price`: the predicted step time of one program on several slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hloscope.app.analyzing import Stage, analyze_capture
from hloscope.app.requests import Request, Text, follow, make_capture, parse_stage
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.errors import CompileError, HloscopeError, MeshError, SliceError, TimeLimitError
from hloscope.base.units import pluralize
from hloscope.compile.environment import check_device_count
from hloscope.compile.executors import compile_on
from hloscope.compile.functions import Function, begin_compile, with_function
from hloscope.compile.target import ProgramOptions, TargetFacts, accept_options
from hloscope.model import Analysis
from hloscope.model.vocabulary import CompileStage
from hloscope.report.price import Prices, Unpriced
from hloscope.tpu.slices import override_chip, parse_slice

if TYPE_CHECKING:
    from hloscope.compile.compiling import PendingCompile


@front_door
@accept_options(ProgramOptions)
def price(
    target: Callable[..., Any] | str | Path,
    slices: str | Sequence[str],
    args: Any = None,
    *,
    executor: Any = None,
    timeout_s: float | None = None,
    stage: str = CompileStage.COMPILED,
    **options: Unpack[ProgramOptions],
) -> Prices:
    """Predicts how long one step takes on each of several slices.

    Example:
        >>> small, large = price(step, ("v5e:2x4", "v6e:2x4"), ("bf16[8@X,2048]", "bf16[2048,8192@X]"), mesh={"X": 8})
        >>> small.time.step_us, large.time.exposed_us

    Args:
        target: As for `analyze`.
        slices: Names of slices, each with as many devices as the mesh.
        args: One entry per positional argument, as for `analyze`.
        executor: Where compiles run, as for `suggest`; by default in processes on this machine.
        timeout_s: Time limit for each compile, in seconds.
        stage: As for `analyze`.
        {options}

    Returns:
        An analysis with `time` for each slice, or the error if the compiler rejects the program for it or crashes.

    Raises:
        HloscopeError: The input is invalid, or JAX rejects the program.
    """
    slices = calls.texts("slices", slices, example='slices=("v5e:2x4", "v6e:2x4")')
    said = {"args": args, "timeout_s": timeout_s, **options}
    request = Request(target=target, said=said, wanted=parse_stage(stage))
    return find_prices(request, slices, executor)


def find_prices(request: Request, slices: Sequence[str], executor: Any = None) -> Prices:
    """Prices the target of a request on each slice.

    Args:
        request: The request; its slice is not used.
        slices: Names of slices, each with as many devices as the mesh.
        executor: Where compiles run, as for `suggest`.

    Raises:
        HloscopeError: The input is invalid, or JAX rejects the program.
    """
    is_asked = bool(request.said.get("dcn"))  # otherwise the axes over DCN are those of the targets file

    def of_function(function: Function, _: Stage) -> tuple[Analysis | Unpriced, ...]:
        with compile_on(executor):
            return price_function(function, slices, dcn_is_asked=is_asked)

    request = replace(request, said={**request.said, "slice": find_largest_slice(slices)})
    return Prices(follow(request, of_function=of_function, of_text=lambda text: price_text(text, slices)))


def price_function(
    function: Function, slices: Sequence[str], *, dcn_is_asked: bool = True
) -> tuple[Analysis | Unpriced, ...]:
    """Compiles a function for each slice, several at once, and prices it there.

    Args:
        function: The function; the slice in its facts is not used.
        slices: Names of slices, each with as many devices as the mesh.
        dcn_is_asked: Whether the axes over DCN in its facts are the user's for this call, not those of a targets file.

    Returns:
        An analysis with `time` for each slice, or the error if the compiler rejects the program for it or crashes.

    Raises:
        HloscopeError: The input is invalid, or JAX rejects the program.
    """
    facts = function.facts
    _check_sizes(slices, facts.mesh)
    has_dcn = any(parse_slice(name).slice_count > 1 for name in slices)
    asked_dcn = facts.dcn if dcn_is_asked and not has_dcn else None

    def priced(itself: Callable[..., Any], known: TargetFacts) -> tuple[Analysis | Unpriced, ...]:
        _check_sizes(slices, known.mesh)
        with ExitStack() as stack:
            begun: list[tuple[str, PendingCompile | HloscopeError]] = []
            for name in slices:
                try:
                    _, pending = begin_compile(function, itself, _set_slice(name, known, asked_dcn))
                except (MeshError, SliceError) as error:
                    begun.append((name, error))
                    continue
                begun.append((name, pending))
                stack.callback(pending.drop)
            if all(isinstance(one, HloscopeError) for _, one in begun):
                raise next(one for _, one in begun if isinstance(one, HloscopeError))
            return tuple(_finish_pricing(one, function.name, name, function.stage) for name, one in begun)

    return with_function(replace(function, facts=replace(facts, slice=find_largest_slice(slices))), priced)


def _check_sizes(slices: Sequence[str], mesh: Any) -> None:
    """Checks that every slice has as many devices as the mesh.

    Raises:
        MeshError: A slice has another number of devices.
    """
    if not isinstance(mesh, Mapping):
        return
    for name in slices:
        try:
            check_device_count(parse_slice(name), mesh)
        except MeshError as error:
            devices = pluralize(prod(mesh.values()), "device")
            error.fix = f"name slices of {devices}; price other slices with their own mesh, in another call"
            raise


def _set_slice(slice_name: str, known: TargetFacts, asked_dcn: Mapping[str, int] | None) -> TargetFacts:
    """The facts about a target, for one of the slices that it is priced on.

    Args:
        slice_name: The slice.
        known: The facts about the target, whose own axes over DCN do not apply to a single slice.
        asked_dcn: The user's axes over DCN, if none of the slices has DCN, which is refused later.
    """
    crosses = parse_slice(slice_name).slice_count > 1
    return replace(known, slice=slice_name, dcn=known.dcn if crosses else asked_dcn)


def _finish_pricing(
    begun: PendingCompile | HloscopeError, target: str, slice_name: str, stage: Stage
) -> Analysis | Unpriced:
    if isinstance(begun, HloscopeError):
        return Unpriced(target=target, slice_name=slice_name, error=begun)
    stage(f"compiling for {slice_name}")
    try:
        return analyze_capture(begun.capture(stage), target)
    except (CompileError, TimeLimitError) as error:
        return Unpriced(target=target, slice_name=slice_name, error=error)


def price_text(text: Text, slices: Sequence[str]) -> tuple[Analysis, ...]:
    """Prices compiled HLO text on each slice; does not need JAX.

    Raises:
        HloscopeError: The text is not HLO, or a slice has fewer devices than the program.
    """
    from hloscope.hlo import parse_module

    facts, module = text.facts, parse_module(text.text, name=text.name)
    chosen = (override_chip(parse_slice(slice_name), facts.chip_overrides or ()) for slice_name in slices)
    programs = [make_capture(text.text, module, facts, slice_, name=text.name) for slice_ in chosen]
    found = tuple(analyze_capture(program, text.name, module=module) for program in programs)
    chips = list(dict.fromkeys(analysis.slice.chip for analysis in found if analysis.slice is not None))
    if len(chips) < 2 or not any(analysis.time is not None and analysis.time.basis == "cycles" for analysis in found):
        return found
    note = (
        f"the text was compiled for one generation, and its cycles are used for {' and '.join(chips)} alike: price the "
        "function itself to have it compiled for each"
    )
    return tuple(replace(analysis, notes=(*analysis.notes, note)) for analysis in found)


def find_largest_slice(slices: Sequence[str]) -> str:
    """The slice with the most devices, for which JAX must be started.

    Raises:
        HloscopeError: No slice is named, a name is not a slice, or it is `attached`, which has no price.
    """
    known = {name: parse_slice(name) for name in slices}
    if not known:
        raise SliceError("no slice is named", fix="name one or several, such as v5e:2x4")
    unpriced = next((name for name in slices if known[name].chip is None), None)
    if unpriced is not None:
        raise HloscopeError(
            f"{unpriced} has no price", why="only TPU slices are priced", fix="name a slice such as v5e:2x4"
        )
    return max(slices, key=lambda name: known[name].device_count)
