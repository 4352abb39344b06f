"""The result of a search for better shardings, as text or Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hloscope.base.errors import Option, say
from hloscope.base.units import format_bytes, format_share, format_time, format_time_range, pluralize
from hloscope.model.trial import SuggestedSpec, Suggestion, Suggestions
from hloscope.report.escaping import escape_prose, fence_code
from hloscope.report.layout import (
    INDENT,
    Breaks,
    Column,
    column,
    fold,
    fold_all,
    hang,
    render_markdown_table,
    render_table,
    section,
)
from hloscope.report.words import format_difference, make_legend, render_notes

_LARGE_GAIN = 0.05
_FAILURES = 3
"""The number of reported reasons for failed compiles."""


def render_suggestions(found: Suggestions, width: int) -> Iterator[Text]:
    """The front as a table, the best sharding in full, and the effort of the search."""
    inner = width - INDENT
    yield from fold(Text.assemble((found.target, "bold"), f" on {found.slice}"), width)
    title, table = format_headline(found), render_table(make_front_columns(found), inner)
    shown = find_main(found)
    in_words = [] if shown is None else [Text(format_title(found, shown)), *_render_full(shown, inner)]
    marks = fold_all((make_legend([Text(title), *table, *in_words]),), inner)
    yield from section(title, [*table, *marks], inner)
    if shown is not None:
        yield from section(in_words[0].plain, in_words[1:], inner)
    yield from section("How it was searched", fold_all(map(Text, describe_effort(found)), inner), inner)
    yield from render_notes(dict.fromkeys(found.notes), inner)


def render_markdown(found: Suggestions) -> str:
    """The suggestions as Markdown."""
    parts = [f"**{escape_prose(found.target)}** on {found.slice}: {escape_prose(format_headline(found))}", ""]
    _, _, *figures = make_front_columns(found)
    rows = [found.own, *found.front]
    name = column(rows, "sharding", lambda row: f"{format_name(row)}{' (as written)' * row.is_own}")
    parts += render_markdown_table([name, *figures])
    shown = find_main(found)
    if shown is not None:
        parts += ["", f"**{escape_prose(format_title(found, shown))}**", ""]
        parts += [f"- {escape_prose(line)}" for line in (*list_changes(shown), *shown.because)]
        parts += ["", *fence_code("\n".join(shown.code), "python")]
    parts += ["", *(f"- {escape_prose(line)}" for line in (*describe_effort(found), *found.notes))]
    return "\n".join(parts) + "\n"


def find_main(found: Suggestions) -> Suggestion | None:
    """The suggestion to report in full; None if none is worth it."""
    return found.best or (found.front[0] if found.goal == "memory" and found.front else None)


def format_headline(found: Suggestions) -> str:
    """The outcome of the search in one line."""
    best = found.best
    if found.goal == "memory":
        if best is None:
            return "The program does not fit in memory, and neither does any sharding that was compiled"
        return f"The program does not fit in memory; the fastest that fits takes {best.figures.step_words}"
    if best is None:
        return _describe_nothing(found)
    if best.gain is not None and best.gain > _LARGE_GAIN:
        words = format_difference(found.own.figures, best.figures)
        return f"The best sharding found takes {words} time{_describe_memory(found.own, best)}"
    return "The best sharding found is as fast and needs less memory"


def _describe_memory(own: Suggestion, best: Suggestion) -> str:
    """` and 44.8% less memory`: why the best is not the fastest."""
    before, after = own.figures.hbm_bytes, best.figures.hbm_bytes
    share = 1 - after / before if before and after is not None else 0.0
    return f" and {format_share(share)} less memory" if share > _LARGE_GAIN else ""


def is_conclusive(found: Suggestions) -> bool:
    """True if any other sharding was compiled, so that the search has a conclusion."""
    return found.compiled > 1


def _describe_nothing(found: Suggestions) -> str:
    if not is_conclusive(found):
        why = "" if found.stopped is None else f": {found.stopped}"
        return f"No conclusion, because no other sharding was compiled{why}"
    nothing = "Nothing better than the program as written was found"
    if found.stopped is None:
        return nothing
    return f"{nothing} among {pluralize(found.compiled - 1, 'sharding')}, before {found.stopped}"


def make_front_columns(found: Suggestions) -> list[Column]:
    """The table of the program as written and the front."""
    rows = [found.own, *found.front]
    return [
        column(rows, "", lambda row: format_state(found, row)),
        column(rows, "sharding", format_name, breaks=Breaks.BETWEEN_WORDS),
        column(rows, "mesh", format_mesh, given_up=3, below="mesh {}"),
        column(rows, "step", lambda row: row.figures.step_words, right=True),
        column(rows, "range", _format_range, right=True, given_up=2, below="{}"),
        column(rows, "HBM", _format_hbm, right=True),
        column(rows, "sent per step", _format_sent, right=True, given_up=1, below="sends {} per step"),
    ]


def format_state(found: Suggestions, row: Suggestion) -> str:
    """The state of a sharding compared with the program: `as written`, `best`, `better`, `tie`, or nothing."""
    if row.is_own:
        return "as written"
    if row.is_worth_it:
        return "best" if row is found.best else "better"
    return "tie" * row.is_tie


def format_name(row: Suggestion) -> str:
    """The recipe; its changes if it has no name."""
    if row.recipe is not None:
        return row.recipe
    changed = [spec for spec in row.specs if spec.is_changed and not spec.is_open]
    if not changed:
        return "its own shardings" if row.is_own else "other constraints"
    words = [f"{spec.name} {spec.after or 'open'}" for spec in changed[:3]]
    return ", ".join(words) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")


def format_mesh(row: Suggestion) -> str:
    """`data=4,model=2`."""
    return ",".join(f"{axis}={size}" for axis, size in row.mesh.items())


def _format_range(row: Suggestion) -> str:
    found = row.figures.step_us_range
    return "" if found is None else format_time_range(*found)


def _format_hbm(row: Suggestion) -> str:
    return format_bytes(row.figures.hbm_bytes) + ("" if row.fits else " (does not fit)")


def _format_sent(row: Suggestion) -> str:
    return row.figures.wire_bound.marked(format_bytes(row.figures.wire_bytes))


def format_title(found: Suggestions, best: Suggestion) -> str:
    """`312 us -> 253 us, 18.9% less: FSDP`."""
    before, after = found.own.figures, best.figures
    steps = f"{before.step_words} -> {after.step_words}"
    return f"{', '.join(filter(None, (steps, format_difference(before, after))))}: {format_name(best)}"


def _render_full(best: Suggestion, width: int) -> Iterator[Text]:
    for line in (*list_changes(best), *best.constraints):
        yield from hang(Text(line), width)
    if best.because:
        yield from hang(Text.assemble(("why: ", "bold"), "; ".join(best.because)), width)
    if best.code:
        yield Text("")
        yield from (Text(f"  {line}", style="cyan") for line in best.code)


def list_changes(best: Suggestion) -> Iterator[str]:
    """One line for each array whose sharding changes."""
    yield from (_describe_change(spec) for spec in best.specs if spec.is_changed)
    yield from filter(None, [describe_unchanged(best)])


def describe_unchanged(best: Suggestion) -> str:
    """`2 other arrays are unchanged`."""
    kept = sum(not spec.is_changed for spec in best.specs)
    noun = "array" if kept == len(best.specs) else "other array"
    return f"{pluralize(kept, noun)} {'is' if kept == 1 else 'are'} unchanged" if kept else ""


def _describe_change(spec: SuggestedSpec) -> str:
    many = f" ({spec.count} of them)" if spec.count > 1 else ""
    noun = "result " if spec.is_result and not spec.name.startswith("result") else ""
    chosen = ", the compiler's choice" if spec.is_open else ""
    return f"{noun}{spec.name}{many}: {spec.before or 'left open'} -> {spec.after or 'left open'}{chosen}"


def describe_effort(found: Suggestions) -> Iterator[str]:
    """Lines on the effort of the search."""
    failed = f", {found.failed} of which failed" if found.failed else ""
    yield (
        f"{pluralize(found.space, 'assignment')} of shardings; of these and of changed constraints and device orders, "
        f"{found.ranked:,} ranked with Shardy, "
        f"{found.compiled - 1 + found.failed} compiled besides the program as written{failed}, in "
        f"{format_time(1e6 * found.seconds)}"
    )
    yield from (f"failed to compile ({number:,}): {why}" for why, number in list(found.failures.items())[:_FAILURES])
    if found.stopped is not None:
        yield f"stopped early: {found.stopped}"
    if found.refused:
        yield (
            f"{pluralize(found.refused, 'sharding')} left out: predicted faster than the chips can be at their peak, "
            "so the prediction is wrong"
        )
    if found.recipes:
        best = list(found.recipes.items())[:4]
        yield f"recipes: {'; '.join(f'{name} {format_time(step_us)}' for name, step_us in best)}"
    if found.freed:
        kept, gain = f"kept as the program requests: {', '.join(found.freed[:3])}; ", found.freed_gain
        then = " searches it too" if gain is None or gain <= _LARGE_GAIN else f" would save {format_share(gain)} more"
        if gain is not None and gain <= _LARGE_GAIN:
            kept += "leaving it open does not make the best sharding faster; "
        yield say(kept, Option("free", found.freed[0]), then)
