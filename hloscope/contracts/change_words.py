"""What happened to the rows of a baseline, in words."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.analysis.vocabulary import Kind
from hloscope.contracts.baselines import BaselineRow
from hloscope.contracts.judged import Figure
from hloscope.contracts.pairing import Multiplied
from hloscope.units import format_bytes, format_flops, known_sum, plural


def moved_words(old: Sequence[BaselineRow], new: Sequence[BaselineRow], *, in_pairs: bool) -> str:
    """`an all-gather over fsdp is new, 12.6 MB sent per step`."""
    was, now = (format_bytes(known_sum(row.wire_bytes for row in side)) for side in (old, new))
    if not old:
        return f"{_rows_words(new)} {'is' if _is_one(new) else 'are'} new, {now} sent per step"
    if not new:
        return f"{_rows_words(old)} {'is' if _is_one(old) else 'are'} gone, {was} sent per step before"
    sent = f"{was} -> {now} sent per step"
    if in_pairs or _rows_words(new) == _rows_words(old):
        more = (known_sum(row.wire_bytes for row in new) or 0) >= (known_sum(row.wire_bytes for row in old) or 0)
        verb = "moves" if _is_one(new) else "move"
        return f"{_rows_words(new)} {verb} {'more' if more else 'less'} than before, {sent}"
    return f"{_rows_words(new)} where {_rows_words(old)} {'was' if _is_one(old) else 'were'}, {sent}"


def _is_one(rows: Sequence[BaselineRow]) -> bool:
    return len(rows) == 1 and rows[0].executions == 1


def _rows_words(rows: Sequence[BaselineRow]) -> str:
    counted: dict[tuple[Kind, str], int] = {}
    for row in rows:
        key = (row.kind, axes_of(row))
        counted[key] = counted.get(key, 0) + row.executions
    parts = []
    for (kind, axes), count in counted.items():
        article = "an" if kind[0] in "aeio" else "a"
        parts.append(f"{f'{article} {kind}' if count == 1 else plural(count, kind)} over {axes}")
    return " and ".join(parts)


def respelled_words(old: Sequence[BaselineRow], new: Sequence[BaselineRow]) -> str:
    """`3 collective-permutes over X became a reduce-scatter over X: the same bytes`."""
    return f"{_rows_words(old)} became {_rows_words(new)}: the same bytes"


def multiplied_words(most: Multiplied, whole: Figure, *, others: int) -> str:
    """`the matmuls in adapted do more: 101 MFLOPs -> 856 MFLOPs, of 10.3 GFLOPs -> 11.1 GFLOPs in all`.

    Args:
        most: The function that changes most.
        whole: What all functions multiply.
        others: How many others change as it does.
    """
    function = (most.new or most.old)[0].place.function
    amount = "more" if most.more > 0 else "less"
    all_of_it = f"{format_flops(whole.before or 0)} -> {format_flops(whole.after or 0)}"
    here = f"{format_flops(most.was)} -> {format_flops(most.now)}"
    if function is None or (here == all_of_it and not others):
        return f"the matmuls{f' in {function}' if function else ''} do {amount}: {all_of_it}"
    besides = f", and those in {plural(others, 'other function')}" if others else ""
    return f"the matmuls in {function} do {amount}: {here}{besides}; {all_of_it} in all"


def axes_of(row: BaselineRow) -> str:
    """The axes of a row, as they stand after `over`."""
    return "unknown axes" if row.axes is None else ",".join(row.axes) or "no axis"
