"""Holds a program against a contract: Contract x Analysis -> Verdict."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from operator import add, attrgetter
from pathlib import Path, PurePath

from hloscope.analysis.provenance import short_source, split_place
from hloscope.analysis.totals import compute_totals, remove_guesses
from hloscope.base.errors import did_you_mean
from hloscope.base.results import group_by
from hloscope.base.units import (
    format_bytes,
    format_capacity,
    format_count,
    format_digits,
    format_time,
    pluralize,
    sum_known,
)
from hloscope.judge.matching import find_respellings
from hloscope.judge.model import (
    AT_LEAST_OK,
    BYTE_UNITS,
    MOVED,
    WHOLE,
    Ban,
    Contract,
    Expectation,
    Fit,
    Limit,
    Quantity,
    Selector,
    Trips,
    axis_fits,
    format_amount,
    format_clause,
    format_selector,
    is_at,
    is_exactly,
    touches,
)
from hloscope.judge.verdict import (
    BOUND_WORDS,
    Breach,
    BreachKind,
    Verdict,
    format_found,
    format_group,
    group_by_axes,
    make_idle,
    make_open,
    suggest_expectation,
    suggest_limit,
)
from hloscope.model import Analysis, Collective, Collectives, Mesh, bytes_bound
from hloscope.model.analysis import Memory, RepeatedWork
from hloscope.model.vocabulary import Bound, Kind, Link

_SHOWN = 5
_PART = re.compile(r":\((\d+)\)(\d+)$")
_NO_SOURCES = frozenset({"node_modules", "__pycache__", "venv"})
_GUESSED = (
    "the mesh axes are guessed: the text is the program of one of several slices, and no dcn says which axis crosses "
    "them"
)
_NOT_PRICED = "the step was not priced, so its time is not known"
_KNOWN_NOW = {Bound.AT_LEAST: Bound.EXACT, Bound.UNKNOWN: Bound.AT_MOST}
"""A loop that surely runs is known exactly once its trips are; one that may not run, runs at most so often."""


_MOVED_BYTES = {
    Quantity.WIRE: ("on the wire", attrgetter("wire_bytes_per_step")),
    Quantity.PAYLOAD: ("payload", attrgetter("payload_bytes_per_step")),
}


def evaluate(contract: Contract, analysis: Analysis, *, root: Path | None = None) -> Verdict:
    """Holds a program against a contract.

    A contract that speaks of collectives fails over anything that was not understood, unless it says `at-least-ok`;
    it fails where nothing could have broken it; and a limit on what is not known, such as the time of a program that
    was not priced, fails.
    What was guessed of HLO text, names of axes and times, is not known here.

    Args:
        contract: What is expected.
        analysis: What the program does.
        root: The project's folder, to tell a ban on a file that is not there; None to believe that it is.
    """
    counted, remarks, unused = _apply_trips(contract, remove_guesses(analysis))
    breaches = [*unused, *_check_decidable(contract, counted), *_check_files(contract, counted, root)]
    moving = [collective for collective in counted.collectives if leaves_device(collective)]
    if contract.equivalent:
        moving = _respell_as_expected(contract, moving, counted.mesh)
    expectations = contract.all_of(Expectation)
    taken = _assign(expectations, moving)
    breaches += [breach for clause in expectations for breach in _check_met(clause, taken[clause], moving)]
    if contract.closed:
        expected = {id(collective) for part in taken.values() for collective in part}
        others = [collective for collective in moving if id(collective) not in expected]
        breaches += _check_unexpected(expectations, others)
    breaches += [breach for ban in contract.all_of(Ban) for breach in _check_ban(ban, moving, contract.at_least_ok)]
    for limit in contract.all_of(Limit):
        if limit.quantity in MOVED:
            breaches += _check_moved(limit, moving, at_least_ok=contract.at_least_ok)
        else:
            breaches += _check_measured(limit, counted, at_least_ok=contract.at_least_ok)
    if contract.at_least_ok and counted.unmodelled:
        remarks = (*remarks, "at-least-ok: what was not understood is not held against the contract")
    if contract.speaks_of_collectives and any(collective.axes_guessed for collective in counted.collectives):
        remarks = (*remarks, _GUESSED)
    return Verdict(target=analysis.target, contract=contract, breaches=tuple(breaches), remarks=remarks)


def _apply_trips(contract: Contract, analysis: Analysis) -> tuple[Analysis, tuple[str, ...], tuple[Breach, ...]]:
    """The analysis with the contract's trip counts in place of what could not be read.

    A loop is named by its HLO name, or by the line that it was written in, which the source of every collective inside
    has among its frames.

    Returns:
        The analysis; a remark for each count that was used; a breach for each that names no unread loop.
    """
    clauses = contract.all_of(Trips)
    if not clauses:
        return analysis, (), ()
    unread = {item.instruction for item in analysis.unmodelled if item.instruction is not None}
    counts = _find_counts(clauses, analysis.collectives, unread)
    used = set(counts.values())
    remarks = tuple(
        f"{format_clause(clause)} is the contract's word: it was not read from the program"
        for clause in clauses
        if clause in used
    )
    collectives = tuple(_count_executions(collective, counts) for collective in analysis.collectives)
    left = tuple(item for item in analysis.unmodelled if item.instruction not in counts)
    counted = replace(
        analysis,
        collectives=Collectives(collectives),
        unmodelled=left,
        totals=compute_totals(collectives, hidden=bool(left)),
        notes=(*analysis.notes, *remarks),
    )
    unused = [clause for clause in clauses if clause not in used]
    message = "no loop with collectives and an unknown trip count is at "
    breaches = (make_idle(f"{message}{clause.source}", format_clause(clause), "no such loop") for clause in unused)
    return counted, remarks, tuple(breaches)


def _find_counts(clauses: Sequence[Trips], collectives: Iterable[Collective], unread: set[str]) -> dict[str, Trips]:
    """The clause of each loop that could not be read, by the loop's name."""
    found: dict[str, Trips] = {}
    for collective in collectives:
        loops = [loop for loop in collective.loops if loop in unread]
        by_name = {loop: clause for loop in loops for clause in clauses if clause.source == f"%{loop}"}
        unnamed = [loop for loop in loops if loop not in by_name]
        lines = [clause for frame in reversed(collective.source) for clause in clauses if is_at(clause.source, frame)]
        by_line = dict(zip(unnamed, dict.fromkeys(lines), strict=False))
        found |= by_name
        if len(by_line) == len(unnamed):  # with several loops and fewer lines, it is unclear which loop is meant
            found |= by_line
    return found


