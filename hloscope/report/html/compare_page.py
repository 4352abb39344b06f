"""The page of a profile beside its prediction: the step, its parts, transfers and operations, and what had no match."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.vocabulary import Bound
from hloscope.measured.model import CompareDocument, MeasuredProgram, MeasuredTransfer
from hloscope.report.comparing import NOT_PREDICTED, NOTHING_MEASURED, headline_of, notes_of, priced_on
from hloscope.report.html.pieces import Content, Element, Page, Path, add, labelled, made, note, unfolding, verdict
from hloscope.report.pictures.plots import measured_plot, parts_plot
from hloscope.units import plural

_Row = list[Content]
_BASIS = "Measured in the profile; predictions have no measurement in them."
_FEWEST_POINTS = 3
"""Of a plot that says more than the table."""
_MOST = 400
_LEAST_FACTOR = 0.5
"""What is at least less than this may be right, or off by any factor either way."""
_TIMES = (">measured", ">predicted", ">error factor")


def render(found: CompareDocument) -> str:
    """The page of a comparison."""
    page = Page.of(found)
    page.heading(found.target or "The profile's own programs", page.name(headline_of(found), 200))
    if found.is_prediction:
        verdict(page.section("prediction", "Prediction"), "warn", NOTHING_MEASURED)
    for number in range(len(found.programs)):
        _program(page, number, found, alone=len(found.programs) == 1)
    if not found.programs:
        verdict(page.section("step", "Step"), "warn", "No program of the profile could be compared.")
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
    page.plot(section, parts_plot(program.parts), "Where the step's time goes, measured and predicted")
    rows: list[_Row] = [[part.part, *_times(page, (*path, "parts", at))] for at, part in enumerate(program.parts)]
    page.table(section, "Parts of the step", ["part", *_TIMES], rows)
    _axes(page, section, path, program)
    _transfers(page, section, path, program)
    _operations(page, section, path, program)
    _rules(page, section, path, program)
    for words in notes_of(program):
        note(section, page.prose(words))


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
    verdict(section, "info", *about)
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
    labelled(section, [*known, ("not matched", _lost(page, program))])


def _spread(program: MeasuredProgram) -> bool:
    return program.step.least_us != program.step.most_us


def _lost(page: Page, program: MeasuredProgram) -> Content:
    """The operations of the profile that the compiled module does not have, and what was predicted and not measured."""
    lost = [one.name for one in program.operations if one.activity is None]
    if not lost and program.matched_operations == program.measured_operations:
        return "nothing" if program.measured_operations else None
    more = f" and {plural(len(lost) - 12, 'more operation')}" if len(lost) > 12 else ""
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
        return made("span", "unknown", class_="unknown")
    return page.figure((*of, "predicted_us"), "factor", over=(*of, "measured_us"), bound=bound, unknown="")


def _transfers(page: Page, section: Element, path: Path, program: MeasuredProgram) -> None:
    order = sorted(range(len(program.transfers)), key=lambda at: -program.transfers[at].measured_exposed_us)
    rows: list[_Row] = []
    for number in order[:_MOST]:
        one, of = program.transfers[number], (*path, "transfers", number)
        about = " · ".join(filter(None, (one.kind, f"over {','.join(one.axes)}" if one.axes else "", one.source)))
        rows.append(
            [
                [page.name(one.name, 60, class_="name mono"), made("small", page.name(about, 120))],
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
        page.plot(section, measured_plot(program.operations), "Operations by predicted and measured time")
        words = "On the line both agree; on the dashed ones what is measured is twice, and half, of what is predicted."
        note(section, f"{words} Squares communicate or copy. Operations without a prediction are in the table alone.")
    rows: list[_Row] = []
    for number, one in enumerate(program.operations[:_MOST]):
        of: Path = (*path, "operations", number)
        matched = None if one.activity is not None else made("small", "not matched: the module has no such operation")
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
        folded = unfolding(section, f"{plural(len(program.operations), 'operation')}, the largest disagreement first")
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
        return made("span", NOT_PREDICTED, class_="unknown")
    return page.name(rule if calibrated else f"{rule}, uncalibrated", 60)


def _more(parent: Element, count: int) -> None:
    if count > _MOST:
        note(parent, f"{count - _MOST:,} more are in the JSON.")


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
