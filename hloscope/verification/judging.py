"""From what was found to findings: everything in which a program falls behind its reference, or was not compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hloscope.analysis.model import Analysis
from hloscope.compare import Comparison
from hloscope.findings import Finding, Severity
from hloscope.units import format_bytes, plural
from hloscope.verification.communication import (
    MORE,
    UNSURE,
    compare_communication,
    judge_communication,
    judge_not_understood,
)
from hloscope.verification.model import Numerics, NumericsStatus, OutputComparison, Verification
from hloscope.verification.structure import OTHER_SHARDING, OTHER_STRUCTURE, compare_structure

WRONG, NOTHING, UNINFORMATIVE, NOT_COMPARED = (
    "wrong-result",
    "nothing-compared",
    "uninformative-output",
    "not-compared",
)
NOT_RUN = {status: f"numerics-{status.replace(' ', '-')}" for status in NumericsStatus if status != "ran"}
RULE_NAMES = (
    WRONG,
    NOTHING,
    UNINFORMATIVE,
    NOT_COMPARED,
    *NOT_RUN.values(),
    OTHER_STRUCTURE,
    OTHER_SHARDING,
    MORE,
    UNSURE,
)
"""Every name that a finding of a verification may have."""

_SHARDS_SHOWN = 4

_FIXES = {
    NumericsStatus.HUNG: "look for a collective that not all devices reach: under a branch or a loop that each device "
    "decides by itself; or give more time with --timeout",
    NumericsStatus.ABORTED: "look for a collective that not all devices reach: under a branch or a loop that each "
    "device decides by itself",
    NumericsStatus.NOT_IMPLEMENTED: "say the same through operations that the backend has, such as all_to_all for "
    "ragged_all_to_all, or run on an attached TPU",
    NumericsStatus.TOO_LARGE: "compare the numbers at smaller sizes, such as --scale B=64,F=256",
    NumericsStatus.REFUSED: "give the reference arguments of the same shapes and types, in the same order",
}


def judged(target: Analysis, reference: Analysis, numerics: Numerics, ignore: Collection[str] = ()) -> Verification:
    """Puts a verification together.

    Args:
        target: The program.
        reference: Its reference.
        numerics: What came of running both.
        ignore: Names of findings that are not wanted.
    """
    communication = compare_communication(target, reference)
    found = [one for one in _findings(target, reference, numerics, communication) if one.rule not in ignore]
    return Verification(
        target=target,
        reference=reference,
        numerics=numerics,
        communication=communication,
        findings=tuple(sorted(found, key=lambda one: -one.severity.rank)),
    )


def _findings(
    target: Analysis, reference: Analysis, numerics: Numerics, communication: Comparison
) -> Iterator[Finding]:
    yield from judge_numerics(numerics)
    yield from compare_structure(target, reference)
    yield from judge_communication(communication)
    yield from judge_not_understood(target, reference, communication)


def judge_numerics(numerics: Numerics) -> Iterator[Finding]:
    """Yields a finding for each output that differs, each that says nothing, and a run that did not end well."""
    if numerics.status is not NumericsStatus.RAN:
        yield _not_run(numerics)
        return
    for what, why in numerics.not_compared.items():
        message = f"the {what} could not be compared"
        yield Finding(rule=NOT_COMPARED, severity=Severity.ERROR, message=message, why=why)
    if not numerics.comparisons:
        message = "no output of the program has the shape of one of the reference's, so none could be compared"
        yield Finding(rule=NOTHING, severity=Severity.ERROR, message=message)
    elif not any(one.informative for one in numerics.comparisons):
        message = "no output tells anything: all that was expected is empty, not finite, or zero as far as can be told"
        fix = "give arguments that are indices their range (--range B=0:8), or return what the program computes"
        yield Finding(rule=NOTHING, severity=Severity.ERROR, message=message, fix=fix)
    for one in numerics.comparisons:
        if one.wrong:
            yield _wrong(one)
        elif not one.informative and any(other.informative for other in numerics.comparisons):
            empty = "empty" if not one.elements else "zero, not finite or within its tolerance of zero everywhere"
            message = f"{one.name} is {empty}: it says nothing"
            yield Finding(rule=UNINFORMATIVE, severity=Severity.WARNING, message=message)
        elif one.informative and one.blind_shards:
            yield _blind(one)


def _blind(one: OutputComparison) -> Finding:
    places = _devices(one.blind_shards, one.shards)
    return Finding(
        rule=UNINFORMATIVE,
        severity=Severity.WARNING,
        message=f"most of {one.name} is not finite, or so small that zeros would pass, on {places}",
        fix="scale the inputs (--range x=-1:1) so that every device holds numbers of one size, or a smaller --atol",
    )


def _not_run(numerics: Numerics) -> Finding:
    status = numerics.status
    message = f"the numbers were not compared: {status}"
    why = numerics.message
    if status is NumericsStatus.TOO_LARGE:
        needed, free = format_bytes(numerics.estimated_bytes), format_bytes(numerics.available_bytes)
        why = f"both programs need about {needed} on {numerics.ran_on}, and {free} are free"
    return Finding(
        rule=NOT_RUN[status], severity=Severity.ERROR, message=message, why=why or None, fix=_FIXES.get(status)
    )


def _wrong(one: OutputComparison) -> Finding:
    subject = "" if one.subject == "target" else "the reference's "
    against = "the reference" if one.against == "reference" else one.against
    places = _devices(one.wrong_shards, one.shards)
    elements = f"{one.wrong:,} of {plural(one.elements, 'element')}"
    return Finding(
        rule=WRONG,
        severity=Severity.ERROR,
        message=f"{subject}{one.name} differs from {against} in {elements}, on {places}",
        why=None if one.worst is None else _worst_words(one),
    )


def _devices(places: Sequence[str], shards: int) -> str:
    if len(places) == shards:
        return "every device" if shards > 1 else "its only device"
    shown = "; ".join(places[:_SHARDS_SHOWN])
    more = f"; and {len(places) - _SHARDS_SHOWN:,} more" if len(places) > _SHARDS_SHOWN else ""
    return f"{len(places):,} of {plural(shards, 'device')} ({shown}{more})"


def _worst_words(one: OutputComparison) -> str:
    worst = one.worst
    if worst is None:
        return ""
    allowed = f"{worst.allowed:.2g} is allowed" if worst.allowed else "they must be equal"
    return (
        f"worst at {list(worst.index)}, which is {list(worst.local_index)} of the shard at {worst.shard}: "
        f"{worst.found}, and {worst.expected} in {'the reference' if one.against == 'reference' else one.against}; "
        f"{allowed}"
    )
