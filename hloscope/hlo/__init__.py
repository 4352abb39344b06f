"""HLO text and the module it describes. The only door to Lark for HLO; imports neither JAX nor networkx."""

from hloscope.hlo.collector import collector_paused
from hloscope.hlo.frames import Frame
from hloscope.hlo.instruction import HloInstruction
from hloscope.hlo.model import HloComputation, HloModule
from hloscope.hlo.parser import parse_module, parse_modules
from hloscope.hlo.replica_groups import ReplicaGroups
from hloscope.hlo.several import module_text
from hloscope.hlo.shape import Layout, Shape
from hloscope.hlo.sharding import Sharding

__all__ = [
    "Frame",
    "HloComputation",
    "HloInstruction",
    "HloModule",
    "Layout",
    "ReplicaGroups",
    "Shape",
    "Sharding",
    "collector_paused",
    "module_text",
    "parse_module",
    "parse_modules",
]
