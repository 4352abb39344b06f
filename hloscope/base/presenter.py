"""The presenter: renders results, and answers those of their methods that need rooms above the results.

Results are records of the lowest rooms, but the code that renders, selects or prices them is far above.
`hloscope/__init__.py` registers it. Importing any module of the package runs it first, so a result that is unpickled in
a fresh process has its presenter too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hloscope.base.canvas import Canvas


class Presenter(Protocol):
    """The methods of results that need rooms above them; each is given the result first."""

    def report(self, found: Any, format_name: str, canvas: Canvas) -> str:
        """The result in a format that is text."""

    def save(self, found: Any, path: str, format_name: str | None) -> tuple[str, ...]:
        """Writes the result to a file or a folder; returns messages about what was written."""

    def document(self, found: Any) -> dict[str, Any]:
        """The result as plain data."""

    def fragment(self, found: Any) -> str | None:
        """The result as HTML for a notebook, or None if it is displayed as Markdown."""

    def markdown(self, found: Any) -> str:
        """The result as Markdown for a notebook."""

    def image(self, svg: str) -> str:
        """An SVG element as an image of its own, with a background."""

    def timeline_of(self, found: Any) -> Any:
        """The timeline of an analysis."""

    def graph_of(self, found: Any, **part: Any) -> Any:
        """The graph of an analysis, or of a part of it."""

    def mesh_picture(self, found: Any) -> Any:
        """The mesh of an analysis on its slice."""

    def array_picture(self, found: Any, name: str) -> Any:
        """The sharding of an array of an analysis."""

    def select(self, collectives: Any, selector: str) -> Any:
        """The collectives that a contract selector matches."""

    def filter(self, collectives: Any, kind: str, axes: Any, source: Any, link: Any) -> Any:
        """The collectives that match every filter."""

    def groups(self, collectives: Any, what: str) -> Any:
        """The collectives in groups, as a report groups them."""

    def rule_pages(self) -> Mapping[str, Any]:
        """The page of every rule, by name."""

    def rule_page(self, name: str) -> Any:
        """The page of one rule."""

    def failed_cases(self, rule: str | None) -> Mapping[str, tuple[str, ...]]:
        """The failed cases of a project's own rules."""


_REGISTERED: list[Callable[[], Presenter]] = []


def register_presenter(load: Callable[[], Presenter]) -> Callable[[], Presenter]:
    """Registers the function that imports the presenter; it is called when a result first needs it."""
    _REGISTERED[:] = [load]
    return load


def presenter() -> Presenter:
    """The presenter that `hloscope/__init__.py` registered."""
    (load,) = _REGISTERED
    return load()
