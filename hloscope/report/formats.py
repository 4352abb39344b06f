"""The one registry of formats: for each thing that can be reported, the names of its formats and who writes them.

A format is a function, named as `module:function` in this room, and is loaded when it is asked for: `text` yields the
lines of a thing for a width, `json` makes its document, those in `OF_FILES` return `Files`, and every other one returns
its text. One line in
`_OF_FINDINGS` is a new format for `hloscope analyze` and `hloscope check` alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hloscope.calls import in_python
from hloscope.errors import NotationError, did_you_mean
from hloscope.given import shown
from hloscope.messages import Notation, speaking
from hloscope.outputs import Files, check_output, write_files, write_text

if TYPE_CHECKING:
    from hloscope.shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """What a report is drawn on.

    Attributes:
        width: Columns.
        colour: Whether ANSI colours are understood.
        group_by: For an analysis: one of `GROUPINGS`; None to group collectives where they are many.
        everything: For an analysis: whether each collective and finding is listed by itself.
        source: For a page: whether it holds lines of the user's code.
    """

    width: int = 100
    colour: bool = False
    group_by: str | None = None
    everything: bool = False
    source: bool = True


GROUPINGS = ("module", "axis", "line", "kind")
"""What the collectives of an analysis can be grouped by."""

_OF_FINDINGS = {
    "codequality": "codequality:render",
    "github": "github:render",
    "sarif": "sarif:render",
}
"""Formats of findings, whether of one program or of a check; each is given a `CheckReport`, without accepted findings.

`checks.once_each` has them with their targets; strings of compiled text go through a door of `escaping` of the format's
own, and places through `CheckReport.in_repository`.
"""

FORMATS: Mapping[str, Mapping[str, str]] = {
    "analysis": {"text": "analysis:lines", "json": "formats:itself", **_OF_FINDINGS, "html": "html.page:render"},
    "check": {
        "text": "checks:lines",
        "json": "checks:as_document",
        **_OF_FINDINGS,
        "markdown": "markdown:render",
        "junit": "junit:render",
        "html": "html.check_page:render",
    },
    "checkups": {"text": "checkups:lines", "json": "checkups:as_document"},
    "comparison": {
        "text": "comparing:lines",
        "json": "formats:itself",
        "markdown": "comparing:render_markdown",
        "html": "html.compare_page:render",
    },
    "difference": {
        "text": "diffs:lines",
        "json": "formats:itself",
        "markdown": "diffs:render_markdown",
        "html": "html.page:render_difference",
    },
    "dump": {"text": "dumps:lines"},
    "dumped": {"text": "dumps:lines_of_one", "json": "dumps:as_document"},
    "dumped_modules": {"text": "dumps:lines_of_all", "json": "dumps:as_documents"},
    "explanation": {
        "text": "explanation:lines",
        "json": "explanation:as_document",
        "markdown": "explanation:render_markdown",
    },
    "graph": {
        "text": "graphs:lines",
        "json": "formats:itself",
        "dot": "graphs:as_dot",
        "graphml": "graphs:as_graphml",
        "svg": "graphs:as_svg",
    },
    "overview": {
        "text": "explanation:overview",
        "json": "explanation:as_document",
        "markdown": "explanation:render_markdown",
    },
    "prices": {"text": "price:lines", "json": "price:as_document", "html": "html.price_page:render"},
    "recording": {"text": "recording:lines", "json": "formats:itself"},
    "shardings": {"text": "shardings:lines", "json": "formats:itself"},
    "drawn_shardings": {"text": "shardings:drawn_lines", "json": "formats:itself"},
    "suggestions": {
        "text": "suggestions:lines",
        "json": "formats:itself",
        "markdown": "suggestions:render_markdown",
        "html": "html.suggest_page:render",
    },
    "timeline": {
        "text": "timeline:lines",
        "json": "formats:itself",
        "trace": "trace:files",
        "xplane": "xplane:files",
    },
    "verification": {
        "text": "verification:lines",
        "json": "verification:as_document",
        "html": "html.verify_page:render",
    },
}


_WITH_SOURCE = ("analysis", "difference")
"""What has lines of the user's code on its page."""