def _count_executions(collective: Collective, counts: Mapping[str, Trips]) -> Collective:
    counted = [loop for loop in collective.loops if loop in counts]
    if not counted:
        return collective
    bound = _KNOWN_NOW.get(collective.executions_bound, collective.executions_bound)
    times = prod(counts[loop].count for loop in counted)
    parts = tuple(replace(part, executions=part.executions * times) for part in collective.parts)
    return replace(collective, executions=collective.executions * times, executions_bound=bound, parts=parts)


def leaves_device(collective: Collective) -> bool:
    """True if anything leaves a device: not in groups of one, a permute without pairs, or a loop of no trips."""
    never_runs = collective.executions == 0 and collective.executions_bound in (Bound.EXACT, Bound.AT_MOST)
    is_alone = collective.wire_bytes == 0 and (collective.axes == () or not collective.groups)
    return not never_runs and not is_alone


def _respell_as_expected(contract: Contract, moving: Sequence[Collective], mesh: Mesh | None) -> list[Collective]:
    """The collectives, with those that no expectation takes put into a spelling that one does.

    What fits no expectation in any spelling stays as it is.
    """

    def is_taken(collective: Collective) -> bool:
        return any(is_exactly(clause.selector, collective) for clause in contract.all_of(Expectation))

    left = [collective for collective in moving if not is_taken(collective)]
    kept = [collective for collective in moving if is_taken(collective)]
    for before, after in find_respellings(left, mesh):
        if all(collective in left for collective in before) and all(map(is_taken, after)):
            left = [collective for collective in left if collective not in before]
            kept += after
    return kept + left


def _assign(clauses: Sequence[Expectation], moving: Sequence[Collective]) -> dict[Expectation, list[Collective]]:
    """The collectives that each expectation takes: each collective goes to the narrowest one that fits."""
    taken: dict[Expectation, list[Collective]] = {clause: [] for clause in clauses}
    for collective in moving:
        fitting = [clause for clause in clauses if is_exactly(clause.selector, collective)]
        if fitting:
            taken[max(fitting, key=lambda clause: clause.selector.narrowness)].append(collective)
    return taken


