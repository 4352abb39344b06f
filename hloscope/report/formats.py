"""The one registry of formats, and how results are rendered and saved in them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from hloscope.base.calls import format_value, speak_python
from hloscope.base.canvas import LISTING, Canvas
from hloscope.base.errors import Notation, NotationError, did_you_mean, use_notation
from hloscope.base.outputs import OutputFiles, check_output, write_files, write_text
from hloscope.base.presenter import load
from hloscope.report.renderer import Renderer

if TYPE_CHECKING:
    from hloscope.base.results import Shown

FORMATS: Mapping[str, tuple[str, str]] = {
    "text": (
        "hloscope.report.text:Text",
        "analysis check checkups comparison difference drawn_shardings dump dumped dumped_modules explanation graph "
        "overview prices recording shardings suggestions timeline verification",
    ),
    "json": (
        "hloscope.report.json:Json",
        "analysis check checkups comparison difference drawn_shardings dumped dumped_modules explanation graph "
        "overview prices recording shardings suggestions timeline verification",
    ),
    "codequality": ("hloscope.report.codequality:CodeQuality", "analysis check"),
    "github": ("hloscope.report.github:GitHub", "analysis check"),
    "sarif": ("hloscope.report.sarif:Sarif", "analysis check"),
    "markdown": ("hloscope.report.markdown:Markdown", "check comparison difference explanation overview suggestions"),
    "junit": ("hloscope.report.junit:JUnit", "check"),
    "html": ("hloscope.report.html:Html", "analysis check comparison difference prices suggestions verification"),
    "dot": ("hloscope.report.graphs:Dot", "graph"),
    "graphml": ("hloscope.report.graphs:GraphML", "graph"),
    "svg": ("hloscope.report.graphs:Svg", "graph"),
    "trace": ("hloscope.report.trace:Trace", "timeline"),
    "xplane": ("hloscope.report.xplane:XPlane", "timeline"),
}
"""Each format by name, in the order in which `--format` lists them: its class, and the documents that it renders.

A class is loaded when its format is asked for, so that commands start without what the others need.
"""


def list_formats(document: str) -> tuple[str, ...]:
    """The names of the formats that render a document."""
    return tuple(name for name, (_, documents) in FORMATS.items() if document in documents.split())


@cache
def find_renderer(format_name: str) -> Renderer:
    """The format of a name in `FORMATS`."""
    renderer: Renderer = load(FORMATS[format_name][0])()
    return renderer


def render(document: str, format_name: str, found: object, canvas: Canvas) -> str:
    """Renders a result as text.

    Args:
        document: What it is, such as `analysis`.
        format_name: A text format of `formats_of(document)`.
        found: The result itself, such as an `Analysis`.
        canvas: What it is rendered for.
    """
    return find_renderer(format_name).render(document, found, canvas)


def render_files(document: str, format_name: str, found: object) -> OutputFiles:
    """Renders a result in a binary format; arguments as for `render`."""
    return find_renderer(format_name).files(document, found)


def render_report(found: Shown, format_name: str, canvas: Canvas) -> str:
    """The report of a result in Python, for `Shown.report`, whose arguments these are.

    Raises:
        NotationError: The result does not have the format, or there is no such grouping.
    """
    _check_known(found, "format", format_name, list_formats(found._subject))
    for name, option in LISTING.items():
        if option.choices:
            _check_known(found, option.noun, getattr(canvas, name), (option.default, *option.choices))
    renderer = find_renderer(format_name)
    if renderer.writes != "text":
        raise NotationError(
            f"the format {format_name!r} is not text",
            fix=f"write it to a {renderer.writes}: save(path, {format_name!r})",
        )
    if not renderer.names_options:
        return renderer.render(found._subject, found._rendered(), canvas)
    with use_notation(Notation.PYTHON):
        return renderer.render(found._subject, speak_python(found._rendered()), canvas)


def _check_known(found: Shown, what: str, name: object, names: tuple[str | None, ...]) -> None:
    if name not in names:
        choices = ", ".join(repr(each) for each in names if each is not None)
        raise NotationError(
            f"{type(found).__name__} has no {what} {format_value(name)}",
            fix=did_you_mean(str(name), [each for each in names if each], f"it has {choices}"),
        )


def find_format(path: str) -> str:
    """The format that the ending of a file name selects; JSON by default."""
    return next((name for name in FORMATS if (end := find_renderer(name).ending) and path.endswith(end)), "json")


def save(found: Shown, path: str, format_name: str | None) -> tuple[str, ...]:
    """Writes a result in one of its formats, by default that of the file's ending, for `Shown.save`.

    Raises:
        HloscopeError: The result does not have the format, or cannot be written there.
    """
    format_name = find_format(path) if format_name is None else format_name
    _check_known(found, "format", format_name, list_formats(found._subject))
    renderer = find_renderer(format_name)
    check_output(path, "folder" if renderer.writes == "folder" else "file", renderer.ending)
    if renderer.writes != "text":
        return write_files(renderer.files(found._subject, found._rendered()), path)
    write_text(render_report(found, format_name, Canvas()), path)
    return ()


def make_plain_document(found: Shown) -> dict[str, object]:
    """A result as plain data, as its JSON has it."""
    from hloscope.base.documents import to_plain

    return to_plain(find_renderer("json").call(found._subject, found._rendered(), Canvas()))


def render_in_notebook(found: Shown) -> str:
    """A result as Markdown; as its text in a block if it has no Markdown of its own."""
    from hloscope.report.escaping import fence_code

    if "markdown" in list_formats(found._subject):
        return render_report(found, "markdown", Canvas())
    return "\n".join(fence_code(str(found), "text"))
