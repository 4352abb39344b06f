"""The text report of one program: totals first, then what moves, kernels, shapes and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf

from rich.text import Text

from hloscope.analysis.provenance import short_source
from hloscope.analysis.totals import GUESS
from hloscope.base.canvas import Canvas
from hloscope.base.errors import Option, say
from hloscope.base.results import group_by
from hloscope.base.units import format_bytes, format_capacity, format_digits, format_flops, format_share, pluralize
from hloscope.judge.rules.hbm_near_limit import HbmNearLimit
from hloscope.model import Analysis, ArrayFact, IntermediateFact, Memory, Mesh
from hloscope.model.analysis import BufferRole, Kernel, MemoryPeak, PeakBuffer, RepeatedLine
from hloscope.model.vocabulary import Bound, CompileStage
from hloscope.report.collectives import (
    choose_grouping,
    format_axes_briefly,
    format_waits,
    render_axes,
    render_collectives,
    render_dearest,
    render_groups,
)
from hloscope.report.finding_lines import render_findings
from hloscope.report.layout import INDENT, Breaks, Column, column, fold, fold_all, hang, render_table, section
from hloscope.report.words import (
    ELSEWHERE,
    GUESSED_LEGEND,
    explain_axis_parts,
    make_cost_option,
    make_legend,
    render_notes,
    render_versions,
)

_ARRAYS_SHOWN = 12
_INTERMEDIATES_SHOWN = 5
_MEMORIES = {0: "", 1: "in vector memory", 5: "in host memory"}


def render_analysis(analysis: Analysis, canvas: Canvas) -> Iterator[Text]:
    """Lays the analysis out for a terminal.

    Args:
        analysis: What is known of the program.
        canvas: The width, and the grouping of collectives. Without one, they are grouped when there are too many to be
            listed one by one, and the report begins with what costs most.
    """
    width, inner = canvas.width, canvas.width - INDENT
    by = choose_grouping(analysis.collectives, canvas)
    yield from _render_headline(analysis, width)
    if by is not None:
        yield from fold(Text.assemble("Peak memory ", format_peak(analysis.memory)), width)
    yield from render_memory_peak(analysis, inner)
    if analysis.time is not None:
        from hloscope.report.price import render_time

        waiting = None if by is None else format_waits(analysis.collectives)
        lines = render_time(analysis.time, inner, waiting, brief=by is not None)
        yield from section("Predicted time of one step", lines, inner)
    if analysis.decisions:
        from hloscope.report.decisions import render_decisions

        decisions = list(render_decisions(analysis, inner))
        yield from section("Decisions, those of most exposed time first", decisions, inner) if decisions else ()
    if by is not None:
        title = "What costs most" if analysis.time is None else "What costs most, with its share of the step"
        yield from section(title, render_dearest(analysis, inner), inner)
    yield from _render_traffic(analysis, inner, by, everything=canvas.everything)
    if analysis.kernels:
        yield from section("Kernels", render_kernels(analysis, inner), inner)
    if analysis.findings:
        each, collectives = canvas.everything, analysis.collectives
        found = render_findings(analysis.findings, inner, collectives, gave_reasons=True, each=each)
        yield from section("Findings", found, inner)
    if by is None:
        yield from _render_arrays(analysis, inner)
        memory = fold_all([format_peak(analysis.memory), _format_memory_parts(analysis.memory)], inner)
        yield from section("Memory of one device", memory, inner)
    else:
        yield from section("Memory of one device", _render_short_memory(analysis, inner), inner)
    yield from render_notes(analysis.notes, inner)
    yield from render_versions(analysis.versions, width)


def _render_arrays(analysis: Analysis, width: int) -> Iterator[Text]:
    for title, arrays in (("Arguments", analysis.arguments), ("Outputs", analysis.outputs)):
        if arrays:
            body = _render_array_table(arrays, title.lower().removesuffix("s"), width)
            yield from section(title, body, width, ", ".join(_find_common_remarks(arrays)))
    if analysis.intermediates:
        body = _render_intermediates(analysis.intermediates, width)
        yield from section("Largest intermediate arrays", body, width)


def _render_short_memory(analysis: Analysis, width: int) -> Iterator[Text]:
    """Memory as the compiler reports it, counts of arguments and outputs, and the largest arrays."""
    arrays = (("argument", analysis.arguments), ("output", analysis.outputs))
    words = [_summarize_arrays([array for array in found if array.used], noun) for noun, found in arrays]
    words += [
        f"largest intermediate {_format_shape(fact.dtype, fact.local_shape)} {format_bytes(fact.bytes_per_device)} at "
        f"{_format_source(fact).plain}"
        for fact in analysis.intermediates[:1]
    ]
    yield from fold_all([_format_memory_parts(analysis.memory)], width)
    yield from hang(Text(" · ".join(filter(None, words))), width)


def _summarize_arrays(arrays: Sequence[ArrayFact], noun: str) -> str:
    """`1,200 arguments (6.14 GB), all donated, largest params['head'] 156 MB`."""
    if not arrays:
        return ""
    remarks = "".join(f", all {words}" for words in _find_common_remarks(arrays))
    largest = _find_largest(arrays, 1)[0]
    words = f"{pluralize(len(arrays), noun)} ({_sum_bytes(arrays)}){remarks}"
    return f"{words}, largest {largest.name} {format_bytes(largest.bytes_per_device)}"


def _sum_bytes(arrays: Sequence[ArrayFact]) -> str:
    known = [size for array in arrays if (size := array.bytes_per_device) is not None]
    return f"{'' if len(known) == len(arrays) else 'at least '}{format_bytes(sum(known))}"


def _render_headline(analysis: Analysis, width: int) -> Iterator[Text]:
    target, place = Text(analysis.target, style="bold"), describe_place(analysis)
    together = Text(" ").join([target, place])
    lines = (together,) if together.cell_len <= width else (target, place)
    yield from fold_all((*lines, describe_sent(analysis), describe_repeated(analysis)), width)


def describe_place(analysis: Analysis) -> Text:
    """`on v5e:2x4 (8 devices), mesh X=8 (auto axes)`, without the parts that are unknown."""
    place = Text()
    if analysis.slice is not None:
        used, devices = analysis.slice.used_devices, analysis.slice.devices
        place.append(f"on {analysis.slice.name}", style="bold")
        guessed = "guessed, " if analysis.slice.chosen_by == GUESS else ""
        place.append(f" ({guessed}{f'{used:,} of ' if used < devices else ''}{pluralize(devices, 'device')})")
    if analysis.mesh is not None:
        place.append(f"{', ' if place.plain else 'on '}mesh {_format_mesh(analysis.mesh)}")
    if analysis.stage is CompileStage.SCHEDULED:
        place.append("; scheduled, not yet compiled", style="yellow")
    return place


def _format_mesh(mesh: Mesh) -> str:
    sizes = " ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    if not mesh.axis_types:
        return sizes
    kinds = set(mesh.axis_types)
    if len(kinds) == 1:
        return f"{sizes} ({kinds.pop()} {'axis' if len(mesh.axis_names) == 1 else 'axes'})"
    return f"{sizes} ({', '.join(f'{n} {t}' for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True))})"


def describe_sent(analysis: Analysis) -> Text:
    """A sentence on the bytes that one device sends in a step."""
    total = analysis.totals
    if not analysis.collectives:
        if total.bound is Bound.EXACT:
            return Text("Nothing moves between devices.", style="green")
        return Text("No collective was found, but not everything was understood: at least 0 B move per step.")
    size = format_bytes(total.wire_bytes)
    size = f"{total.bound} {size}" if total.bound in (Bound.AT_LEAST, Bound.AT_MOST) else size
    counted = " as counted" if total.bound is Bound.UNKNOWN else ""
    mark = "" if counted else total.bound.marked("")
    doubt = "; some counts are lower bounds, others upper bounds" if counted else ""
    return Text(
        f"One device sends {size} per step{counted}, in {mark}{pluralize(total.executions, 'transfer')} "
        f"from {pluralize(total.collectives, 'collective')}{doubt}."
    )


def describe_repeated(analysis: Analysis) -> Text | None:
    """A sentence on work that is done several times, with the lines where; None if there is little, or if unknown."""
    found = analysis.repeated
    if found is None or not found.is_notable:
        return None
    words = [f"{found.bound.said(format_digits(found.ratio or 0))} times the FLOPs of the traced program"]
    words += map(_describe_repeating_lines, group_by(found.lines, lambda line: line.axes or line).values())
    if found.recomputed >= _LITTLE:
        words.append(f"{format_share(found.recomputed)} of them are computed again to save memory")
    return Text(f"Repeated work: {'; '.join(words)}.", style="yellow")


_LITTLE = 0.01
"""The largest share of repeated work that is not reported."""


def _describe_repeating_lines(lines: Sequence[RepeatedLine]) -> str:
    """The lines where the same axes shard nothing, or one line for which the reason is unknown."""
    first, places = lines[0], " and ".join(map(_format_repeating_place, lines))
    if not first.axes:
        return f"{format_digits(first.ratio)} times at {places}"
    return f"{first.devices:,} devices of {' x '.join(first.axes)} do the same matmuls at {places}"


def _format_repeating_place(line: RepeatedLine) -> str:
    return (short_source(line.source) or "an unknown line") + (f" ({line.module})" if line.module else "")


def _render_traffic(analysis: Analysis, width: int, by: str | None, *, everything: bool) -> Iterator[Text]:
    if not analysis.collectives:
        return
    if by is None:
        axes = render_axes(analysis, width)
        title = "Collectives, most bytes per step first"
        collectives = render_collectives(analysis.collectives, width, everything=everything)
        yield from section("Bytes one device sends per step, by mesh axis", axes, width)
    else:
        title, collectives = render_groups(analysis.collectives, by, width)
        axes = fold_all([format_axes_briefly(analysis)], width)
        collectives += axes
    yield from section(title, collectives, width)
    remarks = [make_legend([describe_sent(analysis), *axes, *collectives])]
    if analysis.mesh is None:
        words = say("Axes are unknown without a mesh: name one with ", Option("mesh", {"X": 4, "Y": 2}), ".")
        remarks.append(Text(words, style="dim"))
    if any(collective.axes_guessed for collective in analysis.collectives):
        remarks.append(Text(say(*GUESSED_LEGEND), style="dim"))
    below = fold_all(remarks, width)
    yield from (Text(" " * INDENT) + line for line in ([Text(), *below] if below else ()))


def _format_memory_parts(memory: Memory) -> Text | None:
    parts = (
        ("arguments", memory.argument_bytes),
        ("outputs", memory.output_bytes),
        ("temporaries", memory.temp_bytes),
        ("code", memory.generated_code_bytes),
        ("minus donated", memory.alias_bytes or None),
    )
    known = ", ".join(f"{name} {format_bytes(count)}" for name, count in parts if count is not None)
    return Text(known, style="dim") if known else None


def format_peak(memory: Memory) -> Text:
    """The peak memory, and its share of the device's memory."""
    if memory.peak_bytes is None and memory.fits is False:
        unknown = "the compiler does not report the size of the program's code"
        return Text(f"more than the device has; {unknown}", style="bold red")
    known_bytes = memory.data_bytes if memory.peak_bytes is None else memory.peak_bytes
    if known_bytes is None:
        return Text("not known: HLO text does not say what the compiler allocates")
    text = Text.assemble((format_bytes(known_bytes), "bold"))
    if memory.hbm_bytes:
        share = known_bytes / memory.hbm_bytes
        percent = format_share(share)
        style = "bold red" if share > 1 else "bold yellow" if share > 0.9 else ""
        text.append(f" of {format_capacity(memory.hbm_bytes)} HBM ({percent})", style=style)
    return text if memory.peak_bytes is not None else text.append(", and the program's code, whose size is unknown")


