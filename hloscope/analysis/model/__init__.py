"""The facts about one compiled program: the `Analysis` and everything in it.

Field names are the names of the JSON document. A byte count, a time or an axis that is not known is None, never zero.
"""

from hloscope.analysis.model.collective import Collective, CollectivePart, Mesh
from hloscope.analysis.model.overlap import Overlap, Relation
from hloscope.analysis.model.permute import AxisShift, PermutePattern
from hloscope.analysis.model.program import ArrayFact, IntermediateFact, Memory, SliceFact, Unmodelled
from hloscope.analysis.model.reason import AskedBy, Operation, Reason, ReasonKind, Rematerialization, Tensor
from hloscope.analysis.model.source import SourceFrame
from hloscope.analysis.model.step_time import RuleUse, Spread, StepTime, UnknownOperation
from hloscope.analysis.model.totals import Total, Totals
from hloscope.analysis.model.whole import Analysis

__all__ = [
    "Analysis",
    "ArrayFact",
    "AskedBy",
    "AxisShift",
    "Collective",
    "CollectivePart",
    "IntermediateFact",
    "Memory",
    "Mesh",
    "Operation",
    "Overlap",
    "PermutePattern",
    "Reason",
    "ReasonKind",
    "Relation",
    "Rematerialization",
    "RuleUse",
    "SliceFact",
    "SourceFrame",
    "Spread",
    "StepTime",
    "Tensor",
    "Total",
    "Totals",
    "UnknownOperation",
    "Unmodelled",
]
