"""The page of a program on several slices: the step by slice and by chips, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.step_time import is_tie
from hloscope.analysis.vocabulary import Bound
from hloscope.report.html.pieces import Content, Element, Page, add, badge, made, note, verdict
from hloscope.report.pictures.plots import chips_plot, has_ideal, prices_plot
from hloscope.report.price import Prices, Unpriced, as_document, notes_of
from hloscope.units import plural

_HEADS = (
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


def render(found: Sequence[Analysis | Unpriced]) -> str:
    """The page of a program on several slices."""
    page = Page.of(as_document(found))
    target = page.document["target"]
    page.heading(target, f"a step on {plural(len(found), 'slice')}")
    known = [one for one in found if isinstance(one, Analysis)]
    slices = page.section("slices", "Slices", "The predicted step, slice by slice")
    _verdict(page, slices, known)
    page.table(slices, "Slices", _HEADS, [*_priced(page, known), *_refused(page)])
    if len(known) > 1:
        plot = page.section("chips", "By chips", "Step time against chips")
        page.plot(plot, chips_plot(Prices(known)), "The step by the number of chips")
        if has_ideal(known):
            note(plot, "On a dashed line, a step takes as much chip time as on the fewest chips of that generation.")
        if len({one.slice and one.slice.chips for one in known}) < len(known):
            note(plot, "Slices with the same number of chips are drawn next to each other.")
        if any(one.memory.fits is False for one in known):
            note(plot, "A cross marks what does not fit in HBM.")
        if len(found) > len(known) or any(one.time is None for one in known):
            note(plot, "Slices without a price are not drawn.")
    split = page.section("split", "Split", "What of the step is computed and what is waited for")
    page.plot(split, prices_plot(found), "The step on each slice, split")
    _unpriced(page)
    page.notes(words for one in known for words in (*one.notes, *notes_of(one)))
    versions = known[0].versions if known else {}
    return page.finished(f"on {plural(len(found), 'slice')}", versions=versions, basis="Predicted, not measured.")


def _verdict(page: Page, parent: Element, found: Sequence[Analysis]) -> None:
    """Which slice is the fastest of those that it fits on, as far as that is known."""
    of = [
        (one.time.step_us, number)
        for number, one in enumerate(found)
        if one.time is not None and one.time.bound in _KNOWN and one.memory.fits is not False
    ]
    if not of:
        verdict(parent, "warn", "There is no slice that the program fits on and whose step is known.")
        return
    _, fastest = min(of)
    path = ("prices", fastest)
    step = page.figure((*path, "time", "step_us"), "time", bound=page.at((*path, "time", "bound")))
    ties = [page.privacy.text(_name(found[number])) for _, number in of if _is_tie(found[number], found[fastest])]
    tied = f", a tie with {', '.join(ties)}" if ties else ""
    open_ones = [one for one in found if one.memory.fits is None and one.time is not None]
    unsure = " Whether it fits is not known everywhere." if open_ones else ""
    at_worst = any(_bound(found[number]) is Bound.AT_MOST for _, number in of)
    words = "The shortest step at worst is " if at_worst else "The shortest step that is known is "
    longest = " Every branch is counted at its longest." if at_worst else ""
    verdict(parent, "info", words, step, " on ", page.name(_name(found[fastest])), f"{tied}.{longest}{unsure}")


def _bound(one: Analysis) -> Bound:
    return Bound.EXACT if one.time is None else one.time.bound


def _name(one: Analysis) -> str:
    return "no slice" if one.slice is None else one.slice.name


def _is_tie(one: Analysis, other: Analysis) -> bool:
    if one is other or one.time is None or other.time is None:
        return False
    alike = (one.slice and one.slice.chip) == (other.slice and other.slice.chip)
    return is_tie(one.time, other.time, same_generation=alike)


def _priced(page: Page, found: Sequence[Analysis]) -> Iterator[list[Content]]:
    first = next((number for number, one in enumerate(found) if one.time is not None and one.time.step_us > 0), None)
    for number, one in enumerate(found):
        path = ("prices", number)
        time, step_us = (*path, "time"), (*path, "time", "step_us")
        ranged = one.time is not None and one.time.has_range
        spread = page.range((*time, "least_us"), (*time, "most_us")) if ranged else []
        bound = _bound(one)
        of_part = bound.of_part
        step = page.figure(step_us, "time", bound=bound)
        yield [
            page.name(_name(one)),
            page.figure((*path, "slice", "chips"), "count"),
            [step, made("small", *spread) if spread else None],
            "" if first is None else _of_first(page, found, number, first),
            page.figure(step_us, "time", times=(*path, "slice", "chips"), bound=bound),
            *(page.figure((*time, f"{name}_us"), "time", bound=of_part) for name in ("compute", "exposed", "hidden")),
            page.figure((*time, "peak_flops_share"), "share", bound=of_part),
            _hbm(page, one, number),
            _error(page, one, number),
        ]


def _fits(one: Analysis) -> Element:
    if one.memory.fits is None:
        return made("span", "not known whether it fits", class_="unknown")
    return badge("fits", "good") if one.memory.fits else badge("does not fit", "bad")


def _of_first(page: Page, found: Sequence[Analysis], number: int, first: int) -> list[Content]:
    """How many times as long as on the first slice."""
    step_us, over = (("prices", each, "time", "step_us") for each in (number, first))
    times = [one.time for one in (found[number], found[first])]
    bounds = [Bound.EXACT if time is None or number == first else time.bound for time in times]
    tied = made("small", "a tie") if _is_tie(found[number], found[first]) else None
    return [page.figure(step_us, "factor", over=over, bound=bounds[0] + -bounds[1]), tied]


def _hbm(page: Page, one: Analysis, number: int) -> list[Content]:
    memory = ("prices", number, "memory")
    of = made("small", "of ", page.figure((*memory, "hbm_bytes"), "capacity")) if one.memory.hbm_bytes else None
    return [page.figure((*memory, "peak_bytes"), "bytes"), of, made("small", _fits(one))]


def _error(page: Page, one: Analysis, number: int) -> Element:
    """How far predictions for the generation were off where it was measured, at worst."""
    if one.time is None or one.time.unpriced_kernels or one.time.bound not in _KNOWN:
        return made("span", "unknown", class_="unknown")
    return page.figure(("prices", number, "time", "spread", "worst"), "factor", unknown="not measured")


def _refused(page: Page) -> Iterator[list[Content]]:
    for one in page.document["unpriced"]:
        unknown = [made("span", "unknown", class_="unknown") for _ in _HEADS[1:]]
        yield [[page.name(one["slice"]), made("small", badge("not compiled", "bad"))], *unknown]


def _unpriced(page: Page) -> None:
    if page.document["unpriced"]:
        section = page.section("refused", "Not compiled", "Slices that the program could not be compiled for")
        for one in page.document["unpriced"]:
            add(section, "h3", page.name(one["slice"]))
            page.code(section, one["error"].splitlines(), f"Why not {one['slice']}")
