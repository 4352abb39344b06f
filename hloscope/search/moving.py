"""The one-time cost of a change to the caller: resharding arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hloscope.errors import HloscopeError
from hloscope.program.change import LeafChange
from hloscope.program.compiling import start_compile
from hloscope.program.lowering import lower_resharding
from hloscope.search.figures import price_figures
from hloscope.search.subject import SearchSubject


def price_resharding(subject: SearchSubject, moved: Sequence[LeafChange], seconds: float) -> float | None:
    """Prices the one-time resharding of arguments from their present shardings to those of a change.

    It is the step time of a program that does nothing else, compiled and priced as any other.

    Args:
        subject: The program.
        moved: The arguments, with their new shardings.
        seconds: Time limit of the compile.

    Returns:
        Microseconds; 0 if each device already has its part, None if unknown or out of time.
    """
    if not moved:
        return 0.0
    try:
        program = lower_resharding(subject.lowered, moved, store=subject.store)
        limited = replace(program, facts=replace(program.facts, timeout_s=seconds))
        found = start_compile(limited, store=subject.store).capture()
    except HloscopeError:
        return None
    figures = price_figures(found, program.name)
    return figures.step_us if figures.collectives else 0.0
