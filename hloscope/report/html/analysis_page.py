"""The page of one program, and of two side by side: the data from which their script makes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hloscope.analysis.model_parts import find_common_path, find_model_paths, fold_paths, parse_scopes
from hloscope.analysis.provenance import NO_SOURCES, SourceFiles, find_users_frame, short_source, split_place
from hloscope.base.canvas import Canvas
from hloscope.base.documents import to_plain
from hloscope.base.errors import HloscopeError, Option, say
from hloscope.base.results import group_by
from hloscope.base.units import pluralize
from hloscope.hlo import HloComputation, HloInstruction, HloModule
from hloscope.model import Analysis, ArrayFact, IntermediateFact, SourceFrame
from hloscope.model.analysis import BufferRole
from hloscope.model.capture import find_evidence
from hloscope.model.timeline import Timeline
from hloscope.report.collectives import list_dearest
from hloscope.report.decisions import format_cost, list_decision_details
from hloscope.report.diffs import DiffDocument, find_cause_places, is_step_tie, list_change_lines, list_details
from hloscope.report.html.pieces import find_rules, frame_page
from hloscope.report.html.privacy import Privacy, find_files
from hloscope.report.pictures.arrays import find_shards_of, render_shards
from hloscope.report.pictures.meshes import place_analysis, render_mesh
from hloscope.report.price import describe_unknown_accuracy
from hloscope.report.words import describe_trials
from hloscope.why.explanation import Explanation, explain_collectives, group_alike

_SCRIPTS = (
    "shell.js",
    "format.js",
    "data.js",
    "dom.js",
    "summary.js",
    "difference.js",
    "mesh.js",
    "ink.js",
    "timeline_data.js",
    "timeline_canvas.js",
    "timeline.js",
    "collective_details.js",
    "collectives.js",
    "arrays.js",
    "memory.js",
    "findings.js",
    "hlo.js",
    "main.js",
)
"""Parts of the script, in their order."""


def render_analysis_page(found: Analysis, canvas: Canvas) -> str:
    """The page of one program.

    Args:
        found: Its analysis.
        canvas: The options of its listing.
    """
    sides = [make_side(found, with_source=canvas.source)]
    data = {"sides": sides, "names": [], "rules": find_rules(found.findings), "diff": None}
    return frame_page(found.target, data, _SCRIPTS)


def render_difference_page(found: DiffDocument, canvas: Canvas) -> str:
    """The page of two programs, before and after side by side.

    Args:
        found: The comparison.
        canvas: The options of its listing.
    """
    known = [(name, side) for name, side in zip(("before", "after"), found.sides, strict=True) if side is not None]
    document = to_plain(found)
    privacy = Privacy.of(find_files(document))
    said = {
        "is_tie": is_step_tie(found),
        "places": list(find_cause_places(found)),
        "details": [list(map(list, list_details(cause))) for cause in found.judged.causes],
        "changes": to_plain([*list_change_lines(found)]),
    }
    data = {
        "sides": [make_side(side, with_source=canvas.source) for _, side in known],
        "names": [name for name, _ in known],
        "rules": find_rules(finding for _, side in known for finding in side.findings),
        "diff": privacy.hide_data(document),
        "said": privacy.hide_data(said),
    }
    return frame_page(f"{found.old} → {found.new}", data, _SCRIPTS)


_AROUND = 2
"""Lines of source that are shown above and below one."""
_UNKNOWN_PROGRAM = "the compiled program is not available: this page was made from a report, or for another process"


def make_side(analysis: Analysis, *, with_source: bool) -> dict[str, Any]:
    """The data of one program on a page.

    Args:
        analysis: Its analysis.
        with_source: Whether lines of the user's code are among it.
    """
    evidence = find_evidence(analysis)
    module = None if evidence is None else evidence.module()
    timeline, missing = _find_timeline(analysis)
    sources = NO_SOURCES
    if with_source and evidence is not None:
        sources = SourceFiles(captured=not evidence.program.is_text, root=evidence.source_root)
    hlo = None if module is None else make_excerpt(module, analysis, timeline)
    if not with_source:  # the lines that turn decisions
        decisions = tuple(replace(decision, trials=None) for decision in analysis.decisions)
        analysis = analysis._remembered_by(replace(analysis, decisions=decisions))
    document = to_plain(analysis)
    found = {
        "analysis": document,
        "timeline": None
        if timeline is None
        else {name: one for name, one in to_plain(timeline).items() if name not in document},
        "no_timeline": missing,
        "inaccurate": None if analysis.time is None else describe_unknown_accuracy(analysis.time),
        "first": [
            *_list_lost(analysis),
            *(
                {"headline": one.headline.plain, "about": list(map(list, one.about)), "numbers": list(one.numbers)}
                for one in list_dearest(analysis)
            ),
        ],
        "explained": list(_list_explained(analysis, sources)),
        "peak_parts": list(_find_parts_at_peak(analysis)),
        "mesh": draw_mesh(analysis, module),
        "pictures": draw_arrays(analysis),
        "hlo": hlo,
        "no_hlo": _UNKNOWN_PROGRAM if hlo is None else None,
    }
    privacy = Privacy.of(find_files(found))
    lines = {privacy.hide_place(place): found for place, found in _list_lines(analysis, sources)}
    return {**privacy.hide_data(found), "lines": privacy.hide_data(lines)}


def _list_lost(analysis: Analysis) -> Iterator[dict[str, object]]:
    """The axes that are where they cost most."""
    numbers = {collective.name: number for number, collective in enumerate(analysis.collectives, start=1)}
    for decision in analysis.decisions:
        if decision.is_lost:
            followed = [numbers[name] for name in decision.collectives if name in numbers]
            cost = f"sent in {pluralize(len(followed), 'collective')}" if followed else format_cost(decision, analysis)
            about = [["", cost]]
            about += [[label or "where", words] for label, words in list_decision_details(decision)]
            yield {"headline": decision.summary, "about": about, "numbers": followed}


def _find_timeline(analysis: Analysis) -> tuple[Timeline | None, str | None]:
    """The timeline of a program, or the reason why there is none."""
    if analysis.slice is None:
        return None, say("no TPU slice says how long anything takes: name one, as in ", Option("slice", "v5e:2x4"))
    try:
        return analysis.timeline(), None
    except HloscopeError as error:
        return None, error.on_one_line()


def _list_explained(analysis: Analysis, sources: SourceFiles) -> Iterator[dict[str, object]]:
    """The explanations of collectives, one for all that are alike."""
    evidence = find_evidence(analysis)
    known = {} if evidence is None else evidence.trials
    told = zip(group_alike(analysis.collectives), explain_collectives(analysis, sources=sources), strict=True)
    for numbers, explanation in told:
        places = ((of.computation, of.name) for of in (analysis.collectives[number - 1] for number in numbers))
        trials = next((known[place] for place in places if place in known), None)
        yield {
            "numbers": list(numbers),
            **_make_explanation(explanation),
            "trials": list(map(list, describe_trials(trials))),
        }


def _make_explanation(found: Explanation) -> dict[str, object]:
    return {
        "source": None if found.place is None else f"{found.place.file}:{found.place.line}",
        "steps": [
            {
                "what": step.what,
                "arrays": list(step.arrays),
                "becomes": step.becomes,
                "is_loss": step.is_loss,
                "place": None if step.source is None else short_source((step.source,)),
            }
            for step in found.steps
        ],
        "equations": list(found.equations),
        "advice": list(found.advice),
    }


def _find_parts_at_peak(analysis: Analysis) -> Iterator[str | None]:
    """The part of the model of each buffer at the peak; None if unknown."""
    peak = analysis.memory_peak
    if peak is None:
        return
    dimensions = {buffer.name: (buffer.shape.dimensions if buffer.shape else None) or () for buffer in peak.buffers}
    owned = [buffer.name for buffer in peak.buffers if buffer.role is BufferRole.ARGUMENT]
    bodies = find_model_paths([(name, dimensions[name]) for name in owned])
    scopes = {buffer.op_name or "": parse_scopes(buffer.op_name) for buffer in peak.buffers}
    shared = len(find_common_path(filter(None, scopes.values())))
    paths = [
        bodies.get(buffer.name, ()) if buffer.role is BufferRole.ARGUMENT else scopes[buffer.op_name or ""][shared:]
        for buffer in peak.buffers
    ]
    names = fold_paths(filter(None, paths))
    yield from (names[path].module if path else None for path in paths)


def _list_lines(analysis: Analysis, sources: SourceFiles) -> Iterator[tuple[str, list[list[object]]]]:
    """The lines around each place that the page names, by place."""
    for file, line in dict.fromkeys(_list_named_lines(analysis)):
        if sources.line(file, line):
            around = range(max(1, line - _AROUND), line + _AROUND + 1)
            texts = ((number, sources.line(file, number)) for number in around)
            yield f"{file}:{line}", [[number, text] for number, text in texts if text is not None]


def _list_named_lines(analysis: Analysis) -> Iterator[tuple[str, int]]:
    stacks = [collective.source for collective in analysis.collectives]
    stacks += [fact.source for fact in analysis.intermediates]
    if analysis.memory_peak is not None:
        stacks += [buffer.source for buffer in analysis.memory_peak.buffers]
    frames: list[SourceFrame | None] = [find_users_frame(stack) for stack in stacks]
    frames += [collective.part.line for collective in analysis.collectives if collective.part is not None]
    yield from ((frame.file, frame.line) for frame in frames if frame is not None and frame.line)
    for finding in analysis.findings:
        file, line = split_place(finding.source or "")
        if line is not None:
            yield file, line


_MOST_STARTS = 2500
_LONGEST = 250
"""Operations of the timeline that are shown."""
_NEIGHBOURS = 8
_BODY = 40
_BODIES = 400
_ATTRIBUTES, _ATTRIBUTE = 900, 240
"""Letters of an instruction's attributes, and of one of them."""
_LEFT_OUT = frozenset({"metadata", "frontend_attributes"})


