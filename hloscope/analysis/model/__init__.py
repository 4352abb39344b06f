"""The facts about one compiled program: the `Analysis` and everything in it.

Field names are the names of the JSON document. A byte count, a time or an axis that is not known is None, never zero.
"""

from hloscope.analysis.model.collective import Collective, Mesh, SourceFrame
from hloscope.analysis.model.program import ArrayFact, Memory, SliceFact, Unmodelled
from hloscope.analysis.model.step_time import StepTime
from hloscope.analysis.model.totals import Total, Totals
from hloscope.analysis.model.whole import Analysis

__all__ = [
    "Analysis",
    "ArrayFact",
    "Collective",
    "Memory",
    "Mesh",
    "SliceFact",
    "SourceFrame",
    "StepTime",
    "Total",
    "Totals",
    "Unmodelled",
]
