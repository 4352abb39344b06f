"""Pages of what was run: a profile compared with its prediction, and a verification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hloscope.base.units import format_digits, pluralize
from hloscope.measurement.model import CompareDocument, MeasuredOperation, MeasuredProgram, MeasuredTransfer
from hloscope.model.vocabulary import Bound
from hloscope.report.comparing import NOT_PREDICTED, NOTHING_MEASURED, describe_pricing, format_headline, list_notes
from hloscope.report.html import pieces as html
from hloscope.report.html.pieces import Columns, Content, Element, Page, Path
from hloscope.report.pictures.plots import draw_errors, draw_measured, draw_parts, find_regions
from hloscope.report.verification import compare_traffic, describe_verdict
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

_BASIS = "Measured in the profile; predictions have no measurement in them."
_FEWEST_POINTS = 3
"""The least number of points of a useful plot."""
_MOST = 400
_LEAST_FACTOR = 0.5
"""The least error factor that says something if it is a lower bound."""


def render_comparison_page(found: CompareDocument) -> str:
    """The page of a comparison."""
    page = Page.of(found)
    page.add_heading(found.target or "The profile's own programs", page.name(format_headline(found), 200))
    if found.is_prediction:
        html.add_verdict(page.add_section("prediction", "Prediction"), "warn", NOTHING_MEASURED)
    for number in range(len(found.programs)):
        _add_program(page, number, found, alone=len(found.programs) == 1)
    if not found.programs:
        html.add_verdict(page.add_section("step", "Step"), "warn", "No program of the profile could be compared.")
    _add_uncompared(page, found)
    if found.calibration:
        section = page.add_section("chip", "Chip", "Chip figures from the profile")
        figures = enumerate(page.document["calibration"])
        page.list_items(section, "Chip figures", _CALIBRATION, ("calibration",), figures)
    page.add_notes(found.notes)
    basis = NOTHING_MEASURED if found.is_prediction else _BASIS
    return page.finish("measured and predicted", basis=basis)


def _add_program(page: Page, number: int, found: CompareDocument, *, alone: bool) -> None:
    path: Path = ("programs", number)
    program = found.programs[number]
    short = "Step" if alone else page.privacy.hide(program.program.partition("(")[0])[:24]
    section = page.add_section(f"step-{number}", short, page.privacy.hide(program.program)[:120])
    _add_step(page, section, path, program, describe_pricing(found, program))
    page.plot(section, draw_parts(program.parts), "Where the step's time goes, measured and predicted")
    page.list_items(section, "Parts of the step", _PARTS, (*path, "parts"), enumerate(program.parts))
    if program.axes:
        html.add(section, "h3", "Collectives by mesh axis, per step")
        page.list_items(section, "Collectives by mesh axis", _AXES, (*path, "axes"), enumerate(program.axes))
    if program.transfers:
        html.add(section, "h3", "Transfers, each execution")
        longest = sorted(enumerate(program.transfers), key=lambda one: -one[1].measured_exposed_us)
        page.list_items(section, "Transfers", _TRANSFERS, (*path, "transfers"), longest[:_MOST])
        _add_more(section, len(longest))
    _add_operations(page, section, path, program)
    if program.rules:
        html.add(section, "h3", "By cost rule, per step")
        page.list_items(section, "Cost rules", _RULES, (*path, "rules"), enumerate(program.rules))
    for words in list_notes(program):
        html.add_note(section, page.prose(words))


def _add_step(page: Page, section: Element, path: Path, program: MeasuredProgram, priced: str) -> None:
    step: Path = (*path, "step")
    median, predicted = (*step, "median_us"), (*step, "predicted_us")
    about: list[Content] = ["The step took ", page.figure(median, "time")]
    if program.runs > 1:
        spread = page.range((*step, "least_us"), (*step, "most_us"))
        about += [" (", *spread, ")"] if spread else []
    if program.step.predicted_us is None:
        about.append("; nothing is predicted of it.")
    else:
        factor = page.figure(predicted, "factor", over=median)
        about += [", and ", page.figure(predicted, "time"), " was predicted: ", factor]
    html.add_verdict(section, "info", *about)
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
    html.add_labels(section, [*known, ("not matched", _list_lost(page, program))])


def _list_lost(page: Page, program: MeasuredProgram) -> Content:
    """Operations of the profile that the compiled module does not have."""
    lost = [one.name for one in program.operations if one.activity is None]
    if not lost and program.matched_operations == program.measured_operations:
        return "nothing" if program.measured_operations else None
    more = f" and {pluralize(len(lost) - 12, 'more operation')}" if len(lost) > 12 else ""
    return page.name(", ".join(lost[:12]) + more, 400)


def _show_rate(field: str, bound: Callable[[Any], Bound], unknown: str = "unknown") -> Callable[..., Content]:
    def show(page: Page, path: Path, one: Any) -> Content:
        rate = (*path, field)
        figure = page.figure(rate, "bytes", bound=bound(one), unknown=unknown)
        return [figure, "/s" if page.find(rate) is not None else None]

    return show


def _show_rule(page: Page, path: Path, one: Any) -> Element:
    if one.rule is None:
        return html.make_unknown(NOT_PREDICTED)
    return page.name(one.rule if one.calibrated else f"{one.rule}, uncalibrated", 60)


def _show_factor(page: Page, path: Path, one: Any) -> Content:
    """Predicted over measured time."""
    predicted = (*path, "predicted_us")
    factor = page.figure(predicted, "factor", over=(*path, "measured_us"), unknown="")
    return factor if page.find(predicted) else None


def _show_bounded_factor(page: Page, of: Path, one: MeasuredTransfer) -> Element:
    """The same factor with its bound; `unknown` if it is a lower bound that says nothing."""
    measured_us, predicted_us, bound = one.measured_us or 0.0, one.predicted_us, -one.measured_bound
    if bound is Bound.AT_LEAST and predicted_us is not None and predicted_us < _LEAST_FACTOR * measured_us:
        return html.make_unknown()
    return page.figure((*of, "predicted_us"), "factor", over=(*of, "measured_us"), bound=bound, unknown="")


def _show_transfer(page: Page, path: Path, one: MeasuredTransfer) -> Content:
    about = " · ".join(filter(None, (one.kind, f"over {','.join(one.axes)}" if one.axes else "", one.source)))
    return [page.name(one.name, 60, class_="name mono"), html.make("small", page.name(about, 120))]


def _show_operation(page: Page, path: Path, one: MeasuredOperation) -> Content:
    matched = None if one.activity is not None else html.make("small", "not matched: the module has no such operation")
    return [page.name(one.name, 60, class_="name mono"), matched]


_TIMES: Columns = {
    ">measured": html.show_figure("measured_us", "time"),
    ">predicted": html.show_figure("predicted_us", "time", unknown=NOT_PREDICTED),
    ">error factor": _show_factor,
}
_PARTS: Columns = {"part": lambda page, path, part: part.part, **_TIMES}
_AXES: Columns = {
    "axes": lambda page, path, axis: page.name(axis.axes, 40),
    ">collectives": html.show_figure("collectives", "count"),
    ">bytes": html.show_figure("wire_bytes", "bytes"),
    ">exposed": html.show_figure("measured_exposed_us", "time"),
    ">predicted": html.show_figure("predicted_exposed_us", "time", unknown=NOT_PREDICTED),
    ">achieved": _show_rate("measured_bytes_per_s", lambda axis: axis.measured_bound),
    ">predicted rate": _show_rate("predicted_bytes_per_s", lambda _: Bound.EXACT, NOT_PREDICTED),
}
_TRANSFERS: Columns = {
    "transfer": _show_transfer,
    ">times": html.show_figure("executions", "digits"),
    **_TIMES,
    ">measured": lambda page, path, one: page.figure((*path, "measured_us"), "time", bound=one.measured_bound),
    ">error factor": _show_bounded_factor,
    ">exposed, with waits": html.show_figure("measured_exposed_us", "time"),
    ">predicted ": html.show_figure("predicted_exposed_us", "time", unknown=NOT_PREDICTED),
    ">achieved": _show_rate("measured_bytes_per_s", lambda one: -one.measured_bound),
    "rule": _show_rule,
}
_OPERATIONS: Columns = {
    "operation": _show_operation,
    "opcode": lambda page, path, one: page.name(one.opcode, 40),
    ">times": html.show_figure("executions", "digits"),
    **_TIMES,
    "rule": _show_rule,
}
_RULES: Columns = {"rule": _show_rule, ">operations": html.show_figure("operations", "count"), **_TIMES}
_UNCOMPARED: Columns = {
    "program": lambda page, path, one: page.name(one.program, 60),
    ">runs": html.show_figure("runs", "count"),
    ">on a device": html.show_figure("measured_us", "time"),
    "why": lambda page, path, one: page.prose(one.why),
}
_CALIBRATION: Columns = {
    "figure": lambda page, path, one: page.name(one["name"], 60),
    ">value": html.show_figure("value", "digits", unknown="refused"),
    ">current": html.show_figure("before", "digits", unknown="none"),
    ">measurements": html.show_figure("rests_on", "count"),
    "why not": lambda page, path, one: page.prose(one.get("why")),
}


def _add_operations(page: Page, section: Element, path: Path, program: MeasuredProgram) -> None:
    """The plot of all, and a table of those that are furthest off."""
    if sum(bool(one.predicted_us) and one.measured_us > 0 for one in program.operations) >= _FEWEST_POINTS:
        html.add(section, "h3", "Operations, measured against predicted")
        page.plot(section, draw_measured(program.operations), "Operations by predicted and measured time")
        words = "On the line both agree; on the dashed ones what is measured is twice, and half, of what is predicted."
        words += " Squares communicate or copy. Operations without a prediction are in the table alone."
        html.add_note(section, words)
    if program.operations:
        shown = list(enumerate(program.operations))[:_MOST]
        title = f"{pluralize(len(program.operations), 'operation')}, the largest disagreement first"
        folded = html.add_details(section, title)
        page.list_items(folded, "Operations per step", _OPERATIONS, (*path, "operations"), shown)
        _add_more(folded, len(program.operations))


def _add_more(parent: Element, count: int) -> None:
    if count > _MOST:
        html.add_note(parent, f"{count - _MOST:,} more are in the JSON.")


def _add_uncompared(page: Page, found: CompareDocument) -> None:
    if found.uncompared:
        section = page.add_section("others", "Not compared", "Programs that were not compared")
        shown = enumerate(found.uncompared[:_MOST])
        page.list_items(section, "Programs that were not compared", _UNCOMPARED, ("uncompared",), shown)
        _add_more(section, len(found.uncompared))


_MOST_DRAWN, _MOST_BLOCKS, _MOST_SHARDS = 24, 12, 24


def render_verification_page(found: Verification) -> str:
    """The page of a verification."""
    page = Page.of(make_verification_document(found))
    place = f" on {found.target.slice.name}" if found.target.slice is not None else ""
    page.add_heading(found.target.target, "compared with ", page.name(found.reference.target), place)
    numbers = page.add_section("numbers", "Numbers")
    kind = "bad" if not found.passed else "warn" if found.exceptions else "good"
    html.add_verdict(numbers, kind, page.prose(describe_verdict(found).plain))
    _add_numbers(page, numbers, found)
    _add_maps(page, found)
    if found.findings:
        html.add_cards(page, page.add_section("findings", "Findings"), found.findings)
    _add_traffic(page, found)
    _add_memory(page)
    html.add_rules(page, found.findings)
    page.add_notes((*found.numerics.notes, *found.target.notes))
    basis = "Times are predicted, numbers are of a run."
    return page.finish(f"against {found.reference.target}", versions=found.target.versions, basis=basis)


def _add_numbers(page: Page, parent: Element, found: Verification) -> None:
    numerics = found.numerics
    if numerics.status is not NumericsStatus.RAN:
        html.add_verdict(parent, "bad", f"The numbers were not compared: {numerics.status}.")
        if numerics.message:
            page.add_code(parent, numerics.message.splitlines(), "Why not")
        return
    sizes = " ".join(f"{letter}={size}" for letter, size in numerics.dims.items())
    seed = page.figure(("numerics", "seed"), "count")
    scaled = f" at {sizes}" if sizes else ""
    html.add_note(parent, "Both were run on ", page.name(numerics.ran_on), scaled, ", seed ", seed, ".")
    page.list_items(parent, "Outputs", _OUTPUTS, ("numerics", "comparisons"), enumerate(numerics.comparisons))
    if not numerics.comparisons:
        html.add_verdict(parent, "warn", "No output was compared.")
    left = [(page.name(name), page.prose(why)) for name, why in numerics.not_compared.items()]
    if left:
        html.add(parent, "h3", "Not compared")
        html.add_labels(parent, left)
    if numerics.inputs:
        html.add(parent, "h3", "Inputs")
        html.add_list(parent, (page.name(words, 200) for words in numerics.inputs), "said mono")


def _show_state(page: Page, path: Path, output: OutputComparison) -> Element:
    if not output.agrees:
        return html.make_badge("differs", "bad")
    return html.make_badge("agrees", "good") if output.informative else html.make_badge("says nothing", "warn")


def _show_allowed(page: Page, path: Path, output: OutputComparison) -> Element:
    tolerance = output.tolerance
    is_relative = tolerance.source == "rounding" or tolerance.relative >= tolerance.absolute
    return page.figure((*path, "tolerance", "relative" if is_relative else "absolute"), "digits")


def _show_holders(page: Page, path: Path, output: OutputComparison) -> Content:
    held = html.make("span", page.figure((*path, "shards"), "count"), " hold it")
    return [f"{len(output.wrong_shards)} wrong", html.make("small", held)]


_OUTPUTS: Columns = {
    "output": lambda page, path, output: [
        page.name(output.name, 60),
        html.make("small", f"of the {output.subject}") if output.subject != "target" else None,
    ],
    "verdict": _show_state,
    "compared with": lambda page, path, output: output.against,
    ">elements": html.show_figure("elements", "count"),
    ">wrong": html.show_figure("wrong", "count"),
    ">allowed": _show_allowed,
    ">largest error": lambda page, path, output: [
        page.figure((*path, "largest_error"), "digits"),
        html.make("small", "times what is allowed"),
    ],
    ">shards": _show_holders,
}


def _add_maps(page: Page, found: Verification) -> None:
    """A map over each output that differs."""
    comparisons = list(enumerate(found.numerics.comparisons))
    differing = [(number, output) for number, output in comparisons if not output.agrees]
    if not differing:
        return
    section = page.add_section("where", "Where", "Where values differ")
    for number, output in differing[:_MOST_DRAWN]:
        path: Path = ("numerics", "comparisons", number)
        wrong, elements = (page.figure((*path, field), "count") for field in ("wrong", "elements"))
        worst = html.make("small", " ", wrong, " of ", elements, " elements are wrong")
        html.add(section, "h3", page.name(output.name, 100), worst)
        about = html.add(section, "div", class_="where")
        if output.error_map is not None:
            name = page.privacy.hide(output.name)
            page.plot(about, draw_errors(output.error_map, name), f"Where {output.name} differs, as a map")
        side = html.add(about, "div")
        html.add_labels(side, _list_about(page, output))
        if output.error_map is not None:
            _add_blocks(page, side, number, output.error_map, output.name)
    if len(differing) > _MOST_DRAWN:
        rest = pluralize(len(differing) - _MOST_DRAWN, "more output")
        html.add_note(section, f"{rest} differ, and are in the table above.")


def _list_about(page: Page, output: OutputComparison) -> Iterator[tuple[str, Content]]:
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
    yield "leaning", page.prose(_describe_bias(output.bias))
    yield "error size", page.prose(_describe_roughness(output.roughness))
    yield "not judged", f"{output.unstable:,} elements that rounding can tip" if output.unstable else None


def _describe_bias(bias: Bias | None) -> str | None:
    if bias is None:
        return None
    meaning = f", which is {bias.meaning}" if bias.meaning else ""
    where = f" on {'; '.join(bias.shards[:_MOST_SHARDS])}" if bias.shards else ""
    if bias.constant:
        return f"every element is {bias.ratio:.4g} times what it should be{meaning}{where}"
    return f"errors have one direction in {100 * bias.one_way:.0f}% of the elements that differ{where}"


def _describe_roughness(rough: Roughness | None) -> str | None:
    if rough is None:
        return None
    times = f"errors are {format_digits(rough.times)} times as large as rounding makes them"
    return f"{times}: {rough.words}" if rough.words else times


def _add_blocks(page: Page, parent: Element, number: int, found: ErrorMap, name: str) -> None:
    """The map in words: its rectangles with their elements, largest error first."""
    regions = find_regions(found)
    path: Path = ("numerics", "comparisons", number, "error_map", "errors")
    rows: list[list[Content]] = []
    for region in regions[:_MOST_BLOCKS]:
        error = page.figure((*path, *region.worst), "digits")
        rows.append([_format_elements(found.first(*region.first), found.last(*region.last)), error])
    label = f"Where {name} is furthest off"
    page.add_table(parent, label, ["elements", ">times what is allowed"], rows)
    if len(regions) > _MOST_BLOCKS:
        rest = pluralize(len(regions) - _MOST_BLOCKS, "smaller region")
        html.add_note(parent, f"{rest} are on the map and in the JSON.")


def _format_elements(first: tuple[int, ...], last: tuple[int, ...]) -> str:
    """`[12:24, 0:8]`; the first and the last element of more dimensions, which share one side of the map."""
    if len(first) > 2:
        return f"{list(first)} to {list(last)}"
    return f"[{', '.join(f'{begin}:{end + 1}' for begin, end in zip(first, last, strict=True))}]"


def _add_traffic(page: Page, found: Verification) -> None:
    moved = page.add_section("moved", "Moved", "Bytes one device sends per step")
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
        page.add_table(moved, "What both programs move", heads, rows)
        html.add_note(moved, page.prose(compare_traffic(found).plain))
    else:
        understood = not (found.target.unmodelled or found.reference.unmodelled)
        html.add_note(moved, "Neither program moves data between devices." if understood else _NOT_UNDERSTOOD)


_NOT_UNDERSTOOD = "No transfer was found in either program, but not everything of them was understood."


def _add_memory(page: Page) -> None:
    section = page.add_section("memory", "Memory", "Memory of one device")
    rows: list[list[Content]] = [
        [
            words,
            *(page.figure(("memory", side, field), "bytes") for field in _MEMORY),
            page.figure(("memory", side, "hbm_bytes"), "capacity"),
        ]
        for words, side in (("this program", "target"), ("reference", "reference"))
    ]
    heads = ["program", *(f">{words}" for words in _MEMORY.values()), ">HBM"]
    page.add_table(section, "Memory of both programs", heads, rows)


_MEMORY = {
    "peak_bytes": "at its peak",
    "argument_bytes": "arguments",
    "output_bytes": "outputs",
    "temp_bytes": "temporaries",
}
