"""The findings of a verification: all ways in which a program is worse than its reference, or was not compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from hloscope.analysis.provenance import render_users_line
from hloscope.analysis.totals import axes_key
from hloscope.base.errors import Option, say
from hloscope.base.results import group_by
from hloscope.base.units import format_bytes, format_digits, pluralize, sum_known
from hloscope.judge.changes import Change, Comparison
from hloscope.judge.matching import match
from hloscope.model import Analysis, ArrayFact, Collective
from hloscope.model.finding import Finding, Severity, read_pages
from hloscope.verification.model import (
    ANOTHER_BRANCH,
    COPIES,
    HIDDEN_WORDS,
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

# ---- the findings of a verification: for each, its name, its severity and the page that `hloscope rules` prints

_NAMED_OPTIONS = (
    Option("range", {"B": (0, 8)}),
    Option("range", {"x": (-1, 1)}),
    Option("scale", {"B": 64, "F": 256}),
    Option("on", "tpu"),
    *map(Option, ("scale", "rtol", "atol", "strict", "timeout")),
)
"""The options that pages name, longer ones before those that they begin with."""
PAGES = read_pages(str(__package__), *_NAMED_OPTIONS)
RULE_NAMES = tuple(page.name for page in PAGES)
"""The names of all findings of a verification."""
_SEVERITIES = {page.name: page.severity for page in PAGES}


def make_finding(name: str, message: str, *, severity: Severity | None = None, **facts: Any) -> Finding:
    """A finding with the severity of its page, unless another one is given."""
    return Finding(rule=name, severity=severity or _SEVERITIES[name], message=message, **facts)


_SHARDS_SHOWN, _NAMES_SHOWN, _RATIO_SHOWN = 4, 3, 0.004

_UNREACHED = (
    "look for a collective that not all devices reach: under a branch or loop that each device decides on its own"
)
_EXAMPLE_RANGE = Option("range", {"B": (0, 8)})
_FIXES = {
    NumericsStatus.HUNG: say(f"{_UNREACHED}; or allow more time with ", Option("timeout")),
    NumericsStatus.ABORTED: _UNREACHED,
    NumericsStatus.NOT_IMPLEMENTED: "express it with operations that the backend has, such as all_to_all instead of "
    "ragged_all_to_all, or run on an attached TPU",
    NumericsStatus.TOO_LARGE: say(
        "compare the numbers at smaller sizes: with letters in the argument types ('bf16[B@X,F]'), ",
        Option("scale", {"B": 64, "F": 256}),
    ),
    NumericsStatus.REFUSED: "let the reference take arguments of the same shapes and types, in the same order",
}


def judge_verification(
    target: Analysis, reference: Analysis, numerics: Numerics, ignore: Collection[str] = ()
) -> Verification:
    """Puts a verification together.

    Args:
        target: The program.
        reference: Its reference.
        numerics: The outcome of running both.
        ignore: Names of unwanted findings.
    """
    if target.slice is not None and target.slice.chip == "cpu":  # it was compiled for devices as those that it ran on
        numerics = replace(numerics, other_branches=())
    # a program and its twin say the same in different functions, so it does not count where a collective is written
    communication = match(reference.collectives, target.collectives, equivalent=True, by_place=False)
    found = chain(
        judge_numerics(numerics),
        compare_structure(target, reference),
        judge_communication(communication),
        judge_not_understood(target, reference, communication),
    )
    wanted = [each for each in found if each.rule not in ignore]
    return Verification(
        target=target,
        reference=reference,
        numerics=numerics,
        communication=communication,
        findings=tuple(sorted(wanted, key=lambda each: -each.severity.rank)),
    )


def judge_numerics(numerics: Numerics) -> Iterator[Finding]:
    """Yields a finding for each output that differs, each that is uninformative, and a run that did not end well."""
    if numerics.status is not NumericsStatus.RAN:
        yield _report_not_run(numerics)
        return
    for what, why in numerics.not_compared.items():
        yield make_finding("not-compared", f"the {what} could not be compared", why=why)
    is_informative = any(output.informative for output in numerics.comparisons)
    if not numerics.comparisons:
        message = "no output of the program has the shape of a reference output, so none could be compared"
        yield make_finding("nothing-compared", message)
    elif not is_informative:
        yield _report_nothing_said(numerics.comparisons)
    for output in numerics.comparisons:
        if not output.agrees:
            yield _report_disagreement(output)
        elif not output.informative and is_informative:
            yield _report_uninformative(output)
        elif output.informative and output.blind_shards:
            yield _report_blind(output)
    yield from map(_report_untested, numerics.untested)
    for branch in numerics.other_branches:
        yield make_finding(
            ANOTHER_BRANCH,
            f"the numbers are not those of the program that was compiled: {branch}",
            fix=say(
                "run on an attached TPU (",
                Option("on", "tpu"),
                "), or name a function that takes the same branch everywhere",
            ),
        )


def _report_uninformative(output: OutputComparison) -> Finding:
    empty = "empty" if not output.elements else "zero, not finite or within its tolerance of zero everywhere"
    if output.unstable:
        elements = pluralize(output.elements, "element")
        empty = f"not judged in {output.unstable:,} of {elements}, because rounding alone can change them"
        empty += ", and zero or not finite in the others" if output.unstable < output.elements else ""
    return make_finding("uninformative-output", f"{output.name} is {empty}: it is not informative")


def _report_nothing_said(comparisons: Sequence[OutputComparison]) -> Finding:
    said = "all expected values are empty, not finite, or indistinguishable from zero"
    fix = say("set the range of arguments that are indices (", _EXAMPLE_RANGE, "), or return what the program computes")
    given = [output.tolerance for output in comparisons if output.tolerance.source == "user"]
    if any(tolerance.relative >= 1 or tolerance.absolute > 0 for tolerance in given):
        said = "with the requested tolerance, zeros would pass everywhere"
        fix = say("use a smaller ", Option("rtol"), " or ", Option("atol"), ", or leave both out to have them measured")
    elif any(output.tolerance.relative >= 1 or output.unstable for output in comparisons):
        said = "rounding alone changes the expected values by as much as their magnitude"
        fix = say("use smaller inputs, such as ", Option("range", {"W": (-0.1, 0.1)}), " for weights, or wider types")
    return make_finding("nothing-compared", f"no output is informative: {said}", fix=fix)


def _report_untested(part: Untested) -> Finding:
    if part.changed:
        return make_finding(
            UNTESTED,
            f"{HIDDEN_WORDS}how {part.changed} differs from {part.argument}",
            why="the change is about as small as the output's tolerance, and could not be compared separately",
            fix="return the change as well, such as the gradients, or compare in a wider type",
        )
    if not part.tried:
        each = f"each of the {part.parts} shards of " if part.parts > 1 else ""
        return make_finding(
            UNTESTED,
            f"{UNTRIED_WORDS}{each}{part.argument}",
            why="testing each shard takes another run, as long as the comparison itself",
            fix=_FIXES[NumericsStatus.TOO_LARGE],
        )
    places = f" on {_describe_devices(part.shards, max(part.parts, len(part.shards)))}" if part.shards else ""
    return make_finding(
        UNTESTED,
        f"{UNTESTED_WORDS}{part.argument}{places}",
        why="with the inputs that were tried, the outputs are the same whatever its values, so nothing is known about "
        "it",
        fix=say("set a range for indices or masks that reaches all of it (", _EXAMPLE_RANGE, "), or use other sizes"),
    )


def _report_blind(output: OutputComparison) -> Finding:
    places = _describe_devices(output.blind_shards, output.shards)
    unjudged = "not judged, " if output.unstable else ""
    return make_finding(
        "uninformative-output",
        f"most of {output.name} is not finite, {unjudged}or so small that zeros would pass, on {places}",
        fix=say(
            "scale the inputs (",
            Option("range", {"x": (-1, 1)}),
            ") so that the values on all devices are of similar magnitude, or use a smaller ",
            Option("atol"),
        ),
    )


def _report_not_run(numerics: Numerics) -> Finding:
    status, why = numerics.status, numerics.message
    if status is NumericsStatus.TOO_LARGE:
        needed, free = format_bytes(numerics.estimated_bytes), format_bytes(numerics.available_bytes)
        why = f"both programs need about {needed} on {numerics.ran_on}, but only {free} is free"
    message = f"the numbers were not compared: {status}"
    return make_finding(f"numerics-{status.replace(' ', '-')}", message, why=why or None, fix=_FIXES.get(status))


def _report_disagreement(output: OutputComparison) -> Finding:
    """The finding for a wrong output, by its cause: the program's own rounding, a wrong value, or a bias."""
    of = output.name if output.subject == "target" else f"the reference's {output.name}"
    if output.roughness is not None and (output.roughness.own or not (output.wrong or output.bias)):
        return _report_rough(of, output, output.roughness)
    if output.wrong or output.bias is None:
        return _report_wrong(of, output)
    return _report_biased(of, output, output.bias)


