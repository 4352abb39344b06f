"""The built-in rules. A new one is one file and one line in `RULES`."""

from __future__ import annotations

from hloscope.rules.all_reduce_then_slice import AllReduceThenSlice
from hloscope.rules.collective_in_loop import CollectiveInLoop
from hloscope.rules.collective_on_critical_path import CollectiveOnCriticalPath
from hloscope.rules.duplicate_collective import DuplicateCollective
from hloscope.rules.exposed_collective import ExposedCollective
from hloscope.rules.hbm_exceeded import HbmExceeded
from hloscope.rules.hbm_near_limit import HbmNearLimit
from hloscope.rules.involuntary_rematerialization import InvoluntaryRematerialization
from hloscope.rules.lost_sharding import LostSharding
from hloscope.rules.model_parallel_over_dcn import ModelParallelOverDcn
from hloscope.rules.opaque_communication import OpaqueCommunication
from hloscope.rules.replicated_large_array import ReplicatedLargeArray
from hloscope.rules.resharding_ping_pong import ReshardingPingPong
from hloscope.rules.rule import Rule
from hloscope.rules.small_collectives import SmallCollectives
from hloscope.rules.uneven_sharding import UnevenSharding
from hloscope.rules.unexpected_collective import UnexpectedCollective
from hloscope.rules.unfused_all_to_all_as_all_gather import UnfusedAllToAllAsAllGather
from hloscope.rules.unmodelled_text import UnmodelledText
from hloscope.rules.unusable_donation import UnusableDonation
from hloscope.rules.widened_collective import WidenedCollective

RULES: tuple[Rule, ...] = (
    UnexpectedCollective(),
    HbmExceeded(),
    UnmodelledText(),
    OpaqueCommunication(),
    CollectiveInLoop(),
    ExposedCollective(),
    CollectiveOnCriticalPath(),
    AllReduceThenSlice(),
    ReshardingPingPong(),
    InvoluntaryRematerialization(),
    LostSharding(),
    UnfusedAllToAllAsAllGather(),
    WidenedCollective(),
    DuplicateCollective(),
    SmallCollectives(),
    ModelParallelOverDcn(),
    ReplicatedLargeArray(),
    UnevenSharding(),
    HbmNearLimit(),
    UnusableDonation(),
)