@dataclass(slots=True)
class _Excerpt:
    """The part of a module that is displayed so far."""

    module: HloModule
    shown: dict[HloInstruction, None] = field(default_factory=dict)
    bodies: dict[str, None] = field(default_factory=dict)

    def add(self, start: HloInstruction) -> None:
        """Adds an instruction, its operands, its users, and the first instructions of the computations it calls."""
        self.shown[start] = None
        self.shown.update(dict.fromkeys(start.operands[:_NEIGHBOURS]))
        self.shown.update(dict.fromkeys(start.users[:_NEIGHBOURS]))
        for _, name in start.called:
            if name not in self.bodies and len(self.bodies) < _BODIES:
                self.bodies[name] = None
                self.shown.update(dict.fromkeys(self.module.computation(name).instructions[:_BODY]))


def make_excerpt(module: HloModule, analysis: Analysis, timeline: Timeline | None) -> dict[str, object]:
    """The instructions around collectives, findings, large arrays and the longest operations, by computation.

    Args:
        module: The parsed text.
        analysis: Its analysis.
        timeline: Its timeline; None if unknown.
    """
    found = _Excerpt(module)
    computations = {computation.name: computation for computation in module.computations}
    for place in dict.fromkeys(_list_places(analysis, timeline)):
        start = _find_instruction(computations, *place)
        if start is not None:
            found.add(start)
    return {"computations": _list_computations(found)}


