"""Contract x Analysis -> Verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from pathlib import Path

from hloscope.analysis.model import Analysis, Collective, Mesh, StepTime
from hloscope.analysis.totals import bytes_bound, totals_of
from hloscope.analysis.vocabulary import Bound
from hloscope.compare.equivalence import respelled
from hloscope.contracts.model import (
    Ban,
    Contract,
    Expectation,
    Limit,
    Quantity,
    Selector,
    Trips,
    format_clause,
    format_selector,
    units_of,
)
from hloscope.contracts.quantities import BYTE_UNITS, format_amount
from hloscope.contracts.selecting import Fit, is_at, is_exactly, touches
from hloscope.contracts.suggestions import by_kind_and_axes, found_words, suggested_limit, suggestion
from hloscope.contracts.undecided import missing_files, undecided
from hloscope.contracts.verdict import Breach, BreachKind, Verdict
from hloscope.units import format_bytes, format_capacity, format_count, format_time

_GUESSED = (
    "the mesh axes are guessed: the text is the program of one of several slices, and no dcn says which axis crosses "
    "them"
)
_NOT_PRICED = "the step was not priced, so its time is not known"
_KNOWN_NOW = {Bound.AT_LEAST: Bound.EXACT, Bound.UNKNOWN: Bound.AT_MOST}
"""A loop that surely runs is known exactly once its trips are; one that may not run, runs at most so often."""


def evaluate(contract: Contract, analysis: Analysis, *, root: Path | None = None) -> Verdict:
    """Holds a program against a contract.

    A contract that speaks of collectives fails over anything that was not understood, unless it says `at-least-ok`;
    it fails where nothing could have broken it; and a limit on what is not known, such as the time of a program that
    was not priced, fails.

    Args:
        contract: What is expected.
        analysis: What the program does.
        root: The project's folder, to tell a ban on a file that is not there; None to believe that it is.
    """
    counted, remarks, untold = _with_trips(contract, analysis)
    breaches = [*untold, *undecided(contract, counted), *missing_files(contract, counted, root)]
    moving = [one for one in counted.collectives if not _stays(one)]
    if contract.equivalent:
        moving = _with_expected_spellings(contract, moving, counted.mesh)
    taken = _taken(contract.expectations, moving)
    breaches += [breach for clause in contract.expectations for breach in _unmet(clause, taken[clause], moving)]
    if contract.closed:
        expected = {id(one) for part in taken.values() for one in part}
        breaches += _unexpected(contract, [one for one in moving if id(one) not in expected])
    breaches += [
        breach for clause in contract.clauses if isinstance(clause, Ban) for breach in _banned(clause, moving, contract)
    ]
    breaches += _broken_limits(contract, counted, moving)
    if contract.at_least_ok and counted.unmodelled:
        remarks = (*remarks, "at-least-ok: what was not understood is not held against the contract")
    if contract.speaks_of_collectives and any(one.axes_guessed for one in counted.collectives):
        remarks = (*remarks, _GUESSED)
    return Verdict(target=analysis.target, contract=contract, breaches=tuple(breaches), remarks=remarks)


def _with_trips(contract: Contract, analysis: Analysis) -> tuple[Analysis, tuple[str, ...], tuple[Breach, ...]]:
    """The analysis with the contract's trip counts in place of what could not be read.

    A loop is named by its HLO name, or by the line that it was written in, which the source of every collective inside
    has among its frames.

    Returns:
        The analysis; a remark for each count that was used; a breach for each that names no unread loop.
    """
    clauses = [clause for clause in contract.clauses if isinstance(clause, Trips)]
    if not clauses:
        return analysis, (), ()
    unread = {item.instruction for item in analysis.unmodelled if item.instruction is not None}
    counts = _counts(clauses, analysis.collectives, unread)
    remarks = tuple(
        f"{format_clause(clause)} is the contract's word: it was not read from the program"
        for clause in clauses
        if clause in {used for used, _ in counts.values()}
    )
    collectives = tuple(
        _counted(one, {loop: clause.count for loop, (clause, _) in counts.items()}) for one in analysis.collectives
    )
    left = tuple(item for item in analysis.unmodelled if item.instruction not in counts)
    counted = replace(
        analysis,
        collectives=collectives,
        unmodelled=left,
        totals=totals_of(collectives, hidden=bool(left)),
        notes=(*analysis.notes, *remarks),
    )
    used = {clause for clause, _ in counts.values()}
    return counted, remarks, tuple(_unused(clause) for clause in clauses if clause not in used)


def _counts(
    clauses: Iterable[Trips], collectives: Iterable[Collective], unread: set[str]
) -> dict[str, tuple[Trips, str]]:
    """The clause of each loop that could not be read, with the loop's name."""
    found: dict[str, tuple[Trips, str]] = {}
    told = list(clauses)
    for one in collectives:
        loops = [loop for loop in one.loops if loop in unread]
        by_name = {loop: clause for loop in loops for clause in told if clause.source == f"%{loop}"}
        lines = [clause for frame in reversed(one.source) for clause in told if is_at(clause.source, frame)]
        by_line = dict(zip((loop for loop in loops if loop not in by_name), dict.fromkeys(lines), strict=False))
        unnamed = len(loops) - len(by_name)
        if by_line and len(by_line) != unnamed:
            by_line = {}  # several loops and not a line for each: nobody can tell which is meant
        found.update({loop: (clause, loop) for loop, clause in {**by_name, **by_line}.items()})
    return found


