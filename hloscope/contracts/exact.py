"""The contract that says of a program what it moves, and nothing else: what an expectation is best begun with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.totals import grouped
from hloscope.analysis.vocabulary import Bound, Link
from hloscope.contracts.evaluate import counted_by, evaluate
from hloscope.contracts.model import AT_LEAST_OK, Contract, Expectation, Selector, Trips
from hloscope.units import known_sum


def exact_contract(analysis: Analysis, beside: Contract, *, root: Path | None = None) -> Contract:
    """What a program moves, by kind, axes and network, with bytes and counts as far as they are known.

    Where not everything is understood it says `at-least-ok`, and limits nothing that is not known.

    Args:
        analysis: What the program does.
        beside: What is said already: all but its expectations stays.
        root: The project's folder, as for `evaluate`.
    """
    others = tuple(clause for clause in beside.clauses if not isinstance(clause, Expectation))
    counted = Contract(clauses=beside.all_of(Trips))
    groups = grouped(_what, counted_by(counted, analysis))
    moved = Contract(clauses=tuple(_expectation(group) for group in groups.values()), closed=True)
    doubts = evaluate(moved & counted, analysis, root=root).breaches
    moved = replace(moved, at_least_ok=any(doubt.accept == AT_LEAST_OK for doubt in doubts))
    return moved & replace(beside, clauses=others)


def _what(moved: Collective) -> tuple[str, tuple[str, ...] | None, str | None, bool]:
    links = {moved.link, *(part.link for part in moved.parts)}
    axes = None if moved.axes is None else tuple(sorted(moved.axes))
    return moved.kind, axes, moved.reduction, bool(links & {Link.DCN, Link.BOTH})


def _expectation(group: Sequence[Collective]) -> Expectation:
    """What takes these collectives, and as few others as possible.

    Arrays of several sizes are limited together, those of one size each.
    """
    kind, axes, reduction, crosses = _what(group[0])
    sizes = {moved.payload_bytes for moved in group}
    largest = None if None in sizes else max(size for size in sizes if size is not None)
    bound = reduce(add, (moved.executions_bound for moved in group), Bound.EXACT)
    is_counted = bound in (Bound.EXACT, Bound.AT_MOST)
    together = known_sum(moved.payload_bytes_per_step for moved in group) if is_counted and len(sizes) > 1 else None
    return Expectation(
        selector=Selector(kind=kind, axes=axes or None, reduction=reduction, link=Link.DCN if crosses else None),
        max_bytes=largest if together is None else None,
        max_bytes_per_step=together,
        max_count=sum(moved.executions for moved in group) if is_counted else None,
    )
