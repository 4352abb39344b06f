"""The words for what was found, and the shortest line of a contract that accepts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hloscope.analysis.model import Collective
from hloscope.contracts.model import Expectation, Limit, Selector, format_clause, format_selector, units_of
from hloscope.contracts.quantities import BYTE_UNITS, format_amount, rounded_up
from hloscope.units import format_bytes

_SHORT = 6
"""Characters: an amount that is longer is rounded up."""


def suggestion(collectives: Sequence[Collective]) -> str:
    """The shortest expectation that takes collectives of one kind and axes: `all-gather@fsdp <= 2.1MB x6`."""
    first = collectives[0]
    sizes = [one.payload_bytes for one in collectives]
    largest = None if None in sizes else max(size for size in sizes if size is not None)
    clause = Expectation(
        selector=Selector(kind=first.kind, axes=first.axes or None),
        max_bytes=None if largest is None else _roomy(largest),
        max_count=sum(one.executions for one in collectives),
    )
    return format_clause(clause)


def suggested_limit(limit: Limit, found: int) -> str:
    """The limit, raised so far that what was found keeps to it."""
    if len(format_amount(found, units_of(limit.quantity, share=limit.share))) > _SHORT:
        found = rounded_up(found)
    return format_clause(
        Limit(quantity=limit.quantity, most=found, share=limit.share, axes=limit.axes, link=limit.link)
    )


def _roomy(size: int) -> int:
    return size if len(format_amount(size, BYTE_UNITS)) <= _SHORT else rounded_up(size)


def found_words(collectives: Iterable[Collective]) -> str:
    """`all-gather@fsdp 2.1 MB x6, all-reduce@Y 32.8 kB`; `nothing` for none."""
    groups = by_kind_and_axes(collectives)
    return ", ".join(_group_words(group) for group in groups) or "nothing"


def _group_words(group: Sequence[Collective]) -> str:
    first = group[0]
    name = format_selector(Selector(kind=first.kind, axes=first.axes or None))
    count = sum(one.executions for one in group)
    sizes = {one.payload_bytes for one in group}
    known = [size for size in sizes if size is not None]
    size = format_bytes(first.payload_bytes) if len(sizes) == 1 else f"up to {format_bytes(max(known))}"
    return f"{name} {'unknown bytes' if None in sizes else size} x{count}"


def by_kind_and_axes(collectives: Iterable[Collective]) -> list[list[Collective]]:
    """The collectives in groups of one kind and one set of axes, in the order of their first."""
    groups: dict[object, list[Collective]] = {}
    for one in collectives:
        groups.setdefault((one.kind, one.axes and tuple(sorted(one.axes))), []).append(one)
    return list(groups.values())
