"""What a baseline leaves open: figures that it does not have, or that cannot be compared, and what it lets grow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hloscope.contracts.array_rows import is_whole
from hloscope.contracts.baselines import MEMORY_PARTS, Baseline, reduction_is_known
from hloscope.contracts.judged import REDUCTION, Tolerance
from hloscope.units import format_share

_LARGE = 0.25
"""A share by which a figure may grow that every reader of a check should know."""

_FIRST_RELEASE = (0, 1)
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def is_first_version(baseline: Baseline) -> bool:
    """Whether it is from a file of the first version, which holds fewer figures."""
    return baseline.matmuls is None


def left_open(then: Baseline, now: Baseline, *, called: str) -> Iterator[tuple[str, str]]:
    """The figures that a baseline should have, and has not, or not so that they could be compared: key and sentence.

    Whoever edits a baseline to be judged by less leaves such a gap. What an older release did not know is none.

    Args:
        then: The baseline.
        now: The same of the program as it is.
        called: What the baseline is called in the sentence.
    """
    if is_first_version(then):
        return
    if not all(map(reduction_is_known, then.rows)):
        yield REDUCTION, f"{called} does not say by which operation sums are reduced"
    if not then.arrays and now.arrays:
        yield "arguments", f"{called} does not say what the arguments and outputs are"
    if then.step is not None and now.step is not None and not _is_earlier_model(then, now):
        yield from ((("step", words),) if (words := _other_model(then, now)) else ())
    if is_older(then, now):
        return
    if then.step is None and now.step is not None:
        yield "step", f"{called} does not say how long a step takes"
    if then.arrays and not all(map(is_whole, then.arrays)) and all(map(is_whole, now.arrays or ())):
        yield "arguments", f"{called} does not say how arguments and outputs are sharded"
    known = [name for name, part in MEMORY_PARTS.items() if getattr(now.memory, part) is not None]
    if unsaid := [name for name in known if getattr(then.memory, MEMORY_PARTS[name]) is None]:
        yield "memory", f"{called} does not say how much memory is taken: {', '.join(unsaid)}"


def caveats(then: Baseline, now: Baseline, tolerance: Tolerance) -> Iterator[str]:
    """What everybody should know who reads that a program is as its baseline has it."""
    if is_first_version(then):
        yield (
            "the baseline is of format 1: types, operations, matmuls, arguments, outputs, the step and the peak memory "
            "are not judged"
        )
    elif then.step is None and now.step is not None:
        yield "the step is not judged: the baseline does not have it"
    elif then.step is not None and now.step is None:
        yield "the step is not judged: it is not predicted now"
    elif (words := _other_model(then, now)) is not None:
        yield words
    for name in tolerance.memory:
        was, is_now = (getattr(side.memory, MEMORY_PARTS[name]) for side in (then, now))
        if was is None and is_now is not None:
            yield f"{memory_words(name)} is not judged: the baseline does not have it"
    for name, share in {"step": tolerance.step, **tolerance.memory}.items():
        if share > _LARGE:
            yield f"{'the step' if name == 'step' else memory_words(name)} may grow by {format_share(share)}"


def memory_words(part: str) -> str:
    """`the peak memory`: a part of the memory, by its name in a baseline."""
    return "the peak memory" if part == "peak" else f"the memory for {part}"


def _other_model(then: Baseline, now: Baseline) -> str | None:
    if then.step is None or now.step is None or then.step.model == now.step.model:
        return None
    return f"the step is not judged: the baseline's cost model is {then.step.model}, this is {now.step.model}"


def _is_earlier_model(then: Baseline, now: Baseline) -> bool:
    """Whether an older release may have predicted the step: one that never existed was written in by hand."""
    if then.step is None or now.step is None:
        return False
    return 0 < then.step.model < now.step.model and is_older(then, now)


def is_older(then: Baseline, now: Baseline) -> bool:
    """Whether an older release of hloscope wrote a baseline, as it says: one that there was."""
    before, here = (_release(side.versions.get("hloscope", "")) for side in (then, now))
    return before is not None and here is not None and _FIRST_RELEASE <= before < here


def _release(version: str) -> tuple[int, ...] | None:
    found = _RELEASE.match(version)
    return None if found is None else tuple(map(int, found[0].split(".")))
