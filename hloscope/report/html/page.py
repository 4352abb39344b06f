"""The page itself: a template, style and scripts of this room, and the data, in one file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from hloscope.analysis.model import Analysis
from hloscope.documents import plain
from hloscope.report.diffs import DiffDocument
from hloscope.report.escaping import plain_line, without_commands
from hloscope.report.html.island import rules_of, side_of
from hloscope.report.html.privacy import Privacy, files_of, without_people
from hloscope.version import __version__

_SCRIPTS = (
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
_STYLES = ("page.css", "sections.css", "media.css")


def render(found: Analysis, *, with_source: bool = True) -> str:
    """The page of one program.

    Args:
        found: What is known of it.
        with_source: Whether it holds lines of the user's code.
    """
    sides = [side_of(found, with_source=with_source)]
    return _page(found.target, {"sides": sides, "names": [], "rules": rules_of(found.findings), "diff": None})


def render_difference(found: DiffDocument, *, with_source: bool = True) -> str:
    """The page of two programs, before and after side by side.

    Args:
        found: What differs.
        with_source: Whether it holds lines of the user's code.
    """
    known = [(name, side) for name, side in zip(("before", "after"), found.sides, strict=True) if side is not None]
    document = plain(found)
    data = {
        "sides": [side_of(side, with_source=with_source) for _, side in known],
        "names": [name for name, _ in known],
        "rules": rules_of(finding for _, side in known for finding in side.findings),
        "diff": Privacy.of(files_of(document)).data(document),
    }
    return _page(f"{found.old} → {found.new}", data)


def _page(title: str, data: Mapping[str, Any]) -> str:
    style = "\n".join(map(_asset, _STYLES))
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "\n})();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": escape(without_commands(plain_line(without_people(title)))),
        "version": escape(__version__),
        "style": style,
        "script": script,
        "data": _packed({**data, "version": __version__}),
    }
    page = _asset("page.html")
    for name, text in parts.items():
        before, _, after = page.partition(f"<!--{name}-->")
        page = before + text + after
    return page


def _asset(name: str) -> str:
    return files("hloscope.report.html").joinpath(f"assets/{name}").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _packed(data: Mapping[str, Any]) -> str:
    """Data as the page unpacks it; nothing in it can be markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
