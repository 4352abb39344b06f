"""The page of a verification: the verdict, each output with where its values differ, and what both programs move."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.report.html.finding_cards import cards, rules
from hloscope.report.html.pieces import Content, Element, Page, Path, add, badge, labelled, made, note, verdict
from hloscope.report.pictures.heat import errors_plot, regions_of
from hloscope.report.verification import traffic_verdict, verdict_of
from hloscope.units import format_digits, plural
from hloscope.verification.model import (
    Bias,
    ErrorMap,
    NumericsStatus,
    OutputComparison,
    Roughness,
    Verification,
    document_of,
    traffic_rows,
)

_OUTPUTS = ("output", "verdict", "compared with", ">elements", ">wrong", ">allowed", ">largest error", ">shards")
_MOST_DRAWN, _MOST_BLOCKS, _MOST_SHARDS = 24, 12, 24


def render(found: Verification) -> str:
    """The page of a verification."""
    page = Page.of(document_of(found))
    place = f" on {found.target.slice.name}" if found.target.slice is not None else ""
    page.heading(found.target.target, "compared with ", page.name(found.reference.target), place)
    numbers = page.section("numbers", "Numbers")
    kind = "bad" if not found.passed else "warn" if found.exceptions else "good"
    verdict(numbers, kind, page.prose(verdict_of(found).plain))
    _numbers(page, numbers, found)
    _maps(page, found)
    if found.findings:
        cards(page, page.section("findings", "Findings"), found.findings)
    _traffic(page, found)
    _memory(page)
    rules(page, found.findings)
    page.notes((*found.numerics.notes, *found.target.notes))
    basis = "Times are predicted, numbers are of a run."
    return page.finished(f"against {found.reference.target}", versions=found.target.versions, basis=basis)


def _numbers(page: Page, parent: Element, found: Verification) -> None:
    numerics = found.numerics
    if numerics.status is not NumericsStatus.RAN:
        verdict(parent, "bad", f"The numbers were not compared: {numerics.status}.")
        if numerics.message:
            page.code(parent, numerics.message.splitlines(), "Why not")
        return
    sizes = " ".join(f"{letter}={size}" for letter, size in numerics.dims.items())
    seed = page.figure(("numerics", "seed"), "count")
    note(parent, "Both were run on ", page.name(numerics.ran_on), f" at {sizes}" if sizes else "", ", seed ", seed, ".")
    rows = [_output(page, number, output) for number, output in enumerate(numerics.comparisons)]
    page.table(parent, "Outputs", _OUTPUTS, rows)
    if not rows:
        verdict(parent, "warn", "No output was compared.")
    left = [(page.name(name), page.prose(why)) for name, why in numerics.not_compared.items()]
    if left:
        add(parent, "h3", "Not compared")
        labelled(parent, left)
    if numerics.inputs:
        add(parent, "h3", "Inputs")
        of = add(parent, "ul", class_="said mono")
        for words in numerics.inputs:
            add(of, "li", page.name(words, 200))


def _output(page: Page, number: int, output: OutputComparison) -> list[Content]:
    path: Path = ("numerics", "comparisons", number)
    subject = made("small", f"of the {output.subject}") if output.subject != "target" else None
    allowed = "relative" if output.tolerance.source == "rounding" else _larger(output)
    of = made("span", page.figure((*path, "shards"), "count"), " hold it")
    return [
        [page.name(output.name, 60), subject],
        _state(output),
        output.against,
        page.figure((*path, "elements"), "count"),
        page.figure((*path, "wrong"), "count"),
        page.figure((*path, "tolerance", allowed), "digits"),
        [page.figure((*path, "largest_error"), "digits"), made("small", "times what is allowed")],
        [f"{len(output.wrong_shards)} wrong", made("small", of)],
    ]


def _larger(output: OutputComparison) -> str:
    return "relative" if output.tolerance.relative >= output.tolerance.absolute else "absolute"


def _state(output: OutputComparison) -> Element:
    if not output.agrees:
        return badge("differs", "bad")
    return badge("agrees", "good") if output.informative else badge("says nothing", "warn")


def _maps(page: Page, found: Verification) -> None:
    """Where the outputs differ that do, each as a map over the array."""
    comparisons = list(enumerate(found.numerics.comparisons))
    differing = [(number, output) for number, output in comparisons if not output.agrees]
    if not differing:
        return
    section = page.section("where", "Where", "Where values differ")
    for number, output in differing[:_MOST_DRAWN]:
        add(section, "h3", page.name(output.name, 100), _worst_words(page, number, output))
        about = add(section, "div", class_="where")
        if output.error_map is not None:
            name = page.privacy.text(output.name)
            page.plot(about, errors_plot(output.error_map, name), f"Where {output.name} differs, as a map")
        side = add(about, "div")
        labelled(side, _about(page, output))
        if output.error_map is not None:
            _blocks(page, side, number, output.error_map, output.name)
    if len(differing) > _MOST_DRAWN:
        note(section, f"{plural(len(differing) - _MOST_DRAWN, 'more output')} differ, and are in the table above.")


def _worst_words(page: Page, number: int, output: OutputComparison) -> Element:
    path: Path = ("numerics", "comparisons", number)
    wrong, elements = (page.figure((*path, field), "count") for field in ("wrong", "elements"))
    return made("small", " ", wrong, " of ", elements, " elements are wrong")


def _about(page: Page, output: OutputComparison) -> Iterator[tuple[str, Content]]:
    worst = output.worst
    if worst is not None:
        where = f"{list(worst.index)}, which is {list(worst.local_index)} on {worst.shard}: "
        words = f"{where}{worst.found} where {worst.expected} is expected, give or take {worst.allowed:.3g}"
        yield "furthest off", page.prose(words)
    if output.wrong_shards:
        shown, rest = output.wrong_shards[:_MOST_SHARDS], len(output.wrong_shards) - _MOST_SHARDS
        more = f" and {plural(rest, 'more device')}" if rest > 0 else ""
        yield "wrong on", page.name("; ".join(shown) + more, 800)
    yield "exchanged", page.prose("; ".join(output.exchanged))
    yield "leaning", page.prose(_bias(output.bias))
    yield "error size", page.prose(_rough(output.roughness))
    yield "not judged", f"{output.unstable:,} elements that rounding can tip" if output.unstable else None


def _bias(bias: Bias | None) -> str | None:
    if bias is None:
        return None
    meaning = f", which is {bias.meaning}" if bias.meaning else ""
    where = f" on {'; '.join(bias.shards[:_MOST_SHARDS])}" if bias.shards else ""
    if bias.constant:
        return f"every element is {bias.ratio:.4g} times what it should be{meaning}{where}"
    return f"errors have one direction in {100 * bias.one_way:.0f}% of the elements that differ{where}"


def _rough(rough: Roughness | None) -> str | None:
    if rough is None:
        return None
    times = f"errors are {format_digits(rough.times)} times as large as rounding makes them"
    return f"{times}: {rough.words}" if rough.words else times


def _blocks(page: Page, parent: Element, number: int, found: ErrorMap, name: str) -> None:
    """What the map shows, in words: its rectangles with their elements, those furthest off first."""
    regions = regions_of(found)
    path: Path = ("numerics", "comparisons", number, "error_map", "errors")
    rows: list[list[Content]] = []
    for region in regions[:_MOST_BLOCKS]:
        error = page.figure((*path, *region.worst), "digits")
        rows.append([_elements(found.first(*region.first), found.last(*region.last)), error])
    label = f"Where {name} is furthest off"
    page.table(parent, label, ["elements", ">times what is allowed"], rows)
    if len(regions) > _MOST_BLOCKS:
        note(parent, f"{plural(len(regions) - _MOST_BLOCKS, 'smaller region')} are on the map and in the JSON.")


def _elements(first: tuple[int, ...], last: tuple[int, ...]) -> str:
    """`[12:24, 0:8]`; of more dimensions, which lie in a row on the map, the first and the last."""
    if len(first) > 2:
        return f"{list(first)} to {list(last)}"
    return f"[{', '.join(f'{begin}:{end + 1}' for begin, end in zip(first, last, strict=True))}]"


def _traffic(page: Page, found: Verification) -> None:
    moved = page.section("moved", "Moved", "Bytes one device sends per step")
    path: Path = ("communication", "rows")
    rows: list[list[Content]] = []
    for number, row in enumerate(traffic_rows(found.communication, found.target, found.reference)):
        cells: list[Content] = [row.kind, page.name(row.axes or "no axis", 40)]
        for side, total in (("target", row.target), ("reference", row.reference)):
            of: Path = (*path, number, side)
            none = not total.collectives
            cells += [
                "–" if none else page.figure((*of, "wire_bytes"), "bytes", bound=total.bound),
                "–" if none else page.figure((*of, "executions"), "count", bound=total.bound),
                "–" if none else page.figure((*path, number, f"{side}_us"), "time", bound=total.bound),
            ]
        rows.append(cells)
    if rows:
        heads = ["collective", "axes", ">this program", ">times", ">time", ">reference", ">times", ">time"]
        page.table(moved, "What both programs move", heads, rows)
        note(moved, page.prose(traffic_verdict(found).plain))
    else:
        understood = not (found.target.unmodelled or found.reference.unmodelled)
        note(moved, "Neither program moves data between devices." if understood else _NOT_UNDERSTOOD)


_NOT_UNDERSTOOD = "No transfer was found in either program, but not everything of them was understood."


def _memory(page: Page) -> None:
    section = page.section("memory", "Memory", "Memory of one device")
    rows: list[list[Content]] = [
        [words, *(page.figure(("memory", side, field), "bytes") for field in _MEMORY), _hbm(page, side)]
        for words, side in (("this program", "target"), ("reference", "reference"))
    ]
    heads = ["program", *(f">{words}" for words in _MEMORY.values()), ">HBM"]
    page.table(section, "Memory of both programs", heads, rows)


_MEMORY = {
    "peak_bytes": "at its peak",
    "argument_bytes": "arguments",
    "output_bytes": "outputs",
    "temp_bytes": "temporaries",
}


def _hbm(page: Page, side: str) -> Element:
    return page.figure(("memory", side, "hbm_bytes"), "capacity")