def _check_met(clause: Expectation, taken: Sequence[Collective], moving: Sequence[Collective]) -> Iterator[Breach]:
    name = format_selector(clause.selector)
    if not any(is_exactly(clause.selector, collective) for collective in moving):
        message = f"{name} is expected, and there is none"
        yield Breach(BreachKind.BROKEN, message, format_clause(clause), format_found(moving))
    known = all(collective.payload_bytes is not None for collective in taken)
    for kind, message, offenders in _find_exceeded(clause, taken):
        accept = suggest_expectation(taken) if known else None
        said, found = format_clause(clause), format_found(taken)
        yield Breach(kind, f"{name} {message}", said, found, tuple(offenders), accept=accept)


_Exceeded = tuple[BreachKind, str, Sequence[Collective]]
"""A kind of breach, the end of a sentence about it, and the collectives that exceed a limit."""


def _find_exceeded(clause: Expectation, taken: Sequence[Collective]) -> Iterator[_Exceeded]:
    """The limits of an expectation that the collectives it takes exceed."""
    unknown = [collective for collective in taken if collective.payload_bytes is None]
    if unknown and (clause.max_bytes is not None or clause.max_bytes_per_step is not None):
        yield BreachKind.UNDECIDED, "has a limit, and its bytes are not known", unknown
    elif clause.max_bytes is not None:
        large = [collective for collective in taken if (collective.payload_bytes or 0) > clause.max_bytes]
        if large:
            most = max(collective.payload_bytes or 0 for collective in large)
            limit = format_amount(clause.max_bytes, BYTE_UNITS)
            yield BreachKind.BROKEN, f"moves {format_bytes(most)} payload each time, more than {limit}", large
    if clause.max_bytes_per_step is not None and not unknown:
        sizes = [(collective.payload_bytes_per_step or 0, bytes_bound(collective)) for collective in taken]
        limit = format_amount(clause.max_bytes_per_step, BYTE_UNITS)
        for kind, words in _check_sum(sizes, clause.max_bytes_per_step, format_bytes):
            yield kind, f"moves {words} payload per step, more than {limit}", taken
    if clause.max_count is not None:
        counts = [(collective.executions, collective.executions_bound) for collective in taken]
        for kind, words in _check_sum(counts, clause.max_count, format_count):
            yield kind, f"runs {words} times per step, more than {format_count(clause.max_count)}", taken


def _check_unexpected(expectations: Sequence[Expectation], others: Sequence[Collective]) -> Iterator[Breach]:
    expected = "; ".join(map(format_clause, expectations))
    allowed = f"nothing else than {expected}" if expected else "nothing moves"
    for group in group_by_axes(others):
        message = f"the program has {format_group(group)}; the contract allows none"
        yield Breach(BreachKind.BROKEN, message, allowed, format_found(group), group, accept=suggest_expectation(group))


def _check_ban(ban: Ban, moving: Sequence[Collective], at_least_ok: bool) -> Iterator[Breach]:
    said, fits = format_clause(ban), [(collective, touches(ban.selector, collective)) for collective in moving]
    for group in group_by_axes(collective for collective, fit in fits if fit is Fit.YES):
        message = f"the program has {format_group(group)}; the contract says {said}"
        accept = f"{suggest_expectation(group)}, in place of {said}"
        yield Breach(BreachKind.BROKEN, message, said, format_found(group), group, accept=accept)
    perhaps = [collective for collective, fit in fits if fit is Fit.MAYBE]
    if perhaps and not at_least_ok:
        found = format_found(perhaps)
        yield make_open(f"{found} may be what {said} forbids, but the text does not say", said, found, perhaps)


def _check_moved(limit: Limit, moving: Sequence[Collective], *, at_least_ok: bool) -> Iterator[Breach]:
    what, size_of = _MOVED_BYTES[limit.quantity]
    fits = [
        (collective, touches(limit.selector, part), size_of(part))
        for collective in moving
        for part in _split_into_parts(collective)
    ]
    surely = [(collective, size) for collective, fit, size in fits if fit is Fit.YES]
    known = [(size, bytes_bound(collective)) for collective, size in surely if size is not None]
    total = sum(size for size, _ in known)
    said = format_clause(limit)
    for kind, words in _check_sum(known, limit.most, format_bytes):
        found = f"{words} {what} per step"
        offenders = _drop_repeats(collective for collective, _ in sorted(surely, key=lambda move: -(move[1] or 0)))
        accept = suggest_limit(limit, total)
        yield Breach(kind, f"{found}, more than {said}", said, found, offenders, accept=accept)
    unknown = [collective for collective, fit, size in fits if fit is not Fit.NO and (fit is Fit.MAYBE or size is None)]
    if unknown and not at_least_ok:
        message = f"{said} cannot be decided: bytes or axes are not known"
        yield make_open(message, said, f"at least {format_bytes(total)} {what} per step", _drop_repeats(unknown))