def _render_array_table(arrays: Sequence[ArrayFact], noun: str, width: int) -> list[Text]:
    """The arrays of most bytes on a device, in the program's order, and one line for the others.

    Args:
        arrays: Arguments or outputs, at least one.
        noun: `argument` or `output`.
        width: Columns.
    """
    shown = _find_largest(arrays, _ARRAYS_SHOWN)
    rest = [array for array in arrays if array not in shown]
    remarks = (
        Text(_describe_rest(shown, rest, noun), style="dim") if rest else None,
        _describe_unknown(arrays),
        explain_axis_parts(array.sharding or "" for array in shown),
    )
    return render_table(_make_columns(shown, arrays), width) + fold_all(remarks, width)


def _find_common_remarks(arrays: Sequence[ArrayFact]) -> tuple[str, ...]:
    """Remarks that apply to every used array, which are better said once: `donated`."""
    used = [array for array in arrays if array.used]
    if len(used) < 2:
        return ()
    return tuple(words for words in _list_remarks(used[0]) if all(words in _list_remarks(array) for array in used))


def _find_largest(arrays: Sequence[ArrayFact], count: int) -> list[ArrayFact]:
    by_size = sorted(range(len(arrays)), key=lambda index: -_measure_size(arrays[index]))
    return [arrays[index] for index in sorted(by_size[:count])]


