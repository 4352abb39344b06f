"""The data of a page: the documents that `--format json` makes, and what is drawn, told or read beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hloscope.analysis.model import Analysis, BufferRole, SourceFrame
from hloscope.analysis.model.evidence import Evidence, evidence_if_known
from hloscope.analysis.model.timeline import Timeline
from hloscope.analysis.paths import bodies_of, common_path, folded, scopes_of
from hloscope.analysis.places import NOTHING, Sources, short_source, split_place, users_frame
from hloscope.documents import plain
from hloscope.errors import HloscopeError, NotationError
from hloscope.findings import Finding
from hloscope.messages import Option, say
from hloscope.report.html.drawn import arrays_drawn, mesh_drawn
from hloscope.report.html.excerpts import excerpt_of
from hloscope.report.html.privacy import Privacy, files_of
from hloscope.report.pages import page_named
from hloscope.report.parts import dearest_of
from hloscope.report.price import unknown_accuracy
from hloscope.report.trials import labelled
from hloscope.why.explanation import Explanation, alike, explain

_AROUND = 2
"""Lines of source that are shown above and below one."""
_UNKNOWN_PROGRAM = "the compiled program is not available: this page was made from a report, or for another process"


def side_of(analysis: Analysis, *, with_source: bool) -> dict[str, Any]:
    """What a page holds of one program.

    Args:
        analysis: What is known of it.
        with_source: Whether lines of the user's code are among it.
    """
    evidence = evidence_if_known(analysis)
    module = None if evidence is None else evidence.module()
    timeline, missing = _timeline(analysis)
    sources = _sources(evidence) if with_source else NOTHING
    hlo = None if module is None else excerpt_of(module, analysis, timeline)
    document = plain(analysis)
    found = {
        "analysis": document,
        "timeline": None if timeline is None else _but_for(document, plain(timeline)),
        "no_timeline": missing,
        "inaccurate": None if analysis.time is None else unknown_accuracy(analysis.time),
        "first": [_costly(one) for one in dearest_of(analysis)],
        "explained": list(_explained(analysis, sources)),
        "peak_parts": list(_parts_at_peak(analysis)),
        "mesh": mesh_drawn(analysis, module),
        "pictures": arrays_drawn(analysis),
        "hlo": hlo,
        "no_hlo": _UNKNOWN_PROGRAM if hlo is None else None,
    }
    privacy = Privacy.of(files_of(found))
    lines = {privacy.place(place): found for place, found in _lines(analysis, sources)}
    return {**privacy.data(found), "lines": privacy.data(lines)}


def rules_of(findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """The pages of the rules that have found something, by name."""
    return {name: page for name in dict.fromkeys(finding.rule for finding in findings) if (page := _page(name))}


def _page(name: str) -> dict[str, Any] | None:
    try:
        page = page_named(name)
    except NotationError:  # of a plug-in that this process does not have
        return None
    return {"summary": page.summary, "sections": list(map(list, page.sections))}


def _timeline(analysis: Analysis) -> tuple[Timeline | None, str | None]:
    """What runs when; else why that is not known."""
    if analysis.slice is None:
        return None, say("no TPU slice says how long anything takes: name one, as in ", Option("slice", "v5e:2x4"))
    try:
        return analysis.timeline(), None
    except HloscopeError as error:
        return None, error.on_one_line()


def _but_for(known: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """A document without the fields that another one on the page has too."""
    return {name: value for name, value in document.items() if name not in known}


def _sources(evidence: Evidence | None) -> Sources:
    if evidence is None:
        return NOTHING
    return Sources(captured=not evidence.program.is_text, root=evidence.source_root)


def _costly(one: Any) -> dict[str, object]:
    return {"headline": one.headline.plain, "about": [list(each) for each in one.about], "numbers": list(one.numbers)}


def _explained(analysis: Analysis, sources: Sources) -> Iterator[dict[str, object]]:
    """Why collectives are there, for those that are alike once."""
    evidence = evidence_if_known(analysis)
    known = {} if evidence is None else evidence.trials
    told = zip(alike(analysis.collectives), explain(analysis, sources=sources), strict=True)
    for numbers, explanation in told:
        places = ((of.computation, of.name) for of in (analysis.collectives[number - 1] for number in numbers))
        trials = next((known[place] for place in places if place in known), None)
        yield {"numbers": list(numbers), **_explanation(explanation), "trials": list(map(list, labelled(trials)))}


def _explanation(found: Explanation) -> dict[str, object]:
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


def _parts_at_peak(analysis: Analysis) -> Iterator[str | None]:
    """The part of the model that each buffer at the peak is of; None where nothing names one."""
    peak = analysis.memory_peak
    if peak is None:
        return
    dimensions = {buffer.name: (buffer.shape.dimensions if buffer.shape else None) or () for buffer in peak.buffers}
    owned = [buffer.name for buffer in peak.buffers if buffer.role is BufferRole.ARGUMENT]
    bodies = bodies_of([(name, dimensions[name]) for name in owned])
    scopes = {buffer.op_name or "": scopes_of(buffer.op_name) for buffer in peak.buffers}
    shared = len(common_path(filter(None, scopes.values())))
    paths = [
        bodies.get(buffer.name, ()) if buffer.role is BufferRole.ARGUMENT else scopes[buffer.op_name or ""][shared:]
        for buffer in peak.buffers
    ]
    names = folded(filter(None, paths))
    yield from (names[path].module if path else None for path in paths)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the user's code."""

    file: str
    line: int


def _lines(analysis: Analysis, sources: Sources) -> Iterator[tuple[str, list[list[object]]]]:
    """The lines around each place that the page names, by place."""
    for one in dict.fromkeys(_named_lines(analysis)):
        told = sources.line(one.file, one.line)
        if told:
            around = range(max(1, one.line - _AROUND), one.line + _AROUND + 1)
            texts = ((number, sources.line(one.file, number)) for number in around)
            yield f"{one.file}:{one.line}", [[number, text] for number, text in texts if text is not None]


def _named_lines(analysis: Analysis) -> Iterator[_Line]:
    stacks = [collective.source for collective in analysis.collectives]
    stacks += [fact.source for fact in analysis.intermediates]
    if analysis.memory_peak is not None:
        stacks += [buffer.source for buffer in analysis.memory_peak.buffers]
    frames: list[SourceFrame | None] = [users_frame(stack) for stack in stacks]
    frames += [collective.part.line for collective in analysis.collectives if collective.part is not None]
    yield from (_Line(frame.file, frame.line) for frame in frames if frame is not None and frame.line)
    for finding in analysis.findings:
        file, line = split_place(finding.source or "")
        if line is not None:
            yield _Line(file, line)
