"""Pages of predictions: a check of targets, prices on several slices, and a search for better shardings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hloscope.base.units import pluralize
from hloscope.judge.changes import Figure, Judgement
from hloscope.judge.checks import Checked
from hloscope.model import Analysis
from hloscope.model.trial import Suggestion, Suggestions, is_tie
from hloscope.model.vocabulary import Bound, CompileStage
from hloscope.report import suggestions
from hloscope.report.checks import CheckReport, format_judgement, is_other, list_asides, make_check_document
from hloscope.report.html import pieces as html
from hloscope.report.html.pieces import Content, Element, Page, Path
from hloscope.report.pictures.plots import draw_chips, draw_front, draw_prices, has_ideal
from hloscope.report.price import Prices, Unpriced, format_slice, list_notes, make_price_document

_UNITS = {"us": "time", "bytes": "bytes", "flops": "flops"}
_VERDICTS = {"error": ("could not run", "bad"), "failed": ("failed", "bad"), "passed": ("passed", "good")}
"""The words and the mark of each verdict, the most urgent first."""


def render_check_page(found: CheckReport) -> str:
    """The page of a check."""
    page = Page.of(make_check_document(found))
    title = f"Check of {pluralize(len(found.checks), 'target')}"
    of = [f"commit {found.commit[:12]}"] if found.commit is not None else []
    of += [f"shard {found.shard}"] if found.shard is not None else []
    page.add_heading(title, " · ".join(of))
    targets = page.add_section("targets", "Targets")
    html.add_verdict(targets, "good" if found.passed else "bad", found.headline)
    if found.interrupted:
        html.add_note(targets, "It was interrupted before all targets were checked.")
    sorts = [_find_kind(checked) for checked in found.checks]
    known = {kind: words for kind, (words, _) in _VERDICTS.items() if kind in sorts}
    page.add_tools(targets, "target", known)
    around = html.add(targets, "div", class_="cards")
    for number in sorted(range(len(sorts)), key=lambda number: list(_VERDICTS).index(sorts[number])):
        _add_card(page, around, found, number)
    html.add_rules(page, (finding for checked in found.checks for finding in checked.findings))
    if found.unused_baselines:
        page.add_notes(f"{path} is the baseline of no target" for path in page.document["unused_baselines"])
    versions = next((one.analysis.versions for one in found.checks if one.analysis is not None), {})
    return page.finish(f"({found.headline})", versions=versions, basis="Predicted, not measured.")


def _find_kind(checked: Checked) -> str:
    return "error" if checked.error is not None else "passed" if checked.passed else "failed"


def _add_card(page: Page, around: Element, report: CheckReport, number: int) -> None:
    """Adds the card of a target, open unless it passed."""
    checked = report.checks[number]
    kind = _find_kind(checked)
    words, mark = _VERDICTS[kind]
    line: list[Content] = [html.make_badge(words, mark), " ", html.make("b", page.name(checked.name)), " "]
    card = html.add_details(around, line, _list_facts(page, checked, number), is_open=kind != "passed")
    card.set("class", f"target-card {mark}")
    card.set("data-kind", kind)
    if checked.error is not None:
        page.add_code(card, checked.error.splitlines(), f"Why {checked.name} could not run")
    about: list[tuple[str, Content]] = [("against", _describe_against(page, checked, number))]
    about += [("note", page.prose(aside)) for aside in list_asides(checked)]
    remarks = checked.verdict.remarks if checked.verdict is not None else ()
    html.add_labels(card, [*about, *(("note", page.prose(remark)) for remark in remarks)])
    _add_figures(page, card, checked, number)
    if checked.findings:
        html.add_cards(page, card, [report.shown(finding) for finding in checked.findings])


def _list_facts(page: Page, checked: Checked, number: int) -> Iterator[Content]:
    """The costs of a target, for its line."""
    analysis, path = checked.analysis, ("checks", number, "analysis")
    if analysis is None:
        return
    if analysis.slice is not None:
        yield from (html.make("span", page.name(analysis.slice.name), class_="of"), " ")
    if analysis.stage is CompileStage.SCHEDULED:
        yield from (html.make("span", str(analysis.stage), class_="of"), " ")
    elif analysis.time is not None:
        step = page.figure((*path, "time", "step_us"), "time", bound=analysis.time.bound)
        yield from (html.make("span", step, " a step", class_="of"), " ")
    sent = page.figure((*path, "totals", "wire_bytes"), "bytes", bound=analysis.totals.bound)
    yield from (html.make("span", sent, " sent", class_="of"), " ")
    yield html.make("span", *_make_peak(page, analysis, path), " of HBM", class_="of")


def _make_peak(page: Page, analysis: Analysis, path: Path) -> list[Content]:
    """The peak memory; of a program that is only scheduled, without code."""
    is_scheduled = analysis.stage is CompileStage.SCHEDULED
    peak = page.figure((*path, "memory", "data_bytes" if is_scheduled else "peak_bytes"), "bytes")
    return [peak, html.make("small", "without code") if is_scheduled else None]


def _describe_against(page: Page, checked: Checked, number: int) -> Content:
    """`its contract: no all-gather; its baseline: worse than it`."""
    document = page.document["checks"][number]
    words = [f"contract: {document['contract']}"] if document["contract"] else []
    if checked.judged is not None:
        same = "the same" if not is_other(checked.judged) else format_judgement(checked.judged)
        words.append(f"baseline {document['baseline']}: {same} {'as' if same == 'the same' else ''}".rstrip() + " it")
        words += [f"the compiler is another one: {checked.judged.versions}"] if checked.judged.versions else []
    return page.name("; ".join(words), 400) if words else None


def _add_figures(page: Page, card: Element, checked: Checked, number: int) -> None:
    """Each figure before and after; of a target without a baseline as it is."""
    if checked.judged is not None:
        rows = list(_list_before_and_after(page, checked, number))
        heads = ["per device", ">baseline", ">now", ">change"]
    elif checked.analysis is not None:
        rows = list(_list_now(page, checked.analysis, ("checks", number, "analysis")))
        heads = ["per device", ">now"]
    else:
        return
    page.add_table(card, f"Figures of {checked.name}", heads, rows, sorts=False)


def _list_before_and_after(page: Page, checked: Checked, number: int) -> Iterator[list[Content]]:
    assert checked.judged is not None
    for at, figure in enumerate(checked.judged.figures):
        path, unit = ("checks", number, "judged", "figures", at), _UNITS[figure.unit]
        is_worse = checked.judged.judgement is Judgement.WORSE
        then = _make_amount(page, path, "before", unit)
        if not figure.comparable:
            then.append(html.make("small", "from another version of hloscope"))
        now = _make_amount(page, path, "after", unit)
        yield [page.name(figure.name, 60), then, now, _make_change(page, path, figure, is_worse=is_worse)]


def _make_amount(page: Page, path: Path, side: str, unit: str) -> list[Content]:
    """A figure with its bound; an exact prediction has its range."""
    bound = Bound(page.find((*path, f"{side}_bound")))
    span = (*path, f"{side}_range")
    ranged = page.range((*span, 0), (*span, 1)) if bound is Bound.EXACT and page.find(span) is not None else []
    amount = page.figure((*path, side), unit, bound=bound, unknown="not known")
    return [amount, html.make("small", *ranged) if ranged else None]


def _make_change(page: Page, path: Path, figure: Figure, *, is_worse: bool) -> Content:
    """The change of a figure with a mark, red only if the check says that the target got worse."""
    before, after, bound = figure.before, figure.after, figure.change_bound
    if before == after and before is not None and figure.before_bound is figure.after_bound and figure.comparable:
        return "=" if bound is Bound.EXACT else html.make_unknown("= as counted")
    if before is None or after is None or not figure.comparable or bound is Bound.UNKNOWN:
        words = "not comparable" if not figure.comparable and None not in (before, after) else "unknown"
        return html.make_unknown(words)
    if before == after:
        return html.make_unknown(f"{bound} as much")
    mark, kind = ("▲", "bad" if is_worse else "more") if after > before else ("▼", "fewer")
    if not before:
        return html.make("span", f"{mark} new", class_=kind)
    factor = page.figure((*path, "after"), "change", over=(*path, "before"), bound=bound)
    return html.make("span", f"{mark} ", factor, class_=kind)


def _list_now(page: Page, analysis: Analysis, path: Path) -> Iterator[list[Content]]:
    if analysis.time is not None and analysis.stage is not CompileStage.SCHEDULED:
        time = (*path, "time")
        step = page.figure((*time, "step_us"), "time", bound=analysis.time.bound)
        spread = [] if analysis.time.unpriced_kernels else page.range((*time, "least_us"), (*time, "most_us"))
        yield ["predicted step", [step, html.make("small", *spread) if spread else None]]
    for axes, total in page.find((*path, "totals", "by_axis")).items():
        words = "unknown axes" if axes == "?" else axes or "no axis"
        sent = page.figure((*path, "totals", "by_axis", axes, "wire_bytes"), "bytes", bound=total["bound"])
        yield [page.name(f"sent over {words}", 60), sent]
    if not analysis.totals.by_axis:
        yield ["sent per step", page.figure((*path, "totals", "wire_bytes"), "bytes", bound=analysis.totals.bound)]
    peak, hbm = _make_peak(page, analysis, path), page.figure((*path, "memory", "hbm_bytes"), "capacity")
    yield ["memory: peak", [*peak, html.make("small", "of ", hbm) if analysis.memory.hbm_bytes else None]]


_PRICE_HEADS = (
    "slice",
    ">chips",
    ">step",
    ">of the first",
    ">chip time",
    ">compute",
    ">exposed",
    ">hidden",
    ">of peak",
    ">HBM at its peak",
    ">error factor",
)

_KNOWN = (Bound.EXACT, Bound.AT_MOST)
"""Bounds of a step that can be said to be short."""


def render_price_page(found: Sequence[Analysis | Unpriced]) -> str:
    """The page of a program on several slices."""
    page = Page.of(make_price_document(found))
    target = page.document["target"]
    page.add_heading(target, f"a step on {pluralize(len(found), 'slice')}")
    known = [one for one in found if isinstance(one, Analysis)]
    slices = page.add_section("slices", "Slices", "The predicted step, slice by slice")
    _add_fastest(page, slices, known)
    page.add_table(slices, "Slices", _PRICE_HEADS, [*_list_priced(page, known), *_list_refused(page)])
    if len(known) > 1:
        plot = page.add_section("chips", "By chips", "Step time against chips")
        page.plot(plot, draw_chips(Prices(known)), "The step by the number of chips")
        if has_ideal(known):
            words = "On a dashed line, a step takes as much chip time as on the fewest chips of that generation."
            html.add_note(plot, words)
        if len({one.slice and one.slice.chips for one in known}) < len(known):
            html.add_note(plot, "Slices with the same number of chips are drawn next to each other.")
        if any(one.memory.fits is False for one in known):
            html.add_note(plot, "A cross marks what does not fit in HBM.")
        if len(found) > len(known) or any(one.time is None for one in known):
            html.add_note(plot, "Slices without a price are not drawn.")
    split = page.add_section("split", "Split", "What of the step is computed and what is waited for")
    page.plot(split, draw_prices(found), "The step on each slice, split")
    _add_unpriced(page)
    page.add_notes(words for one in known for words in (*one.notes, *list_notes(one)))
    versions = known[0].versions if known else {}
    return page.finish(f"on {pluralize(len(found), 'slice')}", versions=versions, basis="Predicted, not measured.")


def _add_fastest(page: Page, parent: Element, found: Sequence[Analysis]) -> None:
    """Adds the fastest known slice that the program fits on."""
    of = [
        (one.time.step_us, number)
        for number, one in enumerate(found)
        if one.time is not None and one.time.bound in _KNOWN and one.memory.fits is not False
    ]
    if not of:
        html.add_verdict(parent, "warn", "There is no slice that the program fits on and whose step is known.")
        return
    _, fastest = min(of)
    time = ("prices", fastest, "time")
    step = page.figure((*time, "step_us"), "time", bound=page.find((*time, "bound")))
    tying = (found[number] for _, number in of if _is_tie(found[number], found[fastest]))
    ties = [page.privacy.hide(format_slice(one)) for one in tying]
    tied = f", a tie with {', '.join(ties)}" if ties else ""
    open_ones = [one for one in found if one.memory.fits is None and one.time is not None]
    unsure = " Whether it fits is not known everywhere." if open_ones else ""
    at_worst = any(_find_bound(found[number]) is Bound.AT_MOST for _, number in of)
    words = "The shortest step at worst is " if at_worst else "The shortest step that is known is "
    longest = " Every branch is counted at its longest." if at_worst else ""
    place = page.name(format_slice(found[fastest]))
    html.add_verdict(parent, "info", words, step, " on ", place, f"{tied}.{longest}{unsure}")


def _find_bound(one: Analysis) -> Bound:
    return Bound.EXACT if one.time is None else one.time.bound


def _is_tie(one: Analysis, other: Analysis) -> bool:
    if one is other or one.time is None or other.time is None:
        return False
    alike = (one.slice and one.slice.chip) == (other.slice and other.slice.chip)
    return is_tie(one.time, other.time, same_generation=alike)


def _list_priced(page: Page, found: Sequence[Analysis]) -> Iterator[list[Content]]:
    first = next((number for number, one in enumerate(found) if one.time is not None and one.time.step_us > 0), None)
    for number, one in enumerate(found):
        path = ("prices", number)
        time, step_us = (*path, "time"), (*path, "time", "step_us")
        ranged = one.time is not None and one.time.has_range
        spread = page.range((*time, "least_us"), (*time, "most_us")) if ranged else []
        bound = _find_bound(one)
        of_part = bound.of_part
        step = page.figure(step_us, "time", bound=bound)
        yield [
            page.name(format_slice(one)),
            page.figure((*path, "slice", "chips"), "count"),
            [step, html.make("small", *spread) if spread else None],
            "" if first is None else _make_multiple(page, found, number, first),
            page.figure(step_us, "time", times=(*path, "slice", "chips"), bound=bound),
            *(page.figure((*time, f"{name}_us"), "time", bound=of_part) for name in ("compute", "exposed", "hidden")),
            page.figure((*time, "peak_flops_share"), "share", bound=of_part),
            _make_hbm(page, one, number),
            _make_error(page, one, number),
        ]


def _make_multiple(page: Page, found: Sequence[Analysis], number: int, first: int) -> list[Content]:
    """The step as a multiple of that on the first slice."""
    step_us, over = (("prices", each, "time", "step_us") for each in (number, first))
    times = [one.time for one in (found[number], found[first])]
    bounds = [Bound.EXACT if time is None or number == first else time.bound for time in times]
    tied = html.make("small", "a tie") if _is_tie(found[number], found[first]) else None
    return [page.figure(step_us, "factor", over=over, bound=bounds[0] + -bounds[1]), tied]


def _make_hbm(page: Page, one: Analysis, number: int) -> list[Content]:
    memory = ("prices", number, "memory")
    of = html.make("small", "of ", page.figure((*memory, "hbm_bytes"), "capacity")) if one.memory.hbm_bytes else None
    fits = html.make_unknown("not known whether it fits")
    if one.memory.fits is not None:
        fits = html.make_badge("fits", "good") if one.memory.fits else html.make_badge("does not fit", "bad")
    return [page.figure((*memory, "peak_bytes"), "bytes"), of, html.make("small", fits)]


def _make_error(page: Page, one: Analysis, number: int) -> Element:
    """The worst error factor of predictions for the generation, compared with measurements."""
    if one.time is None or one.time.unpriced_kernels or one.time.bound not in _KNOWN:
        return html.make_unknown()
    return page.figure(("prices", number, "time", "spread", "worst"), "factor", unknown="not measured")


def _list_refused(page: Page) -> Iterator[list[Content]]:
    for one in page.document["unpriced"]:
        unknown = [html.make_unknown() for _ in _PRICE_HEADS[1:]]
        yield [[page.name(one["slice"]), html.make("small", html.make_badge("not compiled", "bad"))], *unknown]


def _add_unpriced(page: Page) -> None:
    if page.document["unpriced"]:
        section = page.add_section("refused", "Not compiled", "Slices that the program could not be compiled for")
        for one in page.document["unpriced"]:
            html.add(section, "h3", page.name(one["slice"]))
            page.add_code(section, one["error"].splitlines(), f"Why not {one['slice']}")


_WAY_HEADS = ("sharding", "state", "mesh", ">step", ">of the step", ">HBM", ">sent per step")
_SEARCHED = (
    ("assignments of shardings", "space"),
    ("ranked with Shardy, changed constraints and device orders included", "ranked"),
    ("compiled, the program as written included", "compiled"),
    ("compiles that failed", "failed"),
    ("left out, because their price is below what the chips can do", "refused"),
)


def render_suggestions_page(found: Suggestions) -> str:
    """The page of a search."""
    page = Page.of(found)
    page.add_heading(found.target, f"shardings on {found.slice}")
    ways = page.add_section("ways", "Shardings", "Pareto front of time and memory")
    kind = "info" if suggestions.find_main(found) is None else "good"
    kind = kind if suggestions.is_conclusive(found) else "warn"
    html.add_verdict(ways, kind, suggestions.format_headline(found), ".")
    if found.front:
        shared = replace(found, target=page.privacy.hide(found.target))
        page.plot(ways, draw_front(shared), "Shardings by time and memory")
    numbered: list[tuple[int, Suggestion, Path]] = [(0, found.own, ("own",))]
    numbered += [(number + 1, way, ("front", number)) for number, way in enumerate(found.front)]
    page.add_table(ways, "Shardings", _WAY_HEADS, [_make_row(page, found, *each) for each in numbered])
    _add_recipes(page, found, numbered)
    _add_search(page, found)
    page.add_notes(found.notes)
    basis = f"Predicted, not measured: each way was compiled for {found.slice} at full size, and none was run."
    return page.finish(f"on {found.slice}", basis=basis)


def _make_row(page: Page, found: Suggestions, number: int, way: Suggestion, path: Path) -> list[Content]:
    figures: Path = (*path, "figures")
    step = page.figure((*figures, "step_us"), "time", bound=way.figures.step_bound)
    spread = page.range((*figures, "step_us_range", 0), (*figures, "step_us_range", 1))
    over: Path = ("own", "figures", "step_us")
    bound = Bound.EXACT if way.is_own else way.figures.ratio_bound(found.own.figures)
    return [
        [f"{number}  ", page.name(suggestions.format_name(way), 80)],
        _make_state(found, way),
        page.name(suggestions.format_mesh(way), 40),
        [step, html.make("small", *spread) if spread else None],
        page.figure((*figures, "step_us"), "share", over=over, bound=bound),
        page.figure((*figures, "hbm_bytes"), "bytes"),
        page.figure((*figures, "wire_bytes"), "bytes", bound=way.figures.wire_bound),
    ]


def _make_state(found: Suggestions, way: Suggestion) -> list[Content]:
    state = suggestions.format_state(found, way)
    badge = html.make_badge(state, "good" if way.is_worth_it else "info") if state else None
    return [badge, None if way.fits else html.make_badge("does not fit", "bad")]


def _add_recipes(page: Page, found: Suggestions, numbered: Sequence[tuple[int, Suggestion, Path]]) -> None:
    """Adds the changes of each sharding; the recommended one is open."""
    recipes = page.add_section("recipes", "Changes", "What each sharding changes, and its code")
    shown = suggestions.find_main(found)
    if len(numbered) == 1:
        html.add_note(recipes, "No better sharding was found.")
    for number, way, path in numbered:
        if way.is_own:
            continue
        gain = _make_gain(page, found, way, path)
        line: list[Content] = [
            f"{number} ",
            page.name(suggestions.format_name(way), 100),
            " ",
            _make_state(found, way),
            gain,
        ]
        card = html.add_details(recipes, line, is_open=way is shown)
        card.set("class", "target-card")
        changes = list(_list_changes(page, way))
        if changes:
            heads = ["array", "as written", "then"]
            page.add_table(card, f"What way {number} changes", heads, changes, sorts=False)
        if words := suggestions.describe_unchanged(way):
            html.add_note(card, f"{words}.")
        html.add_labels(card, _list_about(page, way))
        if way.code:
            page.add_code(card, way.code, f"Code for way {number}")


def _list_about(page: Page, way: Suggestion) -> Iterator[tuple[str, Content]]:
    yield "constraints", page.prose("; ".join(way.constraints))
    yield "why", page.prose("; ".join(way.because))
    yield "mesh", page.name(suggestions.format_mesh(way))
    yield "devices", None if way.device_order is None else page.name(", ".join(map(str, way.device_order)), 200)
    yield "proven", _describe_proof(way)


def _make_gain(page: Page, found: Suggestions, way: Suggestion, path: Path) -> Element | None:
    if way.gain is None:
        return None
    ratio = way.figures.ratio_bound(found.own.figures)
    figure = page.figure((*path, "gain"), "gain", bound=-ratio if way.gain >= 0 else ratio)
    return html.make("span", figure, class_="of")


def _describe_proof(way: Suggestion) -> str:
    """The facts that are certain about a sharding, and those that are not."""
    priced = "compiled at full size" + ("" if way.figures.step_us is None else " and priced")
    if not way.fits:
        return f"{priced}; it does not fit in memory"
    if way.figures.unknown:
        return f"{priced}; not everything of it is known: {', '.join(way.figures.unknown)}"
    if way.is_tie:
        return f"{priced}; within the error of the prices it is as fast as the program as written"
    return f"{priced}; its numbers were not compared with the program's"


def _list_changes(page: Page, way: Suggestion) -> Iterator[list[Content]]:
    for spec in way.specs:
        if spec.is_changed:
            many = html.make("small", f"{spec.count} of them") if spec.count > 1 else None
            noun = html.make("small", "result") if spec.is_result and not spec.name.startswith("result") else None
            chosen = html.make("small", "the compiler's choice") if spec.is_open else None
            yield [
                [page.name(spec.name, 80), many, noun, chosen],
                *(_make_spec(page, text) for text in (spec.before, spec.after)),
            ]


def _make_spec(page: Page, text: str | None) -> Element:
    return html.make_unknown("left open") if text is None else page.name(text, 80, tag="code")


def _add_search(page: Page, found: Suggestions) -> None:
    """Adds the effort of the search, the best step of each kind of sharding, and what was refused."""
    tried = page.add_section("tried", "Search", "What was searched")
    rows: list[list[Content]] = [[words, page.figure((field,), "count")] for words, field in _SEARCHED]
    page.add_table(tried, "How many candidates were searched", ["candidates", ">number"], rows, sorts=False)
    _, *kept = (words for words in suggestions.describe_effort(found) if not words.startswith("recipes: "))
    if kept:
        html.add_list(tried, map(page.prose, kept))
    if found.recipes:
        own: Path = ("own", "figures", "step_us")
        paths: list[Path] = [("recipes", name) for name in page.document["recipes"]]
        best: list[list[Content]] = [
            [page.name(str(path[1])), page.figure(path, "time"), page.figure(path, "share", over=own)] for path in paths
        ]
        html.add(tried, "h3", "Best sharding of each kind")
        page.add_table(tried, "Best sharding of each kind", ["kind", ">step", ">of the step"], best)