def _list_places(analysis: Analysis, timeline: Timeline | None) -> Iterator[tuple[str | None, str]]:
    for collective in analysis.collectives[:_MOST_STARTS]:
        yield collective.computation, collective.name
        yield from ((collective.computation, part.name) for part in collective.parts)
    for finding in analysis.findings[:_LONGEST]:
        if finding.instruction is not None:
            yield finding.computation, finding.instruction
    yield from ((fact.computation, fact.name.partition("[")[0]) for fact in analysis.intermediates)
    if timeline is not None:
        yield from _find_longest(timeline)


def _find_longest(timeline: Timeline) -> Iterator[tuple[str, str]]:
    """The operations that take most of the step."""
    times = [
        (max(one.executions, one.executions_beside) * interval.time_us, one.name, interval.name)
        for one in timeline.computations
        for interval in one.intervals
        if interval.name is not None
    ]
    yield from ((computation, name) for _, computation, name in sorted(times, reverse=True)[:_LONGEST])


def _find_instruction(
    computations: dict[str, HloComputation], computation: str | None, name: str
) -> HloInstruction | None:
    try:
        return computations[computation or ""].instruction(name)
    except KeyError:
        return None


def _list_computations(found: _Excerpt) -> list[dict[str, object]]:
    in_order = sorted(found.shown, key=lambda instruction: instruction.line)
    by_computation = group_by(in_order, lambda instruction: instruction.computation.name)
    return [
        {
            "name": computation.name,
            "line": computation.line,
            "is_entry": computation.is_entry,
            "count": len(computation.instructions),
            "instructions": list(map(_make_instruction, by_computation[computation.name])),
        }
        for computation in found.module.computations
        if computation.name in by_computation
    ]


