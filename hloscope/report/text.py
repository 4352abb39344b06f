"""The report for a terminal: totals first, then what moves, then shapes, then memory."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hloscope.analysis.model import Analysis, Memory, Mesh
from hloscope.analysis.vocabulary import Bound
from hloscope.report.arrays import array_lines, common_remarks
from hloscope.report.collectives import collective_lines
from hloscope.report.drawing import INDENT, LEAST_WIDTH, drawn, section
from hloscope.report.finding_lines import finding_lines
from hloscope.report.folding import fold, hanging
from hloscope.report.intermediates import intermediate_lines
from hloscope.report.time import time_lines
from hloscope.report.traffic import axis_lines
from hloscope.report.words import GUESSED_LEGEND, legend, marked, short_note
from hloscope.units import format_bytes, format_capacity, format_share, plural


def render(analysis: Analysis, width: int, colour: bool) -> str:
    """Lays the analysis out for `width` columns, with ANSI colours when asked for."""
    return drawn(_lines(analysis, max(width, LEAST_WIDTH)), width, colour)


def _lines(analysis: Analysis, width: int) -> Iterator[Text]:
    inner = width - INDENT
    yield from _headline(analysis, width)
    if analysis.time is not None:
        yield from section("Predicted time of one step", time_lines(analysis.time, inner), inner)
    yield from _traffic(analysis, inner)
    if analysis.findings:
        told = {one.why for one in analysis.collectives if one.why is not None}
        yield from section("Findings", finding_lines(analysis.findings, inner, told=told), inner)
    for title, arrays in (("Arguments", analysis.arguments), ("Outputs", analysis.outputs)):
        if arrays:
            body = array_lines(arrays, title.lower().removesuffix("s"), inner)
            yield from section(title, body, inner, ", ".join(common_remarks(arrays)))
    if analysis.intermediates:
        body = intermediate_lines(analysis.intermediates, inner)
        yield from section("Largest arrays made on the way", body, inner)
    yield from section("Memory of one device", _memory(analysis.memory, inner), inner)
    if analysis.notes:
        notes = (Text(f"• {short_note(note)}") for note in analysis.notes)
        yield from section("Notes", [line for note in notes for line in hanging(note, inner)], inner)
    yield Text()
    versions = ", ".join(f"{name} {version}" for name, version in analysis.versions.items())
    yield from fold(Text(versions, style="dim"), width)


def _headline(analysis: Analysis, width: int) -> Iterator[Text]:
    target, place = Text(analysis.target, style="bold"), _place(analysis)
    together = Text(" ").join([target, place])
    for line in (together,) if together.cell_len <= width else (target, place):
        yield from fold(line, width)
    yield from fold(_verdict(analysis), width)


def _place(analysis: Analysis) -> Text:
    """`on v5e:2x4 (8 devices), mesh X=8 (auto axes)`, as far as known."""
    place = Text()
    if analysis.slice is not None:
        used, devices = analysis.slice.used_devices, analysis.slice.devices
        place.append(f"on {analysis.slice.name}", style="bold")
        place.append(f" ({f'{used:,} of ' if used < devices else ''}{plural(devices, 'device')})")
    if analysis.mesh is not None:
        place.append(f"{', ' if place.plain else 'on '}mesh {_mesh_words(analysis.mesh)}")
    return place


def _mesh_words(mesh: Mesh) -> str:
    sizes = " ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    if not mesh.axis_types:
        return sizes
    kinds = set(mesh.axis_types)
    if len(kinds) == 1:
        return f"{sizes} ({kinds.pop()} {'axis' if len(mesh.axis_names) == 1 else 'axes'})"
    return f"{sizes} ({', '.join(f'{n} {t}' for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True))})"


def _verdict(analysis: Analysis) -> Text:
    total = analysis.totals
    if not analysis.collectives:
        if total.bound is Bound.EXACT:
            return Text("Nothing moves between devices.", style="green")
        return Text("No collective was found, but not everything was understood: at least 0 B per step move.")
    size = format_bytes(total.wire_bytes)
    size = f"{total.bound} {size}" if total.bound in (Bound.AT_LEAST, Bound.AT_MOST) else size
    counted = " as counted" if total.bound is Bound.UNKNOWN else ""
    mark = "" if counted else marked("", total.bound)
    doubt = "; some counts are lower bounds, others upper bounds" if counted else ""
    return Text(
        f"One device sends {size} per step{counted}, in {mark}{plural(total.executions, 'transfer')} "
        f"from {plural(total.collectives, 'collective')}{doubt}."
    )


def _traffic(analysis: Analysis, width: int) -> Iterator[Text]:
    if not analysis.collectives:
        return
    axes = axis_lines(analysis, width)
    collectives = collective_lines(analysis.collectives, width)
    yield from section("Bytes one device sends per step, by mesh axis", axes, width)
    yield from section("Collectives, most bytes per step first", collectives, width)
    remarks = [legend([_verdict(analysis), *axes, *collectives])]
    if analysis.mesh is None:
        remarks.append(Text("Axes are unknown without a mesh: give it as --mesh X=4,Y=2.", style="dim"))
    if any(one.axes_guessed for one in analysis.collectives):
        remarks.append(Text(GUESSED_LEGEND, style="dim"))
    lines = [line for remark in remarks if remark is not None for line in fold(remark, width)]
    yield from (Text(" " * INDENT) + line for line in ([Text(), *lines] if lines else ()))


def _memory(memory: Memory, width: int) -> Iterator[Text]:
    parts = (
        ("arguments", memory.argument_bytes),
        ("outputs", memory.output_bytes),
        ("temporaries", memory.temp_bytes),
        ("code", memory.generated_code_bytes),
        ("less donated", memory.alias_bytes or None),
    )
    known = ", ".join(f"{name} {format_bytes(count)}" for name, count in parts if count is not None)
    yield from fold(_peak(memory), width)
    if known:
        yield from fold(Text(known, style="dim"), width)


def _peak(memory: Memory) -> Text:
    if memory.peak_bytes is None and memory.fits is False:
        return Text("more than there is; the compiler does not tell what the program's code takes", style="bold red")
    if memory.peak_bytes is None:
        return Text("not known: HLO text does not tell what the compiler allocates")
    text = Text.assemble((format_bytes(memory.peak_bytes), "bold"))
    if memory.hbm_bytes:
        share = memory.peak_bytes / memory.hbm_bytes
        percent = format_share(share)
        style = "bold red" if share > 1 else "bold yellow" if share > 0.9 else ""
        text.append(f" of {format_capacity(memory.hbm_bytes)} HBM ({percent})", style=style)
    return text
