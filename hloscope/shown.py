"""What every result shares: it prints as the command line's report, in a notebook as Markdown, and is one line as repr.

Reports are drawn by `hloscope.report`, which knows all results and stands above them: it is loaded when one is shown.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

Format = Literal["text", "json", "markdown", "github", "sarif", "junit"]
Grouping = Literal["module", "axis", "line", "kind"]


class Shown:
    """A result with a report."""

    __slots__ = ()

    def _subject(self) -> str:
        """Its key in `hloscope.report.formats.FORMATS`."""
        raise NotImplementedError

    def _rendered(self) -> object:
        """What the formats of its subject are given."""
        return self

    def report(
        self,
        format: Format = "text",
        *,
        width: int = 100,
        colour: bool = False,
        group_by: Grouping | None = None,
        everything: bool = False,
    ) -> str:
        """The report, as the command prints it.

        Args:
            format: `text`, `json`, and `markdown`, `github`, `sarif` or `junit` where the command has these.
            width: Columns of text.
            colour: Whether text has ANSI colours.
            group_by: Of an analysis: what its collectives are grouped by; by default where they are many.
            everything: Of an analysis: list each collective and finding by itself.

        Raises:
            NotationError: There is no such format of this result, or no such grouping.
        """
        shown: str = import_module("hloscope.report.formats").report_of(
            self, format, width=width, colour=colour, group_by=group_by, everything=everything
        )
        return shown

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, as `--format json` prints it (its schema is in `hloscope/schemas/`)."""
        found: dict[str, Any] = import_module("hloscope.report.formats").document_of(self)
        return found

    def __str__(self) -> str:
        return self.report().rstrip("\n")

    def _repr_markdown_(self) -> str:
        """The report in Markdown; where it has none, as text in a block."""
        shown: str = import_module("hloscope.report.formats").in_notebook(self)
        return shown
