"""`hloscope record` as text: the script's programs, the most expensive first, and the parts that were not real."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hloscope.base.canvas import Canvas
from hloscope.base.errors import Either, say
from hloscope.base.results import group_by
from hloscope.base.units import format_bytes, format_share, format_time, pluralize
from hloscope.model import Analysis
from hloscope.model.recording import RecordedProgram, Recording
from hloscope.report import analysis
from hloscope.report.collectives import render_dearest
from hloscope.report.layout import INDENT, Column, column, fold, hang, render_table, section
from hloscope.report.words import render_notes, render_versions

_FAKED = {
    "large": "its arguments and results are large",
    "long": "it computes too much for a simulated device",
    "memory": "the real arrays already take much memory",
    "kernel": "it has a kernel that only a TPU can run, or something else that cannot be compiled for CPU",
}
_NAMES_SHOWN = 6


def render_recording(found: Recording, width: int) -> Iterator[Text]:
    """Lays the recording out for a terminal."""
    inner = width - INDENT
    yield from fold(Text.assemble((" ".join(found.command), "bold"), f" on {found.slice_name}"), width)
    yield from fold(Text(f"{found.said[:1].upper()}{found.said[1:]}."), width)
    yield from section("Programs, most predicted time first", _render_programs(found, inner), inner)
    yield from _render_dearest(found, inner)
    if found.recompiled:
        yield from section("Compiled more than once", _render_recompiled(found, inner), inner)
    unreal = list(_render_unreal(found, inner))
    if unreal:
        yield from section("What was not real", unreal, inner)
    yield from render_notes(found.notes, inner)
    yield from render_versions(found.versions, width)
    for program in found.programs if found.asked else ():
        if program.analysis is not None:
            yield Text()
            yield from analysis.render_analysis(program.analysis, Canvas(width=width))


def _render_programs(found: Recording, width: int) -> Iterator[Text]:
    if found.programs:
        yield from render_table(_make_columns(found.programs), width)
    for program in found.programs:
        memory = None if program.analysis is None else program.analysis.memory
        if memory is not None and memory.fits is False:
            said = f"{program.name} does not fit: it needs more HBM than one device of {program.slice_name} has"
            yield from hang(Text(said, style="bold red"), width)
        if program.error is not None:
            yield from hang(Text(f"{program.name} has no figures: {program.error}", style="yellow"), width)
    if any(program.predicted_us is None for program in found.programs):
        legend = "about: a rough estimate, for a program that was not compiled or not priced"
        yield from hang(Text(legend, style="dim"), width)
    small = found.small
    if small is not None:
        names = ", ".join(small.names[:_NAMES_SHOWN]) + (", …" if len(small.names) > _NAMES_SHOWN else "")
        words = (
            f"and {pluralize(small.programs, 'small program')} of JAX's own ({names}): "
            f"{pluralize(small.calls, 'call')}, about {format_time(small.rough_us)} in total, a rough estimate, "
            "not compiled for the slice"
        )
        yield from hang(Text(words, style="dim"), width)


def _render_dearest(found: Recording, width: int) -> Iterator[Text]:
    """The largest costs of the first program that communicates, and how to see the others."""
    moving = [each for each in found.programs if each.analysis is not None and each.analysis.collectives]
    if found.asked or not moving or moving[0].analysis is None:
        return
    name = moving[0].name
    lines = render_dearest(moving[0].analysis, width, can_be_explained=False)
    yield from section(f"What costs most in {name}", lines, width)
    command = Either(f"hloscope record --only {name} …", f'hloscope.record(…, only="{name}")')
    yield from hang(Text(say("in full: ", command), style="dim"), width)


def _make_columns(programs: tuple[RecordedProgram, ...]) -> list[Column]:
    total = sum(program.all_calls_us for program in programs)
    return [
        column(programs, "program", lambda each: each.name, style="bold"),
        column(programs, "calls", lambda each: f"{each.calls:,}", right=True),
        column(programs, "one call", _format_call, right=True),
        column(programs, "share", lambda each: format_share(each.all_calls_us / total) if total else "", right=True),
        column(programs, "sends", _format_sent, right=True, below="sends {}", given_up=2),
        column(programs, "HBM", lambda each: _format_memory(each.analysis), right=True, below="{} of HBM", given_up=1),
        column(programs, "on", lambda each: each.slice_name, below="on {}", given_up=3),
        column(programs, "at", lambda each: each.place or "", style="dim", below="{}", given_up=0),
    ]


def _format_call(program: RecordedProgram) -> str:
    time = None if program.analysis is None else program.analysis.time
    return f"about {format_time(program.rough_us)}" if time is None else time.bound.marked(format_time(time.step_us))


def _format_sent(program: RecordedProgram) -> str:
    total = None if program.analysis is None else program.analysis.totals
    return "?" if total is None else total.bound.marked(format_bytes(total.wire_bytes))


def _format_memory(found: Analysis | None) -> Text:
    peak = None if found is None else found.memory.peak_bytes
    over = found is not None and found.memory.fits is False
    return Text("?" if peak is None else format_bytes(peak), style="bold red" if over else "")


def _render_recompiled(found: Recording, width: int) -> Iterator[Text]:
    for each in found.recompiled:
        place = f" ({each.place})" if each.place else ""
        text = f"{each.name}{place}, {each.versions} times: {'; '.join(each.changes[:3])}"
        yield from hang(Text(text), width)


def _render_unreal(found: Recording, width: int) -> Iterator[Text]:
    unreal = (program for program in found.programs if program.faked is not None)
    faked = group_by(unreal, lambda program: program.faked or "")
    for reason, programs in faked.items():
        names = ", ".join(dict.fromkeys(program.name for program in programs))
        yield from hang(Text(f"not executed, its results are zeros: {names} ({_FAKED[reason]})"), width)
    for program in found.programs:
        if program.took_cpu_branch:
            text = f"{program.name} was executed and took its CPU branch: its values are not those of the TPU branch"
            yield from hang(Text(text, style="yellow"), width)
    for write in found.kept_writes:
        times = f", {write.times} times" if write.times > 1 else ""
        place = f" ({write.where})" if write.where else ""
        yield from hang(Text(f"{write.what} {write.target}{place}: {write.became}{times}"), width)
    if faked:
        yield from hang(Text("what the script printed after that is not real, including losses and rates"), width)
