"""The cost of a step, and whether one program is certainly better than another."""

from __future__ import annotations

from hloscope.analysis.memory import memory_of
from hloscope.analysis.model import Analysis
from hloscope.analysis.model.step_time import is_tie
from hloscope.analysis.model.trial import Figures
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.captures import price_capture
from hloscope.hlo import parse_module
from hloscope.program.capture import Capture

FASTER = 0.05
"""Of the step: what gains less is within what the model cannot tell apart."""
LESS_MEMORY = 0.1
"""Of the memory: what frees less is no reason to change a program.

What is live at once differs by a few percent with the compiler's schedule and fusions alone, so that a saving of that
size is gone with the next edit; and memory is of use where a larger batch, or a layer's activations, come to fit.
"""
DOES_NOT_FIT = "it does not fit in memory"
"""Among what is not known of a program: what it takes where it does not run."""
_NO_SLOWER = 0.005
_NO_LESS = (Bound.EXACT, Bound.AT_MOST)
"""Bounds of a figure that the truth does not exceed."""


def figures_of_capture(program: Capture, name: str) -> Figures:
    """What a compiled program costs; its reasons and findings are left out."""
    module = parse_module(program.compiled.text, name=f"{name} (compiled)")
    return figures_of(price_capture(program, module, target=name), program)


def figures_of(found: Analysis, program: Capture) -> Figures:
    """What an analyzed program costs."""
    time, totals = found.time, found.totals
    ranged = (time.least_us, time.most_us) if time is not None and time.has_range else None
    unknown = [item.what.partition("%")[0] for item in found.unmodelled]
    unknown += [f"bytes of a {move.kind}" for move in found.collectives if move.wire_bytes is None]
    slight: list[str] = []
    if time is not None:
        unknown += [f"kernel {name}" for name in time.unpriced_kernels]
        operations = [f"{item.count} {item.what}" for item in time.unknown_operations]
        (unknown if time.rests_on_unknown else slight).extend(operations)
    if program.compiled.too_large is not None:
        unknown.append(DOES_NOT_FIT)
    return Figures(
        step_us=None if time is None else time.step_us,
        step_us_range=ranged,
        step_bound=Bound.UNKNOWN if time is None else time.bound,
        wire_bytes=totals.wire_bytes,
        wire_bytes_by_axis={axes: total.wire_bytes for axes, total in totals.by_axis.items()},
        wire_bound=totals.bound,
        hbm_bytes=memory_of(program).peak_bytes,
        collectives=totals.collectives,
        unknown=tuple(sorted(unknown)),
        slight=tuple(sorted(slight)),
        rules=() if time is None else time.rules,
        compute_us=None if time is None else time.compute_us,
        exposed_us=None if time is None else time.exposed_us,
    )


def gain(before: Figures, after: Figures) -> float | None:
    """Returns the fraction of the step time that is saved; negative if it gets slower, None if unknown."""
    if before.step_us is None or after.step_us is None or before.step_us <= 0:
        return None
    return 1 - after.step_us / before.step_us


def helps(before: Figures, after: Figures) -> bool:
    """Whether a change is worth making: faster by more than `FASTER` and no tie, or not slower with less memory.

    What is not known never counts for it: where the step after is a lower bound, or that before an upper one, it is
    compared only with a step that has the same bound and the same unknowns.
    """
    gained = gain(before, after)
    known = {*before.unknown, *before.slight}
    if gained is None or not known.issuperset(after.unknown) or not _is_comparable(before, after):
        return False
    if gained > FASTER and not is_tie(after, before):
        return True
    if before.hbm_bytes is None or after.hbm_bytes is None:
        return False
    return after.hbm_bytes <= (1 - LESS_MEMORY) * before.hbm_bytes and gained >= -_NO_SLOWER


def _is_comparable(before: Figures, after: Figures) -> bool:
    """Whether it is certain that the costs differ as their figures do, or both are bounded alike.

    Of two steps that are at most so long, the same branch is taken at worst. Bytes before that are at most so many do
    not blur a step.
    """
    is_timed = after.ratio_bound(before) in _NO_LESS
    is_counted = before.wire_bound is not Bound.UNKNOWN and after.wire_bound in _NO_LESS
    if is_timed and is_counted:
        return True
    is_like_timed = is_timed or before.step_bound == after.step_bound
    is_like_counted = is_counted or before.wire_bound == after.wire_bound
    return is_like_timed and is_like_counted and before.unknown == after.unknown
