"""The analysis as one JSON document; `hloscope/analysis/schema.json` describes it."""

from __future__ import annotations

from hloscope.analysis.model import Analysis
from hloscope.report.escaping import dumped


def render(analysis: Analysis) -> str:
    """The document, indented, with keys in the order of the schema."""
    return dumped(analysis.to_dict())
