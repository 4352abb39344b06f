"""The user's word for trip counts that the program decides at run time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.totals import totals_of
from hloscope.analysis.vocabulary import Bound
from hloscope.contracts.model import Contract, Trips, format_clause
from hloscope.contracts.selecting import is_at
from hloscope.contracts.verdict import Breach, BreachKind

_KNOWN_NOW = {Bound.AT_LEAST: Bound.EXACT, Bound.UNKNOWN: Bound.AT_MOST}
"""A loop that surely runs is known exactly once its trips are; one that may not run, runs at most so often."""


def with_trips(contract: Contract, analysis: Analysis) -> tuple[Analysis, tuple[str, ...], tuple[Breach, ...]]:
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
