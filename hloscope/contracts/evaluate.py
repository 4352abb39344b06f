"""Contract x Analysis -> Verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.totals import bytes_bound
from hloscope.analysis.vocabulary import Bound
from hloscope.contracts.accepting import accepting, by_kind_and_axes, found_words
from hloscope.contracts.doubts import doubts, missing_files
from hloscope.contracts.exchanging import with_expected_spellings
from hloscope.contracts.limits import broken_limits, exceeding
from hloscope.contracts.model import Ban, Contract, Expectation, format_clause, format_selector
from hloscope.contracts.quantities import BYTE_UNITS, format_amount
from hloscope.contracts.selecting import Fit, is_exactly, touches
from hloscope.contracts.trip_counts import with_trips
from hloscope.contracts.verdict import Breach, BreachKind, Verdict
from hloscope.units import format_bytes, format_count

_GUESSED = (
    "the mesh axes are guessed: the text is the program of one of several slices, and no dcn says which axis crosses "
    "them"
)


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
    counted, remarks, untold = with_trips(contract, analysis)
    breaches = [*untold, *doubts(contract, counted), *missing_files(contract, counted, root)]
    moving = [one for one in counted.collectives if not _stays(one)]
    if contract.equivalent:
        moving = with_expected_spellings(contract, moving, counted.mesh)
    taken = _taken(contract.expectations, moving)
    breaches += [breach for clause in contract.expectations for breach in _unmet(clause, taken[clause], moving)]
    if contract.closed:
        expected = {id(one) for part in taken.values() for one in part}
        breaches += _unexpected(contract, [one for one in moving if id(one) not in expected])
    breaches += [
        breach for clause in contract.clauses if isinstance(clause, Ban) for breach in _banned(clause, moving, contract)
    ]
    breaches += broken_limits(contract, counted, moving)
    if contract.at_least_ok and counted.unmodelled:
        remarks = (*remarks, "at-least-ok: what was not understood is not held against the contract")
    if contract.speaks_of_collectives and any(one.axes_guessed for one in counted.collectives):
        remarks = (*remarks, _GUESSED)
    return Verdict(target=analysis.target, contract=contract, breaches=tuple(breaches), remarks=remarks)


def _stays(one: Collective) -> bool:
    """Whether nothing leaves a device: groups of one, a permute without pairs, or a loop of no trips around it."""
    never_runs = one.executions == 0 and one.executions_bound in (Bound.EXACT, Bound.AT_MOST)
    return never_runs or (one.wire_bytes == 0 and (one.axes == () or not one.groups))


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
            accept=accepting(taken) if _known(taken) else None,
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
        for kind, words in exceeding(sizes, clause.max_bytes_per_step, format_bytes):
            yield kind, f"{name} moves {words} per step, more than {limit}", taken


def _too_often(clause: Expectation, taken: Sequence[Collective], name: str) -> Iterator[_Exceeded]:
    if clause.max_count is None:
        return
    counts = [(one.executions, one.executions_bound) for one in taken]
    for kind, words in exceeding(counts, clause.max_count, format_count):
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
            accept=accepting(group),
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
            accept=f"{accepting(group)}, in place of {format_clause(ban)}",
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
