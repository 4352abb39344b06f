"""The predicted time of one step on a slice, and its breakdown."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, hypot, log
from typing import Protocol

from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief

_UNKNOWN_SHARE = 0.01
"""Share of the step: unknown operations that take less do not make its time doubtful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOperation:
    """Operations on the critical path whose time is unknown.

    They are assumed to run at memory bandwidth; for kernels only the time to write their results is counted.

    Attributes:
        what: Opcode, with the kind of a fusion or the target of a custom call.
        count: Executions per step.
        bytes: Bytes of their operands and results per step, with tile padding.
        time_us: Their share of the step, in microseconds.
    """

    what: str
    count: int
    bytes: int
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUse:
    """One rule of the cost model and its contribution to the step.

    Attributes:
        rule: Name of the rule, such as `cycles`, `pair` or `ring in one direction`.
        time_us: Microseconds of this step that it priced, including overlapped time.
        calibrated: Whether it was checked against measurements on this generation.
        measured_once: Whether its constant rests on a single measurement: one row, profile or step.
        error: Relative error of its times.
        more_us: How much longer the step is if all its times are too short by `error`, in microseconds.
        less_us: How much shorter the step is if they are too long by `error`, in microseconds.
    """

    rule: str
    time_us: float
    calibrated: bool
    measured_once: bool = False
    error: float = 0.0
    more_us: float = 0.0
    less_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The error of predictions on held-out measurements of a generation.

    Attributes:
        rows: Number of measurements.
        median: Median error factor, 1 or more.
        worst: Largest error factor.
    """

    rows: int
    median: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepTime(Brief):
    """The predicted time of one step on one device, in the steady state.

    Attributes:
        step_us: Time of the step: `compute_us` + `exposed_us`.
        least_us: Lower end of the step's range, from the errors of the rules that priced it.
        most_us: Upper end of that range.
        compute_us: Time in which the device computes or moves its own data.
        exposed_us: Time in which the device only waits for communication.
        hidden_us: Time of communication that overlaps with computation, at no cost.
        hbm_us: The memory-bound part of `compute_us`.
        first_step_us: Time of the first step, which also waits for data that later steps find prefetched.
        flops: FLOPs of the matmuls and convolutions on one device, counting a multiply-add as two.
        peak_flops_share: `flops` as a share of the device's peak over `step_us`: 8-bit types have their own peak if the
            chip multiplies them, all other types have that of bf16. None if the FLOPs of a kernel are unknown.
        basis: Basis of `compute_us`: `cycles` for the estimates in the compiler's schedule; `roofline` for FLOPs and
            bytes at the chip's peak, which no program reaches; `memory` if data is only moved; `none` if the device
            neither computes nor moves data.
        is_scheduled: Whether the HLO is scheduled; without a schedule, no overlap is assumed.
        roofline_us: The part of `compute_us` that is priced with a roofline.
        bound: Whether `step_us` is exact or a bound, apart from the error of the model.
        rules: The rules that priced the step, most time first.
        spread: Prediction error on this generation; None without measurements, or if a kernel is not priced.
        unknown_operations: Operations priced without knowing what they do, most time first.
        unpriced_kernels: Names of kernels whose cost is unknown, which makes `step_us` a lower bound.
        notes: Assumptions, one sentence each.
        calibrated: Rules in use that were checked against measurements on this generation.
        uncalibrated: Rules in use that were not.
    """

    step_us: float
    compute_us: float
    exposed_us: float
    hidden_us: float
    hbm_us: float = 0.0
    least_us: float = field(init=False, default=0.0)
    most_us: float = field(init=False, default=0.0)
    first_step_us: float = 0.0
    flops: int = 0
    peak_flops_share: float | None = None
    basis: str = "cycles"
    is_scheduled: bool = True
    roofline_us: float = 0.0
    bound: Bound = Bound.EXACT
    rules: tuple[RuleUse, ...] = ()
    spread: Spread | None = None
    unknown_operations: tuple[UnknownOperation, ...] = ()
    unpriced_kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calibrated: tuple[str, ...] = field(init=False, default=())
    uncalibrated: tuple[str, ...] = field(init=False, default=())

    @property
    def rests_on_unknown(self) -> bool:
        """True if 1% of the step or more was priced without knowing what the operations do."""
        unknown_us = sum(operation.time_us for operation in self.unknown_operations)
        return bool(self.unknown_operations) and unknown_us >= _UNKNOWN_SHARE * self.step_us

    @property
    def has_range(self) -> bool:
        """True if the step likely takes between `least_us` and `most_us`; False if a part of it is unknown."""
        is_whole = not self.unpriced_kernels and self.bound in (Bound.EXACT, Bound.AT_MOST)
        return is_whole and self.least_us < self.most_us

    def __post_init__(self) -> None:
        object.__setattr__(self, "least_us", max(self.step_us - hypot(*(use.less_us for use in self.rules)), 0.0))
        object.__setattr__(self, "most_us", self.step_us + hypot(*(use.more_us for use in self.rules)))
        object.__setattr__(self, "calibrated", tuple(use.rule for use in self.rules if use.calibrated))
        object.__setattr__(self, "uncalibrated", tuple(use.rule for use in self.rules if not use.calibrated))


class PricedStep(Protocol):
    """A predicted step time and the rules behind it."""

    @property
    def step_us(self) -> float | None:
        """Time of the step in microseconds."""

    @property
    def rules(self) -> tuple[RuleUse, ...]:
        """The rules that priced it."""


def ratio_range(after: PricedStep, before: PricedStep, *, same_generation: bool = True) -> tuple[float, float] | None:
    """Returns the range of the ratio of two step times, in which the errors of shared rules cancel.

    Args:
        after: The numerator.
        before: The denominator.
        same_generation: Whether both run on chips of one generation, so that the errors of their rules are the same.

    Returns:
        The lower and upper end; None if either step takes no time or is not priced.
    """
    if not after.step_us or not before.step_us:
        return None
    shares = [
        {use.rule: (use.more_us + use.less_us) / 2 / time_us for use in time.rules}
        for time, time_us in ((after, after.step_us), (before, before.step_us))
    ]
    pairs = [tuple(share.get(rule, 0.0) for share in shares) for rule in dict.fromkeys((*shares[0], *shares[1]))]
    half = hypot(*((one - other) if same_generation else hypot(one, other) for one, other in pairs))
    ratio = log(after.step_us / before.step_us)
    return exp(ratio - half), exp(ratio + half)


def is_tie(after: PricedStep, before: PricedStep, *, same_generation: bool = True) -> bool:
    """Returns whether it is undecided which of two steps is faster: the range of their ratio contains 1."""
    found = ratio_range(after, before, same_generation=same_generation)
    return found is not None and after.step_us != before.step_us and found[0] <= 1 <= found[1]
