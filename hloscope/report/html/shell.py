"""The frame of every page: head, policy, style, scripts, theme and data, in one file that fetches nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from hloscope.report.escaping import plain_line, without_commands
from hloscope.report.html.privacy import without_people
from hloscope.version import __version__

_LOADING = (
    '<p id="loading" role="status">Unpacking…</p>\n'
    '  <noscript><p class="card">This page unpacks its data with a script of its own. Scripts are off in this browser; '
    "nothing would be fetched if they were on.</p></noscript>"
)
"""What stands in the place of a page that its script makes."""

_STYLES, _MEDIA = ("page.css", "sections.css"), "media.css"


def framed(
    title: str,
    data: Mapping[str, Any],
    scripts: Sequence[str],
    *,
    styles: Sequence[str] = (),
    target: str = "",
    main: str | None = None,
    nav: str = "",
    foot: str = "",
) -> str:
    """One page.

    Args:
        title: What it is about, as text.
        data: What the page unpacks; nothing in it can be markup.
        scripts: The parts of its one script, in their order.
        styles: The parts of its style that other pages do not have.
        target: What stands in the bar, as text; empty where the page's script says it.
        main: The page itself, as markup; None where its script makes it.
        nav: The links to its sections, as markup.
        foot: What it rests on, as markup.
    """
    style = "\n".join(map(_asset, (*_STYLES, *styles, _MEDIA)))
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, scripts)) + "\n})();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "version": escape(__version__),
        "title": _line(title),
        "style": style,
        "target": target and f"<bdi>{_line(target)}</bdi>",
        "nav": nav,
        "main": _LOADING if main is None else main,
        "foot": foot,
        "data": _packed({**data, "version": __version__}),
        "script": script,
    }
    page = _asset("page.html")
    for name, text in parts.items():
        before, _, after = page.partition(f"<!--{name}-->")
        page = before + text + after
    return page


def _line(text: str) -> str:
    return escape(without_commands(plain_line(without_people(text))))


def _asset(name: str) -> str:
    return files("hloscope.report.html").joinpath(f"assets/{name}").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _packed(data: Mapping[str, Any]) -> str:
    """Data as the page unpacks it; nothing in it can be markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