def _check_sum(
    amounts: Sequence[tuple[int, Bound]], most: int, format_amount: Callable[[int], str]
) -> Iterator[tuple[BreachKind, str]]:
    """The breach of a limit by the sum of amounts, with words for the sum; nothing if the sum is within the limit.

    It is undecided if only a branch that may not run, or an upper bound, makes the sum exceed the limit.
    """
    total = sum(amount for amount, _ in amounts)
    if total > most:
        certain = sum(amount for amount, bound in amounts if bound in (Bound.EXACT, Bound.AT_LEAST))
        bound = reduce(Bound.__add__, (bound for _, bound in amounts), Bound.EXACT)
        if certain > most and bound is Bound.UNKNOWN:
            yield BreachKind.BROKEN, BOUND_WORDS[Bound.AT_LEAST] + format_amount(certain)
        else:
            kind = BreachKind.BROKEN if certain > most else BreachKind.UNDECIDED
            yield kind, BOUND_WORDS[bound] + format_amount(total)


def _split_into_parts(collective: Collective) -> tuple[Collective, ...]:
    """The transfers that a collective across slices is made of, each with its own axes and network; else itself."""
    shared = ("kind", "axes", "link", "payload_bytes", "wire_bytes", "executions")
    return tuple(
        replace(collective, parts=(), **{name: getattr(part, name) for name in shared}) for part in collective.parts
    ) or (collective,)