def _measure_size(array: ArrayFact) -> float:
    """Bytes on a device for sorting: 0 for an array that is dropped, infinity if unknown."""
    if not array.used:
        return 0
    return inf if array.bytes_per_device is None else array.bytes_per_device


def _describe_rest(shown: Sequence[ArrayFact], rest: Sequence[ArrayFact], noun: str) -> str:
    smaller = max(map(_measure_size, rest)) < min(map(_measure_size, shown))
    count = pluralize(len(rest), f"{'smaller' if smaller else 'more'} {noun}")
    used = [array for array in rest if array.used]
    unused = f" ({len(rest) - len(used):,} unused)" if len(used) < len(rest) else ""
    return say(f"+{count}{unused}, {_sum_bytes(used)} in total ", ELSEWHERE)


def _describe_unknown(arrays: Sequence[ArrayFact]) -> Text | None:
    used = [array for array in arrays if array.used]
    unknown = (
        ("global shapes", all(array.global_shape is None for array in used)),
        ("shardings", all(array.sharding is None for array in used)),
    )
    words = " and ".join(what for what, holds in unknown if holds)
    return Text(f"not known: {words}", style="dim") if words and used else None


def make_array_columns(arrays: Sequence[ArrayFact], count: int) -> tuple[tuple[Column, ...], int]:
    """The table of the largest arrays, in the program's order, and the number of all others."""
    shown = _find_largest(arrays, count)
    return _make_columns(shown, arrays), len(arrays) - len(shown)


