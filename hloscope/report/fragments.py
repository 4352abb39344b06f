"""Results in a notebook: compact HTML without scripts, whose styles are its own, in the colours of the notebook.

The words and tables are those of the reports in text. Whatever names hold is text: it passes `clean` or `escape_line`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.text import Text

from hloscope.analysis.shards import find_shards, index_partitions
from hloscope.base.calls import speak_python
from hloscope.base.errors import Notation, use_notation
from hloscope.base.results import Shown
from hloscope.base.units import format_share, format_time, pluralize
from hloscope.model import Analysis
from hloscope.model.finding import Severity, unaccepted
from hloscope.model.program_graph import ProgramGraph
from hloscope.model.timeline import Timeline
from hloscope.model.trial import StepTime, Suggestions
from hloscope.report import suggestions
from hloscope.report.analysis import describe_place, describe_repeated, describe_sent, format_peak, make_array_columns
from hloscope.report.collectives import make_collective_columns
from hloscope.report.diffs import DiffDocument, list_doubts, make_figure_columns, render_causes
from hloscope.report.escaping import escape_line
from hloscope.report.finding_lines import render_findings
from hloscope.report.graphs import MOST_NODES, draw_graph, render_graph
from hloscope.report.layout import Breaks, Column
from hloscope.report.pictures.arrays import draw_shards
from hloscope.report.pictures.plots import draw_front, draw_prices
from hloscope.report.pictures.svg import clean
from hloscope.report.price import Prices, format_part, make_price_columns
from hloscope.report.timeline import draw_timeline
from hloscope.report.verification import compare_traffic, make_number_columns, make_traffic_columns
from hloscope.report.verification import describe_verdict as verification_verdict
from hloscope.verification.model import Verification, make_traffic_rows

_Element = ElementTree.Element

_ROWS, _ARRAYS, _LINES = 10, 12, 40
_PICTURES = 3
_MOST_LETTERS = 300
_WIDTH = 110
"""Columns of lines that are laid out as text."""
_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px"
_RULE = "1px solid rgba(128,128,128,.35)"
_CELL = f"padding:3px 10px 3px 0;border:0;border-bottom:{_RULE};background:none;vertical-align:top"
_COLOURS = {"red": "#d1242f", "green": "#1a883a", "yellow": "#b7791f", "cyan": "#1b7c83", "blue": "#4285f4"}
"""Colors that are readable on light and on dark; words say the same."""
_HATCHED = "repeating-linear-gradient(135deg,currentColor 0 1.5px,transparent 1.5px 6px)"


def render_fragment(found: Shown) -> str | None:
    """A result as HTML for a notebook; None if it is displayed as Markdown."""
    draw = _FRAGMENTS.get(found._subject)
    if draw is None:
        return None
    root = _Element("div", {"style": "color:inherit;font-size:13px;line-height:1.45;max-width:1100px;overflow-x:auto"})
    with use_notation(Notation.PYTHON):
        draw(root, speak_python(found))
    return ElementTree.tostring(root, encoding="unicode", method="html")


def _render_analysis(root: _Element, found: Analysis) -> None:
    _add_title(root, found.target, describe_place(found).plain)
    _add(root, "div", text=describe_sent(found).plain)
    repeated = describe_repeated(found)
    if repeated is not None:
        _add(root, "div", text=repeated.plain)
    if found.time is not None:
        _render_step_bar(root, found.time)
    _add_labelled(root, "Peak memory", format_peak(found.memory))
    if found.collectives:
        columns, rest = make_collective_columns(found.collectives, _ROWS)
        _add_heading(root, "Collectives, most bytes per step first")
        _add_table(root, [column for column in columns if column.header])  # what is small print has none
        _add_more(root, rest, "smaller row", "found.collectives has all")
    if found.findings:
        severe = bool(unaccepted(found.findings, Severity.WARNING))
        texts = render_findings(found.findings, _WIDTH, found.collectives, gave_reasons=True)
        _add_lines(_add_folded(root, pluralize(len(found.findings), "finding"), is_open=severe), texts)
    for noun, arrays in (("argument", found.arguments), ("output", found.outputs)):
        if arrays:
            columns, rest = make_array_columns(arrays, _ARRAYS)
            inside = _add_folded(root, pluralize(len(arrays), noun))
            _add_table(inside, columns)
            _add_more(inside, rest, noun, f"found.{noun}s has all")
    _add_notes(root, found.notes)
    _add(root, "div", text=_DRAWN, style="margin-top:6px;opacity:.7")


_DRAWN = "Drawn: found.mesh_picture(), found.array(name), found.timeline(); as text: print(found)"


def _render_step_bar(root: _Element, time: StepTime) -> None:
    """The step as a bar: filled while the core computes, hatched while it waits for collectives."""
    step = time.bound.marked(format_time(time.step_us))
    parts_us = time.compute_us, time.exposed_us, time.hidden_us
    compute, exposed, hidden = (format_part(time, part_us) for part_us in parts_us)
    waits = f"{exposed} exposed" if time.exposed_us else "no collective exposed"
    words = f"{step} a step: {compute} computing, {waits}, {hidden} hidden"
    bar = _add(root, "div", style=f"display:flex;height:14px;max-width:640px;margin:6px 0 2px;border:{_RULE}")
    parts = (("computing", time.compute_us, _COLOURS["blue"]), ("exposed", time.exposed_us, _HATCHED))
    for name, part_us, fill in parts:
        share = part_us / time.step_us if time.step_us > 0 else 0.0
        style = f"width:{100 * share:.2f}%;background:{fill}"
        _add(bar, "div", style=style, title=f"{name} {format_time(part_us)}, {format_share(share)}")
    _add(root, "div", text=words)


def _render_difference(root: _Element, found: DiffDocument) -> None:
    _add_title(root, found.headline, f"{found.old} → {found.new}")
    _add_lines(root, render_causes(found))
    _add_table(root, make_figure_columns(found))
    if found.changes:
        inside = _add_folded(root, pluralize(len(found.changes), "change"), is_open=len(found.changes) <= _ROWS)
        _add_lines(inside, (Text(change.text) for change in found.changes))
    _add_notes(root, tuple(list_doubts(found)), is_open=True)


def _render_suggestions(root: _Element, found: Suggestions) -> None:
    _add_title(root, found.target, f"on {found.slice}")
    _add(root, "div", text=suggestions.format_headline(found))
    root.append(draw_front(found))
    _add_table(root, suggestions.make_front_columns(found))
    shown = suggestions.find_main(found)
    if shown is not None:
        _add_heading(root, suggestions.format_title(found, shown))
        _add_lines(root, map(Text, (*suggestions.list_changes(shown), *shown.constraints, *shown.because)))
        if shown.code:
            code = "\n".join(map(escape_line, shown.code))
            _add(root, "pre", text=code, style=f"{_MONO};background:none;color:inherit")
    _add_lines(_add_folded(root, "How it was searched"), map(Text, suggestions.describe_effort(found)))
    _add_notes(root, found.notes)


def _render_prices(root: _Element, found: Prices) -> None:
    root.append(draw_prices(found))
    _add_table(root, [column for column in make_price_columns(found) if column.header != "split"])
    _add_notes(root, [note for one in found if isinstance(one, Analysis) for note in one.notes])


def _render_verification(root: _Element, found: Verification) -> None:
    place = f" on {found.target.slice.name}" if found.target.slice is not None else ""
    _add_title(root, found.target.target, f"against {found.reference.target}{place}")
    _add_labelled(root, "", verification_verdict(found))
    if found.numerics.comparisons:
        _add_heading(root, "Numbers")
        _add_table(root, make_number_columns(found.numerics.comparisons))
    else:
        _add_labelled(root, "Numbers not compared", Text(str(found.numerics.status)))
    _render_wrong_shards(root, found)
    _add_heading(root, "Bytes one device sends per step")
    rows = make_traffic_rows(found.communication, found.target, found.reference)
    if rows:
        _add_table(root, make_traffic_columns(rows))
    _add_labelled(root, "", compare_traffic(found) if rows else Text("Neither moves anything between devices."))
    if found.findings:
        inside = _add_folded(root, pluralize(len(found.findings), "finding"), is_open=not found.passed)
        _add_lines(inside, render_findings(found.findings, _WIDTH))
    _add_notes(root, (*found.numerics.notes, *found.target.notes))


def _render_wrong_shards(root: _Element, found: Verification) -> None:
    """The first outputs that have wrong elements, with the shards that hold them marked."""
    mesh, outputs = found.target.mesh, {array.name: array for array in found.target.outputs}
    wrong = [each for each in found.numerics.comparisons if each.wrong_shards and each.subject == "target"]
    drawn = [each for each in wrong if each.name in outputs][:_PICTURES]
    if mesh is None or not drawn:
        return
    _add_heading(root, "Where values differ")
    partitions = index_partitions(mesh)
    for output in drawn:
        devices = {partitions[place] for place in output.wrong_shards if place in partitions}
        root.append(draw_shards(find_shards(outputs[output.name], mesh), devices))


def _render_timeline(root: _Element, found: Timeline) -> None:
    root.append(draw_timeline(found))
    _add_notes(root, found.notes)


def _render_graph(root: _Element, found: ProgramGraph) -> None:
    if len(found.nodes) <= MOST_NODES:
        root.append(draw_graph(found))
    else:
        _add_lines(root, render_graph(found, _WIDTH))
    _add_notes(root, found.notes)


_FRAGMENTS: Mapping[str, Callable[[_Element, Any], None]] = {
    "analysis": _render_analysis,
    "difference": _render_difference,
    "graph": _render_graph,
    "prices": _render_prices,
    "suggestions": _render_suggestions,
    "timeline": _render_timeline,
    "verification": _render_verification,
}


def _add(parent: _Element, tag: str, *, text: str | None = None, **attributes: str) -> _Element:
    """Adds an element whose text and attributes have no control or invisible characters."""
    made = ElementTree.SubElement(
        parent, tag, {name: clean(value, _MOST_LETTERS) for name, value in attributes.items()}
    )
    if text is not None:
        made.text = text if tag == "pre" else clean(text, _MOST_LETTERS)
    return made


def _add_title(root: _Element, name: str, beside: str) -> None:
    line = _add(root, "div", style="font-size:15px;margin-bottom:2px")
    _add(line, "strong", text=name)
    _add(line, "span", text=f" {beside}", style="opacity:.75")


def _add_heading(root: _Element, words: str) -> None:
    _add(root, "div", text=words, style="font-weight:600;margin:10px 0 2px")


def _add_labelled(root: _Element, label: str, value: Text) -> None:
    line = _add(root, "div")
    if label:
        _add(line, "span", text=f"{label}: ", style="opacity:.75")
    _add_styled(line, value)


def _add_more(root: _Element, count: int, noun: str, where: str) -> None:
    if count:
        _add(root, "div", text=f"+{pluralize(count, noun)}; {where}", style="opacity:.75")


def _add_folded(root: _Element, summary: str, *, is_open: bool = False) -> _Element:
    details = _add(root, "details", style="margin-top:6px", **({"open": ""} if is_open else {}))
    _add(details, "summary", text=summary, style="cursor:pointer;font-weight:600")
    return details


def _add_notes(root: _Element, notes: Sequence[str], *, is_open: bool = False) -> None:
    said = list(dict.fromkeys(notes))
    if said:
        inside = _add_folded(root, pluralize(len(said), "note"), is_open=is_open)
        for note in said[:_LINES]:
            _add(inside, "div", text=f"• {note}", style="opacity:.85")


def _add_lines(root: _Element, lines: Iterable[Text]) -> None:
    """Lines of a report in text, in a font that keeps their columns."""
    shown = list(islice(lines, _LINES + 1))
    block = _add(root, "div", style=f"{_MONO};white-space:pre-wrap")
    for line in shown[:_LINES]:
        _add_styled(_add(block, "div", style="min-height:1em"), line)
    if len(shown) > _LINES:
        _add(block, "div", text="… print(found) has all", style="opacity:.75")


def _add_table(root: _Element, columns: Sequence[Column]) -> None:
    """The columns of a report in text, without those that are empty."""
    filled = [column for column in columns if any(cell.plain for cell in column.cells)]
    if not filled:
        return
    table = _add(root, "table", style=f"{_MONO};border-collapse:collapse;border:0;margin:2px 0;color:inherit")
    head = _add(_add(table, "thead"), "tr", style="background:none")
    for column in filled:
        style = f"{_CELL};{_format_side(column)};font-weight:600"
        _add(head, "th", text=column.header.strip(), scope="col", style=style)
    body = _add(table, "tbody")
    for row in range(len(filled[0].cells)):
        line = _add(body, "tr", style="background:none")
        for column in filled:
            _add_styled(_add(line, "td", style=f"{_CELL};{_format_side(column)}"), column.cells[row])


def _format_side(column: Column) -> str:
    breaks = "pre" if column.breaks is Breaks.NEVER else "pre-wrap"
    return f"text-align:{'right' if column.right else 'left'};white-space:{breaks}"


def _add_styled(parent: _Element, text: Text) -> None:
    """A styled text of a report, its styles as those of HTML."""
    line = text.copy()
    line.plain = clean(line.plain, _MOST_LETTERS)
    for segment in line.render(_CONSOLE):
        style = segment.style
        css = []
        if style is not None and style.bold:
            css.append("font-weight:600")
        if style is not None and style.dim:
            css.append("opacity:.75")
        if style is not None and style.color is not None and style.color.name in _COLOURS:
            css.append(f"color:{_COLOURS[style.color.name]}")
        if segment.text.strip("\n"):
            _add(parent, "span", text=segment.text.strip("\n"), **({"style": ";".join(css)} if css else {}))


_CONSOLE = Console(file=io.StringIO(), width=1000, force_terminal=True, force_jupyter=False, color_system="standard")