def _drop_repeats(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple({id(collective): collective for collective in collectives}.values())


def _check_measured(limit: Limit, analysis: Analysis, *, at_least_ok: bool) -> Iterator[Breach]:
    said, (found, words) = format_clause(limit), _find_quantity(limit, analysis)
    doubt = None if at_least_ok else _find_doubt(limit, analysis)
    if found is None:
        yield Breach(BreachKind.UNDECIDED, f"{said} cannot be decided: {words}", said, "not known")
    elif found > limit.most:
        kind = BreachKind.UNDECIDED if _is_a_ceiling(limit, analysis) else BreachKind.BROKEN
        message = f"{limit.quantity} is {words}, more than {format_amount(limit.most, limit.units)}"
        is_whole = limit.quantity is not Quantity.HBM or analysis.memory.peak_bytes is not None
        yield Breach(kind, message, said, words, accept=suggest_limit(limit, found) if is_whole else None)
    elif doubt is not None:
        bound = "" if limit.quantity is Quantity.REPEATED else "at least "
        yield make_open(f"{said} cannot be decided: {doubt}", said, f"{bound}{words}")


def _is_a_ceiling(limit: Limit, analysis: Analysis) -> bool:
    """True if less may be done than was found: not all branches may run, and what is open may repeat nothing."""
    if limit.quantity is Quantity.HBM:
        return False
    if limit.quantity is Quantity.REPEATED:
        return analysis.repeated is not None and analysis.repeated.bound in (Bound.AT_MOST, Bound.UNKNOWN)
    return analysis.time is not None and analysis.time.bound is Bound.AT_MOST


def _find_doubt(limit: Limit, analysis: Analysis) -> str | None:
    """Why a quantity may be more than was found: a roofline, or something not counted or not known; else None.

    Of several branches the longest is predicted, of which another one may be exposed for longer.
    """
    if limit.quantity is Quantity.REPEATED:
        return _find_doubt_about_repeated(analysis)
    time = None if limit.quantity is Quantity.HBM else analysis.time
    if time is None:
        return None
    if limit.quantity is Quantity.EXPOSED and time.bound is Bound.AT_MOST and _may_be_exposed(limit, analysis):
        return "a branch that takes less time may be exposed for longer"
    if time.basis == "roofline" or time.bound in (Bound.AT_LEAST, Bound.UNKNOWN):
        return "the predicted time is a lower bound"
    if time.rests_on_unknown:
        return f"{time.unknown_operations[0].what} is priced without knowing what it does"
    return None


def _find_doubt_about_repeated(analysis: Analysis) -> str | None:
    is_open = analysis.repeated is not None and analysis.repeated.bound in (Bound.AT_LEAST, Bound.UNKNOWN)
    return "kernels of unknown cost, branches or loops of unknown length may repeat work" if is_open else None


def _may_be_exposed(limit: Limit, analysis: Analysis) -> bool:
    """True if all that may be exposed, whatever branches are taken, is more than a limit."""
    exposed = [(moved.exposed_us, moved.executions) for moved in analysis.collectives]
    most_us = sum(times * each_us for each_us, times in exposed if each_us is not None)
    is_more = most_us > 0 if limit.share else _round_up(most_us * 1000) > limit.most
    return is_more or any(each_us is None for each_us, _ in exposed)


def _find_quantity(limit: Limit, analysis: Analysis) -> tuple[int | None, str]:
    """The quantity in the limit's unit, rounded up, with words for it; None with the reason why it is not known."""
    time = analysis.time
    if limit.quantity is Quantity.HBM:
        return _find_peak(limit.most, analysis.memory)
    if limit.quantity is Quantity.REPEATED:
        return _find_ratio(analysis.repeated)
    if time is None or (limit.share and not time.step_us):
        return None, _NOT_PRICED
    if limit.share:
        share = time.exposed_us / time.step_us
        return _round_up(share * 1e6), f"{100 * share:.3g}% of {format_time(time.step_us)}"
    micros = time.step_us if limit.quantity is Quantity.TIME else time.exposed_us
    return _round_up(micros * 1000), format_time(micros)


def _find_ratio(repeated: RepeatedWork | None) -> tuple[int | None, str]:
    if repeated is None:
        return None, "without the traced program it is not known what is repeated"
    if repeated.ratio is None:
        is_little = "less than half of the compiled FLOPs can be compared with the traced program"
        return None, is_little if repeated.compiled_flops else "no matmul is known both as traced and as compiled"
    words = f"{repeated.bound.said(format_digits(repeated.ratio, 3))} times the FLOPs of the traced program"
    places = [short_source(line.source) for line in repeated.lines[:1]]
    words += "".join(f" (most of it at {place})" for place in places if place)
    return _round_up(repeated.ratio * WHOLE), words


def can_decide_peak(limit_bytes: int, memory: Memory) -> bool:
    """Returns whether the peak memory of a program is known to be in a limit, or not to be."""
    return _find_peak(limit_bytes, memory)[0] is not None


def _find_peak(limit_bytes: int, memory: Memory) -> tuple[int | None, str]:
    """The peak memory, with words for it; before code is made, a bound if that decides whether it is in a limit."""
    if memory.peak_bytes is not None:
        return memory.peak_bytes, format_capacity(memory.peak_bytes)
    if memory.data_bytes is None:
        return None, "HLO text does not say what the compiler allocates"
    if memory.data_bytes > limit_bytes:
        return memory.data_bytes, f"{format_capacity(memory.data_bytes)} without code"
    most_bytes = sum_known((memory.data_bytes, memory.most_code_bytes))
    if most_bytes is not None and most_bytes <= limit_bytes:
        return most_bytes, f"at most {format_capacity(most_bytes)}"
    return None, "the program is not compiled yet, and its code may take as much as is left"


def _round_up(amount: float) -> int:
    """The amount rounded up, without the error of floating point."""
    return -int(-amount // 1) if amount - int(amount) > 1e-6 else int(amount)


# ---- what keeps a contract from being decided, or from saying anything


def _check_decidable(contract: Contract, analysis: Analysis) -> Iterator[Breach]:
    """Breaches over what was not understood, and over what could not break the contract whatever the program did."""
    if analysis.memory.fits is False:
        message = "the program does not fit in the memory of a device, so it cannot run"
        expected = f"{format_capacity(analysis.memory.hbm_bytes)} or less"
        yield Breach(BreachKind.BROKEN, message, expected, format_capacity(analysis.memory.peak_bytes))
    else:
        yield from _check_capacity(contract, analysis)
    if not contract.says_something:
        yield make_idle("the contract says nothing that a program could break", "a clause", str(contract) or "nothing")
    if contract.closed and any(clause.selector.is_everything for clause in contract.all_of(Expectation)):
        message = "the contract expects every collective that there is, so there is nothing else to forbid"
        yield make_idle(message, "expectations of less than everything", str(contract))
    if not analysis.collectives:
        yield from _check_computes(str(contract), analysis)
    if not contract.speaks_of_collectives:
        return
    yield from _check_devices(str(contract), analysis)
    if analysis.collectives and all(moved.payload_bytes == 0 for moved in analysis.collectives):
        message = "every collective is of an array without elements, so nothing can move"
        yield make_idle(message, "arrays with elements", "0 B in all of them")
    yield from _check_axes(contract, analysis)
    crosses = any(selector.link is Link.DCN for selector in contract.selectors)
    if crosses and analysis.slice is not None and analysis.slice.slices == 1:
        message = "the program runs on one slice, so nothing can cross DCN"
        yield make_idle(message, "several slices", f"one slice, {analysis.slice.name}")
    if not contract.at_least_ok:
        yield from _check_understood(analysis)


def _check_capacity(contract: Contract, analysis: Analysis) -> Iterator[Breach]:
    """Limits on memory that no program can exceed that runs."""
    capacity = analysis.memory.hbm_bytes
    for limit in contract.all_of(Limit):
        if limit.quantity is Quantity.HBM and capacity is not None and limit.most > capacity:
            where = "a device" if analysis.slice is None else f"a device of {analysis.slice.name}"
            message = f"{where} has {format_capacity(capacity)}, so {format_clause(limit)} cannot fail"
            yield make_idle(message, f"{format_capacity(capacity)} or less", format_clause(limit))


def explain_no_traffic(analysis: Analysis) -> tuple[str, ...]:
    """Why a program could not move anything, whatever its shardings are; empty when it could."""
    found = [] if analysis.collectives else list(_check_computes("", analysis))
    return tuple(breach.message for breach in (*found, *_check_devices("", analysis)))


def _check_computes(expected: str, analysis: Analysis) -> Iterator[Breach]:
    if not analysis.outputs:
        message = "the program computes nothing: it returns no array"
        yield make_idle(message, expected, "no outputs")
    elif analysis.arguments and not any(argument.used for argument in analysis.arguments):
        message = "the compiled program reads none of its arguments: its code is dead"
        yield make_idle(message, expected, "no argument that is read")


def _check_devices(expected: str, analysis: Analysis) -> Iterator[Breach]:
    devices = analysis.mesh.device_count if analysis.mesh is not None else analysis.num_partitions
    if not analysis.collectives and max(devices, analysis.num_partitions) <= 1:
        message = "the program runs on one device, so no contract on communication can fail"
        yield make_idle(message, expected, "a mesh of 1 device")


def _check_axes(contract: Contract, analysis: Analysis) -> Iterator[Breach]:
    named = dict.fromkeys(axis for selector in contract.selectors for axis in selector.axes or () if axis.strip("*"))
    if not named:
        return
    if analysis.mesh is None:
        message = "the contract names mesh axes, and the program's mesh is not known"
        yield Breach(BreachKind.UNDECIDED, message, f"a mesh with {', '.join(named)}", "no mesh")
        return
    sizes = dict(zip(analysis.mesh.axis_names, analysis.mesh.axis_sizes, strict=True))
    for pattern in named:
        fitting = [name for name in sizes if axis_fits(pattern.partition(":")[0], name)]
        found = "mesh " + ",".join(f"{name}={size}" for name, size in sizes.items())
        if not fitting:
            near = did_you_mean(pattern, sizes)
            message = f"the mesh has no axis {pattern}" + (f": {near}" if near else "")
            yield make_idle(message, f"an axis {pattern}", found)
        elif not any(_has_part(pattern, sizes[name]) for name in fitting):
            message = f"no mesh axis has a part {pattern}, so nothing can move over it"
            yield make_idle(message, f"a part {pattern}", found)
        elif all(sizes[name] == 1 for name in fitting):
            message = f"the mesh axis {pattern} has size 1, so nothing can move over it"
            yield make_idle(message, f"an axis {pattern} of 2 devices or more", found)


def _has_part(pattern: str, size: int) -> bool:
    """True if an axis of so many devices has the part that `X:(1)2` names; true for a pattern that names none."""
    part = _PART.search(pattern)
    return part is None or (int(part[2]) > 1 and size % (int(part[1]) * int(part[2])) == 0)


def _check_files(contract: Contract, analysis: Analysis, root: Path | None) -> Iterator[Breach]:
    """Bans on what comes from a file that is nowhere in the project: a name that was mistyped, or a file that moved."""
    for source in dict.fromkeys(ban.selector.source for ban in contract.all_of(Ban)):
        if root is None or source is None:
            continue
        if any(is_at(source, frame) for moved in analysis.collectives for frame in moved.source):
            continue
        path, line = split_place(source)
        files = _find_files(root, path)
        first = next(files, None)
        if first is None:
            message = f"there is no file {path} in {root}, so nothing can come from it"
            yield make_idle(message, f"a file {path}", "no such file")
        elif line and all(_count_lines(file) < line for file in (first, *files)):
            message = f"{path} has no line {line}, so nothing can come from it"
            yield make_idle(message, f"{line} lines or more", f"{_count_lines(first)} lines")


def _find_files(root: Path, path: str) -> Iterator[Path]:
    """The files below a folder whose path ends so; folders that hold no code of the project are left out."""
    if os.path.isfile(root / path) or Path(path).is_absolute():
        yield from (file for file in (root / path,) if os.path.isfile(file))
        return
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NO_SOURCES]
        yield from (Path(folder, name) for name in files if PurePath(folder, name).match(path))


def _count_lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def _check_understood(analysis: Analysis) -> Iterator[Breach]:
    """One breach for each thing that the text does not say and that the contract may depend on."""
    expected, unread = "everything understood", analysis.unmodelled
    for item in unread[:_SHOWN]:
        place = "" if item.line is None else f"HLO line {item.line}: "
        yield make_open(f"{item.what}, so the contract cannot be decided", expected, f"{place}{item.effect}")
    if len(unread) > _SHOWN:
        others = pluralize(len(unread) - _SHOWN, "other thing")
        yield make_open(f"{others} could not be read either", expected, "see the findings")
    if unread:
        return
    if any(collective.kind is Kind.OPAQUE for collective in analysis.collectives):
        message = "a kernel communicates by itself, but the text does not say what it sends"
        yield make_open(message, expected, "opaque communication")
    elif (bound := analysis.totals.bound) in (Bound.AT_LEAST, Bound.UNKNOWN):
        yield make_open("what moves is not known exactly", expected, f"totals that are a bound: {bound}")


# ---- the contract that says of a program what it moves, and nothing else


def make_exact_contract(analysis: Analysis, beside: Contract, *, root: Path | None = None) -> Contract:
    """The contract of a program: its collectives by kind, axes and network, with the bytes and counts that are known.

    If not everything is understood, it says `at-least-ok`, and limits nothing that is unknown.

    Args:
        analysis: What the program does.
        beside: What is said already: all but its expectations stays.
        root: The project's folder, as for `evaluate`.
    """
    others = tuple(clause for clause in beside.clauses if not isinstance(clause, Expectation))
    counted = Contract(clauses=beside.all_of(Trips))
    moving = filter(leaves_device, _apply_trips(counted, remove_guesses(analysis))[0].collectives)
    groups = group_by(moving, _find_group)
    moved = Contract(clauses=tuple(_make_expectation(group) for group in groups.values()), closed=True)
    doubts = evaluate(moved & counted, analysis, root=root).breaches
    moved = replace(moved, at_least_ok=any(doubt.accept == AT_LEAST_OK for doubt in doubts))
    return moved & replace(beside, clauses=others)


def _find_group(moved: Collective) -> tuple[str, tuple[str, ...] | None, str | None, bool]:
    links = {moved.link, *(part.link for part in moved.parts)}
    axes = None if moved.axes is None else tuple(sorted(moved.axes))
    return moved.kind, axes, moved.reduction, bool(links & {Link.DCN, Link.BOTH})


def _make_expectation(group: Sequence[Collective]) -> Expectation:
    """The expectation that takes these collectives, and as few others as possible.

    Arrays of several sizes are limited together, those of one size each.
    """
    kind, axes, reduction, crosses = _find_group(group[0])
    sizes = {moved.payload_bytes for moved in group}
    largest = None if None in sizes else max(size for size in sizes if size is not None)
    bound = reduce(add, (moved.executions_bound for moved in group), Bound.EXACT)
    is_counted = bound in (Bound.EXACT, Bound.AT_MOST)
    together = sum_known(moved.payload_bytes_per_step for moved in group) if is_counted and len(sizes) > 1 else None
    return Expectation(
        selector=Selector(kind=kind, axes=axes or None, reduction=reduction, link=Link.DCN if crosses else None),
        max_bytes=largest if together is None else None,
        max_bytes_per_step=together,
        max_count=sum(moved.executions for moved in group) if is_counted else None,
    )