def _make_columns(shown: Sequence[ArrayFact], arrays: Sequence[ArrayFact]) -> tuple[Column, ...]:
    """Columns of the shown arrays; a column of unknowns is empty, because `_describe_unknown` reports it once."""
    common = _find_common_remarks(arrays)
    any_global = any(array.global_shape is not None for array in arrays)
    any_sharding = any(array.sharding is not None for array in arrays)
    of_array, words = partial(column, shown), Breaks.BETWEEN_WORDS

    def dim_unused(array: ArrayFact, text: str, style: str = "") -> Text:
        return Text(text, style if array.used else "dim")

    def whole(array: ArrayFact) -> Text:
        return dim_unused(array, _format_shape(array.dtype, array.global_shape) if any_global else "")

    def sharding(array: ArrayFact) -> Text:
        known = array.sharding or ("unknown" if array.used else "")
        return dim_unused(array, known if any_sharding else "")

    def size(array: ArrayFact) -> str:
        return format_bytes(array.bytes_per_device) if array.used else ""

    def remarks(array: ArrayFact) -> str:
        return ", ".join(remark for remark in _list_remarks(array) if remark not in common)

    return (
        of_array("name", lambda array: dim_unused(array, array.name, "bold"), breaks=Breaks.AFTER_PUNCTUATION),
        of_array("global", whole, given_up=2, below="global {}"),
        of_array("sharding", sharding, breaks=words, given_up=3),
        of_array("per device", _format_local, given_up=4, below="per device {}"),
        of_array("bytes", size, right=True, given_up=5),
        of_array("", remarks, style="dim", breaks=words, given_up=1),
    )


def _format_local(array: ArrayFact) -> str:
    """The shape on a device; for a dropped array, only if its global shape is unknown."""
    return _format_shape(array.dtype, array.local_shape) if array.used or array.global_shape is None else ""