def _counted(one: Collective, counts: dict[str, int]) -> Collective:
    told = [loop for loop in one.loops if loop in counts]
    if not told:
        return one
    bound = _KNOWN_NOW.get(one.executions_bound, one.executions_bound)
    return replace(one, executions=one.executions * prod(counts[loop] for loop in told), executions_bound=bound)


def _unused(clause: Trips) -> Breach:
    return Breach(
        kind=BreachKind.VACUOUS,
        message=f"no loop with collectives and an unknown trip count is at {clause.source}",
        expected=format_clause(clause),
        found="no such loop",
    )


def _stays(one: Collective) -> bool:
    """Whether nothing leaves a device: groups of one, a permute without pairs, or a loop of no trips around it."""
    never_runs = one.executions == 0 and one.executions_bound in (Bound.EXACT, Bound.AT_MOST)
    return never_runs or (one.wire_bytes == 0 and (one.axes == () or not one.groups))


def _with_expected_spellings(contract: Contract, moving: Sequence[Collective], mesh: Mesh | None) -> list[Collective]:
    """The collectives, with those that no expectation takes put into a spelling that one does.

    What fits no expectation in any spelling stays as it is.
    """
    left = [one for one in moving if not _takes(contract, one)]
    kept = [one for one in moving if _takes(contract, one)]
    for before, after in respelled(left, mesh):
        if all(one in left for one in before) and all(_takes(contract, one) for one in after):
            left = [one for one in left if one not in before]
            kept += after
    return kept + left


def _takes(contract: Contract, one: Collective) -> bool:
    return any(isinstance(clause, Expectation) and is_exactly(clause.selector, one) for clause in contract.clauses)


def _taken(clauses: Sequence[Expectation], moving: Sequence[Collective]) -> dict[Expectation, list[Collective]]:
    """The collectives that each expectation takes: each collective goes to the narrowest one that fits."""
    taken: dict[Expectation, list[Collective]] = {clause: [] for clause in clauses}
    for one in moving:
        fitting = [clause for clause in clauses if is_exactly(clause.selector, one)]
        if fitting:
            taken[max(fitting, key=lambda clause: clause.selector.narrowness)].append(one)
    return taken


def _unmet(clause: Expectation, taken: Sequence[Collective], moving: Sequence[Collective]) -> Iterator[Breach]:
    name = format_selector(clause.selector)
    if not any(is_exactly(clause.selector, one) for one in moving):
        yield Breach(
            kind=BreachKind.BROKEN,
            message=f"{name} is expected, and there is none",
            expected=format_clause(clause),
            found=found_words(moving),
        )
    for kind, message, offenders in (*_too_large(clause, taken, name), *_too_often(clause, taken, name)):
        yield Breach(
            kind=kind,
            message=message,
            expected=format_clause(clause),
            found=found_words(taken),
            offenders=tuple(offenders),
            accept=suggestion(taken) if _known(taken) else None,
        )


def _known(collectives: Sequence[Collective]) -> bool:
    return all(one.payload_bytes is not None for one in collectives)


_Exceeded = tuple[BreachKind, str, Sequence[Collective]]
"""What it is, one sentence, and the collectives that exceed a limit."""


def _too_large(clause: Expectation, taken: Sequence[Collective], name: str) -> Iterator[_Exceeded]:
    unknown = [one for one in taken if one.payload_bytes is None]
    if unknown and (clause.max_bytes is not None or clause.max_bytes_per_step is not None):
        yield BreachKind.UNDECIDED, f"{name} has a limit, and its bytes are not known", unknown
        return
    if clause.max_bytes is not None:
        large = [one for one in taken if (one.payload_bytes or 0) > clause.max_bytes]
        if large:
            most = max(one.payload_bytes or 0 for one in large)
            limit = format_amount(clause.max_bytes, BYTE_UNITS)
            yield BreachKind.BROKEN, f"{name} moves {format_bytes(most)} each time, more than {limit}", large
    if clause.max_bytes_per_step is not None:
        sizes = [(one.payload_bytes_per_step or 0, bytes_bound(one)) for one in taken]
        limit = format_amount(clause.max_bytes_per_step, BYTE_UNITS)
        for kind, words in _exceeding(sizes, clause.max_bytes_per_step, format_bytes):
            yield kind, f"{name} moves {words} per step, more than {limit}", taken