OF_FILES = {"trace": "file", "xplane": "folder"}
"""Formats that are no text, and what each has to be given to write."""


def files_of(subject: str, format_name: str, found: object) -> Files:
    """What was found, in a format of its subject that is in `OF_FILES`. Arguments are those of `render`."""
    made: Files = _function(FORMATS[subject][format_name])(found)
    return made


def render(subject: str, format_name: str, found: object, canvas: Canvas) -> str:
    """What was found, in one of the formats of its subject that are text.

    Args:
        subject: A key of `FORMATS`.
        format_name: The name of one of its formats.
        found: The thing itself, such as an `Analysis`.
        canvas: What it is drawn on.
    """
    from hloscope.report.escaping import dumped
    from hloscope.report.groups import Listing
    from hloscope.report.layout import LEAST_WIDTH, drawn

    if subject == "analysis" and format_name in _OF_FINDINGS:
        found = _function("checks:report_of")(found)
    write = _function(FORMATS[subject][format_name])
    if format_name == "text":
        how = {"listing": Listing(by=canvas.group_by, everything=canvas.everything)} if subject == "analysis" else {}
        return drawn(write(found, max(canvas.width, LEAST_WIDTH), **how), canvas.width, canvas.colour)
    if format_name == "html" and subject in _WITH_SOURCE:
        return str(write(found, with_source=canvas.source))
    return dumped(write(found)) if format_name == "json" else str(write(found))


def report_of(found: Shown, format_name: str, **how: Any) -> str:
    """The report of a result in Python, for `Shown.report`, whose arguments these are.

    Raises:
        NotationError: There is no such format of it, or no such grouping.
    """
    _check_known(found, "format", format_name, (*FORMATS[found._subject()],))
    _check_known(found, "grouping", how["group_by"], (None, *GROUPINGS))
    if format_name in OF_FILES:
        raise NotationError(
            f"the format {format_name!r} is not text",
            fix=f"write it to a {OF_FILES[format_name]}: save(path, {format_name!r})",
        )
    if format_name not in ("text", "markdown"):
        return render(found._subject(), format_name, found._rendered(), Canvas(**how))
    with speaking(Notation.PYTHON):
        return render(found._subject(), format_name, in_python(found._rendered()), Canvas(**how))


def _check_known(found: Shown, what: str, name: object, names: tuple[str | None, ...]) -> None:
    if name not in names:
        choices = ", ".join(repr(each) for each in names if each is not None)
        raise NotationError(
            f"{type(found).__name__} has no {what} {shown(name)}",
            fix=did_you_mean(str(name), [each for each in names if each], f"it has {choices}"),
        )


_BY_ENDING = {
    ".json.gz": "trace",
    ".md": "markdown",
    ".txt": "text",
    **{f".{name}": name for name in ("json", "html", "svg", "dot", "graphml", "sarif")},
}
"""The format that the ending of a file stands for."""


def save(found: Shown, path: str, format_name: str | None) -> tuple[str, ...]:
    """Writes a result in one of its formats, by default that of the file's ending, for `Shown.save`.

    Raises:
        HloscopeError: There is no such format of it, or it cannot be written there.
    """
    if format_name is None:
        format_name = next((name for ending, name in _BY_ENDING.items() if path.endswith(ending)), "json")
    _check_known(found, "format", format_name, (*FORMATS[found._subject()],))
    check_output(path, OF_FILES.get(format_name, "file"))
    if format_name in OF_FILES:
        return write_files(files_of(found._subject(), format_name, found._rendered()), path)
    write_text(report_of(found, format_name, group_by=None), path)
    return ()


def document_of(found: Shown) -> dict[str, object]:
    """A result as plain data, as its JSON has it."""
    from hloscope.documents import plain

    return plain(_function(FORMATS[found._subject()]["json"])(found._rendered()))


def in_notebook(found: Shown) -> str:
    """A result as Markdown; as its text in a block where it has no format of its own for that."""
    from hloscope.report.escaping import fenced

    if "markdown" in FORMATS[found._subject()]:
        return report_of(found, "markdown", group_by=None)
    return "\n".join(fenced(str(found), "text"))


def itself(document: object) -> object:
    """What is found, where that is a document already."""
    return document


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"hloscope.report.{module}"), function)