def _format_shape(dtype: str, dimensions: tuple[int, ...] | None) -> str:
    return "unknown" if dimensions is None else f"{dtype}[{','.join(map(str, dimensions))}]"


def _list_remarks(array: ArrayFact) -> tuple[str, ...]:
    remarks = (
        ("unused: JAX drops it", not array.used),
        ("donated", array.donated and array.reused is not False),
        ("donated, not reused", array.donated and array.reused is False),
        ("compiler's choice", array.chosen_by == "compiler"),
    )
    return tuple(words for words, holds in remarks if holds)


def _render_intermediates(intermediates: Sequence[IntermediateFact], width: int) -> list[Text]:
    """A row for each array that reads differently, the largest first; at least one must be given."""

    def read(fact: IntermediateFact) -> tuple[object, ...]:
        return (
            _format_shape(fact.dtype, fact.local_shape),
            _format_global(fact),
            fact.memory_space,
            short_source(fact.source),
        )

    rows = list(group_by(intermediates, read).values())[:_INTERMEDIATES_SHOWN]

    def alike(row: Sequence[IntermediateFact]) -> str:
        return pluralize(len(row), "similar array") if len(row) > 1 else ""

    of_first = partial(column, [row[0] for row in rows])
    columns = (
        of_first("per device", lambda fact: _format_shape(fact.dtype, fact.local_shape), style="bold"),
        of_first("bytes", lambda fact: format_bytes(fact.bytes_per_device), right=True),
        column(rows, "arrays", lambda row: str(len(row)), right=True, given_up=3, below=alike),
        of_first("global", _format_global, breaks=Breaks.BETWEEN_WORDS, given_up=2),
        of_first("source", _format_source, breaks=Breaks.BETWEEN_WORDS, given_up=1),
        of_first("", _format_remarks, style="dim", given_up=4),
    )
    return render_table(columns, width)


def _format_global(fact: IntermediateFact) -> str:
    """`[256,4096] P('X', None)`; empty when neither is known."""
    whole = "" if fact.global_shape is None else _format_shape("", fact.global_shape)
    return f"{whole} {fact.sharding or ''}".strip()


def _format_source(fact: IntermediateFact) -> Text:
    words = short_source(fact.source)
    return Text(words) if words is not None else Text(f"%{fact.name}, HLO line {fact.line}", style="dim")


def _format_remarks(fact: IntermediateFact) -> str:
    place = _MEMORIES.get(fact.memory_space, f"in memory space {fact.memory_space}")
    return ", ".join(words for words in (place, "in a loop" if fact.loops else "") if words)


_DMA = {True: "yes, not counted", False: "none", None: "not stated"}


def render_kernels(analysis: Analysis, width: int) -> Iterator[Text]:
    """A table of the kernels, and a line for each kernel of unknown cost."""
    yield from render_table(_make_kernel_columns(analysis.kernels), width)
    unpriced = () if analysis.time is None else analysis.time.unpriced_kernels
    for name in unpriced:
        advice = say(make_cost_option(name), ", or cost_estimate=pl.CostEstimate(...) in its pallas_call")
        yield from hang(Text(f"{name}: its cost is unknown; give {advice}", style="yellow"), width)


def _make_kernel_columns(kernels: tuple[Kernel, ...]) -> list[Column]:
    of_kernel, parts = partial(column, kernels), Breaks.BETWEEN_PARTS
    own = {True: ", XLA's own", False: ""}
    return [
        of_kernel("kernel", lambda each: f"{each.name}{own[each.by_compiler]}", style="bold", breaks=parts),
        of_kernel("runs", lambda each: each.executions_bound.marked(f"{each.executions:,}"), right=True),
        of_kernel("estimate per run", _format_kernel_cost, breaks=parts),
        of_kernel("remote DMA", lambda each: _DMA[each.remote_dma]),
        of_kernel("takes", lambda each: _count_shapes(each.operand_shapes), breaks=parts, below="takes {}", given_up=1),
        of_kernel(
            "returns", lambda each: _count_shapes(each.result_shapes), breaks=parts, below="returns {}", given_up=2
        ),
        of_kernel("at", lambda each: short_source(each.source) or "", style="dim", below="at {}", given_up=0),
    ]