def _too_often(clause: Expectation, taken: Sequence[Collective], name: str) -> Iterator[_Exceeded]:
    if clause.max_count is None:
        return
    counts = [(one.executions, one.executions_bound) for one in taken]
    for kind, words in _exceeding(counts, clause.max_count, format_count):
        yield kind, f"{name} runs {words} times per step, more than {format_count(clause.max_count)}", taken


def _unexpected(contract: Contract, others: Sequence[Collective]) -> Iterator[Breach]:
    expected = "; ".join(format_clause(clause) for clause in contract.expectations)
    for group in by_kind_and_axes(others):
        yield Breach(
            kind=BreachKind.BROKEN,
            message=f"{found_words(group)} is not in the contract",
            expected=f"nothing else than {expected}" if expected else "nothing moves",
            found=found_words(group),
            offenders=tuple(group),
            accept=suggestion(group),
        )


def _banned(ban: Ban, moving: Sequence[Collective], contract: Contract) -> Iterator[Breach]:
    fits = [(one, touches(ban.selector, one)) for one in moving]
    surely = [one for one, fit in fits if fit is Fit.YES]
    perhaps = [one for one, fit in fits if fit is Fit.MAYBE]
    for group in by_kind_and_axes(surely):
        yield Breach(
            kind=BreachKind.BROKEN,
            message=f"{found_words(group)} is there, against the contract",
            expected=format_clause(ban),
            found=found_words(group),
            offenders=tuple(group),
            accept=f"{suggestion(group)}, in place of {format_clause(ban)}",
        )
    if perhaps and not contract.at_least_ok:
        yield Breach(
            kind=BreachKind.UNDECIDED,
            message=f"{found_words(perhaps)} may be what {format_clause(ban)} forbids, and the text does not tell",
            expected=format_clause(ban),
            found=found_words(perhaps),
            offenders=tuple(perhaps),
            accept="at-least-ok",
        )


def _broken_limits(contract: Contract, analysis: Analysis, moving: Sequence[Collective]) -> Iterator[Breach]:
    """The limits that are exceeded, or that cannot be held against what is known."""
    for clause in contract.clauses:
        if isinstance(clause, Limit):
            if clause.quantity in (Quantity.WIRE, Quantity.PAYLOAD):
                yield from _moved(clause, moving, at_least_ok=contract.at_least_ok)
            else:
                yield from _measured(clause, analysis, at_least_ok=contract.at_least_ok)


def _moved(limit: Limit, moving: Sequence[Collective], *, at_least_ok: bool) -> Iterator[Breach]:
    selector = Selector(axes=limit.axes, link=limit.link)
    fits = [(one, touches(selector, part), _bytes(limit, part)) for one in moving for part in _parts(one)]
    surely = [(one, size) for one, fit, size in fits if fit is Fit.YES]
    known = [(size, bytes_bound(one)) for one, size in surely if size is not None]
    total = sum(size for size, _ in known)
    for kind, words in _exceeding(known, limit.most, format_bytes):
        yield Breach(
            kind=kind,
            message=f"{words} per step, more than {format_clause(limit)}",
            expected=format_clause(limit),
            found=f"{words} per step",
            offenders=_once(one for one, _ in sorted(surely, key=lambda move: -(move[1] or 0))),
            accept=suggested_limit(limit, total),
        )
    doubtful = [one for one, fit, size in fits if fit is Fit.MAYBE or (fit is Fit.YES and size is None)]
    if doubtful and not at_least_ok:
        yield Breach(
            kind=BreachKind.UNDECIDED,
            message=f"{format_clause(limit)} cannot be decided: bytes or axes are not known",
            expected=format_clause(limit),
            found=f"at least {format_bytes(total)} per step",
            offenders=_once(doubtful),
            accept="at-least-ok",
        )


