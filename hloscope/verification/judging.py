"""From what was found to findings: everything in which a program falls behind its reference, or was not compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hloscope.analysis.model import Analysis, ArrayFact
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
from hloscope.verification.model import (
    COPIES,
    UNTESTED,
    UNTESTED_WORDS,
    UNTRIED_WORDS,
    Bias,
    Numerics,
    NumericsStatus,
    OutputComparison,
    Roughness,
    Untested,
    Verification,
)

WRONG, BIASED, ROUNDS_MORE, COPIES_DIFFER, NOTHING, UNINFORMATIVE, NOT_COMPARED = (
    "wrong-result",
    "biased-result",
    "rounds-more",
    "copies-differ",
    "nothing-compared",
    "uninformative-output",
    "not-compared",
)
NOT_RUN = {status: f"numerics-{status.replace(' ', '-')}" for status in NumericsStatus if status != "ran"}
OTHER_STRUCTURE, OTHER_SHARDING = "other-structure", "other-sharding"
RULE_NAMES = (
    WRONG,
    BIASED,
    ROUNDS_MORE,
    COPIES_DIFFER,
    NOTHING,
    UNINFORMATIVE,
    NOT_COMPARED,
    UNTESTED,
    *NOT_RUN.values(),
    OTHER_STRUCTURE,
    OTHER_SHARDING,
    MORE,
    UNSURE,
)
"""Every name that a finding of a verification may have."""

_SHARDS_SHOWN, _RATIO_SHOWN = 4, 0.004

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
        yield _nothing_told(numerics.comparisons)
    for one in numerics.comparisons:
        if not one.agrees:
            yield _disagreement(one)
        elif not one.informative and any(other.informative for other in numerics.comparisons):
            yield _uninformative(one)
        elif one.informative and one.blind_shards:
            yield _blind(one)
    for part in numerics.untested:
        yield _untested(part)


def _uninformative(one: OutputComparison) -> Finding:
    empty = "empty" if not one.elements else "zero, not finite or within its tolerance of zero everywhere"
    if one.unstable:
        empty = f"not judged in {one.unstable:,} of {plural(one.elements, 'element')}, which rounding alone can change"
        empty += ", and zero or not finite in the others" if one.unstable < one.elements else ""
    return Finding(rule=UNINFORMATIVE, severity=Severity.WARNING, message=f"{one.name} is {empty}: it says nothing")


def _nothing_told(comparisons: Sequence[OutputComparison]) -> Finding:
    message = "no output tells anything: all that was expected is empty, not finite, or zero as far as can be told"
    fix = "give arguments that are indices their range (--range B=0:8), or return what the program computes"
    given = [one.tolerance for one in comparisons if one.tolerance.source == "user"]
    if any(one.relative >= 1 or one.absolute > 0 for one in given):
        message = "no output tells anything: with the tolerance that was given, zeros would pass everywhere"
        fix = "give a smaller --rtol or --atol, or neither to have them measured"
    elif any(one.tolerance.relative >= 1 or one.unstable for one in comparisons):
        message = "no output tells anything: rounding alone changes the expected values by as much as their own size"
        fix = "give smaller inputs, such as --range W=-0.1:0.1 for weights, or use wider types"
    return Finding(rule=NOTHING, severity=Severity.ERROR, message=message, fix=fix)


def _untested(part: Untested) -> Finding:
    if not part.tried:
        each = f"each of the {part.parts} parts of " if part.parts > 1 else ""
        return Finding(
            rule=UNTESTED,
            severity=Severity.WARNING,
            message=f"{UNTRIED_WORDS}{each}{part.argument}",
            why="a run with each of them changed takes as long as the run itself",
            fix="compare the numbers at smaller sizes, such as --scale B=64,F=256",
        )
    places = f" on {_devices(part.shards, max(part.parts, len(part.shards)))}" if part.shards else ""
    return Finding(
        rule=UNTESTED,
        severity=Severity.WARNING,
        message=f"{UNTESTED_WORDS}{part.argument}{places}",
        why="with the inputs that were tried the outputs are the same whatever it holds, so nothing is known of it",
        fix="give arguments that are indices or masks a range that reaches all of it (--range B=0:8), or other sizes",
    )


def _blind(one: OutputComparison) -> Finding:
    places = _devices(one.blind_shards, one.shards)
    unjudged = "not judged, " if one.unstable else ""
    return Finding(
        rule=UNINFORMATIVE,
        severity=Severity.WARNING,
        message=f"most of {one.name} is not finite, {unjudged}or so small that zeros would pass, on {places}",
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


def _disagreement(one: OutputComparison) -> Finding:
    """What is wrong with an output, by what makes it so: rounding of the program's own, a wrong value, or a bias."""
    if one.roughness is not None and (one.roughness.own or not (one.wrong or one.bias)):
        return _rough(one, one.roughness)
    if one.wrong or one.bias is None:
        return _wrong(one)
    return _biased(one, one.bias)