def _report_wrong(of: str, output: OutputComparison) -> Finding:
    places = _describe_devices(output.wrong_shards, output.shards)
    elements = f"{output.wrong:,} of {pluralize(output.elements, 'element')}"
    why = [f"every element is {_format_ratio(output, output.bias)}"] if output.bias is not None else []
    why += [*output.exchanged[:_SHARDS_SHOWN], *_describe_worst(output)]
    page, message = "wrong-result", f"{of} differs from {_describe_other_run(output)} in {elements}, on {places}"
    if output.against == COPIES:
        page, message = "copies-differ", f"the copies of {of} differ in {elements}: those on {places} from the first"
    return make_finding(page, message, why="; ".join(why) or None)


def _report_biased(of: str, output: OutputComparison, bias: Bias) -> Finding:
    if bias.constant:
        places = f" on {_describe_devices(bias.shards, output.shards)}" if bias.shards else ""
        message = f"every element of {of}{places} is {_format_ratio(output, bias)}"
        explained = f"rounding explains ratios from {1 - bias.explained:.4f} to {1 + bias.explained:.4f}"
        why = f"every element is within its tolerance, but {explained}"
    elif abs(bias.ratio - 1) > bias.explained > 0:
        message = f"the elements of {of} are {bias.ratio:.4g} times those of the reference on average"
        why = f"rounding explains average ratios from {1 - bias.explained:.4f} to {1 + bias.explained:.4f}"
    else:
        message = f"the errors of {of} are biased: {100 * bias.one_way:.0f}% of them have the same sign"
        why = "rounding makes about as many elements larger as smaller"
    return make_finding("copies-differ" if output.against == COPIES else "biased-result", message, why=why)