def _exceeding(
    amounts: Sequence[tuple[int, Bound]], most: int, format_amount: Callable[[int], str]
) -> Iterator[tuple[BreachKind, str]]:
    """Whether amounts add up to more than a limit, with words for their sum; nothing where they do not.

    It is not decided where only a branch that may not run, or an upper bound, makes them exceed it.
    """
    total = sum(amount for amount, _ in amounts)
    if total > most:
        certain = sum(amount for amount, bound in amounts if bound in (Bound.EXACT, Bound.AT_LEAST))
        bound = reduce(Bound.__add__, (bound for _, bound in amounts), Bound.EXACT)
        if certain > most and bound is Bound.UNKNOWN:
            yield BreachKind.BROKEN, _bounded(certain, Bound.AT_LEAST, format_amount)
        elif certain > most:
            yield BreachKind.BROKEN, _bounded(total, bound, format_amount)
        else:
            yield BreachKind.UNDECIDED, _bounded(total, bound, format_amount)


def _bounded(amount: int, bound: Bound, format_amount: Callable[[int], str]) -> str:
    """An amount that exceeds a limit; one without any bound is what was counted, and no more than that."""
    surely = {Bound.EXACT: "", Bound.AT_MOST: "up to ", Bound.AT_LEAST: "at least ", Bound.UNKNOWN: "perhaps "}
    return f"{surely[bound]}{format_amount(amount)}"


def _parts(one: Collective) -> tuple[Collective, ...]:
    """The transfers that a collective across slices is made of, each with its own axes and network; else itself."""
    if not one.parts:
        return (one,)
    return tuple(
        replace(
            one,
            kind=part.kind,
            axes=part.axes,
            link=part.link,
            payload_bytes=part.payload_bytes,
            wire_bytes=part.wire_bytes,
            executions=part.executions,
            parts=(),
        )
        for part in one.parts
    )


def _once(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple({id(one): one for one in collectives}.values())


def _bytes(limit: Limit, one: Collective) -> int | None:
    return one.wire_bytes_per_step if limit.quantity is Quantity.WIRE else one.payload_bytes_per_step


def _measured(limit: Limit, analysis: Analysis, *, at_least_ok: bool) -> Iterator[Breach]:
    found, words = _found(limit, analysis)
    if found is None:
        yield Breach(
            kind=BreachKind.UNDECIDED,
            message=f"{format_clause(limit)} cannot be decided: {words}",
            expected=format_clause(limit),
            found="not known",
        )
    elif found > limit.most:
        amount = format_amount(limit.most, units_of(limit.quantity, share=limit.share))
        yield Breach(
            kind=BreachKind.UNDECIDED if _is_a_ceiling(limit, analysis.time) else BreachKind.BROKEN,
            message=f"{limit.quantity} is {words}, more than {amount}",
            expected=format_clause(limit),
            found=words,
            accept=suggested_limit(limit, found),
        )
    elif limit.quantity is not Quantity.HBM and not at_least_ok and (why := _doubtful_time(analysis.time)):
        yield Breach(
            kind=BreachKind.UNDECIDED,
            message=f"{format_clause(limit)} cannot be decided: {why}",
            expected=format_clause(limit),
            found=f"at least {words}",
            accept="at-least-ok",
        )


def _is_a_ceiling(limit: Limit, time: StepTime | None) -> bool:
    """Whether a step may take less than predicted, because not all of it may run."""
    return limit.quantity is not Quantity.HBM and time is not None and time.bound is Bound.AT_MOST


def _doubtful_time(time: StepTime | None) -> str | None:
    """Why a step may take longer than predicted: a roofline, or something in it not counted or not known; else None."""
    if time is None:
        return None
    if time.basis == "roofline" or time.bound in (Bound.AT_LEAST, Bound.UNKNOWN):
        return "the predicted time is a lower bound"
    if time.rests_on_unknown:
        return f"{time.unknown_operations[0].what} is priced without knowing what it does"
    return None


def _found(limit: Limit, analysis: Analysis) -> tuple[int | None, str]:
    """The quantity in the limit's unit, rounded up, with words for it; None with the reason why it is not known."""
    time = analysis.time
    if limit.quantity is Quantity.HBM:
        peak = analysis.memory.peak_bytes
        return peak, "HLO text does not tell what the compiler allocates" if peak is None else format_capacity(peak)
    if time is None or (limit.share and not time.step_us):
        return None, _NOT_PRICED
    if limit.share:
        share = time.exposed_us / time.step_us
        return _up(share * 1e6), f"{100 * share:.3g}% of {format_time(time.step_us)}"
    micros = time.step_us if limit.quantity is Quantity.TIME else time.exposed_us
    return _up(micros * 1000), format_time(micros)


def _up(amount: float) -> int:
    """Rounded up, but for what floating point adds."""
    return -int(-amount // 1) if amount - int(amount) > 1e-6 else int(amount)
