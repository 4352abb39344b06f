"""The use cases, as Python functions and as what the command line calls. Joins the stages and owns no logic."""

from hloscope.api.analyzing import analyze, analyze_function, analyze_text, capture_target
from hloscope.api.build_analysis import analysis_of
from hloscope.api.pricing import price
from hloscope.api.verifying import verify, verify_functions

__all__ = [
    "analysis_of",
    "analyze",
    "analyze_function",
    "analyze_text",
    "capture_target",
    "price",
    "verify",
    "verify_functions",
]
