"""`timeline`: the predicted timeline of one step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.timeline import Timeline
from hloscope.api.analyzing import Stage, captured_function, captured_text, with_reasons
from hloscope.api.texts import Text, meant, text_of
from hloscope.calls import front_door
from hloscope.cost.captures import timeline_of_capture
from hloscope.errors import SliceError
from hloscope.hlo import HloModule, parse_module
from hloscope.messages import Option, say
from hloscope.program.capture import Capture
from hloscope.program.loading import name_of
from hloscope.program.target import TargetFacts, TargetOptions, make_facts, with_options
from hloscope.progress import waiting
from hloscope.store import Store, default_store


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
    target = meant(target)
    described: dict[str, Any] = {"args": args, **options}
    text = text_of(target, described)
    if text is not None:
        return timeline_of_text(text)
    assert not isinstance(target, Path)  # which is text, or refused
    with waiting() as stage:
        return timeline_function(target, make_facts(**described), stage=stage, store=default_store())


def timeline_function(
    target: Callable[..., Any] | str,
    facts: TargetFacts,
    *,
    stage: Stage = lambda _: None,
    store: Store | None = None,
    when_compiled: Callable[[Capture], None] = lambda _: None,
) -> Timeline:
    """Predicts the timeline of a function.

    Args:
        target: The function or its name.
        facts: How to call and place it.
        stage: Called with what is happening.
        store: Where compiles are kept; None keeps none.
        when_compiled: Called with what the compiler made.

    Raises:
        HloscopeError: The input is invalid, JAX or the compiler rejects the program, or it cannot be priced.
    """
    program, _ = captured_function(target, facts, stage=stage, store=store)
    when_compiled(program)
    stage("reading the compiled program")
    name = name_of(target)
    return _of_capture(program, parse_module(program.compiled.text, name=f"{name} (compiled)"), name)


def timeline_of_text(text: Text) -> Timeline:
    """Predicts the timeline of a target that is already compiled.

    Raises:
        HloscopeError: The text is not HLO, or it cannot be priced.
    """
    facts = make_facts(**text.beside)
    program, module = captured_text(text.text, facts, name=text.name, guesses=text.is_foreign, beside=text.dumped)
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
            f"{name} has no timeline: without a TPU slice there are no times",
            fix=say("name one: ", Option("slice", "v5e:2x4")),
        )
    why = "the text is cut off" if module.truncated else "its trip counts are too large for its loops to end"
    raise SliceError(f"{name} has no timeline", why=why)