def _format_kernel_cost(kernel: Kernel) -> str:
    flops = format_flops(kernel.flops) if kernel.flops else ""
    accessed = format_bytes(kernel.accessed_bytes) if kernel.accessed_bytes else ""
    return ", ".join(filter(None, (flops, accessed))) or "unknown"


def _count_shapes(shapes: tuple[object, ...]) -> str:
    """Each shape once, with its number."""
    counts = Counter(map(str, shapes)).items()
    return ", ".join(shape if count == 1 else f"{count} x {shape}" for shape, count in counts)


_BUFFERS_SHOWN = 8
_ROLE_WORDS = {
    BufferRole.ARGUMENT: "argument",
    BufferRole.OUTPUT: "output, not in a donated buffer",
    BufferRole.SAVED: "saved for the backward pass",
    BufferRole.GATHERED: "gathered",
    BufferRole.COPY: "copy",
    BufferRole.TEMPORARY: "temporary",
    BufferRole.CONSTANT: "constant",
}
_FREED_BY = {
    BufferRole.SAVED: "jax.checkpoint around the layer",
    BufferRole.GATHERED: "gather less at a time",
}
"""Changes that avoid a buffer of a role; none of them was tried."""
_DONATED = "donate it to an output of its size"


def render_memory_peak(analysis: Analysis, width: int) -> Iterator[Text]:
    """The largest buffers with their lines and what would free them; nothing if there is room, or no known peak."""
    peak = analysis.memory_peak
    if peak is not None and _is_tight(analysis.memory):
        yield from section("HBM of one device at its peak", _render_buffers(peak, width), width)


def _is_tight(memory: Memory) -> bool:
    """True if a program does not fit, or uses more than the default share of `hbm-near-limit`."""
    if memory.fits is False or memory.peak_bytes is None or not memory.hbm_bytes:
        return memory.fits is False
    return memory.peak_bytes > HbmNearLimit().share * memory.hbm_bytes


def _render_buffers(peak: MemoryPeak, width: int) -> Iterator[Text]:
    shown, rest = peak.buffers[:_BUFFERS_SHOWN], peak.buffers[_BUFFERS_SHOWN:]
    columns = [
        column(shown, "Bytes", _format_buffer_bytes, right=True),
        column(shown, "What", lambda buffer: _ROLE_WORDS[buffer.role]),
        column(shown, "Array", _format_buffer, breaks=Breaks.AFTER_PUNCTUATION),
        column(shown, "Made at", lambda buffer: short_source(buffer.source) or "", given_up=2),
        column(shown, "Would free it (not tried)", suggest_freeing, below=_format_freeing, given_up=1),
    ]
    yield from render_table(columns, width)
    others = sum(buffer.bytes * buffer.count for buffer in rest) + peak.other_bytes
    place = short_source(peak.source)
    when = f"while %{peak.at} runs" + (f" ({place})" if place else "")
    words = [f"{format_bytes(peak.live_bytes)} {when}; {format_bytes(others)} of it in other buffers"]
    if peak.fragmentation_bytes:
        words.append(f"{format_bytes(peak.fragmentation_bytes)} more is reserved for temporaries and unused then")
    yield from fold_all((Text(each, style="dim") for each in words), width)


def _format_buffer_bytes(buffer: PeakBuffer) -> str:
    whole = format_bytes(buffer.bytes * buffer.count)
    return whole if buffer.count == 1 else f"{whole} ({buffer.count} x {format_bytes(buffer.bytes)})"


def _format_buffer(buffer: PeakBuffer) -> str:
    """The argument or the instruction that makes the buffer, with its shape."""
    name = buffer.name if buffer.role is BufferRole.ARGUMENT else f"%{buffer.name}"
    return f"{name} {buffer.shape}" if buffer.shape is not None else name


def suggest_freeing(buffer: PeakBuffer) -> str:
    """The change that would free a buffer, according to the facts; empty if they show none."""
    return _DONATED if buffer.donation_frees else _FREED_BY.get(buffer.role, "")


def _format_freeing(buffer: PeakBuffer) -> str:
    by = suggest_freeing(buffer)
    return by and f"would free it (not tried): {by}"
