"""Reasons for collectives: follows the program's own shardings to every transfer in the compiled module.

The input is an `Analysis` with the other results of its compile; the output is the same analysis with a reason for each
collective.
"""

from hloscope.why.explanation import Explanation, explain_collectives
from hloscope.why.stage import explain_analysis, explain_from_text

__all__ = ["Explanation", "explain_analysis", "explain_collectives", "explain_from_text"]
