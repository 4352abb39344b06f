"""The page of a program and of two: what its script makes it of."""

from __future__ import annotations

from hloscope.analysis.model import Analysis
from hloscope.documents import plain
from hloscope.report.diffs import DiffDocument, cause_places, change_lines, details_of, is_step_tie
from hloscope.report.html.island import rules_of, side_of
from hloscope.report.html.privacy import Privacy, files_of
from hloscope.report.html.shell import framed

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
"""Parts of the one script, in the order in which they stand in it."""


def render(found: Analysis, *, with_source: bool = True) -> str:
    """The page of one program.

    Args:
        found: What is known of it.
        with_source: Whether it holds lines of the user's code.
    """
    sides = [side_of(found, with_source=with_source)]
    return framed(
        found.target, {"sides": sides, "names": [], "rules": rules_of(found.findings), "diff": None}, _SCRIPTS
    )


def render_difference(found: DiffDocument, *, with_source: bool = True) -> str:
    """The page of two programs, before and after side by side.

    Args:
        found: What differs.
        with_source: Whether it holds lines of the user's code.
    """
    known = [(name, side) for name, side in zip(("before", "after"), found.sides, strict=True) if side is not None]
    document = plain(found)
    privacy = Privacy.of(files_of(document))
    said = {
        "is_tie": is_step_tie(found),
        "places": list(cause_places(found)),
        "details": [list(map(list, details_of(cause))) for cause in found.judged.causes],
        "changes": plain([*change_lines(found)]),
    }
    data = {
        "sides": [side_of(side, with_source=with_source) for _, side in known],
        "names": [name for name, _ in known],
        "rules": rules_of(finding for _, side in known for finding in side.findings),
        "diff": privacy.data(document),
        "said": privacy.data(said),
    }
    return framed(f"{found.old} → {found.new}", data, _SCRIPTS)
