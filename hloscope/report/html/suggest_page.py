"""The page of a search for better shardings: the front as a plot, each way with its changes, and what was tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hloscope.analysis.model.suggestion import Suggestion, Suggestions
from hloscope.analysis.vocabulary import Bound
from hloscope.report.html.pieces import (
    Content,
    Element,
    Page,
    Path,
    add,
    badge,
    labelled,
    made,
    note,
    unfolding,
    verdict,
)
from hloscope.report.pictures.plots import front_plot
from hloscope.report.suggestions import effort_of, headline, in_full, is_conclusive, name_of, state_of, unchanged_words

_HEADS = ("sharding", "state", "mesh", ">step", ">of the step", ">HBM", ">sent per step")
_SEARCHED = (
    ("assignments of shardings", "space"),
    ("ranked with Shardy, changed constraints and device orders included", "ranked"),
    ("compiled", "compiled"),
    ("compiles that failed", "failed"),
    ("left out, because their price is below what the chips can do", "refused"),
)


def render(found: Suggestions) -> str:
    """The page of a search."""
    page = Page.of(found)
    page.heading(found.target, f"shardings on {found.slice}")
    ways = page.section("ways", "Shardings", "Pareto front of time and memory")
    kind = "warn" if not is_conclusive(found) else "info" if in_full(found) is None else "good"
    verdict(ways, kind, headline(found), ".")
    if found.front:
        page.plot(ways, front_plot(_named(page, found)), "Shardings by time and memory")
    numbered: list[tuple[int, Suggestion, Path]] = [(0, found.own, ("own",))]
    numbered += [(number + 1, way, ("front", number)) for number, way in enumerate(found.front)]
    page.table(ways, "Shardings", _HEADS, [_row(page, found, *each) for each in numbered])
    _recipes(page, found, numbered)
    _tried(page, found)
    page.notes(found.notes)
    basis = f"Predicted, not measured: each way was compiled for {found.slice} at full size, and none was run."
    return page.finished(f"on {found.slice}", basis=basis)


def _named(page: Page, found: Suggestions) -> Suggestions:
    """The same with a name that may be handed on."""
    return replace(found, target=page.privacy.text(found.target))


def _row(page: Page, found: Suggestions, number: int, way: Suggestion, path: Path) -> list[Content]:
    figures: Path = (*path, "figures")
    step = page.figure((*figures, "step_us"), "time", bound=way.figures.step_bound)
    spread = page.range((*figures, "step_us_range", 0), (*figures, "step_us_range", 1))
    over: Path = ("own", "figures", "step_us")
    bound = Bound.EXACT if way.is_own else way.figures.ratio_bound(found.own.figures)
    return [
        [f"{number}  ", page.name(name_of(way), 80)],
        _state(found, way),
        page.name(_mesh(way), 40),
        [step, made("small", *spread) if spread else None],
        page.figure((*figures, "step_us"), "share", over=over, bound=bound),
        page.figure((*figures, "hbm_bytes"), "bytes"),
        page.figure((*figures, "wire_bytes"), "bytes", bound=way.figures.wire_bound),
    ]


def _state(found: Suggestions, way: Suggestion) -> list[Content]:
    state = state_of(found, way)
    badges = [badge(state, "good" if way.is_worth_it else "info")] if state else []
    badges += [] if way.fits else [badge("does not fit", "bad")]
    return list(badges)


def _mesh(way: Suggestion) -> str:
    return ",".join(f"{axis}={size}" for axis, size in way.mesh.items())


def _recipes(page: Page, found: Suggestions, numbered: Sequence[tuple[int, Suggestion, Path]]) -> None:
    """Each way with what it changes, the one to take unfolded."""
    recipes = page.section("recipes", "Changes", "What each sharding changes, and its code")
    shown = in_full(found)
    if len(numbered) == 1:
        note(recipes, "No better sharding was found.")
    for number, way, path in numbered:
        if way.is_own:
            continue
        gain = _gain(page, found, way, path)
        line: list[Content] = [f"{number} ", page.name(name_of(way), 100), " ", _state(found, way), gain]
        card = unfolding(recipes, line, is_open=way is shown)
        card.set("class", "target-card")
        changes = list(_changes(page, way))
        if changes:
            heads = ["array", "as written", "then"]
            page.table(card, f"What way {number} changes", heads, changes, sorts=False)
        if words := unchanged_words(way):
            note(card, f"{words}.")
        labelled(card, _about(page, way))
        if way.code:
            page.code(card, way.code, f"Code for way {number}")


def _about(page: Page, way: Suggestion) -> Iterator[tuple[str, Content]]:
    yield "constraints", page.prose("; ".join(way.constraints))
    yield "why", page.prose("; ".join(way.because))
    yield "mesh", page.name(_mesh(way))
    yield "devices", None if way.device_order is None else page.name(", ".join(map(str, way.device_order)), 200)
    yield "proven", _proven(way)


def _gain(page: Page, found: Suggestions, way: Suggestion, path: Path) -> Element | None:
    if way.gain is None:
        return None
    ratio = way.figures.ratio_bound(found.own.figures)
    return made("span", page.figure((*path, "gain"), "gain", bound=-ratio if way.gain >= 0 else ratio), class_="of")


def _proven(way: Suggestion) -> str:
    """What is certain of it, and what is not."""
    priced = "compiled at full size" + ("" if way.figures.step_us is None else " and priced")
    if not way.fits:
        return f"{priced}; it does not fit in memory"
    if way.figures.unknown:
        return f"{priced}; not everything of it is known: {', '.join(way.figures.unknown)}"
    if way.is_tie:
        return f"{priced}; within the error of the prices it is as fast as the program as written"
    return f"{priced}; its numbers were not compared with the program's"


def _changes(page: Page, way: Suggestion) -> Iterator[list[Content]]:
    for spec in way.specs:
        if spec.is_changed:
            many = made("small", f"{spec.count} of them") if spec.count > 1 else None
            noun = made("small", "result") if spec.is_result and not spec.name.startswith("result") else None
            yield [[page.name(spec.name, 80), many, noun], *(_spec(page, text) for text in (spec.before, spec.after))]


def _spec(page: Page, text: str | None) -> Element:
    return made("span", "left open", class_="unknown") if text is None else page.name(text, 80, tag="code")


def _tried(page: Page, found: Suggestions) -> None:
    """How it was searched, what each kind of way takes at best, and what was refused."""
    tried = page.section("tried", "Search", "What was searched")
    rows: list[list[Content]] = [[words, page.figure((field,), "count")] for words, field in _SEARCHED]
    page.table(tried, "How many candidates were searched", ["candidates", ">number"], rows, sorts=False)
    kept = [words for words in effort_of(found) if not words.startswith("recipes: ")]
    of = add(tried, "ul", class_="said")
    for words in kept[1:]:
        add(of, "li", page.prose(words))
    if not kept[1:]:
        tried.remove(of)
    if found.recipes:
        own: Path = ("own", "figures", "step_us")
        best: list[list[Content]] = [
            [page.name(name), page.figure(path, "time"), page.figure(path, "share", over=own)]
            for name, path in ((name, ("recipes", name)) for name in page.document["recipes"])
        ]
        add(tried, "h3", "Best sharding of each kind")
        page.table(tried, "Best sharding of each kind", ["kind", ">step", ">of the step"], best)
