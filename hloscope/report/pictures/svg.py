"""The elements of pictures, which stay readable in light and in dark, alone and in a page.

Lines and letters have the colour of the text around a picture, areas a tint that shows on light and on dark. A page may
set the custom properties `--hloscope-…` to colours of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import ceil
from xml.etree import ElementTree

from hloscope.report.escaping import escape_line

Element = ElementTree.Element

FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
LETTER = 0.605
"""The width of a letter of the font, in its size."""

TINT = "var(--hloscope-tint,#4285f4)"
LINE = "currentColor"
_VARIABLE = re.compile(r"var\(--[\w-]+,([^()]*)\)")
_NAMESPACE = "http://www.w3.org/2000/svg"
_MOST_LETTERS = 600
MARGIN, LINE_HEIGHT = 14.0, 17.0


def make_picture(width: float, height: float, title: str, description: str) -> Element:
    """An empty picture with a title and a description for screen readers."""
    root = Element(
        "svg",
        {
            "xmlns": _NAMESPACE,
            "viewBox": f"0 0 {number(width)} {number(height)}",
            "width": number(width),
            "height": number(height),
            "role": "img",
            "style": f"max-width:100%;height:auto;color:inherit;font-family:{FONT};font-size:12px",
        },
    )
    add(root, "title", text=title)
    add(root, "desc", text=description)
    return root


def add(parent: Element, tag: str, *, text: str | None = None, **attributes: str | float) -> Element:
    """Adds an element to another one; `_` in names of attributes means `-`."""
    values = {name: value if isinstance(value, str) else number(value) for name, value in attributes.items()}
    named = {name.rstrip("_").replace("_", "-"): value for name, value in values.items()}
    made = ElementTree.SubElement(parent, tag, named)
    if text is not None:
        made.text = clean(text)
    return made


def box(parent: Element, corner: tuple[float, float], size: tuple[float, float], **attributes: str | float) -> Element:
    """A rectangle with a thin line around it."""
    (x, y), (width, height) = corner, size
    attributes.setdefault("stroke", LINE)
    return add(parent, "rect", text=None, x=x, y=y, width=width, height=height, **attributes)


def label(
    parent: Element,
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: float = 12,
    **attributes: str | float,
) -> Element:
    """Text with its baseline at `y`."""
    return add(parent, "text", text=text, x=x, y=y, text_anchor=anchor, font_size=size, fill=LINE, **attributes)


def add_title(parent: Element, text: str, width: float) -> Element:
    """A bold line at the top of a picture, cut to its width."""
    return label(parent, MARGIN, MARGIN + 6, cut_to(text, width - 2 * MARGIN, 14), size=14, font_weight="bold")


def write_lines(parent: Element, lines: Iterable[str], top: float, width: float) -> None:
    """Lines of text below each other, the first with its baseline at `top`, each cut to the width of the picture."""
    for index, words in enumerate(lines):
        label(parent, MARGIN, top + LINE_HEIGHT * index, cut_to(words, width - 2 * MARGIN), opacity=0.8)


def add_line(
    parent: Element, begin: tuple[float, float], end: tuple[float, float], **attributes: str | float
) -> Element:
    """A straight line."""
    (x1, y1), (x2, y2) = begin, end
    return add(parent, "line", text=None, x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def add_path(parent: Element, d: str, opacity: float) -> Element:
    """Thin lines along a path."""
    return add(parent, "path", d=d, stroke=LINE, stroke_opacity=opacity, fill="none")


def clean(text: str, most: int = _MOST_LETTERS) -> str:
    """A harmless line of limited length."""
    line = escape_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def number(value: float) -> str:
    """A coordinate: two digits behind the point at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def fits(text: str, width: float, size: float = 12) -> bool:
    """True if text of a size fits into a width."""
    return len(text) * LETTER * size <= width


def cut_to(text: str, width: float, size: float = 12) -> str:
    """The text, with an ellipsis in its middle if it is too wide."""
    line = escape_line(text)
    most = max(int(width / (LETTER * size)), 3)
    return line if len(line) <= most else f"{line[: ceil(most / 2) - 1]}…{line[len(line) - most // 2 :]}"


def wrap_text(text: str, width: float) -> Iterator[str]:
    """The text in lines of a width, broken at blanks if possible."""
    from textwrap import wrap

    yield from wrap(escape_line(text), max(int(width / (LETTER * 12)), 10), break_on_hyphens=False)


def hatch(x: float, y: float, width: float, height: float, step: float = 6) -> str:
    """The path of slanted lines through a rectangle."""
    lines = []
    for index in range(1, ceil((width + height) / step)):
        along = index * step
        x1, y1 = (x + along, y) if along <= width else (x + width, y + along - width)
        x2, y2 = (x, y + along) if along <= height else (x + along - height, y + height)
        lines.append(f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}")
    return "".join(lines)


def render(root: Element) -> str:
    """The picture as text."""
    return ElementTree.tostring(root, encoding="unicode")


def make_standalone(svg: str) -> str:
    """A picture as a file of its own, with a background, in the reader's light or dark scheme.

    Custom properties are a page's, and not every program that draws SVG knows them.
    """
    style = (
        "<style>svg{color:#1f2328}.hloscope-ground{fill:#fff}"
        "@media(prefers-color-scheme:dark){svg{color:#e6edf3}.hloscope-ground{fill:#0d1117}}</style>"
    )
    head, mark, rest = _VARIABLE.sub(r"\1", svg).replace("color:inherit;", "", 1).partition(">")
    ground = '<rect class="hloscope-ground" fill="#fff" width="100%" height="100%"/>'
    return f"{head}{mark}{style}{ground}{rest}"