def _wrong(one: OutputComparison) -> Finding:
    places = _devices(one.wrong_shards, one.shards)
    elements = f"{one.wrong:,} of {plural(one.elements, 'element')}"
    message = f"{_subject(one)}{one.name} differs from {_against(one)} in {elements}, on {places}"
    if one.against == COPIES:
        message = f"the copies of {_subject(one)}{one.name} differ in {elements}: those of {places} from the first"
    why = [f"every element is {_ratio_words(one, one.bias)}"] if one.bias is not None else []
    why += one.exchanged[:_SHARDS_SHOWN]
    why += [] if one.worst is None else [_worst_words(one)]
    return Finding(
        rule=COPIES_DIFFER if one.against == COPIES else WRONG,
        severity=Severity.ERROR,
        message=message,
        why="; ".join(why) or None,
    )


def _biased(one: OutputComparison, bias: Bias) -> Finding:
    places = f" on {_devices(bias.shards, one.shards)}" if bias.shards else ""
    of = f"{_subject(one)}{one.name}"
    if bias.constant:
        message = f"every element of {of}{places} is {_ratio_words(one, bias)}"
    else:
        message = f"the errors of {of}{places} point one way: {100 * bias.one_way:.0f}% of them have the same sign"
    why = (
        f"no element is off by more than is allowed, and rounding explains a ratio of up to {1 + bias.explained:.4f}"
        if bias.constant
        else "rounding makes as many elements larger as smaller"
    )
    rule = COPIES_DIFFER if one.against == COPIES else BIASED
    return Finding(rule=rule, severity=Severity.ERROR, message=message, why=why)


def _rough(one: OutputComparison, rough: Roughness) -> Finding:
    of = f"{_subject(one)}{one.name}"
    times = f"{rough.times:,.3g} times as large as rounding in the reference makes them"
    if not rough.own:
        message = f"the errors of {of} beside {_against(one)} are {times}, although none alone is too large"
        return Finding(rule=WRONG, severity=Severity.ERROR, message=message, why=_worst_words(one) or None)
    return Finding(
        rule=ROUNDS_MORE,
        severity=Severity.ERROR,
        message=f"{of} rounds more than {_against(one)}: its errors are {times}",
        why="; ".join(words for words in (rough.words, _worst_words(one)) if words) or None,
        fix="accumulate in the type that the reference does, such as with preferred_element_type; or say with --rtol "
        "how much is allowed",
    )


def _ratio_words(one: OutputComparison, bias: Bias) -> str:
    """`8.000 times the reference's (the size of X)`, with the digits that tell the ratio from 1."""
    shown = f"{bias.ratio:.3f}" if abs(bias.ratio - 1) > _RATIO_SHOWN else f"{bias.ratio:.6f}"
    of = "that of the first copy" if one.against == COPIES else f"{_against(one)}'s"
    return f"{shown} times {of}{f' ({bias.meaning})' if bias.meaning else ''}"


def _subject(one: OutputComparison) -> str:
    return "" if one.subject == "target" else "the reference's "


def _against(one: OutputComparison) -> str:
    return {"reference": "the reference", COPIES: "its other copies"}.get(one.against, one.against)


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


_NAMES_SHOWN = 3


def compare_structure(target: Analysis, reference: Analysis) -> Iterator[Finding]:
    """Yields a finding for each output that is another array than the reference's, or lies otherwise on the devices."""
    counts = len(target.outputs), len(reference.outputs)
    if counts[0] != counts[1]:
        message = f"the program returns {plural(counts[0], 'array')}, and its reference {counts[1]:,}"
        yield Finding(rule=OTHER_STRUCTURE, severity=Severity.ERROR, message=message)
        return
    pairs = list(zip(target.outputs, reference.outputs, strict=True))
    unlike = [f"{found.name} with {expected.name}" for found, expected in pairs if found.name != expected.name]
    if unlike and len(pairs) > 1:
        more = f" and {len(unlike) - _NAMES_SHOWN:,} more" if len(unlike) > _NAMES_SHOWN else ""
        shown = ", ".join(unlike[:_NAMES_SHOWN])
        message = f"outputs have other names in the reference, and are compared by position: {shown}{more}"
        yield Finding(rule=OTHER_STRUCTURE, severity=Severity.WARNING, message=message)
    for found, expected in pairs:
        if _type(found) != _type(expected):
            message = f"{found.name} is {_type(found)}, and {_type(expected)} in the reference"
            yield Finding(rule=OTHER_STRUCTURE, severity=Severity.ERROR, message=message)
        elif found.sharding != expected.sharding or found.local_shape != expected.local_shape:
            message = f"{found.name} is sharded {_sharding(found)}, and {_sharding(expected)} in the reference"
            yield Finding(
                rule=OTHER_SHARDING,
                severity=Severity.WARNING,
                message=message,
                fix="give both the same output sharding: what comes after one of them may have to move the data",
            )


def _type(array: ArrayFact) -> str:
    shape = array.local_shape if array.global_shape is None else array.global_shape
    return f"{array.dtype}[{','.join(map(str, shape))}]"


def _sharding(array: ArrayFact) -> str:
    local = f"{array.dtype}[{','.join(map(str, array.local_shape))}] on a device"
    return f"{array.sharding} ({local})" if array.sharding else f"in a way that no axes name ({local})"