def _make_instruction(instruction: HloInstruction) -> dict[str, object]:
    return {
        "name": instruction.name,
        "opcode": instruction.opcode,
        "shape": str(instruction.shape),
        "line": instruction.line,
        "argument": (instruction.argument or "")[:_ATTRIBUTE],
        "attributes": _format_attributes(instruction.attributes.items()),
        "op_name": instruction.op_name,
        "operands": list(instruction.operand_names[:64]),
        "users": [user.name for user in instruction.users[:64]],
        "called": [name for _, name in instruction.called],
        "is_root": instruction.is_root,
    }


def _format_attributes(attributes: Iterable[tuple[str, str]]) -> str:
    """The printed attributes without those that the page has elsewhere, cut if they are long."""
    told = (f"{name}={_cut(value, _ATTRIBUTE)}" for name, value in attributes if name not in _LEFT_OUT)
    return _cut(", ".join(told), _ATTRIBUTES)


def _cut(value: str, most: int) -> str:
    return value if len(value) <= most else f"{value[:most]}…"


_MOST = 240
"""The number of pictures of arrays; arrays of the same layout share one."""

_STYLE = re.compile(r'^(<svg\b[^>]*?) style="[^"]*"')

_Array = ArrayFact | IntermediateFact


def draw_arrays(analysis: Analysis) -> dict[str, object]:
    """The pictures of arrays, and for each array the number of its picture."""
    known: dict[object, int] = {}
    drawn: list[str] = []
    names: list[str] = []

    def number(array: _Array) -> int | None:
        key = (array.dtype, array.global_shape, array.local_shape, array.sharding)
        if key not in known and len(drawn) < _MOST:
            known[key] = len(drawn)
            drawn.append(_strip_style(render_shards(find_shards_of(analysis, array))))
            names.append(array.name)
        return known.get(key)

    def numbers(arrays: Iterable[_Array]) -> list[int | None]:
        return [number(array) if array.sharding is not None else None for array in arrays]

    return {
        "arguments": numbers(analysis.arguments),
        "outputs": numbers(analysis.outputs),
        "intermediates": numbers(analysis.intermediates),
        "drawn": drawn,
        "names": names,
    }


def draw_mesh(analysis: Analysis, module: HloModule | None) -> dict[str, str | None]:
    """The mesh on its slice with the traffic of each link, or the reason why there is none.

    Args:
        analysis: The analysis of the program.
        module: Its parsed text; None if unknown.
    """
    try:
        return {"picture": _strip_style(render_mesh(place_analysis(analysis, module))), "why_not": None}
    except HloscopeError as error:
        return {"picture": None, "why_not": error.on_one_line()}


def _strip_style(picture: str) -> str:
    """A picture without its own style: the page's says as much, and its policy allows no other."""
    return _STYLE.sub(r"\1", picture)