def _report_rough(of: str, output: OutputComparison, rough: Roughness) -> Finding:
    against, worst = _describe_other_run(output), _describe_worst(output)
    times = f"{format_digits(rough.times, 3)} times as large as those of rounding in the reference"
    if not rough.own:
        message = f"the errors of {of} compared with {against} are {times}, although each is within its tolerance"
        return make_finding("wrong-result", message, why="; ".join(worst) or None)
    return make_finding(
        "rounds-more",
        f"{of} is rounded more than {against}: its errors are {times}",
        why="; ".join(filter(None, (rough.words, *worst))) or None,
        fix=say(
            "accumulate in the reference's type, for example with preferred_element_type; or set the allowed error "
            "with ",
            Option("rtol"),
        ),
    )


def _format_ratio(output: OutputComparison, bias: Bias) -> str:
    """A ratio with the digits that differ from 1: `8.000 times the reference's (the size of X)`."""
    shown = f"{bias.ratio:.3f}" if abs(bias.ratio - 1) > _RATIO_SHOWN else f"{bias.ratio:.6f}"
    of = "that of the first copy" if output.against == COPIES else f"{_describe_other_run(output)}'s"
    return f"{shown} times {of}{f' ({bias.meaning})' if bias.meaning else ''}"


def _describe_other_run(output: OutputComparison) -> str:
    return {"reference": "the reference", COPIES: "its other copies"}.get(output.against, output.against)


def _describe_devices(places: Sequence[str], shards: int) -> str:
    if len(places) == shards:
        return "every device" if shards > 1 else "its only device"
    shown = "; ".join(places[:_SHARDS_SHOWN])
    more = f"; and {len(places) - _SHARDS_SHOWN:,} more" if len(places) > _SHARDS_SHOWN else ""
    return f"{len(places):,} of {pluralize(shards, 'device')} ({shown}{more})"


def _describe_worst(output: OutputComparison) -> list[str]:
    """The position and values of the element that differs most; empty if none differs."""
    worst = output.worst
    if worst is None:
        return []
    allowed = f"{format_digits(worst.allowed)} is allowed" if worst.allowed else "they must be equal"
    beside = {"reference": "the reference", COPIES: "the first copy"}.get(output.against, output.against)
    return [
        f"largest error at {list(worst.index)}, which is {list(worst.local_index)} of the shard at {worst.shard}: "
        f"{worst.found}, but {worst.expected} in {beside}; {allowed}"
    ]


