"""The facts about one compiled program: the `Analysis` and everything in it.

Field names are the names of the JSON document. A byte count, a time or an axis that is not known is None, never zero.
"""

from hloscope.model.analysis import (
    Analysis,
    ArrayFact,
    IntermediateFact,
    Matmuls,
    Memory,
    SliceFact,
    Total,
    Totals,
    Unmodelled,
)
from hloscope.model.capture import Mesh
from hloscope.model.collectives import (
    ArrayShape,
    Collective,
    CollectivePart,
    Collectives,
    ModelPart,
    MovedValue,
    Phase,
    Role,
    bytes_bound,
    make_shapes,
)
from hloscope.model.reason import (
    ReasonKind,
    SourceFrame,
)
from hloscope.model.trial import StepTime

__all__ = [
    "Analysis",
    "ArrayFact",
    "ArrayShape",
    "Collective",
    "CollectivePart",
    "Collectives",
    "IntermediateFact",
    "Matmuls",
    "Memory",
    "Mesh",
    "ModelPart",
    "MovedValue",
    "Phase",
    "ReasonKind",
    "Role",
    "SliceFact",
    "SourceFrame",
    "StepTime",
    "Total",
    "Totals",
    "Unmodelled",
    "bytes_bound",
    "make_shapes",
]
