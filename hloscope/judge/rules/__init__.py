"""The built-in rules. A new one is one file and one line in `RULES`."""

from __future__ import annotations

from hloscope.judge.rule import Rule
from hloscope.judge.rules.all_reduce_then_slice import AllReduceThenSlice
from hloscope.judge.rules.collective_in_loop import CollectiveInLoop
from hloscope.judge.rules.collective_on_critical_path import CollectiveOnCriticalPath
from hloscope.judge.rules.duplicate_collective import DuplicateCollective
from hloscope.judge.rules.exposed_collective import ExposedCollective
from hloscope.judge.rules.hbm_exceeded import HbmExceeded
from hloscope.judge.rules.hbm_near_limit import HbmNearLimit
from hloscope.judge.rules.involuntary_rematerialization import InvoluntaryRematerialization
from hloscope.judge.rules.lost_batch import LostBatch
from hloscope.judge.rules.lost_sharding import LostSharding
from hloscope.judge.rules.model_parallel_over_dcn import ModelParallelOverDcn
from hloscope.judge.rules.opaque_communication import OpaqueCommunication
from hloscope.judge.rules.repeated_work import RepeatedMatmuls
from hloscope.judge.rules.replicated_large_array import ReplicatedLargeArray
from hloscope.judge.rules.resharding_ping_pong import ReshardingPingPong
from hloscope.judge.rules.small_collectives import SmallCollectives
from hloscope.judge.rules.uneven_sharding import UnevenSharding
from hloscope.judge.rules.unexpected_collective import UnexpectedCollective
from hloscope.judge.rules.unfused_all_to_all_as_all_gather import UnfusedAllToAllAsAllGather
from hloscope.judge.rules.unmodelled_text import UnmodelledText
from hloscope.judge.rules.unusable_donation import UnusableDonation
from hloscope.judge.rules.widened_collective import WidenedCollective
from hloscope.judge.rules.wrong_output import WrongOutput

RULES: tuple[Rule, ...] = (
    UnexpectedCollective(),
    HbmExceeded(),
    WrongOutput(),
    UnmodelledText(),
    OpaqueCommunication(),
    LostBatch(),
    RepeatedMatmuls(),
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
