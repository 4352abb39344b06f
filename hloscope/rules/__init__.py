"""Rules: what is worth telling about an analysis. A new rule is one file and one line in `RULES`."""

from __future__ import annotations

from hloscope.rules.hbm_near_limit import HbmNearLimit
from hloscope.rules.model_parallel_over_dcn import ModelParallelOverDcn
from hloscope.rules.opaque_communication import OpaqueCommunication
from hloscope.rules.replicated_large_array import ReplicatedLargeArray
from hloscope.rules.rule import Rule
from hloscope.rules.small_collectives import SmallCollectives
from hloscope.rules.unexpected_collective import UnexpectedCollective
from hloscope.rules.unmodelled_text import UnmodelledText

__all__ = ["RULES", "Rule"]

RULES: tuple[Rule, ...] = (
    UnexpectedCollective(),
    UnmodelledText(),
    OpaqueCommunication(),
    ReplicatedLargeArray(),
    ModelParallelOverDcn(),
    SmallCollectives(),
    HbmNearLimit(),
)
