"""Pages of what was run: a profile compared with its prediction, and a verification."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.base.units import format_digits, pluralize
from hloscope.measurement.model import CompareDocument, MeasuredProgram, MeasuredTransfer
from hloscope.model.vocabulary import Bound
from hloscope.report.comparing import NOT_PREDICTED, NOTHING_MEASURED, headline_of, notes_of, priced_on
from hloscope.report.html.pieces import (
    Content,
    Element,
    Page,
    Path,
    add,
    add_cards,
    add_details,
    add_labels,
    add_note,
    add_rules,
    add_verdict,
    make,
    make_badge,
)
from hloscope.report.pictures.plots import draw_errors, draw_measured, draw_parts, regions_of
from hloscope.report.verification import traffic_verdict, verdict_of
from hloscope.verification.model import (
    Bias,
    ErrorMap,
    NumericsStatus,
    OutputComparison,
    Roughness,
    Verification,
    make_traffic_rows,
    make_verification_document,
)

_Row = list[Content]
_BASIS = "Measured in the profile; predictions have no measurement in them."
_FEWEST_POINTS = 3
"""Of a plot that says more than the table."""
_MOST = 400
_LEAST_FACTOR = 0.5
"""What is at least less than this may be right, or off by any factor either way."""
_TIMES = (">measured", ">predicted", ">error factor")


def render_comparison_page(found: CompareDocument) -> str:
    """The page of a comparison."""
    page = Page.of(found)
    page.heading(found.target or "The profile's own programs", page.name(headline_of(found), 200))
    if found.is_prediction:
        add_verdict(page.section("prediction", "Prediction"), "warn", NOTHING_MEASURED)
    for number in range(len(found.programs)):
        _program(page, number, found, alone=len(found.programs) == 1)
    if not found.programs:
        add_verdict(page.section("step", "Step"), "warn", "No program of the profile could be compared.")
    _uncompared(page, found)
    _calibration(page)
    page.notes(found.notes)
    basis = NOTHING_MEASURED if found.is_prediction else _BASIS
    return page.finished("measured and predicted", basis=basis)


def _times(page: Page, path: Path) -> _Row:
    """Measured, predicted, and the one over the other."""
    measured, predicted = (*path, "measured_us"), (*path, "predicted_us")
    return [
        page.figure(measured, "time"),
        page.figure(predicted, "time", unknown=NOT_PREDICTED),
        page.figure(predicted, "factor", over=measured, unknown="") if page.at(predicted) else None,
    ]


def _program(page: Page, number: int, found: CompareDocument, *, alone: bool) -> None:
    path: Path = ("programs", number)
    program = found.programs[number]
    short = "Step" if alone else page.privacy.text(program.program.partition("(")[0])[:24]
    section = page.section(f"step-{number}", short, page.privacy.text(program.program)[:120])
    _step(page, section, path, program, priced_on(found, program))
    page.plot(section, draw_parts(program.parts), "Where the step's time goes, measured and predicted")
    rows: list[_Row] = [[part.part, *_times(page, (*path, "parts", at))] for at, part in enumerate(program.parts)]
    page.table(section, "Parts of the step", ["part", *_TIMES], rows)
    _axes(page, section, path, program)
    _transfers(page, section, path, program)
    _operations(page, section, path, program)
    _rules(page, section, path, program)
    for words in notes_of(program):
        add_note(section, page.prose(words))


def _step(page: Page, section: Element, path: Path, program: MeasuredProgram, priced: str) -> None:
    step: Path = (*path, "step")
    median, predicted = (*step, "median_us"), (*step, "predicted_us")
    about: list[Content] = ["The step took ", page.figure(median, "time")]
    if program.runs > 1:
        about += [" (", *page.range((*step, "least_us"), (*step, "most_us")), ")"] if _spread(program) else []
    if program.step.predicted_us is None:
        about.append("; nothing is predicted of it.")
    else:
        factor = page.figure(predicted, "factor", over=median)
        about += [", and ", page.figure(predicted, "time"), " was predicted: ", factor]
    add_verdict(section, "info", *about)
    runs, devices = (page.figure((*path, field), "count") for field in ("runs", "devices"))
    matched: Content = [
        page.figure((*path, "matched_operations"), "count"),
        " of ",
        page.figure((*path, "measured_operations"), "count"),
        " operations, ",
        page.figure((*path, "matched_share"), "share"),
        " of their time",
    ]
    if not program.measured_operations:
        matched = "the profile has no operations of it"
    known: list[tuple[str, Content]] = [
        ("runs", [runs, " in all, on ", devices, " device" if program.devices == 1 else " devices"]),
        ("prediction", page.name(priced, 200)),
        ("matched", matched),
    ]
    add_labels(section, [*known, ("not matched", _lost(page, program))])


def _spread(program: MeasuredProgram) -> bool:
    return program.step.least_us != program.step.most_us


def _lost(page: Page, program: MeasuredProgram) -> Content:
    """The operations of the profile that the compiled module does not have, and what was predicted and not measured."""
    lost = [one.name for one in program.operations if one.activity is None]
    if not lost and program.matched_operations == program.measured_operations:
        return "nothing" if program.measured_operations else None
    more = f" and {pluralize(len(lost) - 12, 'more operation')}" if len(lost) > 12 else ""
    return page.name(", ".join(lost[:12]) + more, 400)


def _axes(page: Page, section: Element, path: Path, program: MeasuredProgram) -> None:
    rows: list[_Row] = []
    for number, axis in enumerate(program.axes):
        of: Path = (*path, "axes", number)
        rows.append(
            [
                page.name(axis.axes, 40),
                page.figure((*of, "collectives"), "count"),
                page.figure((*of, "wire_bytes"), "bytes"),
                page.figure((*of, "measured_exposed_us"), "time"),
                page.figure((*of, "predicted_exposed_us"), "time", unknown=NOT_PREDICTED),
                _rate(page, (*of, "measured_bytes_per_s"), axis.measured_bound),
                _rate(page, (*of, "predicted_bytes_per_s"), unknown=NOT_PREDICTED),
            ]
        )
    if rows:
        add(section, "h3", "Collectives by mesh axis, per step")
        heads = ["axes", ">collectives", ">bytes", ">exposed", ">predicted", ">achieved", ">predicted rate"]
        page.table(section, "Collectives by mesh axis", heads, rows)


def _rate(page: Page, path: Path, bound: Bound = Bound.EXACT, *, unknown: str = "unknown") -> _Row:
    return [page.figure(path, "bytes", bound=bound, unknown=unknown), "/s" if page.at(path) is not None else None]


def _factor(page: Page, of: Path, one: MeasuredTransfer) -> Element:
    """Predicted over measured time; unknown where it is only at least so little that it says nothing."""
    measured_us, predicted_us, bound = one.measured_us or 0.0, one.predicted_us, -one.measured_bound
    if bound is Bound.AT_LEAST and predicted_us is not None and predicted_us < _LEAST_FACTOR * measured_us:
        return make("span", "unknown", class_="unknown")
    return page.figure((*of, "predicted_us"), "factor", over=(*of, "measured_us"), bound=bound, unknown="")


def _transfers(page: Page, section: Element, path: Path, program: MeasuredProgram) -> None:
    order = sorted(range(len(program.transfers)), key=lambda at: -program.transfers[at].measured_exposed_us)
    rows: list[_Row] = []
    for number in order[:_MOST]:
        one, of = program.transfers[number], (*path, "transfers", number)
        about = " · ".join(filter(None, (one.kind, f"over {','.join(one.axes)}" if one.axes else "", one.source)))
        rows.append(
            [
                [page.name(one.name, 60, class_="name mono"), make("small", page.name(about, 120))],
                page.figure((*of, "executions"), "digits"),
                page.figure((*of, "measured_us"), "time", bound=one.measured_bound),
                page.figure((*of, "predicted_us"), "time", unknown=NOT_PREDICTED),
                _factor(page, of, one),
                page.figure((*of, "measured_exposed_us"), "time"),
                page.figure((*of, "predicted_exposed_us"), "time", unknown=NOT_PREDICTED),
                _rate(page, (*of, "measured_bytes_per_s"), -one.measured_bound),
                _rule(page, one.rule, one.calibrated),
            ]
        )
    if rows:
        add(section, "h3", "Transfers, each execution")
        heads = ["transfer", ">times", *_TIMES, ">exposed, with waits", ">predicted", ">achieved", "rule"]
        page.table(section, "Transfers", heads, rows)
        _more(section, len(order))


def _operations(page: Page, section: Element, path: Path, program: MeasuredProgram) -> None:
    """The plot of all, and a table of those that are furthest off."""
    if sum(bool(one.predicted_us) and one.measured_us > 0 for one in program.operations) >= _FEWEST_POINTS:
        add(section, "h3", "Operations, measured against predicted")
        page.plot(section, draw_measured(program.operations), "Operations by predicted and measured time")
        words = "On the line both agree; on the dashed ones what is measured is twice, and half, of what is predicted."
        add_note(
            section, f"{words} Squares communicate or copy. Operations without a prediction are in the table alone."
        )
    rows: list[_Row] = []
    for number, one in enumerate(program.operations[:_MOST]):
        of: Path = (*path, "operations", number)
        matched = None if one.activity is not None else make("small", "not matched: the module has no such operation")
        rows.append(
            [
                [page.name(one.name, 60, class_="name mono"), matched],
                page.name(one.opcode, 40),
                page.figure((*of, "executions"), "digits"),
                *_times(page, of),
                _rule(page, one.rule, one.calibrated),
            ]
        )
    if rows:
        folded = add_details(
            section, f"{pluralize(len(program.operations), 'operation')}, the largest disagreement first"
        )
        page.table(folded, "Operations per step", ["operation", "opcode", ">times", *_TIMES, "rule"], rows)
        _more(folded, len(program.operations))


def _rules(page: Page, section: Element, path: Path, program: MeasuredProgram) -> None:
    rows: list[_Row] = []
    for number, rule in enumerate(program.rules):
        of: Path = (*path, "rules", number)
        count = page.figure((*of, "operations"), "count")
        rows.append([_rule(page, rule.rule, rule.calibrated), count, *_times(page, of)])
    if rows:
        add(section, "h3", "By cost rule, per step")
        page.table(section, "Cost rules", ["rule", ">operations", *_TIMES], rows)


def _rule(page: Page, rule: str | None, calibrated: bool) -> Element:
    if rule is None:
        return make("span", NOT_PREDICTED, class_="unknown")
    return page.name(rule if calibrated else f"{rule}, uncalibrated", 60)


def _more(parent: Element, count: int) -> None:
    if count > _MOST:
        add_note(parent, f"{count - _MOST:,} more are in the JSON.")


def _uncompared(page: Page, found: CompareDocument) -> None:
    if found.uncompared:
        section = page.section("others", "Not compared", "Programs that were not compared")
        rows: list[_Row] = [
            [
                page.name(one.program, 60),
                page.figure(("uncompared", number, "runs"), "count"),
                page.figure(("uncompared", number, "measured_us"), "time"),
                page.prose(one.why),
            ]
            for number, one in enumerate(found.uncompared[:_MOST])
        ]
        page.table(section, "Programs that were not compared", ["program", ">runs", ">on a device", "why"], rows)
        _more(section, len(found.uncompared))


def _calibration(page: Page) -> None:
    rows = list(_calibrated(page))
    if rows:
        section = page.section("chip", "Chip", "Chip figures from the profile")
        page.table(section, "Chip figures", ["figure", ">value", ">current", ">measurements", "why not"], rows)


def _calibrated(page: Page) -> Iterator[_Row]:
    for number, one in enumerate(page.document["calibration"]):
        of: Path = ("calibration", number)
        yield [
            page.name(one["name"], 60),
            page.figure((*of, "value"), "digits", unknown="refused"),
            page.figure((*of, "before"), "digits", unknown="none"),
            page.figure((*of, "rests_on"), "count"),
            page.prose(one.get("why")),
        ]


_OUTPUTS = ("output", "verdict", "compared with", ">elements", ">wrong", ">allowed", ">largest error", ">shards")
_MOST_DRAWN, _MOST_BLOCKS, _MOST_SHARDS = 24, 12, 24


def render_verification_page(found: Verification) -> str:
    """The page of a verification."""
    page = Page.of(make_verification_document(found))
    place = f" on {found.target.slice.name}" if found.target.slice is not None else ""
    page.heading(found.target.target, "compared with ", page.name(found.reference.target), place)
    numbers = page.section("numbers", "Numbers")
    kind = "bad" if not found.passed else "warn" if found.exceptions else "good"
    add_verdict(numbers, kind, page.prose(verdict_of(found).plain))
    _numbers(page, numbers, found)
    _maps(page, found)
    if found.findings:
        add_cards(page, page.section("findings", "Findings"), found.findings)
    _traffic(page, found)
    _memory(page)
    add_rules(page, found.findings)
    page.notes((*found.numerics.notes, *found.target.notes))
    basis = "Times are predicted, numbers are of a run."
    return page.finished(f"against {found.reference.target}", versions=found.target.versions, basis=basis)


def _numbers(page: Page, parent: Element, found: Verification) -> None:
    numerics = found.numerics
    if numerics.status is not NumericsStatus.RAN:
        add_verdict(parent, "bad", f"The numbers were not compared: {numerics.status}.")
        if numerics.message:
            page.code(parent, numerics.message.splitlines(), "Why not")
        return
    sizes = " ".join(f"{letter}={size}" for letter, size in numerics.dims.items())
    seed = page.figure(("numerics", "seed"), "count")
    add_note(
        parent, "Both were run on ", page.name(numerics.ran_on), f" at {sizes}" if sizes else "", ", seed ", seed, "."
    )
    rows = [_output(page, number, output) for number, output in enumerate(numerics.comparisons)]
    page.table(parent, "Outputs", _OUTPUTS, rows)
    if not rows:
        add_verdict(parent, "warn", "No output was compared.")
    left = [(page.name(name), page.prose(why)) for name, why in numerics.not_compared.items()]
    if left:
        add(parent, "h3", "Not compared")
        add_labels(parent, left)
    if numerics.inputs:
        add(parent, "h3", "Inputs")
        of = add(parent, "ul", class_="said mono")
        for words in numerics.inputs:
            add(of, "li", page.name(words, 200))


def _output(page: Page, number: int, output: OutputComparison) -> list[Content]:
    path: Path = ("numerics", "comparisons", number)
    subject = make("small", f"of the {output.subject}") if output.subject != "target" else None
    allowed = "relative" if output.tolerance.source == "rounding" else _larger(output)
    of = make("span", page.figure((*path, "shards"), "count"), " hold it")
    return [
        [page.name(output.name, 60), subject],
        _state(output),
        output.against,
        page.figure((*path, "elements"), "count"),
        page.figure((*path, "wrong"), "count"),
        page.figure((*path, "tolerance", allowed), "digits"),
        [page.figure((*path, "largest_error"), "digits"), make("small", "times what is allowed")],
        [f"{len(output.wrong_shards)} wrong", make("small", of)],
    ]


def _larger(output: OutputComparison) -> str:
    return "relative" if output.tolerance.relative >= output.tolerance.absolute else "absolute"


def _state(output: OutputComparison) -> Element:
    if not output.agrees:
        return make_badge("differs", "bad")
    return make_badge("agrees", "good") if output.informative else make_badge("says nothing", "warn")


def _maps(page: Page, found: Verification) -> None:
    """A map over each output that differs."""
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
            page.plot(about, draw_errors(output.error_map, name), f"Where {output.name} differs, as a map")
        side = add(about, "div")
        add_labels(side, _about(page, output))
        if output.error_map is not None:
            _blocks(page, side, number, output.error_map, output.name)
    if len(differing) > _MOST_DRAWN:
        add_note(
            section, f"{pluralize(len(differing) - _MOST_DRAWN, 'more output')} differ, and are in the table above."
        )


def _worst_words(page: Page, number: int, output: OutputComparison) -> Element:
    path: Path = ("numerics", "comparisons", number)
    wrong, elements = (page.figure((*path, field), "count") for field in ("wrong", "elements"))
    return make("small", " ", wrong, " of ", elements, " elements are wrong")


def _about(page: Page, output: OutputComparison) -> Iterator[tuple[str, Content]]:
    worst = output.worst
    if worst is not None:
        where = f"{list(worst.index)}, which is {list(worst.local_index)} on {worst.shard}: "
        words = f"{where}{worst.found} where {worst.expected} is expected, give or take {worst.allowed:.3g}"
        yield "furthest off", page.prose(words)
    if output.wrong_shards:
        shown, rest = output.wrong_shards[:_MOST_SHARDS], len(output.wrong_shards) - _MOST_SHARDS
        more = f" and {pluralize(rest, 'more device')}" if rest > 0 else ""
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
    """The map in words: its rectangles with their elements, largest error first."""
    regions = regions_of(found)
    path: Path = ("numerics", "comparisons", number, "error_map", "errors")
    rows: list[list[Content]] = []
    for region in regions[:_MOST_BLOCKS]:
        error = page.figure((*path, *region.worst), "digits")
        rows.append([_elements(found.first(*region.first), found.last(*region.last)), error])
    label = f"Where {name} is furthest off"
    page.table(parent, label, ["elements", ">times what is allowed"], rows)
    if len(regions) > _MOST_BLOCKS:
        add_note(parent, f"{pluralize(len(regions) - _MOST_BLOCKS, 'smaller region')} are on the map and in the JSON.")


def _elements(first: tuple[int, ...], last: tuple[int, ...]) -> str:
    """`[12:24, 0:8]`; of more dimensions, which lie in a row on the map, the first and the last."""
    if len(first) > 2:
        return f"{list(first)} to {list(last)}"
    return f"[{', '.join(f'{begin}:{end + 1}' for begin, end in zip(first, last, strict=True))}]"


def _traffic(page: Page, found: Verification) -> None:
    moved = page.section("moved", "Moved", "Bytes one device sends per step")
    path: Path = ("communication", "rows")
    rows: list[list[Content]] = []
    for number, row in enumerate(make_traffic_rows(found.communication, found.target, found.reference)):
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
        add_note(moved, page.prose(traffic_verdict(found).plain))
    else:
        understood = not (found.target.unmodelled or found.reference.unmodelled)
        add_note(moved, "Neither program moves data between devices." if understood else _NOT_UNDERSTOOD)


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
