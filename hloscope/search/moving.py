"""The one-time cost of a change to the caller: resharding arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hloscope.errors import HloscopeError
from hloscope.program.change import LeafChange
from hloscope.program.compiling import start_compile
from hloscope.program.lowering import lower_moving
from hloscope.search.figures import figures_of_capture
from hloscope.search.subject import Subject


def moving_us(subject: Subject, moved: Sequence[LeafChange], seconds: float) -> float | None:
    """What it takes to bring arguments once from where they lie to where a change has them.

    It is the step of the program that does nothing else, compiled and priced as any other.

    Args:
        subject: The program.
        moved: The arguments, with their new shardings.
        seconds: What the compile may take.

    Returns:
        Microseconds; 0 where each device has its part already, None if unknown, or not in time.
    """
    if not moved:
        return 0.0
    try:
        program = lower_moving(subject.lowered, moved, store=subject.store)
        limited = replace(program, facts=replace(program.facts, timeout_s=seconds))
        found = start_compile(limited, store=subject.store).capture()
    except HloscopeError:
        return None
    figures = figures_of_capture(found, program.name)
    return figures.step_us if figures.collectives else 0.0
