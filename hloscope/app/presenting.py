"""The presenter of all results (see `hloscope.base.results`); each function loads what it needs when called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hloscope.base.canvas import Canvas
    from hloscope.base.results import Shown
    from hloscope.model import Analysis, Collective, Collectives
    from hloscope.model.finding import RuleDoc
    from hloscope.model.picture import Picture
    from hloscope.model.program_graph import ProgramGraph
    from hloscope.model.timeline import Timeline
    from hloscope.report.collectives import Group


def report(found: Shown, format_name: str, canvas: Canvas) -> str:
    """`Shown.report`."""
    from hloscope.report.formats import render_report

    return render_report(found, format_name, canvas)


def save(found: Shown, path: str, format_name: str | None) -> tuple[str, ...]:
    """`Shown.save`."""
    from hloscope.report import formats

    return formats.save(found, path, format_name)


def document(found: Shown) -> dict[str, Any]:
    """`Shown.to_dict`."""
    from hloscope.report.formats import make_plain_document

    return make_plain_document(found)


def fragment(found: Shown) -> str | None:
    """The result as HTML for a notebook."""
    from hloscope.report.fragments import render_fragment

    return render_fragment(found)


def markdown(found: Shown) -> str:
    """The result as Markdown for a notebook."""
    from hloscope.report.formats import render_in_notebook

    return render_in_notebook(found)


def image(svg: str) -> str:
    """A picture as an image, for a notebook that cannot display HTML."""
    from hloscope.report.pictures.svg import make_standalone

    return make_standalone(svg)


def timeline_of(found: Analysis) -> Timeline:
    """`Analysis.timeline`."""
    from hloscope.app.analyses import predict_timeline_of_analysis

    return predict_timeline_of_analysis(found)


def graph_of(found: Analysis, **part: Any) -> ProgramGraph:
    """`Analysis.graph`."""
    from hloscope.app.analyses import build_graph_of_analysis

    return build_graph_of_analysis(found, **part)


def mesh_picture(found: Analysis) -> Picture:
    """`Analysis.mesh_picture`."""
    from hloscope.report.pictures import meshes

    return meshes.draw_mesh_picture(found)


def array_picture(found: Analysis, name: str) -> Picture:
    """`Analysis.array`."""
    from hloscope.report.pictures import arrays

    return arrays.draw_array_picture(found, name)


def select(collectives: Collectives, selector: str) -> list[Collective]:
    """`Collectives.selected`."""
    from hloscope.judge.model import find_matching
    from hloscope.judge.notation import parse_selector

    wanted = parse_selector(selector, where=f"the selector {selector!r}")
    return find_matching(collectives, wanted, collectives.mesh_axes)


def filter(
    collectives: Collectives, kind: str, axes: tuple[str, ...] | None, source: str | None, link: str | None
) -> list[Collective]:
    """`Collectives.where`, without the filter by module."""
    from hloscope.judge.building import selector
    from hloscope.judge.model import find_matching

    return find_matching(collectives, selector(kind, axes, source, link), collectives.mesh_axes)


def groups(collectives: Collectives, what: str) -> list[Group]:
    """`Collectives.by`."""
    from hloscope.report.collectives import list_groups

    return list_groups(collectives, what)


def rule_pages() -> Mapping[str, RuleDoc]:
    """`hloscope.rules.pages`."""
    from hloscope.report.pages import list_pages

    return list_pages()


def rule_page(name: str) -> RuleDoc:
    """`hloscope.rules.page`."""
    from hloscope.report.pages import find_page

    return find_page(name)


def failed_cases(rule: str | None) -> Mapping[str, tuple[str, ...]]:
    """`hloscope.rules.failed_cases`."""
    from hloscope.app.own_rules import run_cases

    return run_cases(rule)
