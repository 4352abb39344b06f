"""The facts about one compiled program: the `Analysis` and everything in it.

Field names are the names of the JSON document. A byte count, a time or an axis that is not known is None, never zero.
"""

from hloscope.analysis.model.analysis import (
    Analysis,
    ArrayFact,
    BufferRole,
    IntermediateFact,
    Memory,
    MemoryPeak,
    PeakBuffer,
    SliceFact,
    Total,
    Totals,
    Unmodelled,
)
from hloscope.analysis.model.collective import (
    ArrayShape,
    AxisShift,
    Collective,
    CollectivePart,
    MovedValue,
    PermutePattern,
    Relation,
    bytes_bound,
    make_shapes,
)
from hloscope.analysis.model.collectives import Collectives
from hloscope.analysis.model.matmuls import Matmuls
from hloscope.analysis.model.part import ModelPart, Phase, Role
from hloscope.analysis.model.reason import (
    AskedBy,
    Frame,
    Operation,
    Reason,
    ReasonKind,
    Rematerialization,
    SharedReason,
    SourceFrame,
    Stack,
    Tensor,
)
from hloscope.analysis.model.step_time import RuleUse, Spread, StepTime, UnknownOperation
from hloscope.program.capture import Mesh

__all__ = [
    "Analysis",
    "ArrayFact",
    "ArrayShape",
    "AskedBy",
    "AxisShift",
    "BufferRole",
    "Collective",
    "CollectivePart",
    "Collectives",
    "Frame",
    "IntermediateFact",
    "Matmuls",
    "Memory",
    "MemoryPeak",
    "Mesh",
    "ModelPart",
    "MovedValue",
    "Operation",
    "PeakBuffer",
    "PermutePattern",
    "Phase",
    "Reason",
    "ReasonKind",
    "Relation",
    "Rematerialization",
    "Role",
    "RuleUse",
    "SharedReason",
    "SliceFact",
    "SourceFrame",
    "Spread",
    "Stack",
    "StepTime",
    "Tensor",
    "Total",
    "Totals",
    "UnknownOperation",
    "Unmodelled",
    "bytes_bound",
    "make_shapes",
]
