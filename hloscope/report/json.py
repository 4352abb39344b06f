"""The analysis as one JSON document; `hloscope/analysis/schema.json` describes it."""

from __future__ import annotations

import json

from hloscope.analysis.model import Analysis


def render(analysis: Analysis) -> str:
    """The document, indented, with keys in the order of the schema."""
    return json.dumps(analysis.to_dict(), indent=2, ensure_ascii=False)
