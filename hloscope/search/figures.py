"""The cost of a step, and whether one program is certainly better than another."""

from __future__ import annotations

from hloscope.analysis.memory import summarize_memory
from hloscope.analysis.model import Analysis
from hloscope.analysis.model.step_time import is_tie
from hloscope.analysis.model.trial import Figures
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.captures import price_capture
from hloscope.hlo import parse_module
from hloscope.program.capture import Capture

LEAST_TIME_GAIN = 0.05
"""The least gain as a share of the step: the model cannot resolve less."""
LEAST_MEMORY_GAIN = 0.1
"""The least gain as a share of the memory: less is not a reason to change a program.

The live memory differs by a few percent with the compiler's schedule and fusions alone, so that a saving of that
size disappears with the next edit; and memory is useful only if a larger batch, or a layer's activations, then fit.
"""
DOES_NOT_FIT = "it does not fit in memory"
"""An unknown of a program: its step time if it does not run."""
_MOST_TIME_LOSS = 0.005
_UPPER_BOUNDS = (Bound.EXACT, Bound.AT_MOST)
"""Bounds of a figure that the true value does not exceed."""


def price_figures(program: Capture, name: str) -> Figures:
    """The costs of a compiled program, without its reasons and findings."""
    module = parse_module(program.compiled.text, name=f"{name} (compiled)")
    return read_figures(price_capture(program, module, target=name), program)


def read_figures(found: Analysis, program: Capture) -> Figures:
    """The costs of an analyzed program."""
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
        hbm_bytes=summarize_memory(program).peak_bytes,
        collectives=totals.collectives,
        unknown=tuple(sorted(unknown)),
        slight=tuple(sorted(slight)),
        rules=() if time is None else time.rules,
        compute_us=None if time is None else time.compute_us,
        exposed_us=None if time is None else time.exposed_us,
    )


def compute_gain(before: Figures, after: Figures) -> float | None:
    """Returns the saved fraction of the step time; negative if it gets slower, None if unknown."""
    if before.step_us is None or after.step_us is None or before.step_us <= 0:
        return None
    return 1 - after.step_us / before.step_us


def is_worthwhile(before: Figures, after: Figures) -> bool:
    """Returns whether a change is worthwhile: clearly faster, or not slower and with less memory.

    Unknowns never count in its favor: if the step after it is a lower bound, or the one before an upper bound, it is
    compared only with a step that has the same bound and the same unknowns.
    """
    gained = compute_gain(before, after)
    known = {*before.unknown, *before.slight}
    if gained is None or not known.issuperset(after.unknown) or not _is_comparable(before, after):
        return False
    if gained > LEAST_TIME_GAIN and not is_tie(after, before):
        return True
    if before.hbm_bytes is None or after.hbm_bytes is None:
        return False
    return after.hbm_bytes <= (1 - LEAST_MEMORY_GAIN) * before.hbm_bytes and gained >= -_MOST_TIME_LOSS


def _is_comparable(before: Figures, after: Figures) -> bool:
    """Returns whether the costs certainly differ as their figures do, or both are bounded alike.

    Two steps with upper bounds take the same branch in the worst case. An upper bound of the bytes before does
    not affect a step.
    """
    is_timed = after.ratio_bound(before) in _UPPER_BOUNDS
    is_counted = before.wire_bound is not Bound.UNKNOWN and after.wire_bound in _UPPER_BOUNDS
    if is_timed and is_counted:
        return True
    is_like_timed = is_timed or before.step_bound == after.step_bound
    is_like_counted = is_counted or before.wire_bound == after.wire_bound
    return is_like_timed and is_like_counted and before.unknown == after.unknown
