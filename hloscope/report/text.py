"""The report for a terminal: totals first, then what moves, then shapes, then memory."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from hloscope.analysis.model import Analysis, Memory
from hloscope.analysis.vocabulary import Bound
from hloscope.findings import Severity
from hloscope.report.tables import array_table, axis_table, bounded, collective_table
from hloscope.units import format_bytes, format_capacity, plural

_INDENT = 2
_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def render(analysis: Analysis, width: int, colour: bool) -> str:
    """Lays the analysis out for `width` columns, with ANSI colours when asked for."""
    sink = io.StringIO()
    console = Console(
        file=sink, width=width, force_terminal=colour, no_color=not colour, highlight=False, emoji=False, markup=False
    )
    for section in _sections(analysis, width):
        console.print(section)
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _sections(analysis: Analysis, width: int) -> Iterable[RenderableType]:
    yield _headline(analysis)
    if analysis.collectives:
        yield _titled("Bytes one device sends per step, by mesh axis", axis_table(analysis))
        yield _titled("Collectives, most bytes per step first", collective_table(analysis.collectives, width - _INDENT))
        if analysis.mesh is None:
            yield Padding(
                Text("Axes are unknown without a mesh: give it as --mesh X=4,Y=2.", style="dim"), (1, 0, 0, 2)
            )
    for title, arrays in (("Arguments", analysis.arguments), ("Outputs", analysis.outputs)):
        if arrays:
            yield _titled(title, array_table(arrays, width - _INDENT))
    yield _titled("Memory of one device", _memory_lines(analysis.memory))
    if analysis.findings:
        yield _titled("Findings", _finding_lines(analysis))
    if analysis.notes:
        yield _titled("Notes", Group(*(Text(f"• {note}", overflow="fold") for note in analysis.notes)))
    yield Text("")
    yield Text(", ".join(f"{name} {version}" for name, version in analysis.versions.items()), style="dim")


def _titled(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, style="bold"), Padding(body, (0, 0, 0, _INDENT)))


def _headline(analysis: Analysis) -> RenderableType:
    place = Text(analysis.target, style="bold")
    if analysis.slice is not None:
        used = analysis.slice.used_devices
        place.append(f" on {analysis.slice.name}", style="bold")
        part = f"{used} of " if used < analysis.slice.devices else ""
        place.append(f" ({part}{plural(analysis.slice.devices, 'device')})")
    if analysis.mesh is not None:
        place.append(f", mesh {_mesh_words(analysis)}")
    return Group(place, _verdict(analysis))


def _mesh_words(analysis: Analysis) -> str:
    mesh = analysis.mesh
    assert mesh is not None
    sizes = " ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    if mesh.axis_types is None:
        return sizes
    kinds = set(mesh.axis_types)
    if len(kinds) == 1:
        return f"{sizes} ({kinds.pop()} axes)"
    return f"{sizes} ({', '.join(f'{n} {t}' for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True))})"


def _verdict(analysis: Analysis) -> Text:
    total = analysis.totals
    if not analysis.collectives and total.bound is Bound.EXACT:
        return Text("Nothing moves between devices.", style="green")
    words = f"One device sends {bounded(format_bytes(total.wire_bytes), total.bound)} per step"
    return Text(f"{words}, in {plural(total.executions, 'transfer')} from {plural(total.collectives, 'collective')}.")


def _memory_lines(memory: Memory) -> RenderableType:
    parts = (
        ("arguments", memory.argument_bytes),
        ("outputs", memory.output_bytes),
        ("temporaries", memory.temp_bytes),
        ("code", memory.generated_code_bytes),
        ("less donated", memory.alias_bytes or None),
    )
    known = Text(", ".join(f"{name} {format_bytes(count)}" for name, count in parts if count is not None), style="dim")
    if memory.peak_bytes is None:
        return Group(Text("not known: HLO text does not tell what the compiler allocates"), *([known] if known else []))
    text = Text(format_bytes(memory.peak_bytes), style="bold")
    if memory.hbm_bytes:
        share = memory.peak_bytes / memory.hbm_bytes
        style = "bold red" if share > 1 else "bold yellow" if share > 0.9 else "not bold"
        percent = f"{100 * share:.1f}%" if share >= 0.001 else "under 0.1%"
        text.append(f" of {format_capacity(memory.hbm_bytes)} HBM ({percent})", style=style)
    return Group(text, known)


def _finding_lines(analysis: Analysis) -> RenderableType:
    lines = []
    for finding in analysis.findings:
        text = Text(f"{finding.severity}[{finding.rule}]", style=_STYLE[finding.severity])
        text.append(f": {finding.message}", style="not bold default")
        if finding.line is not None:
            text.append(f" (HLO line {finding.line})", style="dim")
        if finding.fix:
            text.append(f"\n  fix: {finding.fix}", style="default")
        lines.append(text)
    return Group(*lines)
