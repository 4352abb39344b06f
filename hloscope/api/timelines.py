"""`timeline`: the predicted timeline of one step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.timeline import Timeline
from hloscope.api.analyzing import Stage, captured_function, captured_text, with_reasons
from hloscope.api.requests import Function, Request, Result, follow
from hloscope.api.texts import Text
from hloscope.cost.captures import timeline_of_capture
from hloscope.errors import SliceError
from hloscope.hlo import HloModule, parse_module
from hloscope.program.capture import Capture
from hloscope.program.target import TargetOptions, with_options
from hloscope.python_words import front_door


@front_door
@with_options(TargetOptions)
def timeline(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    **options: Unpack[TargetOptions],
) -> Timeline:
    """Predicts the timeline of one step: what runs when, on which unit of the device, and what is exposed.

    Example:
        >>> found = hloscope.timeline(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
        >>> found.step_us, found.computing_us, found.waits.collective_us

    Args:
        target: As for `analyze`, except dump folders.
        args: One entry per positional argument, as for `analyze`.
        {options}

    Returns:
        The timeline, whose intervals add up to the times in `analyze`; `to_dict()` returns it as plain data.

    Raises:
        HloscopeError: The input is invalid, JAX or the compiler rejects the program, or it cannot be priced.
    """
    return find_timeline(Request(target=target, said={"args": args, **options})).found


def find_timeline(request: Request) -> Result[Timeline]:
    """Predicts the timeline of a request's target.

    Raises:
        HloscopeError: The input is invalid, JAX or the compiler rejects the program, or it cannot be priced.
    """
    found = follow(request, of_function=_of_function, of_text=timeline_of_text)
    return Result(found=found, subject="timeline")


def _of_function(function: Function, stage: Stage) -> Timeline:
    program, _ = captured_function(function)
    stage("reading the compiled program")
    module = parse_module(program.compiled.text, name=f"{function.name} (compiled)")
    return _of_capture(program, module, function.name)


def timeline_of_text(text: Text) -> Timeline:
    """Predicts the timeline of a target that is already compiled.

    Raises:
        HloscopeError: The text is not HLO, or it cannot be priced.
    """
    program, module = captured_text(text)
    return _of_capture(program, module, text.name)


def timeline_of_analysis(found: Analysis) -> Timeline:
    """Predicts the timeline of a program that was analyzed in this process.

    Raises:
        HloscopeError: The program was not analyzed in this process, or it cannot be priced.
    """
    return _of_capture(found.evidence.program, found.evidence.module(), found.target)


def _of_capture(program: Capture, module: HloModule, name: str) -> Timeline:
    reasons = partial(with_reasons, module=module, program=program)
    found = timeline_of_capture(program, module, target=name, explained=reasons)
    if found is not None:
        return found
    if program.slice is None or program.slice.chip is None:
        raise SliceError(
            f"{name} has no timeline: without a TPU slice there are no times", fix="name one: --slice v5e:2x4"
        )
    why = "the text is cut off" if module.truncated else "its trip counts are too large for its loops to end"
    raise SliceError(f"{name} has no timeline", why=why)
