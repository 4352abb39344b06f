"""Reasons for collectives: the program's own shardings are followed to every transfer in the compiled module.

An `Analysis` and what was captured beside it go in; the same analysis with a reason for each collective comes out.
"""

from hloscope.why.explanation import Explanation, explain
from hloscope.why.stage import explained, unexplained

__all__ = ["Explanation", "explain", "explained", "unexplained"]
