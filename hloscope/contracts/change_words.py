"""What happened to the rows of a baseline, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.contracts.baselines import Baseline, BaselineRow, Place
from hloscope.contracts.judged import Figure
from hloscope.contracts.losing import axes_words
from hloscope.contracts.pairing import Multiplied
from hloscope.units import format_bytes, format_flops, known_sum, plural


def moved_words(
    old: Sequence[BaselineRow],
    new: Sequence[BaselineRow],
    *,
    in_pairs: bool,
    lost: str | None = None,
    as_many: bool = False,
) -> str:
    """`an all-gather over fsdp is new, 12.6 MB sent per step`.

    Args:
        old: The rows of the baseline.
        new: What the program has in their place.
        in_pairs: Whether each of them is one that the program had before, at another size.
        lost: What nothing does any more.
        as_many: Whether as many arrays are summed over these axes as before.
    """
    was, now = _sent(old), _sent(new)
    though = "; as many arrays as before are summed there" if as_many else ""
    if not old:
        return f"{_rows_words(new)} {_verb(new)} new, {now} sent per step{though}"
    if not new:
        gone = f"{_rows_words(old)} {_verb(old)} gone"
        return f"{lost or gone}{_was_words(old)}, {was} sent per step before{though}"
    sent = f"{sent_words(old, new)}{_types_words(old, new)}{_rewritten_words(old, new)}"
    if lost is not None:
        other = {row.kind for row in new} - {row.kind for row in old}
        instead = f"; instead there {_verb(new)} {_rows_words(new)}" if other else ""
        places = [{row.place for row in side} for side in (old, new)]
        is_told = places[0] & places[1] or _rewritten_words(old, new)
        return f"{lost}{instead}{'' if is_told else _was_words(old)}, {sent}"
    if in_pairs or _rows_words(new) == _rows_words(old):
        verb = "moves" if _is_one(new) else "move"
        return f"{_rows_words(new)} {verb} {_amount_words(old, new)}, {sent}{_combined_words(old, new)}"
    return f"{_rows_words(new)} where {_rows_words(old)} {'was' if _is_one(old) else 'were'}, {sent}"


def _amount_words(old: Sequence[BaselineRow], new: Sequence[BaselineRow]) -> str:
    """`more than before`, as far as that is known."""
    before, after = (known_sum(row.wire_bytes for row in side) for side in (old, new))
    bounds = [reduce(add, (row.bound for row in side), Bound.EXACT) for side in (old, new)]
    if before is None or after is None:
        return "another amount than before"
    if before == after and bounds[0] is not bounds[1]:
        change = bounds[1] + -bounds[0]
        return "an unknown amount" if change is Bound.UNKNOWN else f"{change} as much as before"
    return f"{'more' if after >= before else 'less'} than before"


def unknown_words(rows: Sequence[BaselineRow]) -> str:
    """`; some of it may not run, as in a branch`: why bytes are no exact figures."""
    if any(row.bound is Bound.AT_MOST for row in rows):
        return "; some of it may not run, as in a branch"
    return "; some of it is unknown"


def _types_words(old: Sequence[BaselineRow], new: Sequence[BaselineRow]) -> str:
    """`, bf16+f32 where f32 was`."""
    before, after = ("+".join(sorted({row.dtype or "unknown" for row in side})) for side in (old, new))
    return "" if before == after else f", {after} where {before} was"


def _was_words(gone: Sequence[BaselineRow]) -> str:
    """` (was: `out = jax.lax.psum(y, "model")` in block)`: the line of what is gone, which may be gone as well."""
    places = dict.fromkeys(row.place for row in sorted(gone, key=lambda row: -(row.wire_bytes or 0)))
    told = [place for place in places if place.text is not None]
    if not told:
        return ""
    others = f", and {plural(len(told) - 1, 'other line')}" if len(told) > 1 else ""
    return f" (was: `{told[0].text}`{_in_function(told[0])}{others})"


def _combined_words(old: Sequence[BaselineRow], new: Sequence[BaselineRow]) -> str:
    """`; its line is that of the largest of 7 arrays, 8 before`, where any array of one transfer may have changed."""
    if len(new) != 1 or new[0].executions != 1 or (new[0].arrays or 1) == 1:
        return ""
    was = known_sum(row.arrays for row in old)
    before = "" if was in (None, new[0].arrays) else f", {was} before"
    return f"; the line is that of the largest of its {new[0].arrays} arrays{before}"


def _rewritten_words(old: Sequence[BaselineRow], new: Sequence[BaselineRow]) -> str:
    """`: `out = psum(h)` where `out = psum(y)` was`, of one call in the code that is another one now."""
    if not (len(old) == len(new) == 1 and old[0].written and new[0].written and old[0].arrays == new[0].arrays):
        return ""
    was, now = old[0].place.text, new[0].place.text
    return "" if None in (was, now) or was == now else f": `{now}` where `{was}` was"


def function_of(place: Place) -> str | None:
    """The function of a place without those that it is written in; None for what has no name."""
    name = (place.function or "").rpartition("<locals>.")[2]
    return None if name in ("", "<module>", "<lambda>") else name


def _in_function(place: Place) -> str:
    name = function_of(place)
    return "" if name is None else f" in {name}"


def _verb(rows: Sequence[BaselineRow]) -> str:
    return "is" if _is_one(rows) else "are"


def _is_one(rows: Sequence[BaselineRow]) -> bool:
    return len(rows) == 1 and rows[0].executions == 1


def _rows_words(rows: Sequence[BaselineRow]) -> str:
    counted: dict[tuple[Kind, str], int] = {}
    for row in rows:
        key = (row.kind, axes_words(row))
        counted[key] = counted.get(key, 0) + row.executions
    parts = []
    for (kind, axes), count in counted.items():
        article = "an" if kind[0] in "aeio" else "a"
        parts.append(f"{f'{article} {kind}' if count == 1 else plural(count, kind)} over {axes}")
    return " and ".join(parts)


def respelled_words(old: Sequence[BaselineRow], new: Sequence[BaselineRow]) -> str:
    """`3 collective-permutes over X became a reduce-scatter over X: the same bytes`."""
    return f"{_rows_words(old)} became {_rows_words(new)}, which moves the same bytes"


def sent_words(old: Sequence[BaselineRow], new: Sequence[BaselineRow]) -> str:
    """`12.6 MB -> 6.29 MB sent per step`."""
    return f"{_sent(old)} -> {_sent(new)} sent per step"


def _sent(rows: Sequence[BaselineRow]) -> str:
    """`≤12.6 MB`: what rows send, with its bound."""
    wire_bytes = known_sum(row.wire_bytes for row in rows)
    if wire_bytes is None:
        return format_bytes(None)
    return reduce(add, (row.bound for row in rows), Bound.EXACT).marked(format_bytes(wire_bytes))


def most_grown_words(parts: Mapping[str, Figure], grown: float) -> str:
    """`, most of it temporaries`: the part that accounts for at least half of it."""
    for name, figure in parts.items():
        more = (figure.after or 0) - (figure.before or 0)
        if name not in ("peak", "aliased") and more / grown >= 0.5:
            return f", most of it {name}: {format_bytes(figure.before)} -> {format_bytes(figure.after)}"
    return ""


def multiplied_words(most: Multiplied, whole: Figure, *, others: int) -> str:
    """`the matmuls in adapted do more: 101 MFLOPs -> 856 MFLOPs, of 10.3 GFLOPs -> 11.1 GFLOPs in total`.

    Args:
        most: The function that changes most.
        whole: What all functions multiply.
        others: How many others change as it does.
    """
    function = function_of((most.new or most.old)[0].place)
    amount = "more" if most.more > 0 else "less"
    bounds = whole.before_bound, whole.after_bound
    all_of_it, here = (
        " -> ".join(bound.marked(format_flops(flops)) for bound, flops in zip(bounds, sides, strict=True))
        for sides in ((whole.before or 0, whole.after or 0), (most.was, most.now))
    )
    if function is None or (here == all_of_it and not others):
        return f"the matmuls{f' in {function}' if function else ''} do {amount}: {all_of_it}"
    besides = f", and those in {plural(others, 'other function')}" if others else ""
    return f"the matmuls in {function} do {amount}: {here}{besides}; {all_of_it} in total"


def versions_words(before: Baseline, after: Baseline) -> str | None:
    """The compilers of both, if they differ."""
    if before.compiler == after.compiler:
        return None
    old, new = (", ".join(f"{name} {version}" for name, version in side.compiler) or "none" for side in (before, after))
    return f"{old} in the baseline, {new} here"