def judge_communication(comparison: Comparison) -> Iterator[Finding]:
    """Yields a finding for each transfer that the program makes beyond its reference, and for unknown ones.

    A transfer that the reference does not make is an error if the program moves more over these axes than the
    reference does, and otherwise a note: it then replaces another one.
    """
    for changes in group_by(comparison.increases, lambda change: (change.kind, change.key, change.source)).values():
        yield _report_more(changes, comparison)
    for moved in comparison.unsure:
        message = (
            f"the bytes of {moved.kind} %{moved.name} are not known exactly, so it may move more than in the reference"
        )
        yield make_finding("communication-unsure", message, **_find_place(moved))


def judge_not_understood(target: Analysis, reference: Analysis, comparison: Comparison) -> Iterator[Finding]:
    """Yields a finding for each thing in the program alone that may move uncounted bytes."""
    reported = {name for moved in comparison.unsure for name in (moved.name, *moved.loops)}
    known = {(item.what, item.effect) for item in reference.unmodelled}
    for item in target.unmodelled:
        if item.instruction not in reported and (item.what, item.effect) not in known:
            message = f"{item.what}, so the program may move more than its reference"
            yield make_finding(
                "communication-unsure", message, instruction=item.instruction, line=item.line, why=item.effect
            )


def _report_more(changes: Sequence[Change[Collective]], comparison: Comparison) -> Finding:
    moved = changes[0].after[0]
    axes = axes_key(moved)
    tallies = [tally for tally in comparison.tallies if tally.axes == axes]
    before, after = sum(tally.old.wire_bytes for tally in tallies), sum(tally.new.wire_bytes for tally in tallies)
    more = sum_known(change.wire_bytes for change in changes)
    size = "an unknown number of bytes" if more is None else format_bytes(more)
    over = f"over {axes.replace(',', ', ')}"
    count = pluralize(sum(len(change.after) for change in changes), str(moved.kind))
    return make_finding(
        "more-than-reference",
        f"{count} {over}: {size} more per step and device than in the reference ({changes[0].kind})",
        severity=Severity.ERROR if after > before or more is None else Severity.NOTE,
        why=moved.why,
        cost=f"{over} the program moves {format_bytes(after)}, and the reference {format_bytes(before)}",
        **_find_place(moved),
    )


def _find_place(moved: Collective) -> dict[str, Any]:
    return {
        "computation": moved.computation,
        "instruction": moved.name,
        "line": moved.line,
        "source": render_users_line(moved.source),
    }


def compare_structure(target: Analysis, reference: Analysis) -> Iterator[Finding]:
    """Yields a finding for each output whose array or sharding differs from the reference's."""
    counts = len(target.outputs), len(reference.outputs)
    if counts[0] != counts[1]:
        message = f"the program returns {pluralize(counts[0], 'array')}, but its reference {counts[1]:,}"
        yield make_finding("other-structure", message)
        return
    pairs = list(zip(target.outputs, reference.outputs, strict=True))
    unlike = [f"{found.name} with {expected.name}" for found, expected in pairs if found.name != expected.name]
    if unlike and len(pairs) > 1:
        more = f" and {len(unlike) - _NAMES_SHOWN:,} more" if len(unlike) > _NAMES_SHOWN else ""
        shown = ", ".join(unlike[:_NAMES_SHOWN])
        message = f"outputs have different names in the reference, so they are compared by position: {shown}{more}"
        yield make_finding("other-structure", message, severity=Severity.WARNING)
    for found, expected in pairs:
        if _format_type(found) != _format_type(expected):
            message = f"{found.name} is {_format_type(found)}, but {_format_type(expected)} in the reference"
            yield make_finding("other-structure", message)
        elif (found.sharding, found.local_shape) != (expected.sharding, expected.local_shape):
            message = (
                f"{found.name} is sharded {_format_sharding(found)}, but {_format_sharding(expected)} in the reference"
            )
            fix = "use the same output sharding for both: otherwise later code may have to reshard the data"
            yield make_finding("other-sharding", message, fix=fix)


def _format_type(array: ArrayFact) -> str:
    shape = array.local_shape if array.global_shape is None else array.global_shape
    return f"{array.dtype}[{','.join(map(str, shape))}]"


def _format_sharding(array: ArrayFact) -> str:
    local = f"{array.dtype}[{','.join(map(str, array.local_shape))}] per device"
    return f"{array.sharding} ({local})" if array.sharding else f"in a way that no mesh axes describe ({local})"
